"""Turns: however a prompt is stopped, it is one path, it is answered `cancelled`, and what it was waiting for is settled."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from quiesce import Grace, current_token
from quiesce.acp import ClientSideConnection, PromptResponse, RequestError
from quiesce.acp.schema import (
    CloseSessionResponse,
    DeleteSessionResponse,
    RequestPermissionResponse,
    ToolCallUpdate,
)
from quiesce.wire import Limits, RequestCancelled, RpcError, memory_pair
from tests.acp.pairs import (
    HELLO,
    AClient,
    AnAgent,
    Lines,
    Pause,
    agent_by_lines,
    cancel,
    client_by_lines,
    in_session,
    prompt,
    shielded_wait,
    turns,
)

CANCELLED = {"stopReason": "cancelled"}


class Busy(AnAgent):
    """An agent whose prompts stand still."""

    def __init__(self, **handlers: Any) -> None:
        super().__init__(**handlers)
        self.pause = Pause()
        self.reasons: list[str] = []

    async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
        token = current_token()
        try:
            await self.pause()
        finally:
            self.reasons.append(str(token.reason))
        return PromptResponse(stop_reason="end_turn")

    async def close_session(self, session_id: str, **kwargs: Any) -> CloseSessionResponse:
        return CloseSessionResponse()

    async def delete_session(self, session_id: str, **kwargs: Any) -> DeleteSessionResponse:
        return DeleteSessionResponse()


def request(number: int, method: str, **params: Any) -> dict[str, Any]:
    return {"id": number, "method": method, "params": params}


# Every way to stop one ------------------------------------------------------------------------------------------


WAYS = {
    "session/cancel": cancel(),
    "session/close": request(2, "session/close", sessionId="s"),
    "session/delete": request(2, "session/delete", sessionId="s"),
    "$/cancel_request": {"method": "$/cancel_request", "params": {"requestId": 1}},
}


@pytest.mark.parametrize("way", WAYS)
async def test_whoever_asks_for_its_end_the_prompt_is_answered_cancelled(way: str) -> None:
    agent = Busy()
    async with agent_by_lines(agent) as (lines, _):
        await lines.send(prompt(1))
        await agent.pause.reached.wait()
        await lines.send(WAYS[way])
        assert (await lines.receive())["result"] == CANCELLED
        if "id" in WAYS[way]:
            assert (await lines.answer(2))["result"] == {}
        await turns()
    assert agent.pause.ended[0] in ("CancelledError", "Cancelled")
    assert agent.cancels == ["s"]
    reason = {"$/cancel_request": "user: the peer has cancelled the request"}.get(way, f"user: {way}")
    assert agent.reasons == [reason]


async def test_closing_answers_the_prompt_before_the_end_of_the_stream() -> None:
    agent = Busy()
    async with agent_by_lines(agent) as (lines, connection):
        await lines.send(prompt(1))
        await agent.pause.reached.wait()
        report = await connection.close()
        assert await lines.rest() == [{"jsonrpc": "2.0", "id": 1, "result": CANCELLED}]
    assert report.clean
    assert agent.reasons == ["user: closed"]
    assert agent.cancels == ["s"]


async def test_the_end_of_the_client_ends_its_turns() -> None:
    agent = Busy()
    async with agent_by_lines(agent) as (lines, connection):
        await lines.send(prompt(1))
        await agent.pause.reached.wait()
        lines.hang_up()
        report = await connection.wait_closed()
    assert report.clean
    assert agent.reasons[0].startswith("disconnect")
    assert agent.cancels == ["s"]


async def test_a_turn_that_asks_a_client_who_has_just_gone_is_not_answered_with_an_error() -> None:
    class Asks(AnAgent):
        async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
            begun.set()
            while connection._connection.sender.ended is None:
                await anyio.lowlevel.checkpoint()
            await self.client.request_permission(session_id, ToolCallUpdate(tool_call_id="1"), [])
            raise AssertionError("nobody was there to allow it")

    begun, said = anyio.Event(), list[Any]()
    async with agent_by_lines(
        Asks(), observers=[lambda event: said.append((event.direction, event.message))]
    ) as (lines, connection):
        await lines.send(prompt(1))
        await begun.wait()
        lines.hang_up()
        assert (await connection.wait_closed()).clean
    assert [message["result"] for direction, message in said if direction == "outgoing"] == [CANCELLED]


@pytest.mark.parametrize("way", [*WAYS, "close"])
async def test_the_agents_own_cancel_is_called_once_and_to_its_end_though_the_connection_ends(
    way: str,
) -> None:
    called: list[str] = []

    async def cancelled(session_id: str, **kwargs: Any) -> None:
        called.append("begun")
        await anyio.sleep(0.5)
        called.append("done")

    agent = Busy(cancel=cancelled)
    async with agent_by_lines(agent) as (lines, connection):
        await lines.send(prompt(1))
        await agent.pause.reached.wait()
        if way != "close":
            await lines.send(WAYS[way])
            while not called:
                await anyio.sleep(0.01)
        report = await connection.close()
    assert report.clean
    assert called == ["begun", "done"]


@pytest.mark.parametrize("way", WAYS)
async def test_what_the_turn_waits_for_is_settled_whoever_waits(way: str) -> None:
    """In the handler's own task, which is cancelled, and in tasks that it has started, which are not."""
    settled: list[str] = []
    started = anyio.Event()

    async def ask_for_permission(agent: AnAgent) -> None:
        with anyio.CancelScope(shield=True):  # its own master
            response = await agent.ask("s")
        settled.append(f"permission {response.outcome.outcome}")

    async def wait_for_a_terminal(agent: AnAgent) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await agent.client.wait_for_terminal_exit("s", "terminal-1")
            except RequestCancelled:
                settled.append("terminal cancelled")

    class Asking(Busy):
        async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
            async with anyio.create_task_group() as group:
                group.start_soon(ask_for_permission, self)
                group.start_soon(wait_for_a_terminal, self)
                started.set()
                await self.ask(session_id, "call-2")
            raise AssertionError("nobody has answered")

    async with agent_by_lines(Asking()) as (lines, _):
        await lines.send(prompt(1))
        asked = [await lines.receive() for _ in range(3)]
        await lines.send(WAYS[way])
        found = await lines.until(lambda message: message.get("id") == 1 and "result" in message)
        assert found[-1]["result"] == CANCELLED
        told = {m["params"]["requestId"] for m in found if m.get("method") == "$/cancel_request"}
        assert told == {message["id"] for message in asked}
        if "id" in WAYS[way]:
            await lines.answer(2)
    assert sorted(settled) == ["permission cancelled", "terminal cancelled"]


