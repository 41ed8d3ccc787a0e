"""A session as its user sees it: the events in their order, what may be sent, and what may be looked at."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from quiesce import Scope
from quiesce.agents import UserError, function_tool
from quiesce.realtime import (
    AssistantMessageItem,
    InputText,
    RealtimeAgent,
    RealtimeModelAudioEvent,
    RealtimeModelErrorEvent,
    RealtimeModelInputAudioTimeoutTriggeredEvent,
    RealtimeModelItemDeletedEvent,
    RealtimeModelItemUpdatedEvent,
    RealtimeModelOtherEvent,
    RealtimeModelSendAudio,
    RealtimeModelSendInterrupt,
    RealtimeModelSendRawMessage,
    RealtimeModelSendUserInput,
    RealtimeServerError,
    RealtimeSession,
    RealtimeSessionClosed,
    RealtimeToolCallItem,
    UserMessageItem,
)
from quiesce.realtime.testing import ScriptedRealtimeModel, Speech
from quiesce.testing import call
from tests.kernel.temperaments import virtual_worlds
from tests.realtime.scenes import Part, agent, inputs, outputs, scripted, session_of, talking, updates
from tests.world import World

pytestmark = virtual_worlds  # how fast somebody speaks is a matter of time


@function_tool
async def weather(city: str) -> str:
    """Forecast the weather."""
    return f"rain in {city}"


# The events


async def test_a_spoken_answer_comes_as_the_events_that_users_know_in_their_order() -> None:
    session = session_of([Speech("Good day", audio=bytes(range(8)), piece=4)])
    async with talking(session, "hello") as heard:
        await heard.until_kind("agent_end")
        assert heard.kinds == [
            "history_updated",  # nothing so far
            "history_added",  # the user's
            "agent_start",
            "audio",
            "audio",
            "audio_end",
            "history_added",  # the model's
            "agent_end",
        ]
        assert b"".join(event.audio.data for event in heard.of("audio")) == bytes(range(8))
        assert {(event.item_id, event.content_index) for event in heard.of("audio")} == {("item_2", 0)}
        assert heard.of("audio_end")[0].item_id == "item_2"
        assert heard.of("agent_start")[0].agent is session.current_agent
        assert heard.of("history_updated")[0].history == []


async def test_each_event_of_the_model_is_there_raw_before_what_is_made_of_it() -> None:
    session = session_of(["Good day"])
    async with talking(session, "hello") as heard:
        await heard.until_kind("agent_end")
        audio = next(place for place, event in enumerate(heard.events) if event.type == "audio")
        before = heard.events[audio - 1]
        assert before.type == "raw_model_event"
        assert before.data is heard.events[audio].audio
        kinds = [event.data.type for event in heard.of("raw_model_event")]
        assert kinds[:2] == ["item_updated", "turn_started"]
        assert {"transcript_delta", "audio", "audio_done", "usage"} <= set(kinds)
        assert kinds[-1] == "turn_ended"


async def test_a_tool_call_comes_as_its_start_and_its_end_with_what_it_was_given_and_gave() -> None:
    session = session_of([call("weather", city="Paris"), "It rains."], weather)
    async with talking(session, "how is it in Paris?") as heard:
        await heard.until_kind("agent_end", 2)
        kinds = [
            kind for kind in heard.kinds if kind in ("agent_start", "tool_start", "tool_end", "agent_end")
        ]
        assert sorted(kinds[:4]) == ["agent_end", "agent_start", "tool_end", "tool_start"]
        begun, ended = heard.of("tool_start")[0], heard.of("tool_end")[0]
        assert heard.events.index(begun) < heard.events.index(ended)
        assert begun.tool is ended.tool is weather
        assert begun.arguments == ended.arguments == '{"city":"Paris"}'
        assert begun.call_id == ended.call_id == "call_1"
        assert ended.output == "rain in Paris"
        assert outputs(session) == ["rain in Paris"]
    told = session.history[1]
    assert isinstance(told, RealtimeToolCallItem)
    assert (told.output, told.status) == ("rain in Paris", "completed")


async def test_every_event_has_the_users_own_object() -> None:
    mine = object()
    session = session_of(["Good day"], context=mine)
    async with talking(session, "hello") as heard:
        await heard.until_kind("agent_end")
        assert all(event.info.context.context is mine for event in heard.events)


async def test_what_a_response_costs_is_added_up_in_the_context() -> None:
    session = session_of(["one two three", "four"])
    async with talking(session, "a", "b") as heard:
        await heard.until_kind("agent_end", 2)
        usage = heard.events[0].info.context.usage
        assert (usage.requests, usage.input_tokens, usage.output_tokens) == (2, 2, 4)


async def test_errors_of_the_server_are_events_and_the_session_goes_on() -> None:
    session = session_of(["Good day"])
    async with talking(session) as heard:
        error = RealtimeServerError("invalid_request_error", "no such voice")
        await scripted(session).emit(RealtimeModelErrorEvent(error))
        assert (await heard.until_kind("error")).error is error
        await session.send_message("hello")
        await heard.until_kind("agent_end")


async def test_silence_of_the_user_and_what_nobody_has_a_word_for() -> None:
    session = session_of()
    async with talking(session) as heard:
        await scripted(session).emit(RealtimeModelInputAudioTimeoutTriggeredEvent("item_1", 0, 5000))
        await scripted(session).emit(RealtimeModelOtherEvent({"type": "weather.changed"}))
        await heard.until(lambda: len(heard.of("raw_model_event")) == 2)
        assert heard.kinds[1:] == ["input_audio_timeout_triggered"]
        assert heard.of("raw_model_event")[-1].data.data == {"type": "weather.changed"}


# Sending


async def test_a_message_may_have_several_parts() -> None:
    message: Any = {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "what is this?"},
            {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
        ],
    }
    session = session_of(["A dot."])
    async with talking(session) as heard:
        await session.send_message(message)
        await heard.until_kind("agent_end")
        assert inputs(session) == [message]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_audio_is_any_kind_of_bytes(kind: Any) -> None:
    session = session_of(["Yes?"])
    async with talking(session) as heard:
        await session.send_audio(kind(b"\0\1"))
        await session.send_audio(kind(b"\2\3"), commit=True)
        await heard.until_kind("agent_end")
        sent: Any = scripted(session).sent
        assert [(bytes(event.audio), event.commit) for event in sent] == [(b"\0\1", False), (b"\2\3", True)]
        assert all(isinstance(event, RealtimeModelSendAudio) for event in sent)


async def test_audio_that_is_no_bytes_is_refused() -> None:
    async with session_of() as session:
        with pytest.raises(TypeError, match="audio must be bytes, not str"):
            await session.send_audio("AAAA")  # type: ignore[arg-type]
        assert scripted(session).sent == []


async def test_raw_messages_go_by_the_model() -> None:
    session = session_of(["Good day"])
    async with talking(session) as heard:
        await session.model.send_event(RealtimeModelSendRawMessage({"type": "response.create"}))
        await heard.until_kind("agent_end")


async def test_what_cannot_be_sent_is_raised_to_whoever_sends_and_the_session_goes_on() -> None:
    session = session_of(["Good day"])
    async with talking(session) as heard:
        scripted(session).send_error = OSError("no buffer space")
        for sending in (session.send_message("a"), session.send_audio(b"aa"), session.interrupt()):
            with pytest.raises(OSError, match="no buffer space"):
                await sending
        scripted(session).send_error = None
        await session.send_message("hello")
        await heard.until_kind("agent_end")


async def test_interrupt_ends_what_is_being_said_and_the_conversation_goes_on() -> None:
    session = session_of([Speech("one two three four five six", pace=0.02), "Yes?"])
    async with talking(session, "count") as heard:
        await heard.until_kind("audio", 2)
        await session.interrupt()
        interrupted = await heard.until_kind("audio_interrupted")
        assert interrupted.item_id == heard.of("audio")[0].item_id
        await heard.until_kind("agent_end")
        assert len(heard.of("audio")) < 6
        assert heard.of("audio_end") == []
        assert scripted(session).sent[-1] == RealtimeModelSendInterrupt(force_response_cancel=True)
        said = session.history[-1]
        assert isinstance(said, AssistantMessageItem)
        assert said.status == "incomplete"
        await session.send_message("go on")
        await heard.until_kind("agent_end", 2)


async def test_interrupt_with_nothing_to_interrupt_is_nothing() -> None:
    async with session_of() as session:
        await session.interrupt()
        await session.interrupt()
        assert not session.closed


async def test_tools_go_on_when_the_model_is_interrupted() -> None:
    tool = Part("tool")
    session = session_of([[call("tool"), Speech("one two three four", pace=0.02)]], tool.tool)
    async with talking(session, "go") as heard:
        await heard.until_kind("audio")
        await session.interrupt()
        await heard.until_kind("agent_end")
        assert tool.begun.is_set()
        assert not tool.cleaning
    assert tool.clean


# Another agent


async def test_update_agent_changes_instructions_and_tools_for_what_comes() -> None:
    session = session_of([call("weather", city="Oslo"), "Snow."], name="first")

    async def instructions(context: Any, who: RealtimeAgent[Any]) -> str:
        return f"You are {who.name}, for {context.context}."

    second = RealtimeAgent("second", instructions, tools=[weather])
    async with talking(session) as heard:
        session._task.context.context = "Ann"
        await session.update_agent(second)
        assert session.current_agent is second
        assert [settings["instructions"] for settings in updates(session)] == ["You are second, for Ann."]
        assert updates(session)[0]["tools"] == [weather]
        await session.send_message("how is it?")
        await heard.until_kind("agent_end", 2)
        assert all(event.agent is second for event in heard.of("agent_start"))
        assert outputs(session) == ["rain in Oslo"]


async def test_an_agent_that_cannot_take_over_changes_nothing() -> None:
    def instructions(context: Any, who: Any) -> str:
        raise LookupError("no instructions today")

    async with session_of(name="first") as session:
        with pytest.raises(LookupError, match="no instructions today"):
            await session.update_agent(RealtimeAgent("second", instructions))
        with pytest.raises(UserError, match="needs a RealtimeAgent, not str"):
            await session.update_agent("second")  # type: ignore[arg-type]
        with pytest.raises(UserError, match="several tools named 'weather'"):
            await session.update_agent(RealtimeAgent("second", tools=[weather, weather]))
        assert session.current_agent.name == "first"
        assert scripted(session).sent == []
    assert session.report is not None
    assert session.report.clean


async def test_update_agent_may_be_given_up() -> None:
    begun = anyio.Event()

    async def instructions(context: Any, who: Any) -> str:
        begun.set()
        await anyio.Event().wait()
        return ""

    async with session_of(name="first") as session:
        with anyio.move_on_after(0.01) as limit:
            await session.update_agent(RealtimeAgent("second", instructions))
        assert limit.cancelled_caught
        assert begun.is_set()
        assert session.current_agent.name == "first"
        assert not session._task.work.children


async def test_update_agent_ends_with_the_session() -> None:
    tidy = Part("instructions")

    async def instructions(context: Any, who: Any) -> str:
        await tidy.work()
        return ""

    session = session_of(name="first")
    await session.enter()
    raised: list[BaseException] = []

    async def update() -> None:
        try:
            await session.update_agent(RealtimeAgent("second", instructions))
        except RealtimeSessionClosed as error:
            raised.append(error)

    async with Scope() as scope:
        scope.spawn(update)
        await tidy.begun.wait()
        report = await session.close()
        assert tidy.clean
        assert report.clean
    assert [type(error) for error in raised] == [RealtimeSessionClosed]
    assert session.current_agent.name == "first"


# Settings


async def test_the_model_is_told_what_the_agent_and_the_settings_say() -> None:
    session = session_of(
        (),
        weather,
        name="agent",
        instructions="Be brief.",
        prompt={"id": "pmpt_1"},
        config={"model_settings": {"voice": "marin", "speed": 1.1}},
        model_config={"initial_model_settings": {"voice": "cedar"}, "api_key": "k"},
    )
    async with session:
        options: Any = scripted(session).options
        settings = options["initial_model_settings"]
        assert settings["instructions"] == "Be brief."
        assert (settings["voice"], settings["speed"]) == ("cedar", 1.1)
        assert settings["prompt"] == {"id": "pmpt_1"}
        assert settings["tools"] == [weather]
        assert options["api_key"] == "k"
        assert options["limits"] is session._task.limits


async def test_what_is_not_enabled_is_not_offered() -> None:
    @function_tool(is_enabled=lambda context, agent: context.context == "Ann")
    async def secret() -> str:
        return "42"

    for who, offered in (("Ann", ["weather", "secret"]), ("Bob", ["weather"])):
        async with session_of((), weather, secret, context=who) as session:
            options: Any = scripted(session).options
            assert [tool.name for tool in options["initial_model_settings"]["tools"]] == offered


async def test_instructions_that_fail_are_raised_where_it_is_opened_and_leave_nothing() -> None:
    def instructions(context: Any, who: Any) -> str:
        raise LookupError("no instructions today")

    session = session_of((), instructions=instructions)
    with pytest.raises(LookupError, match="no instructions today"):
        await session.enter()
    assert scripted(session).connects == 0
    assert session.closed


def test_a_session_needs_an_agent_that_speaks() -> None:
    with pytest.raises(UserError, match="needs a RealtimeAgent, not str"):
        RealtimeSession(ScriptedRealtimeModel(), "agent")  # type: ignore[arg-type]


# The history


async def test_the_history_is_the_conversation_so_far_and_a_copy() -> None:
    session = session_of(["Good day"])
    assert session.history == []
    async with talking(session, "hello") as heard:
        await heard.until_kind("agent_end")
        question, answer = session.history
        assert isinstance(question, UserMessageItem)
        assert question.content == [InputText("hello")]
        assert isinstance(answer, AssistantMessageItem)
        assert answer.content[0].transcript == "Good day"  # type: ignore[union-attr]
        session.history.clear()
        assert len(session.history) == 2
        assert [event.item for event in heard.of("history_added")] == [question, answer]
    assert len(session.history) == 2  # after the end too


async def test_what_the_user_has_said_is_in_the_history_when_it_is_written_down() -> None:
    session = session_of(model=ScriptedRealtimeModel(["Good day"], transcripts=["hello there"]))
    async with talking(session) as heard:
        await session.send_audio(b"\0\0", commit=True)
        await heard.until_kind("agent_end")
        said: Any = session.history[0]
        assert said.content[0].transcript == "hello there"


async def test_items_that_change_or_go_are_told_with_the_whole_history() -> None:
    session = session_of()
    async with talking(session) as heard:
        model = scripted(session)
        await model.emit(RealtimeModelItemUpdatedEvent(UserMessageItem("a", [InputText("one")])))
        await model.emit(RealtimeModelItemUpdatedEvent(UserMessageItem("a", [InputText("two")])))
        await model.emit(RealtimeModelItemDeletedEvent("a"))
        await model.emit(RealtimeModelItemDeletedEvent("a"))
        await heard.until_kind("history_updated", 3)
        assert heard.kinds == ["history_updated", "history_added", "history_updated", "history_updated"]
        assert [len(event.history) for event in heard.of("history_updated")] == [0, 1, 0]
        assert heard.of("history_updated")[1].history[0].content == [InputText("two")]


# Looking at it


async def test_a_session_says_what_state_it_is_in() -> None:
    session = session_of(name="concierge")
    seen = [(repr(session), session.closed)]
    async with session:
        seen.append((repr(session), session.closed))
        assert session.current_agent.name == "concierge"
    seen.append((repr(session), session.closed))
    states = [("new", False), ("open", False), ("settled", True)]
    assert seen == [(f"<RealtimeSession of 'concierge' {state}>", closed) for state, closed in states]
    assert session.report is not None
    assert session.report.clean
    assert "its block ended" in str(session.report.reason)


# Readers


async def test_breaking_out_of_the_events_leaves_the_session_and_the_next_loop_goes_on_from_there() -> None:
    session = session_of(["Good day"])
    async with session:
        await session.send_message("hello")
        read: list[str] = []
        while "agent_end" not in read:
            async for event in session:
                read.append(event.type)
                break
        assert [kind for kind in read if kind != "raw_model_event"] == [
            "history_updated",
            "history_added",
            "agent_start",
            "audio",
            "audio",
            "audio_end",
            "history_added",
            "agent_end",
        ]


async def test_everything_may_be_used_from_any_task(world: World) -> None:
    session = session_of(["Good day"])
    read: list[str] = []

    async def consume() -> None:
        async for event in session:
            read.append(event.type)
            if event.type == "agent_end":
                return

    async with Scope() as scope:
        await scope.spawn(session.enter).wait()
        reader = scope.spawn(consume)
        await scope.spawn(session.send_message, "hello").wait()
        await reader.wait()
        await scope.spawn(session.close).wait()
    assert read[-1] == "agent_end"
    assert session.closed


async def test_the_model_of_a_session_is_the_one_that_it_was_given() -> None:
    model = ScriptedRealtimeModel()
    session = session_of(model=model)
    assert session.model is model
    async with session:
        assert model.connected
    assert not model.connected


async def test_a_message_that_waits_for_its_answer_is_one_input() -> None:
    session = session_of(["Good day"])
    async with talking(session, "hello") as heard:
        await heard.until_kind("agent_end")
        assert [type(event) for event in scripted(session).sent] == [RealtimeModelSendUserInput]


async def test_audio_of_two_items_is_told_apart() -> None:
    session = session_of([["one", "two"]])
    async with talking(session, "count") as heard:
        await heard.until_kind("agent_end")
        assert [event.item_id for event in heard.of("audio")] == ["item_2", "item_3"]
        assert [event.item_id for event in heard.of("audio_end")] == ["item_2", "item_3"]
        assert all(isinstance(event.audio, RealtimeModelAudioEvent) for event in heard.of("audio"))


# Refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"asynch_tool_calls": True}, "did you mean 'async_tool_calls'"),
        ({"guardrails_settings": None}, "'guardrails_settings' of the run config must be a Mapping"),
        (
            {"guardrails_settings": {"debounce_text_length": "x"}},
            "debounce_text_length must be a number of characters",
        ),
        ({"output_guardrails": [print]}, "decorated with @output_guardrail"),
        ({"output_guardrails": None}, "'output_guardrails' of the run config must be a Sequence"),
        ([1], "the run config must be a dict"),
    ],
)
async def test_what_is_not_a_run_config_is_refused(config: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        RealtimeSession(ScriptedRealtimeModel([]), agent(), run_config=config)


@pytest.mark.parametrize("tools", [[print], None, print])
def test_what_is_not_a_tool_is_refused(tools: Any) -> None:
    with pytest.raises(
        TypeError, match="the tools of agent 'a' must be a list of functions decorated with @function_tool"
    ):
        RealtimeAgent("a", tools=tools)


@pytest.mark.parametrize("guardrails", [[print], None, print])
def test_what_is_not_a_guardrail_is_refused(guardrails: Any) -> None:
    with pytest.raises(
        UserError, match="the output_guardrails of agent 'a' must be a list of functions decorated"
    ):
        RealtimeAgent("a", output_guardrails=guardrails)
