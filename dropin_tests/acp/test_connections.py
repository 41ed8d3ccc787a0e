"""Connections that are stopped: their handlers have ended, and every request has its answer."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import acp.core
import pytest
from tests.world import asyncio_only

from quiesce import Grace, Scope, current_token
from quiesce.dropin.acp import RequestError, connect_to_agent, run_agent
from quiesce.dropin.acp.core import AgentSideConnection, ClientSideConnection, Connection

from .made_up import (
    Agent,
    Client,
    answers_its_cancel,
    close,
    linked,
    others,
    prompted,
    raw_peer,
    streams,
    until_cancelled,
)

pytestmark = [asyncio_only, pytest.mark.real_time, pytest.mark.time_limit(60)]

WORK = [until_cancelled, answers_its_cancel]
CALL: Any = {"toolCallId": "c"}


async def test_a_prompt_is_answered_as_with_the_sdk() -> None:
    async with linked(Agent(), Client()) as (agent_side, client_side):
        assert isinstance(agent_side, acp.core.AgentSideConnection)
        assert isinstance(client_side, acp.core.ClientSideConnection)
        assert (await client_side.initialize(protocol_version=1)).protocol_version == 1
        assert (await prompted(client_side)).stop_reason == "end_turn"
        assert client_side.report is None
    for side in (agent_side, client_side):
        assert side.report is not None
        assert side.report.clean
    assert others() == []


# run_agent


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("cancels", [1, 3])
async def test_a_cancelled_run_agent_is_cancelled_when_its_prompt_has_been_answered(
    work: Any, cancels: int
) -> None:
    async with raw_peer() as (ours, peer):
        running = asyncio.create_task(run_agent(agent := Agent(work), *ours))
        peer.prompt()
        await agent.began.wait()
        for _ in range(cancels):
            running.cancel()
            await asyncio.sleep(0.01)
        await asyncio.wait([running])
        assert running.cancelled()
        assert agent.cleaned_up
        assert others() == []
        assert await peer.receive() == {"jsonrpc": "2.0", "id": 1, "result": {"stopReason": "cancelled"}}


async def test_a_timeout_around_run_agent_is_raised() -> None:
    async with raw_peer() as (ours, _):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await run_agent(Agent(), *ours)
        assert others() == []


async def test_run_agent_returns_at_the_end_of_its_input_and_stops_its_handlers() -> None:
    async with raw_peer() as (ours, peer):
        running = asyncio.create_task(run_agent(agent := Agent(answers_its_cancel), *ours))
        peer.prompt()
        await agent.began.wait()
        peer.writer.write_eof()
        await running
        assert agent.cleaned_up
        assert others() == []


async def test_a_connection_is_closed_at_the_end_of_the_block_around_it() -> None:
    async with raw_peer() as (ours, _):
        async with Scope():
            connection = connect_to_agent(Client(), *ours)
        assert connection.report is not None
        assert connection.report.clean
        assert others() == []


async def test_run_agent_is_stopped_by_the_scope_around_it() -> None:
    async with raw_peer() as (ours, peer):
        async with Scope() as scope:
            scope.spawn(run_agent, agent := Agent(answers_its_cancel), *ours)
            peer.prompt()
            await agent.began.wait()
            assert (await scope.close()).clean
        assert agent.cleaned_up
        assert others() == []


async def test_run_agent_returns_when_a_handler_closes_its_connection() -> None:
    async def work(agent: Agent) -> None:
        await agent.conn.close()
        await until_cancelled(agent)

    async with raw_peer() as (ours, peer):
        running = asyncio.create_task(run_agent(agent := Agent(work), *ours))
        peer.prompt()
        await running
        assert agent.cleaned_up
        assert (await peer.receive())["result"] == {"stopReason": "cancelled"}
        assert others() == []


# close()


@pytest.mark.parametrize("work", WORK)
async def test_close_waits_for_handlers_and_answers_their_requests(work: Any) -> None:
    async with linked(agent := Agent(work), Client()) as (agent_side, client_side):
        prompt = prompted(client_side)
        await agent.began.wait()
        report = await agent_side.close()
        assert report.clean
        assert agent.cleaned_up
        assert (await prompt).stop_reason == "cancelled"


async def test_a_handler_that_is_stopped_can_ask_its_peer_while_it_cleans_up() -> None:
    async def work(agent: Agent) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await agent.conn.release_terminal(session_id="one", terminal_id="t")

    async with linked(agent := Agent(work), client := Client()) as (agent_side, client_side):
        prompt = prompted(client_side)
        await agent.began.wait()
        assert (await agent_side.close()).clean
        assert client.released == ["t"]
        assert (await prompt).stop_reason == "cancelled"


async def test_a_request_that_comes_during_the_stop_is_refused() -> None:
    async with raw_peer() as (ours, peer):
        connection = AgentSideConnection(agent := Agent(until_cancelled), *ours)
        peer.prompt(1)
        await agent.began.wait()
        closing = asyncio.create_task(connection.close())
        await asyncio.sleep(0.02)
        peer.prompt(2)
        await closing
        answers = {answer["id"]: answer for answer in (await peer.receive(), await peer.receive())}
        assert answers[1]["result"] == {"stopReason": "cancelled"}
        assert "being closed" in answers[2]["error"]["data"]["details"]


async def test_close_from_any_task_any_number_of_times() -> None:
    async with linked(agent := Agent(until_cancelled), Client()) as (agent_side, client_side):
        prompt = prompted(client_side)
        await agent.began.wait()
        closers = [asyncio.create_task(agent_side.close()) for _ in range(3)]
        assert all(report.clean for report in await asyncio.gather(*closers))
        assert (await agent_side.close()).clean
        await prompt


async def test_a_closer_that_is_cancelled_gets_its_cancel_when_the_connection_has_ended() -> None:
    async with linked(agent := Agent(until_cancelled), Client()) as (agent_side, client_side):
        prompt = prompted(client_side)
        await agent.began.wait()
        closing = asyncio.create_task(agent_side.close())
        for _ in range(3):
            await asyncio.sleep(0.005)
            closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        assert agent.cleaned_up
        await prompt


async def test_a_peer_that_does_not_read_cannot_hold_up_the_stop_for_longer_than_its_grace() -> None:
    async def flood(agent: Agent) -> None:
        for _ in range(100):
            await agent.conn.ext_notification("flood", {"text": "x" * 1_000_000})

    async with raw_peer() as (ours, peer):
        connection = AgentSideConnection(agent := Agent(flood), *ours)
        peer.prompt()
        await agent.began.wait()
        await asyncio.sleep(0.1)
        started = time.monotonic()
        report = await connection.close(grace=Grace(cancel=0.3, terminate=0.3, kill=0))
        assert time.monotonic() - started < 2
        assert report.clean
        assert others() == []
        ours[0].transport.abort()


async def test_tasks_and_threads_of_handlers_end_with_the_connection() -> None:
    def tool() -> None:
        token = current_token()
        while not token.cancelled:
            time.sleep(0.01)
        in_thread.append("cancelled")

    async def work(agent: Agent) -> None:
        background.append(asyncio.create_task(until_cancelled(agent)))
        await asyncio.to_thread(tool)

    in_thread: list[str] = []
    background: list[asyncio.Task[None]] = []
    async with linked(agent := Agent(work), Client()) as (agent_side, client_side):
        prompt = prompted(client_side)
        await agent.began.wait()
        await asyncio.sleep(0.05)
        report = await agent_side.close()
        assert report.clean
        assert in_thread == ["cancelled"]
        assert background[0].cancelled()
        assert agent.cleaned_up
        await prompt


async def test_a_connection_that_is_closed_refuses_calls() -> None:
    async with linked(Agent(), Client()) as (_, client_side):
        await client_side.close()
        for call in (client_side.initialize(protocol_version=1), client_side.cancel("one")):
            with pytest.raises(ConnectionError):
                await call
        with pytest.raises(ConnectionError):
            await prompted(client_side)


async def test_a_block_closes_it() -> None:
    ours, theirs = await streams()
    async with connect_to_agent(Client(), *ours) as client_side:
        assert isinstance(client_side, ClientSideConnection)
    assert client_side.report is not None
    assert client_side.report.clean
    await close(ours[0], theirs[0])


async def test_the_scope_that_it_was_opened_in_stops_it() -> None:
    agents_end, clients_end = await streams()
    async with Scope() as scope:
        agent_side = AgentSideConnection(agent := Agent(answers_its_cancel), *agents_end)
        client_side = ClientSideConnection(Client(), *clients_end)
        prompt = prompted(client_side)
        await agent.began.wait()
        assert (await scope.close()).clean
    assert agent.cleaned_up
    for side in (agent_side, client_side):
        assert side.report is not None
        assert side.report.clean
    await asyncio.wait([prompt])
    assert others() == []
    await close(agents_end[0], clients_end[0])


def test_the_end_of_the_event_loop_is_not_held_up_by_a_handler_that_answers() -> None:
    async def main() -> None:
        async with raw_peer() as (ours, peer):
            AgentSideConnection(agent := Agent(answers_its_cancel), *ours)
            agents.append(agent)
            peer.prompt()
            await agent.began.wait()

    agents: list[Agent] = []
    started = time.monotonic()
    asyncio.run(main())
    assert agents[0].cleaned_up
    assert time.monotonic() - started < 6


# Calls that are cancelled


async def test_a_cancelled_prompt_has_ended_at_the_agent() -> None:
    async with linked(agent := Agent(until_cancelled), Client()) as (_, client_side):
        prompt = prompted(client_side)
        await agent.began.wait()
        prompt.cancel()
        await asyncio.wait([prompt])
        assert prompt.cancelled()
        assert agent.cancelled == ["one"]
        assert agent.cleaned_up


async def test_an_agent_that_does_not_answer_a_cancel_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async with raw_peer() as (ours, peer):
        async with connect_to_agent(Client(), *ours) as client_side:
            async with Scope(grace=Grace(cancel=0.1, terminate=0.1, kill=0)):
                with caplog.at_level(logging.WARNING), pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await client_side.prompt(session_id="one", prompt=[])
            assert (await peer.receive())["method"] == "session/prompt"
            assert (await peer.receive())["method"] == "session/cancel"
            assert (await peer.receive())["method"] == "$/cancel_request"
        assert "prompt one" in caplog.text
        assert others() == []


async def test_a_cancelled_prompt_answers_the_question_that_the_agent_waits_for() -> None:
    async def ask(agent: Agent) -> str:
        answer = await agent.conn.request_permission(session_id="one", tool_call=CALL, options=[])
        return "end_turn" if answer.outcome.outcome == "selected" else "cancelled"

    async with linked(Agent(ask), client := Client(decide=lambda: asyncio.sleep(3600))) as (_, client_side):
        prompt = prompted(client_side)
        await client.asked.wait()
        started = time.monotonic()
        prompt.cancel()
        await asyncio.wait([prompt])
        assert prompt.cancelled()
        assert time.monotonic() - started < 1


async def test_a_request_that_is_cancelled_is_cancelled_at_the_peer() -> None:
    async def ask(agent: Agent) -> None:
        try:
            async with asyncio.timeout(0.1):
                await agent.conn.request_permission(session_id="one", tool_call=CALL, options=[])
        except TimeoutError:
            agent.cleaned_up = True

    async def decide() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            decided.append("cancelled")
            raise

    decided: list[str] = []
    async with linked(agent := Agent(ask), Client(decide)) as (_, client_side):
        assert (await prompted(client_side)).stop_reason == "end_turn"
        await asyncio.sleep(0.02)
        assert agent.cleaned_up
        assert decided == ["cancelled"]


async def test_a_request_that_the_peer_cancels_is_answered_so() -> None:
    async def handler(method: str, params: Any, is_notification: bool) -> Any:
        began.set()
        await asyncio.sleep(3600)

    began = asyncio.Event()
    async with raw_peer() as (ours, peer), Connection(handler, *ours):
        peer.send(id="one", method="x/wait")
        await began.wait()
        peer.send(method="$/cancel_request", params={"requestId": "one"})
        answer = await peer.receive()
        assert answer["id"] == "one"
        assert answer["error"]["code"] == -32800


async def test_a_prompt_under_way_when_the_client_closes_returns_cancelled() -> None:
    async with linked(agent := Agent(answers_its_cancel), Client()) as (_, client_side):
        prompt = prompted(client_side)
        await agent.began.wait()
        assert (await client_side.close()).clean
        assert (await prompt).stop_reason == "cancelled"
        assert agent.cleaned_up


async def test_a_prompt_whose_agent_is_lost_raises_what_the_sdk_raises() -> None:
    async with raw_peer() as (ours, peer):
        client_side = connect_to_agent(Client(), *ours)
        prompt = prompted(client_side)
        await peer.receive()
        peer.writer.write_eof()
        with pytest.raises(ConnectionError):
            await prompt
        await client_side.close()


async def test_a_call_under_way_when_the_connection_closes_raises() -> None:
    async with raw_peer() as (ours, peer):
        client_side = connect_to_agent(Client(), *ours)
        call = asyncio.create_task(client_side.new_session(cwd="/", mcp_servers=[]))
        await peer.receive()
        await client_side.close()
        with pytest.raises(ConnectionError):
            await call


async def test_an_error_of_the_peer_is_the_sdks() -> None:
    async def fail(agent: Agent) -> None:
        raise RequestError.auth_required()

    async with linked(Agent(fail), Client()) as (_, client_side):
        with pytest.raises(acp.RequestError) as caught:
            await prompted(client_side)
    assert caught.value.code == -32000