async def test_a_handler_that_waits_for_an_answer_is_cancelled_like_any_other() -> None:
    class Asking(Busy):
        async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
            try:
                await self.client.wait_for_terminal_exit(session_id, "terminal-1")
            except RequestError:
                self.reasons.append("took it for an error of the client")
            except anyio.get_cancelled_exc_class():
                self.reasons.append("cancelled")
                raise
            raise AssertionError

    agent = Asking()
    async with agent_by_lines(agent) as (lines, _):
        await lines.send(prompt(1))
        await lines.receive()
        await lines.send(cancel())
        assert (await lines.answer(1))["result"] == CANCELLED
    assert agent.reasons == ["cancelled"]


async def test_the_calls_of_a_clean_up_are_answered() -> None:
    """What is asked after the cancel is not swept away with what was asked before."""

    class Tidy(Busy):
        async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
            try:
                await self.client.wait_for_terminal_exit(session_id, "terminal-1")
            finally:
                with anyio.CancelScope(shield=True):
                    await self.client.release_terminal(session_id, "terminal-1")
                    released.append(session_id)
            raise AssertionError

    released: list[str] = []
    async with agent_by_lines(Tidy()) as (lines, _):
        await lines.send(prompt(1))
        await lines.receive()
        await lines.send(cancel())
        release = (await lines.until(lambda message: message.get("method") == "terminal/release"))[-1]
        await lines.send({"id": release["id"], "result": {}})
        assert (await lines.answer(1))["result"] == CANCELLED
    assert released == ["s"]


