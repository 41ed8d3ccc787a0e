"""`run_agent` is cancelled while it listens, by a bridge that races it against a WebSocket: nothing is left of it.

The report that this is for (agent-client-protocol, #108) quotes what a leak looks like from outside: "Task was destroyed but it is pending",
"Send loop failed", "cannot reuse already awaited coroutine". And it names the trigger: a health checker that opens a connection every few
seconds, sends `initialize`, and closes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from quiesce.acp import AgentSideConnection, run_agent
from tests.acp.pairs import AnAgent
from tests.acp.streams import complaints, stream_pair
from tests.leaks import open_descriptors
from tests.world import asyncio_only

INITIALIZE = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}
QUOTED = (
    "Task was destroyed but it is pending",
    "Send loop failed",
    "cannot reuse already awaited coroutine",
)

pytestmark = asyncio_only


async def cancelled(agent: asyncio.Task[None]) -> None:
    agent.cancel()
    with pytest.raises(asyncio.CancelledError):
        await agent
    assert agent.cancelled()


async def cancelled_twice(agent: asyncio.Task[None]) -> None:
    agent.cancel()
    await asyncio.sleep(0)
    agent.cancel()
    with pytest.raises(asyncio.CancelledError):
        await agent
    assert agent.cancelled()


async def raced(agent: asyncio.Task[None]) -> None:
    """As the report's bridge does it."""
    peer = asyncio.create_task(asyncio.sleep(0))
    done, pending = await asyncio.wait({agent, peer}, return_when=asyncio.FIRST_COMPLETED)
    assert done == {peer}
    for task in pending:
        task.cancel()
    results = await asyncio.gather(*pending, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError]


@pytest.mark.parametrize("stop", [cancelled, cancelled_twice, raced], ids=lambda stop: stop.__name__)
@pytest.mark.parametrize("heard", [False, True], ids=["silent", "after initialize"])
async def test_cancelled_while_it_listens_it_leaves_nothing_for_the_collector(
    stop: Callable[[asyncio.Task[None]], Awaitable[None]], heard: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    before = asyncio.all_tasks()
    async with stream_pair() as ((reader, writer), (far_reader, far_writer)):
        with complaints() as told:
            agent = asyncio.create_task(run_agent(AnAgent(), writer, reader))
            if heard:
                far_writer.write(json.dumps(INITIALIZE).encode() + b"\n")
                await far_reader.readline()
            else:
                await asyncio.sleep(0)
            await stop(agent)
            assert await far_reader.read() == b""  # the other side sees the end
            assert asyncio.all_tasks() == before
            del agent
        assert told == []
    assert not any(line in caplog.text for line in QUOTED)


@pytest.mark.parametrize("nested", [1, 3])
async def test_in_a_timeout_it_times_out(nested: int, caplog: pytest.LogCaptureFixture) -> None:
    before = asyncio.all_tasks()
    async with stream_pair() as ((reader, writer), _):
        with complaints() as told:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    if nested > 1:
                        async with asyncio.timeout(60), asyncio.timeout(0.01):
                            await run_agent(AnAgent(), writer, reader)
                    await run_agent(AnAgent(), writer, reader)
                pytest.fail("the code behind it ran")
            assert asyncio.all_tasks() == before
        assert told == []
    assert not any(line in caplog.text for line in QUOTED)


async def test_a_connection_of_ones_own_is_closed_by_its_listen() -> None:
    """The report's workaround was written around a private `_conn.close()`. Neither is needed."""
    before = asyncio.all_tasks()
    async with stream_pair() as ((reader, writer), (far_reader, _)):
        connection = AgentSideConnection(AnAgent(), writer, reader, listening=False)
        listening = asyncio.create_task(connection.listen())
        await asyncio.sleep(0)
        listening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await listening
        assert connection.closed
        assert await far_reader.read() == b""
        assert asyncio.all_tasks() == before


# The bridge and its health checker ------------------------------------------------------------------------------


async def bridge(websocket: ServerConnection) -> None:
    """One WebSocket, one agent: as the report has it, with streams between them, and a race."""
    async with stream_pair() as ((reader, writer), (far_reader, far_writer)):

        async def to_agent() -> None:
            try:
                async for message in websocket:
                    far_writer.write(str(message).encode() + b"\n")
            except ConnectionClosed:
                pass

        async def from_agent() -> None:
            try:
                while line := await far_reader.readline():
                    await websocket.send(line.decode())
            except ConnectionClosed:
                pass

        tasks = [
            asyncio.create_task(run_agent(AnAgent(), writer, reader)),
            asyncio.create_task(to_agent()),
            asyncio.create_task(from_agent()),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.worlds("asyncio")
@pytest.mark.real_time
@pytest.mark.time_limit(60)
@pytest.mark.slow
async def test_a_thousand_health_checks_leave_nothing(caplog: pytest.LogCaptureFixture) -> None:
    checks = iter(range(1000))
    answered: list[int] = []

    async def check_health(port: int) -> None:
        for number in checks:
            async with connect(f"ws://127.0.0.1:{port}", compression=None, ping_interval=None) as websocket:
                await websocket.send(json.dumps({**INITIALIZE, "id": number}))
                if number % 2:  # the others drop it without having heard
                    answered.append(json.loads(await websocket.recv())["id"])
                websocket.transport.abort()

    caplog.set_level(logging.ERROR)
    before, descriptors = asyncio.all_tasks(), open_descriptors()
    with complaints() as told:
        async with serve(bridge, "127.0.0.1", 0, compression=None, ping_interval=None) as server:
            port: Any = server.sockets[0].getsockname()[1]
            async with asyncio.TaskGroup() as checkers:
                for _ in range(10):
                    checkers.create_task(check_health(port))
        gc.collect()
        assert asyncio.all_tasks() == before
    assert told == []
    assert sorted(answered) == list(range(1, 1000, 2))
    assert open_descriptors() == descriptors
    assert not any(line in caplog.text for line in QUOTED)
