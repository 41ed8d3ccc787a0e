"""Faults that somebody found by looking: each was one, and is not any more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from quiesce import Grace, Scope, current_scope
from quiesce.agents import FunctionTool, GuardrailFunctionOutput, UserError, function_tool, output_guardrail
from quiesce.realtime import (
    OpenAIRealtimeWebSocketModel,
    RealtimeAgent,
    RealtimeLimits,
    RealtimeModel,
    RealtimeModelListener,
    RealtimeModelSendToolOutput,
    RealtimeModelToolCallEvent,
    RealtimeSession,
    RealtimeSessionClosed,
)
from quiesce.realtime.testing import LocalRealtimeServer, ScriptedRealtimeModel, Speech
from quiesce.realtime.words.model_events import RealtimeModelAudioEvent
from quiesce.testing import call
from tests.realtime.scenes import EAGER_GUARDS, LONG, Reading, agent, session_of


def over_the_wire(server: LocalRealtimeServer, **options: Any) -> RealtimeSession:
    """A session with a real socket."""
    return RealtimeSession(
        OpenAIRealtimeWebSocketModel(),
        agent(**options.pop("agent", {})),
        None,
        {"url": server.url},
        options.pop("config", None),
    )


@pytest.mark.real_time
async def test_a_listener_that_fails_costs_the_session_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(RealtimeModelListener):
        async def on_event(self, event: Any) -> None:
            if event.type == "turn_started":
                raise LookupError("a listener's own")

    with LocalRealtimeServer(["Good morning."]) as server:
        async with over_the_wire(server) as session:
            session.model.add_listener(Failing())
            await session.send_message("Hello")
            types = []
            async for event in session:
                types.append(event.type)
                if event.type == "error":
                    assert isinstance(event.error, LookupError)
                if event.type == "agent_end":
                    break
    assert "error" in types
    assert "audio" in types


@pytest.mark.real_time
async def test_what_is_told_in_the_readers_own_task_does_not_wait_for_the_reader() -> None:
    with LocalRealtimeServer([Speech("a b c d e f g h i j k", audio=b"")] * 5) as server:
        async with over_the_wire(server, config={"limits": RealtimeLimits(events=20)}) as session:
            await session.send_message("Hello")
            while len(session._life.buffer) < 20:
                await anyio.sleep(0.01)
            output = RealtimeModelSendToolOutput(RealtimeModelToolCallEvent("f", "c1", "{}"), "out")
            with anyio.fail_after(10):
                await session.model.send_event(output)


@pytest.mark.real_time
async def test_a_call_id_of_none_joins_no_call() -> None:
    with LocalRealtimeServer([]) as server:
        config: Any = {"url": server.url, "call_id": None}
        async with RealtimeSession(OpenAIRealtimeWebSocketModel(), agent(), None, config):
            while not server.received:
                await anyio.sleep(0.01)
        assert server.received[0]["session"]["model"] == "gpt-realtime"


class OneOfOnesOwn(RealtimeModel):
    """Answers from a task that it starts when it is told something."""

    def __init__(self) -> None:
        self._listeners: list[RealtimeModelListener] = []
        self._scope: Scope | None = None

    async def connect(self, options: Any) -> None:
        self._scope = current_scope()

    def add_listener(self, listener: RealtimeModelListener) -> None:
        self._listeners.append(listener)

    def remove_listener(self, listener: RealtimeModelListener) -> None:
        self._listeners = [other for other in self._listeners if other is not listener]

    async def send_event(self, event: Any) -> None:
        assert self._scope is not None
        self._scope.spawn(self._answer)

    async def _answer(self) -> None:
        for _ in range(1000):
            for listener in self._listeners:
                await listener.on_event(RealtimeModelAudioEvent(b"\0" * 480, "response", "item", 0))
            await checkpoint()

    async def close(self) -> None:
        pass


async def test_a_model_that_answers_from_a_task_of_its_own_has_to_wait_too() -> None:
    limits = RealtimeLimits(events=100)
    async with RealtimeSession(OneOfOnesOwn(), agent(), run_config={"limits": limits}) as session:
        await session.send_message("Hello")
        while len(session._life.buffer) < 100:
            await anyio.sleep(0.001)
        await anyio.sleep(0.5)
        assert 100 <= len(session._life.buffer) <= 102


class Server:
    """Stands for an MCP server that takes no time."""

    def __init__(self) -> None:
        self.connected = 0

    @asynccontextmanager
    async def use(self) -> AsyncIterator[None]:
        self.connected += 1
        try:
            yield
        finally:
            self.connected -= 1

    async def list_tools(self) -> list[FunctionTool]:
        return []


@pytest.mark.real_time
async def test_no_mcp_server_is_connected_by_somebody_who_outstays_the_session() -> None:
    server: Any = Server()
    asked = anyio.Event()
    is_closed: list[bool] = []

    async def instructions(context: Any, agent: Any) -> str:
        asked.set()
        with anyio.CancelScope(shield=True):
            while not is_closed:
                try:
                    await anyio.sleep(0.05)
                except anyio.get_cancelled_exc_class():  # deaf
                    pass
        return "Be brief."

    grace = Grace(cancel=0.05, terminate=0.05, kill=0.05)
    session = session_of(grace=grace)
    await session.enter()
    other: RealtimeAgent[Any] = RealtimeAgent("other", instructions, mcp_servers=[server])
    async with Scope("users", on_error="report", on_child_error=lambda *_: None) as scope:
        scope.spawn(session.update_agent, other)
        await asked.wait()
        report = await session.close()
        is_closed.append(True)
        assert not report.clean
    assert (await session.close()).clean
    assert server.connected == 0


@pytest.mark.parametrize("ticks", range(5))
@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_given_up_in_its_first_steps_a_session_lets_go_of_its_model(ticks: int, how: str) -> None:
    model = ScriptedRealtimeModel(["Hello."], connect_delay=0.1)
    first = session_of(model=model)
    async with Scope("users", on_error="report", on_child_error=lambda *_: None) as scope:
        handle = scope.spawn(first.enter)
        for _ in range(ticks):
            await checkpoint()
        if how == "cancel":
            handle.cancel()
        elif first._held is not None:
            await first.close()
        else:
            handle.cancel()
    async with session_of(model=model):
        pass


async def test_while_it_connects_events_may_be_waited_for_and_nothing_said() -> None:
    session = session_of(model=ScriptedRealtimeModel([], connect_delay=1))
    async with Scope("users", on_error="report", on_child_error=lambda *_: None) as scope:
        scope.spawn(session.enter)
        while session._held is None:
            await checkpoint()
        reading = Reading(session)
        scope.spawn(reading.read)
        with pytest.raises(RealtimeSessionClosed, match="still connecting"):
            await session.update_agent(agent())
        await session.close()
    assert reading.ended
    assert reading.error is None


async def test_events_of_a_session_that_was_refused_are_at_their_end() -> None:
    model = ScriptedRealtimeModel([])
    async with session_of(model=model):
        refused = session_of(model=model)
        with pytest.raises(UserError, match="serves another session"):
            await refused.enter()
        assert [event async for event in refused] == []


@pytest.mark.parametrize("events", [1, 2])
async def test_a_buffer_of_next_to_nothing_does_not_keep_it_from_connecting(events: int) -> None:
    async with session_of(["Hello."], config={"limits": RealtimeLimits(events=events)}) as session:
        await session.send_message("Hello")
        async for event in session:
            if event.type == "agent_end":
                break


async def test_always_is_meant_for_one_tool_not_for_all_of_its_name() -> None:
    ran: list[str] = []

    def delete(whose: str) -> FunctionTool:
        @function_tool(name_override="delete", needs_approval=True)
        async def tool() -> str:
            ran.append(whose)
            return "done"

        return tool

    other = agent(delete("other"), name="other")
    asked: list[str] = []
    turns = [call("delete"), call("transfer_to_other"), call("delete"), "Bye."]
    async with session_of(turns, delete("first"), name="first", handoffs=[other]) as session:
        await session.send_message("Hello")
        async for event in session:
            if event.type == "tool_approval_required":
                asked.append(event.agent.name)
                await session.approve_tool_call(event.call_id, always=True)
            elif event.type == "audio_end":
                break
    assert asked == ["first", "other"]
    assert ran == asked


async def test_what_the_user_has_interrupted_is_not_spoken_of_again_because_of_a_guardrail() -> None:
    looks, decides = anyio.Event(), anyio.Event()

    @output_guardrail
    async def slow(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        looks.set()
        await decides.wait()
        return GuardrailFunctionOutput(None, True)

    async with (
        session_of(
            [Speech(LONG, pace=0.5), "Something else."], config=EAGER_GUARDS, output_guardrails=[slow]
        ) as session,
        Scope() as scope,
    ):
        reading = Reading(session)
        scope.spawn(reading.read)
        await session.send_message("Hello")
        await looks.wait()
        await session.interrupt()
        decides.set()
        await anyio.sleep(5)
        types = [event.type for event in reading.events]
        assert "guardrail_tripped" in types
        assert types.count("agent_start") == 1
        await session.close()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"asynch_tool_calls": True}, "do you mean 'async_tool_calls'"),
        ({"guardrails_settings": None}, "'guardrails_settings' of the run config is a Mapping"),
        (
            {"guardrails_settings": {"debounce_text_length": "x"}},
            "debounce_text_length is a number of characters",
        ),
        ({"output_guardrails": [print]}, "decorated with @output_guardrail"),
        ({"output_guardrails": None}, "'output_guardrails' of the run config is a Sequence"),
        ([1], "the run config is a dict"),
    ],
)
async def test_a_run_config_that_is_none_is_said_to_be(config: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        RealtimeSession(ScriptedRealtimeModel([]), agent(), run_config=config)


@pytest.mark.parametrize("tools", [[print], None, print])
def test_tools_that_are_none_are_said_to_be(tools: Any) -> None:
    with pytest.raises(TypeError, match="the tools of agent 'a' are functions decorated with @function_tool"):
        RealtimeAgent("a", tools=tools)


@pytest.mark.parametrize("guardrails", [[print], None, print])
def test_guardrails_that_are_none_are_said_to_be(guardrails: Any) -> None:
    with pytest.raises(UserError, match="the output_guardrails of agent 'a' are functions decorated"):
        RealtimeAgent("a", output_guardrails=guardrails)