async def test_the_agents_own_cancel_may_ask_and_may_wait_for_the_turn() -> None:
    class Killing(Busy):
        def __init__(self) -> None:
            super().__init__()
            self.is_over = anyio.Event()

        async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
            try:
                await self.client.wait_for_terminal_exit(session_id, "terminal-1")
            finally:
                with anyio.CancelScope(shield=True):
                    await self.client.terminal_output(session_id, "terminal-1")
                self.is_over.set()
            raise AssertionError

        async def cancel(self, session_id: str, **kwargs: Any) -> None:
            await self.client.kill_terminal(session_id, "terminal-1")
            await self.is_over.wait()
            self.cancels.append(session_id)

    agent = Killing()
    async with agent_by_lines(agent) as (lines, _):
        await lines.send(prompt(1))
        await lines.receive()
        await lines.send(cancel())
        asked: list[str] = []
        while len(asked) < 2:
            message = await lines.receive()
            if "method" in message and "id" in message:
                asked.append(message["method"])
                result = {"output": "", "truncated": False} if message["method"] == "terminal/output" else {}
                await lines.send({"id": message["id"], "result": result})
        assert (await lines.answer(1))["result"] == CANCELLED
        while not agent.cancels:
            await anyio.sleep(0)
    assert sorted(asked) == ["terminal/kill", "terminal/output"]


# What handlers make of it -----------------------------------------------------------------------------------------


async def test_a_handler_may_catch_its_cancel_and_say_so_itself() -> None:
    class Polite(Busy):
        async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
            try:
                await self.pause()
            except anyio.get_cancelled_exc_class():
                return PromptResponse(stop_reason="cancelled", field_meta={"said": "by itself"})
            raise AssertionError

    agent = Polite()
    async with agent_by_lines(agent) as (lines, _):
        await lines.send(prompt(1))
        await agent.pause.reached.wait()
        await lines.send(cancel())
        assert (await lines.answer(1))["result"] == {**CANCELLED, "_meta": {"said": "by itself"}}


@pytest.mark.parametrize(
    "returned",
    [
        PromptResponse(stop_reason="end_turn", field_meta={"kept": True}),
        {"stopReason": "end_turn", "_meta": {"kept": True}},
        None,
        "nonsense",
    ],
    ids=["a response", "a dict", "nothing", "nonsense"],
)
async def test_whatever_it_returns_after_its_cancel_the_answer_is_cancelled(returned: Any) -> None:
    class Late(Busy):
        async def prompt(self, session_id: str, **kwargs: Any) -> Any:
            try:
                await self.pause()
            except anyio.get_cancelled_exc_class():
                return returned

    agent = Late()
    async with agent_by_lines(agent) as (lines, _):
        await lines.send(prompt(1))
        await agent.pause.reached.wait()
        await lines.send(cancel())
        result = (await lines.answer(1))["result"]
    assert result["stopReason"] == "cancelled"
    if isinstance(returned, PromptResponse | dict):
        assert result["_meta"] == {"kept": True}
    if isinstance(returned, PromptResponse):
        assert returned.stop_reason == "end_turn"  # the handler's own object is left as it was


class Failing(Busy):
    async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
        try:
            await self.pause()
        finally:
            raise LookupError("in the clean-up")


