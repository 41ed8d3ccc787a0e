"""A cancelled connection leaves its loops behind.

As in agent-client-protocol 0.8.1: a connection has a loop that sends and one that dispatches, and `close()` stops
both. `run_agent` is cancelled while it listens, so nothing calls `close()`. The client, at the other end of a
socket, initializes, sends a prompt, and disconnects.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

from quiesce import acp
from quiesce.cli.tour.stage import Stage

THINKS_FOR, CLIENT_STAYS, WATCHED_FOR, STEP = 30.0, 0.5, 1.0, 0.1  # seconds

Agent = Callable[[str, dict[str, Any]], Awaitable[Any]]
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("initialize", {"protocolVersion": 1, "clientCapabilities": {}}),
    ("session/new", {"cwd": "/", "mcpServers": []}),
    ("session/prompt", {"sessionId": "one", "prompt": [{"type": "text", "text": "Think."}]}),
)


class Thinker:
    """What the agent does with a prompt: it thinks for a long time, and counts its thoughts."""

    def __init__(self, stage: Stage) -> None:
        self.thoughts = 0
        self._stage = stage

    async def think(self) -> None:
        with self._stage.lane("prompt handler"):
            for _ in range(int(THINKS_FOR / STEP)):
                await self._stage.rest(STEP)
                self.thoughts += 1


class Connection:
    def __init__(
        self, stage: Stage, agent: Agent, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._stage = stage
        self._agent = agent
        self._reader, self._writer = reader, writer
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._tasks = {
            asyncio.create_task(self._send(), name="send loop"),
            asyncio.create_task(self._dispatch(), name="dispatch loop"),
        }

    async def listen(self) -> None:
        while line := await self._reader.readline():
            await self._inbox.put(json.loads(line))

    async def _dispatch(self) -> None:
        with self._stage.lane("dispatch loop"):
            while True:
                message = await self._inbox.get()
                name = f"{message['method'].rpartition('/')[2]} handler"
                self._tasks.add(asyncio.create_task(self._answer(message), name=name))

    async def _answer(self, message: dict[str, Any]) -> None:
        result = await self._agent(message["method"], message["params"])
        await self._outbox.put({"jsonrpc": "2.0", "id": message["id"], "result": result})

    async def _send(self) -> None:
        with self._stage.lane("send loop"):
            while True:
                message = await self._outbox.get()
                self._writer.write(json.dumps(message).encode() + b"\n")
                await self._writer.drain()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def run_agent(
    stage: Stage, agent: Agent, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    connection = Connection(stage, agent, reader, writer)
    await connection.listen()


async def ordinary(stage: Stage) -> None:
    thinker = Thinker(stage)

    async def agent(method: str, params: dict[str, Any]) -> Any:
        if method == "session/prompt":
            await thinker.think()
        return {"protocolVersion": 1, "sessionId": "one", "stopReason": "end_turn"}

    async with client() as (client_asks, reader, writer):
        serving = asyncio.create_task(run_agent(stage, agent, reader, writer), name="run_agent")
        await client_asks(serving, stage)
        stage.control_is_back()
        del serving, agent
        await count_what_follows(stage, thinker)


async def with_quiesce(stage: Stage) -> None:
    thinker = Thinker(stage)

    class ThinkingAgent:
        async def initialize(self, protocol_version: int, **_: Any) -> acp.InitializeResponse:
            return acp.InitializeResponse(protocol_version=protocol_version)

        async def new_session(self, **_: Any) -> acp.NewSessionResponse:
            return acp.NewSessionResponse(session_id="one")

        async def prompt(self, **_: Any) -> acp.PromptResponse:
            await thinker.think()
            return acp.PromptResponse(stop_reason="end_turn")

    async with client() as (client_asks, reader, writer):
        connection = acp.AgentSideConnection(ThinkingAgent(), writer, reader)
        serving = asyncio.create_task(connection.listen(), name="run_agent")
        await client_asks(serving, stage, "connection")
        stage.control_is_back()
        stage.record_report(connection.report)
        await count_what_follows(stage, thinker)


class ClientAsks(Protocol):
    async def __call__(self, serving: asyncio.Task[None], stage: Stage, lane: str | None = None) -> None: ...


@asynccontextmanager
async def client() -> AsyncIterator[tuple[ClientAsks, asyncio.StreamReader, asyncio.StreamWriter]]:
    """The client's part, and the agent's end of the socket."""
    # The client has no task of its own, so that every task that is left is the agent's.
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=ours)
    loop = asyncio.get_running_loop()

    async def ask(serving: asyncio.Task[None], stage: Stage, lane: str | None = None) -> None:
        for number, (method, params) in enumerate(REQUESTS):
            if lane is not None and number == len(REQUESTS) - 1:
                stage.tasks(lane, but=serving)
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            await loop.sock_sendall(theirs, json.dumps(message).encode() + b"\n")
            if number < len(REQUESTS) - 1:
                await loop.sock_recv(theirs, 65536)
        await stage.rest(CLIENT_STAYS)
        # As a web server does when its client disconnects.
        serving.cancel()
        await asyncio.wait([serving])

    try:
        yield ask, reader, writer
    finally:
        writer.transport.abort()
        theirs.close()


async def count_what_follows(stage: Stage, thinker: Thinker) -> None:
    so_far = thinker.thoughts
    await stage.rest(WATCHED_FOR)
    gc.collect()
    stage.say(
        f"the handler had {thinker.thoughts - so_far} more thoughts, for a client that had disconnected"
    )
