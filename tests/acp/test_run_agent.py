"""`run_agent`, however it ends: nothing is left, every prompt was answered, and a cancellation is raised."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from quiesce import Grace
from quiesce.acp import AgentSideConnection, PromptResponse, run_agent
from quiesce.wire import ConnectionEnded, memory_pair
from tests.acp.pairs import (
    HELLO,
    AClient,
    AnAgent,
    Lines,
    Pause,
    agent_by_lines,
    connected,
    prompt,
    shielded_wait,
    turns,
)
from tests.acp.streams import stream_pair
from tests.kernel.temperaments import Stubborn, virtual_worlds
from tests.world import asyncio_only

CANCELLED = {"jsonrpc": "2.0", "id": 1, "result": {"stopReason": "cancelled"}}


class Served:
    """An agent that `run_agent` runs in a task, its client line by line, and how the task ended."""

    def __init__(self, agent: Any, **options: Any) -> None:
        one, other = memory_pair()
        self.lines = Lines(other)
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self.returned = False
        self._agent, self._way, self._options = agent, one, options

    async def run(self) -> None:
        try:
            with self.scope:
                await run_agent(self._agent, self._way, **self._options)
                self.returned = True
        finally:
            self.ended.set()


@asynccontextmanager
async def served(agent: Any, **options: Any) -> AsyncIterator[Served]:
    running = Served(agent, **options)
    async with anyio.create_task_group() as group:
        group.start_soon(running.run)
        yield running


class Patient(AnAgent):
    """An agent whose prompts stand still; what it makes of a cancel is up to its kind."""

    def __init__(self, kind: str = "plain") -> None:
        super().__init__()
        self.kind = kind
        self.pause = Pause()
        self.let_go = anyio.Event()

    async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
        try:
            await self.pause()
        except anyio.get_cancelled_exc_class():
            if self.kind == "answers":
                return PromptResponse(stop_reason="cancelled")
            if self.kind == "fails":
                raise LookupError("in the clean-up") from None
            if self.kind == "tells":
                with anyio.CancelScope(shield=True):
                    await self.say(session_id, "stopping")
            if self.kind == "slow":
                await shielded_wait(self.let_go)
            raise
        return PromptResponse(stop_reason="end_turn")


KINDS = ["plain", "answers", "fails", "tells"]


# Its ends -----------------------------------------------------------------------------------------------------------


async def test_it_returns_when_its_client_is_gone() -> None:
    async with served(AnAgent()) as running:
        await running.lines.send(prompt(1))
        await running.lines.answer(1)
        running.lines.hang_up()
    assert running.returned


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_that_goes_in_the_middle_of_a_turn_ends_that_too(kind: str) -> None:
    agent = Patient(kind)
    async with served(agent) as running:
        await running.lines.send(prompt(1))
        await agent.pause.reached.wait()
        running.lines.hang_up()
    assert running.returned
    assert agent.pause.ended[0] in ("CancelledError", "Cancelled")


@pytest.mark.parametrize("kind", KINDS)
async def test_cancelled_in_the_middle_of_a_turn_it_answers_and_the_cancel_goes_on(kind: str) -> None:
    """Handlers are cancelled, and have answered, before nothing more is sent."""
    agent = Patient(kind)
    async with served(agent) as running:
        await running.lines.send(prompt(1))
        await agent.pause.reached.wait()
        running.scope.cancel()
        rest = await running.lines.rest()
    assert running.scope.cancelled_caught
    assert not running.returned
    assert rest[-1] == CANCELLED
    assert [message.get("method") for message in rest[:-1]] == ["session/update"] * (kind == "tells")


@pytest.mark.parametrize("kind", KINDS)
async def test_out_of_time_it_answers_and_raises(kind: str) -> None:
    one, other = memory_pair()
    lines, agent = Lines(other), Patient(kind)
    await lines.send(prompt(1))
    with pytest.raises(TimeoutError):
        with anyio.fail_after(None) as limit:
            async with anyio.create_task_group() as group:

                async def run_out() -> None:
                    await agent.pause.reached.wait()
                    limit.deadline = anyio.current_time()

                group.start_soon(run_out)
                await run_agent(agent, one)
    assert (await lines.rest())[-1] == CANCELLED


@asyncio_only
async def test_a_second_cancel_does_not_detach_the_clean_up() -> None:
    one, other = memory_pair()
    lines, agent = Lines(other), Patient("slow")
    await lines.send(prompt(1))
    task = asyncio.create_task(run_agent(agent, one))
    await agent.pause.reached.wait()
    task.cancel()
    await turns()
    task.cancel()
    await turns()
    assert not task.done()  # it is still there, with the clean-up that it waits for
    agent.let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert await lines.rest() == [CANCELLED]


async def test_closed_from_inside_a_handler_it_returns() -> None:
    class Closing(AnAgent):
        async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
            await self.client.close()
            return PromptResponse(stop_reason="end_turn")

    async with served(Closing()) as running:
        await running.lines.send(prompt(1))
        rest = await running.lines.rest()
    assert running.returned
    assert rest == [CANCELLED]


async def test_a_request_that_comes_too_late_is_answered_or_not_but_never_begun() -> None:
    begun: list[str] = []

    class Closing(AnAgent):
        async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
            begun.append(session_id)
            await self.client.close()
            return PromptResponse(stop_reason="end_turn")

    async with served(Closing()) as running:
        await running.lines.send(prompt(1, "a"))
        await running.ended.wait()
        with pytest.raises(BrokenPipeError):
            await running.lines.send(prompt(2, "b"))
    assert begun == ["a"]


async def test_closing_ends_who_listens() -> None:
    one, other = memory_pair()
    connection = AgentSideConnection(AnAgent(), one, listening=False)
    async with anyio.create_task_group() as group:
        group.start_soon(connection.listen)
        await Lines(other).send(prompt(1))
        await Lines(other).answer(1)
        report = await connection.close()
    assert report.clean
    assert connection.closed


async def test_a_connection_that_has_ended_can_be_listened_to_and_closed_again() -> None:
    one, other = memory_pair()
    connection = AgentSideConnection(AnAgent(), one)
    other._channel.abort()
    assert (await connection.wait_closed()).clean
    await connection.listen()
    assert (await connection.close()).clean
    assert (await connection.close()).clean


async def test_one_that_listens_by_itself_stops_its_handlers_at_the_end_of_the_file() -> None:
    agent = Patient("answers")
    one, other = memory_pair()
    lines, connection = Lines(other), AgentSideConnection(agent, one)
    await lines.send(prompt(1))
    await agent.pause.reached.wait()
    lines.hang_up()
    report = await connection.wait_closed()
    assert report.clean
    assert agent.pause.ended[0] in ("CancelledError", "Cancelled")


# Those who do not do their part -------------------------------------------------------------------------------------


@virtual_worlds
async def test_a_handler_that_ignores_its_cancel_is_named_and_the_deadline_holds() -> None:
    stubborn, begun = Stubborn(), anyio.Event()

    async def ignores(session_id: str, **kwargs: Any) -> PromptResponse:
        begun.set()
        await stubborn()
        return PromptResponse(stop_reason="end_turn")

    async with agent_by_lines(AnAgent(prompt=ignores)) as (lines, connection):
        await lines.send(prompt(1))
        await begun.wait()
        start = anyio.current_time()
        report = await connection.close(deadline=2)
        assert anyio.current_time() - start == pytest.approx(2, abs=0.1)
        assert [(left.kind, left.name) for left in report.left] == [("task", "session/prompt")]
        assert "Stubborn" in str(report)
        stubborn.let_go()
        assert (await connection.close()).clean


@virtual_worlds
async def test_run_agent_with_such_a_handler_ends_within_its_grace(caplog: pytest.LogCaptureFixture) -> None:
    stubborn, begun = Stubborn(), anyio.Event()

    async def ignores(session_id: str, **kwargs: Any) -> PromptResponse:
        begun.set()
        await stubborn()
        return PromptResponse(stop_reason="end_turn")

    agent = AnAgent(prompt=ignores)
    grace = Grace(cancel=1, terminate=1, kill=1)
    async with served(agent, grace=grace) as running:
        await running.lines.send(prompt(1))
        await begun.wait()
        start = anyio.current_time()
        running.scope.cancel()
        await running.ended.wait()
        assert running.scope.cancelled_caught
        assert anyio.current_time() - start <= 3.1
        assert agent.client.report is not None
        assert not agent.client.report.clean
        stubborn.let_go()
        assert (await agent.client.close()).clean


@virtual_worlds
async def test_a_client_that_does_not_read_holds_up_no_close_for_ever() -> None:
    class Talkative(AnAgent):
        async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
            while True:
                await self.say(session_id, "x" * 100_000)

    async with agent_by_lines(Talkative()) as (lines, connection):
        await lines.send(prompt(1))
        while connection._peer.statistics().bytes_unsent < 1_000_000:
            await anyio.sleep(0.01)
        start = anyio.current_time()
        await connection.close(deadline=3)
        assert anyio.current_time() - start <= 3.1


@pytest.mark.parametrize("gone", ["the client", "we"])
async def test_who_sends_after_the_end_is_told_and_never_waits(gone: str) -> None:
    agent = AnAgent()
    async with agent_by_lines(agent) as (lines, connection):
        if gone == "we":
            await connection.close()
        else:
            lines.hang_up()
            await connection.wait_closed()
        for _ in range(2):
            with pytest.raises(ConnectionEnded, match="'session/update' cannot be sent: client is closed"):
                await agent.say("s", "anybody there?")
            with pytest.raises(ConnectionEnded, match="'session/request_permission' cannot be sent"):
                await agent.ask("s")


async def test_whoever_waits_for_an_answer_is_told_that_none_will_come() -> None:
    errors: list[str] = []
    agent = AnAgent()

    async def ask() -> None:
        try:
            await agent.ask("s")
        except ConnectionEnded as error:
            errors.append(str(error))

    async with agent_by_lines(agent) as (lines, connection), anyio.create_task_group() as group:
        group.start_soon(ask)
        await lines.receive()
        lines.hang_up()
        await connection.wait_closed()
    assert len(errors) == 1
    assert "'session/request_permission' was not answered" in errors[0]


@asyncio_only
async def test_a_broken_pipe_in_the_middle_of_a_turn_ends_it() -> None:
    """The other side goes without reading what it was sent."""
    talked: list[BaseException] = []

    class Talkative(AnAgent):
        async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
            try:
                while True:
                    await self.say(session_id, "x" * 10_000)
            except BaseException as error:
                talked.append(error)
                raise

    async with stream_pair() as ((reader, writer), (far_reader, far_writer)):
        running = asyncio.create_task(run_agent(Talkative(), writer, reader))
        far_writer.write(json.dumps({"jsonrpc": "2.0", **prompt(1)}).encode() + b"\n")
        await far_reader.readline()
        far_writer.transport.abort()
        await running
    assert isinstance(talked[0], asyncio.CancelledError | ConnectionError)


# What comes in ------------------------------------------------------------------------------------------------------


BAD = [
    b"[]",
    b"1",
    b'"text"',
    b"null",
    b"{",
    b"\xff\xfe",
    b'{"id":[],"result":{}}',
    b'{"id":{},"method":"initialize"}',
]


@pytest.mark.parametrize("line", BAD, ids=lambda line: repr(line)[2:-1])
async def test_one_bad_line_is_answered_and_the_connection_lives_on(line: bytes) -> None:
    agent = Patient()
    async with agent_by_lines(agent) as (lines, _):
        await lines.send(prompt(1))
        await agent.pause.reached.wait()
        await lines._channel.send(line + b"\n")
        if b'"result"' not in line:  # to what calls itself an answer there is none
            assert (await lines.receive())["error"]["code"] in (-32700, -32600)
        agent.pause.let_go()
        assert (await lines.receive())["result"] == {"stopReason": "end_turn"}


async def test_a_message_longer_than_the_limit_is_refused_and_the_next_is_taken() -> None:
    async with served(AnAgent(), stdio_buffer_limit_bytes=1000) as running:
        long = prompt(1)
        long["params"]["prompt"][0]["text"] = "x" * 5000
        await running.lines.send(long, prompt(2))
        found = await running.lines.until(lambda message: message.get("id") == 2)
        assert found[0]["error"]["code"] == -32600
        assert "longer than 1000 bytes" in found[0]["error"]["message"]
        running.lines.hang_up()


async def test_a_flood_of_notifications_to_a_stuck_handler_is_one_task() -> None:
    stuck = Pause()

    async def ext_notification(method: str, params: dict[str, Any]) -> None:
        await stuck()

    async with agent_by_lines(AnAgent(ext_notification=ext_notification)) as (lines, connection):
        for _ in range(20):
            await lines.send(*[{"method": "_tick", "params": {}}] * 50)
        await stuck.reached.wait()
        await turns()
        scope = connection._connection.lanes._scope
        assert scope is not None
        assert len(scope._opened().children) == 1
        assert connection._peer.statistics().notifications_waiting <= 1024 + 50


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ((None, 3), "pass a Transport"),
        ((object(),), "a peer is connected by a Transport"),
        (("a", "b"), "not str and str"),
    ],
)
async def test_what_is_no_stream_is_refused_with_what_would_be(given: Any, complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        await run_agent(AnAgent(), *given)


@asyncio_only
async def test_streams_the_wrong_way_round_are_named() -> None:
    async with stream_pair() as ((reader, writer), _):
        with pytest.raises(TypeError, match="the wrong way round"):
            await run_agent(AnAgent(), reader, writer)


async def test_an_agent_may_be_made_of_its_connection() -> None:
    made: list[AgentSideConnection] = []

    def make(connection: AgentSideConnection) -> AnAgent:
        made.append(connection)
        return AnAgent()

    async with served(make) as running:
        await running.lines.send(prompt(1))
        await running.lines.answer(1)
        running.lines.hang_up()
    assert isinstance(made[0], AgentSideConnection)


async def test_used_from_other_tasks_and_closed_by_a_third() -> None:
    agent = AnAgent()
    async with connected(agent, AClient()) as (agent_side, client_side):
        answers: list[str] = []

        async def prompts(session_id: str) -> None:
            answers.append((await client_side.prompt(session_id, HELLO)).stop_reason)

        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(prompts, f"s{number}")
        async with anyio.create_task_group() as group:
            group.start_soon(client_side.close)
            group.start_soon(agent_side.close)
    assert answers == ["end_turn"] * 5