class FailingInAGroup(Busy):
    async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
        async with anyio.create_task_group() as group:
            group.start_soon(self._fail)
            await self.pause()
        raise AssertionError

    async def _fail(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise LookupError("in the clean-up")


@pytest.mark.parametrize("kind", [Failing, FailingInAGroup])
async def test_a_clean_up_that_fails_does_not_make_an_error_of_it(kind: type[Busy]) -> None:
    agent = kind()
    async with agent_by_lines(agent) as (lines, _):
        await lines.send(prompt(1))
        await agent.pause.reached.wait()
        await turns()
        await lines.send(cancel())
        assert (await lines.answer(1))["result"] == CANCELLED


async def test_an_error_without_a_cancel_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(session_id: str, **kwargs: Any) -> PromptResponse:
        raise LookupError("no such model")

    async with agent_by_lines(AnAgent(prompt=fails)) as (lines, _):
        await lines.send(prompt(1))
        error = (await lines.answer(1))["error"]
    assert error["code"] == -32603
    assert "no such model" in error["data"]["details"]
    assert "no such model" in caplog.text


async def test_an_agents_cancel_that_fails_is_logged_and_the_turn_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails(session_id: str, **kwargs: Any) -> None:
        raise LookupError("who is that?")

    agent = Busy(cancel=fails)
    async with agent_by_lines(agent) as (lines, _):
        await lines.send(prompt(1))
        await agent.pause.reached.wait()
        await lines.send(cancel())
        assert (await lines.answer(1))["result"] == CANCELLED
        agent.pause = Pause()
        await lines.send(prompt(2))
        await agent.pause.reached.wait()
        agent.pause.let_go()
        assert (await lines.answer(2))["result"] == {"stopReason": "end_turn"}
    assert "who is that?" in caplog.text


async def test_an_agents_cancel_that_never_returns_does_not_keep_the_session(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hanging = Pause()

    async def hangs(session_id: str, **kwargs: Any) -> None:
        await hanging()

    agent = Busy(cancel=hangs)
    async with agent_by_lines(agent, grace=Grace(cancel=0.2)) as (lines, _):
        await lines.send(prompt(1))
        await agent.pause.reached.wait()
        await lines.send(cancel())
        assert (await lines.answer(1))["result"] == CANCELLED
        agent.pause = Pause()
        agent.pause.let_go()
        await lines.send(prompt(2))
        assert (await lines.answer(2))["result"] == {"stopReason": "end_turn"}
    assert hanging.ended[0] in ("CancelledError", "Cancelled")
    assert "the agent's own cancel of 's' failed" in caplog.text
    assert "longer than 0.2 s" in caplog.text


async def test_an_agent_without_a_cancel_of_its_own_is_cancelled_all_the_same() -> None:
    agent = Busy()
    agent.cancel = None  # type: ignore[assignment, method-assign]
    async with agent_by_lines(agent) as (lines, _):
        await lines.send(prompt(1))
        await agent.pause.reached.wait()
        await lines.send(cancel())
        assert (await lines.answer(1))["result"] == CANCELLED


async def test_the_agents_cancel_is_told_what_meta_says() -> None:
    notes: list[dict[str, Any]] = []

    async def cancel_of_agent(session_id: str, **kwargs: Any) -> None:
        notes.append({"session_id": session_id, **kwargs})

    agent = Busy(cancel=cancel_of_agent)
    async with agent_by_lines(agent) as (lines, _):
        await lines.send(prompt(1))
        await agent.pause.reached.wait()
        note = cancel()
        note["params"]["_meta"] = {"why": "bored", "session_id": "spoofed"}
        await lines.send(note)
        await lines.answer(1)
        while not notes:
            await anyio.sleep(0)
    assert notes == [{"session_id": "s", "why": "bored"}]


# Where there is no turn ---------------------------------------------------------------------------------------------


async def test_an_idle_cancel_is_nothing_and_the_next_prompt_is_fine() -> None:
    agent = AnAgent()
    async with agent_by_lines(agent) as (lines, _):
        await lines.send(cancel())
        await lines.send(cancel(), prompt(1))
        assert (await lines.answer(1))["result"] == {"stopReason": "end_turn"}
        await lines.send(cancel())
        await lines.send(prompt(2))
        assert (await lines.answer(2))["result"] == {"stopReason": "end_turn"}
    assert agent.cancels == []


async def test_a_cancel_in_the_same_chunk_stops_a_prompt_that_has_not_begun() -> None:
    began: list[str] = []

    async def prompts(session_id: str, **kwargs: Any) -> PromptResponse:
        began.append(session_id)
        await anyio.sleep_forever()
        raise AssertionError

    agent = AnAgent(prompt=prompts)
    async with agent_by_lines(agent) as (lines, _):
        await lines.send(prompt(1), cancel())
        assert (await lines.answer(1))["result"] == CANCELLED
        await turns()
    # Eager tasks begin at once. Whoever has not begun has nothing to cancel either.
    assert agent.cancels == began


async def test_a_cancel_is_for_what_came_before_it() -> None:
    """Stop and send: the prompt behind the cancel waits for the end of the one before, and runs."""
    first, log = Pause(), []
    tidied = anyio.Event()

    class Slow(AnAgent):
        async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
            if not first.reached.is_set():
                try:
                    await first()
                finally:
                    await shielded_wait(tidied)
                    log.append("the first is over")
            log.append("the second begins")
            await self.say(session_id, "second")
            return PromptResponse(stop_reason="end_turn")

        async def cancel(self, session_id: str, **kwargs: Any) -> None:
            await anyio.sleep(0)
            log.append("its cancel is over")

    async with agent_by_lines(Slow()) as (lines, _):
        await lines.send(prompt(1))
        await first.reached.wait()
        await lines.send(cancel(), prompt(2))
        await turns()
        assert "the second begins" not in log
        tidied.set()
        found = await lines.until(lambda message: message.get("id") == 2)
    assert [message.get("id") for message in found] == [1, None, 2]
    assert found[0]["result"] == CANCELLED
    assert found[-1]["result"] == {"stopReason": "end_turn"}
    assert log[-1] == "the second begins"
    assert sorted(log[:-1]) == ["its cancel is over", "the first is over"]


async def test_the_next_prompt_waits_for_the_agents_own_cancel() -> None:
    """An agent that keeps a flag sets it for the turn that is meant, not for the next."""
    hold = anyio.Event()

    class Flagged(Busy):
        flag = False

        async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
            if self.flag:
                self.flag = False
                return PromptResponse(stop_reason="refusal")
            return await super().prompt(session_id)

        async def cancel(self, session_id: str, **kwargs: Any) -> None:
            await hold.wait()
            self.cancels.append(session_id)

    agent = Flagged()
    async with agent_by_lines(agent) as (lines, _):
        await lines.send(prompt(1))
        await agent.pause.reached.wait()
        await lines.send(cancel())
        assert (await lines.answer(1))["result"] == CANCELLED
        agent.pause = Pause()
        await lines.send(prompt(2))
        await turns()
        assert not agent.pause.reached.is_set()
        hold.set()
        await agent.pause.reached.wait()
        assert agent.cancels == ["s"]
        agent.pause.let_go()
        assert (await lines.answer(2))["result"] == {"stopReason": "end_turn"}


async def test_a_prompt_that_waits_for_its_turn_can_be_cancelled_too() -> None:
    tidied = anyio.Event()
    begun: list[int] = []

    class Slow(Busy):
        async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
            begun.append(len(begun))
            try:
                await self.pause()
            finally:
                await shielded_wait(tidied)
            raise AssertionError

    agent = Slow()
    async with agent_by_lines(agent) as (lines, _):
        await lines.send(prompt(1))
        await agent.pause.reached.wait()
        await lines.send(cancel(), prompt(2))
        await turns()
        await lines.send(cancel())
        assert (await lines.answer(2))["result"] == CANCELLED
        tidied.set()
        assert (await lines.answer(1))["result"] == CANCELLED
        await turns()
    assert begun == [0]
    assert agent.cancels == ["s"]


async def test_a_second_prompt_while_the_first_runs_is_refused() -> None:
    agent = Busy()
    async with agent_by_lines(agent) as (lines, _):
        await lines.send(prompt(1))
        await agent.pause.reached.wait()
        await lines.send(prompt(2))
        error = (await lines.answer(2))["error"]
        assert error["code"] == -32600
        assert "'s' is still answering a prompt" in error["data"]["details"]
        agent.pause.let_go()
        assert (await lines.answer(1))["result"] == {"stopReason": "end_turn"}


@pytest.mark.parametrize("method", ["session/close", "session/delete"])
async def test_a_session_ends_though_turns_take_up_all_the_room(method: str) -> None:
    agent = Busy()
    async with agent_by_lines(agent, limits=Limits(concurrent=2)) as (lines, _):
        await lines.send(prompt(1), prompt(2, "other"))
        await agent.pause.reached.wait()
        await turns()
        await lines.send(prompt(3, "waits"), request(4, method, sessionId="s"))
        assert (await lines.receive())["id"] == 1
        assert agent.reasons == [f"user: {method}"]
        agent.pause.let_go()
        assert (await lines.answer(4))["result"] == {}


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
async def test_a_session_is_loaded_when_its_cancelled_turn_is_over(method: str) -> None:
    happened: list[str] = []
    begun, clean = anyio.Event(), anyio.Event()

    async def slow_to_end(session_id: str, **kwargs: Any) -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            await shielded_wait(clean)
            happened.append("turn over")

    async def load(session_id: str, **kwargs: Any) -> dict[str, Any]:
        happened.append("loaded")
        return {}

    agent = AnAgent(prompt=slow_to_end, load_session=load, resume_session=load)
    async with agent_by_lines(agent) as (lines, _):
        await lines.send(prompt(1))
        await begun.wait()
        await lines.send(cancel(), request(2, method, sessionId="s", cwd="/", mcpServers=[]))
        await turns()
        clean.set()
        assert (await lines.answer(2))["result"] == {}
    assert happened == ["turn over", "loaded"]


async def test_sessions_do_not_disturb_each_other() -> None:
    pauses = {"a": Pause(), "b": Pause()}

    async def prompts(session_id: str, **kwargs: Any) -> PromptResponse:
        await pauses[session_id]()
        return PromptResponse(stop_reason="end_turn")

    async with agent_by_lines(AnAgent(prompt=prompts)) as (lines, _):
        await lines.send(prompt(1, "a"), prompt(2, "b"))
        await pauses["a"].reached.wait()
        await pauses["b"].reached.wait()
        await lines.send(cancel("a"))
        assert (await lines.answer(1))["result"] == CANCELLED
        pauses["b"].let_go()
        assert (await lines.answer(2))["result"] == {"stopReason": "end_turn"}


async def test_a_session_is_closed_when_its_turn_has_ended() -> None:
    tidied = anyio.Event()
    closed: list[str] = []

    class Slow(Busy):
        async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
            try:
                await self.pause()
            finally:
                await shielded_wait(tidied)
                assert closed == []
            raise AssertionError

        async def close_session(self, session_id: str, **kwargs: Any) -> CloseSessionResponse:
            closed.append(session_id)
            return CloseSessionResponse()

    agent = Slow()
    async with agent_by_lines(agent) as (lines, _):
        await lines.send(prompt(1))
        await agent.pause.reached.wait()
        await lines.send(request(2, "session/close", sessionId="s"))
        await turns()
        assert closed == []
        tidied.set()
        assert (await lines.receive())["result"] == CANCELLED
        assert (await lines.receive()) == {"jsonrpc": "2.0", "id": 2, "result": {}}
    assert closed == ["s"]


# From the client's end ------------------------------------------------------------------------------------------------


async def test_a_client_that_cancels_gets_its_answer() -> None:
    agent = Busy()
    async with in_session(agent) as (client, session_id), anyio.create_task_group() as group:
        answers: list[PromptResponse] = []

        async def prompts() -> None:
            answers.append(await client.prompt(session_id, HELLO))

        group.start_soon(prompts)
        await agent.pause.reached.wait()
        await client.cancel(session_id)
        while not answers:
            await anyio.sleep(0)
    assert answers[0].stop_reason == "cancelled"


async def test_a_client_cancelled_in_its_prompt_has_told_the_agent() -> None:
    agent = Busy()
    async with in_session(agent) as (client, session_id):
        async with anyio.create_task_group() as group:
            group.start_soon(client.prompt, session_id, HELLO)
            await agent.pause.reached.wait()
            group.cancel_scope.cancel()
        while not agent.pause.ended:
            await anyio.sleep(0)
        agent.pause = Pause()
        agent.pause.let_go()
        assert (await client.prompt(session_id, HELLO)).stop_reason == "end_turn"
    assert agent.cancels == [session_id]


async def test_a_client_that_times_out_may_prompt_again() -> None:
    agent = Busy()
    async with in_session(agent) as (client, session_id):
        with anyio.move_on_after(0.05) as scope:
            await client.prompt(session_id, HELLO)
        assert scope.cancelled_caught
        agent.pause.let_go()
        assert (await client.prompt(session_id, HELLO)).stop_reason == "end_turn"


QUESTIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "permission": (
        {
            "method": "session/request_permission",
            "params": {"sessionId": "s", "toolCall": {"toolCallId": "c"}, "options": []},
        },
        {"outcome": {"outcome": "cancelled"}},
    ),
    "elicitation": (
        {
            "method": "elicitation/create",
            "params": {
                "sessionId": "s",
                "message": "Your name?",
                "mode": "form",
                "requestedSchema": {"type": "object", "properties": {}},
            },
        },
        {"action": "cancel"},
    ),
}


@pytest.mark.parametrize("by", ["cancel", "close_session", "delete_session", "the caller's own"])
@pytest.mark.parametrize("what", QUESTIONS)
async def test_who_cancels_a_turn_has_settled_what_the_user_was_asked(by: str, what: str) -> None:
    """And what the agent still asks before it hears of that: the two cross on the wire."""
    asked = Pause()

    async def never(**kwargs: Any) -> RequestPermissionResponse:
        await asked()
        raise AssertionError

    question, cancelled = QUESTIONS[what]
    client = AClient(request_permission=never, create_elicitation=never)
    mine = anyio.CancelScope()

    async def prompts() -> None:
        with mine:
            await agent.prompt("s", HELLO)

    async with client_by_lines(client) as (lines, agent), anyio.create_task_group() as group:
        group.start_soon(prompts)
        number = (await lines.receive())["id"]
        await lines.send({"id": 7, **question})
        await asked.reached.wait()
        if by == "the caller's own":
            mine.cancel()
        else:
            group.start_soon(getattr(agent, by), "s")
        assert (await lines.answer(7))["result"] == cancelled
        asked.reached = anyio.Event()
        await lines.send({"id": 8, **question})
        assert (await lines.answer(8))["result"] == cancelled
        await lines.send({"id": number, "result": CANCELLED})
        group.cancel_scope.cancel()
    assert not asked.reached.is_set()
    assert asked.ended[0] in ("CancelledError", "Cancelled")


async def test_after_a_cancelled_turn_the_user_is_asked_again() -> None:
    class Asking(Busy):
        async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
            if not self.pause.reached.is_set():
                await self.pause()
            outcome = (await self.ask(session_id)).outcome.outcome
            return PromptResponse(stop_reason="end_turn" if outcome == "selected" else "refusal")

    agent = Asking()
    async with in_session(agent) as (client, session_id):
        async with anyio.create_task_group() as group:
            group.start_soon(client.prompt, session_id, HELLO)
            await agent.pause.reached.wait()
            group.cancel_scope.cancel()
        assert (await client.prompt(session_id, HELLO)).stop_reason == "end_turn"
        await client.cancel(session_id)  # idle: nothing is remembered
        assert (await client.prompt(session_id, HELLO)).stop_reason == "end_turn"


async def test_what_is_asked_outside_of_any_turn_reaches_the_user_though_somebody_cancels() -> None:
    agent = AnAgent()
    async with in_session(agent) as (client, session_id):
        await client.cancel(session_id)
        assert (await agent.ask(session_id)).outcome.outcome == "selected"


async def test_a_cancel_may_be_sent_before_the_connection_is_open() -> None:
    one, other = memory_pair()
    connection = ClientSideConnection(AClient(), one)
    await connection.cancel("s")
    assert (await Lines(other).receive())["method"] == "session/cancel"
    await connection.close()


async def test_a_refusal_reaches_the_client_as_it_was_raised() -> None:
    async def prompts(session_id: str, **kwargs: Any) -> PromptResponse:
        raise RequestError.invalid_params({"sessionId": "there is no such session"})

    async with in_session(AnAgent(prompt=prompts)) as (client, session_id):
        with pytest.raises(RpcError) as caught:
            await client.prompt(session_id, HELLO)
    assert caught.value.code == -32602
    assert caught.value.data == {"sessionId": "there is no such session"}


UPDATE = {
    "method": "session/update",
    "params": {
        "sessionId": "s",
        "update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hi"}},
    },
}


async def test_a_client_that_gives_up_when_the_answer_is_there_cancels_nothing() -> None:
    handling = Pause()

    async def slow(session_id: str, **kwargs: Any) -> None:
        await handling()

    async with client_by_lines(AClient(session_update=slow)) as (lines, client):
        async with anyio.create_task_group() as group:
            group.start_soon(client.prompt, "s", HELLO)
            asked = await lines.receive()
            await lines.send(UPDATE, {"id": asked["id"], "result": {"stopReason": "end_turn"}})
            await handling.reached.wait()
            group.cancel_scope.cancel()
        handling.let_go()
        question, _ = QUESTIONS["permission"]
        await lines.send({"id": 7, **question})
        answer = await lines.receive()  # and nothing before it
        assert answer["result"]["outcome"]["outcome"] == "selected"


@pytest.mark.parametrize("late", ["an answer", "an error", "session/close", "session/delete"])
async def test_of_a_turn_that_is_over_at_last_the_client_remembers_nothing(late: str) -> None:
    asked: dict[str, Any] = {}
    async with client_by_lines(AClient()) as (lines, client):
        async with anyio.create_task_group() as group:
            group.start_soon(client.prompt, "s", HELLO)
            asked = await lines.receive()
            group.cancel_scope.cancel()
        assert [(await lines.receive())["method"] for _ in range(2)] == ["$/cancel_request", "session/cancel"]
        question, refused = QUESTIONS["permission"]
        await lines.send({"id": 7, **question})
        assert (await lines.receive())["result"] == refused
        if late == "an answer":
            await lines.send({"id": asked["id"], "result": CANCELLED})
        elif late == "an error":
            await lines.send({"id": asked["id"], "error": {"code": -32800, "message": "cancelled"}})
        else:
            async with anyio.create_task_group() as group:
                ends = client.close_session if late == "session/close" else client.delete_session
                group.start_soon(ends, "s")
                await lines.send({"id": (await lines.receive())["id"], "result": {}})
        await lines.send({"id": 8, **question})
        assert (await lines.receive())["result"]["outcome"]["outcome"] == "selected"
        assert client._stopping == {}


# What was made for a turn that is over ---------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [*WAYS, "the answer is there already"])
async def test_a_terminal_that_is_made_too_late_is_released(way: str) -> None:
    class Starts(Busy):
        async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
            made = await self.client.create_terminal(session_id, "sleep", ["600"])
            try:  # on trio, who has been given an answer is not cancelled until it waits again
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await self.client.release_terminal(session_id, made.terminal_id)
            raise AssertionError("it was cancelled")

    async with agent_by_lines(Starts()) as (lines, _):
        await lines.send(prompt(1))
        asked = await lines.receive()
        assert asked["method"] == "terminal/create"
        made = {"id": asked["id"], "result": {"terminalId": "t"}}
        if way == "the answer is there already":
            await lines.send(made, cancel())
        else:
            await lines.send(WAYS[way])
            await lines.until(lambda message: message.get("method") == "$/cancel_request")
            await lines.send(made)
        [*_, release] = await lines.until(lambda message: message.get("method") == "terminal/release")
        assert release["params"] == {"sessionId": "s", "terminalId": "t"}
        await lines.send({"id": release["id"], "result": {}})


async def test_a_terminal_that_could_not_be_made_is_not_released() -> None:
    class Starts(Busy):
        async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
            await self.client.create_terminal(session_id, "sleep")
            raise AssertionError("it was cancelled")

    async with agent_by_lines(Starts()) as (lines, connection):
        await lines.send(prompt(1))
        asked = await lines.receive()
        await lines.send(cancel(), {"id": asked["id"], "error": {"code": -32800, "message": "cancelled"}})
        await lines.answer(1)
        await connection.close()
        assert await lines.rest() == []
