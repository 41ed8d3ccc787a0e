"""What becomes of a conversation whose connection is lost: of what was said, of what is said meanwhile, of tools and guardrails, and of who speaks."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from quiesce.agents import GuardrailFunctionOutput, UserError, function_tool, output_guardrail
from quiesce.realtime import (
    AssistantAudio,
    AssistantMessageItem,
    InputAudio,
    InputText,
    RealtimeAgent,
    RealtimeModelAudioEvent,
    RealtimeModelItemUpdatedEvent,
    RealtimeModelSendHistory,
    RealtimeModelSendInterrupt,
    RealtimeModelSendRawMessage,
    RealtimeModelSendToolOutput,
    RealtimeModelSendUserInput,
    RealtimeModelToolCallEvent,
    RealtimePlaybackTracker,
    RealtimeReconnect,
    RealtimeSession,
    RealtimeToolCallItem,
    UserMessageItem,
    realtime_handoff,
)
from quiesce.realtime.testing import ScriptedRealtimeModel, Speech
from quiesce.testing import call
from quiesce.wire import ConnectionEnded
from tests.kernel.temperaments import virtual_worlds
from tests.realtime.scenes import StrictModel, inputs, outputs, scripted, session_of, talking, until

pytestmark = virtual_worlds

SLOWLY = Speech("one two three four five", pace=1.0)
ASKED = RealtimeModelSendRawMessage({"type": "response.create"})


def lasting(turns: Any = (), *tools: Any, held: int = 16, **options: Any) -> RealtimeSession:
    config = {"reconnect": RealtimeReconnect(held=held), **options.pop("config", {})}
    return session_of(turns, *tools, config=config, **options)


def told_again(session: RealtimeSession) -> list[Any]:
    """The conversation, as the model was told it the last time."""
    told = [event for event in scripted(session).sent if isinstance(event, RealtimeModelSendHistory)]
    return told[-1].items


def after_that(session: RealtimeSession) -> list[Any]:
    """What the model was told since the connection was lost, but the history."""
    sent = scripted(session).sent
    last = max(place for place, event in enumerate(sent) if isinstance(event, RealtimeModelSendHistory))
    return sent[last + 1 :]


class Tool:
    """Returns when it is let, and counts its calls."""

    def __init__(self, name: str = "search", **options: Any) -> None:
        self.calls = 0
        self.may_return = anyio.Event()
        self.tool = function_tool(self._run, name_override=name, **options)

    async def _run(self) -> str:
        self.calls += 1
        await self.may_return.wait()
        return f"found after {self.calls} calls"


# What was said


async def test_the_model_is_told_the_conversation_in_its_order() -> None:
    tool = Tool()
    tool.may_return.set()
    session = lasting(["good morning", call("search"), "here it is", "yes"], tool.tool)
    async with talking(session, "hello") as heard:
        await heard.until_kind("agent_end")
        await session.send_message("where is it?")
        await heard.until_kind("agent_end", 3)
        await scripted(session).lose()
        await heard.until_kind("reconnected")
        assert told_again(session) == session.history
        assert [item.type if item.type != "message" else item.role for item in session.history] == [
            "user",
            "assistant",
            "user",
            "function_call",
            "assistant",
        ]
        assert session.history[3].output == "found after 1 calls"  # type: ignore[union-attr]
        assert after_that(session) == []
        await session.send_message("are you there?")
        await heard.until_kind("agent_end", 4)
        assert scripted(session).connects == 2


async def test_a_conversation_that_has_not_begun_needs_not_be_told() -> None:
    session = lasting()
    async with talking(session) as heard:
        await scripted(session).lose()
        await heard.until_kind("reconnected")
        assert scripted(session).sent == []


async def test_an_answer_that_is_cut_off_is_said_to_be_cut_and_asked_for_again() -> None:
    session = lasting([SLOWLY, "again"])
    async with talking(session, "count") as heard:
        await heard.until_kind("audio", 2)
        await scripted(session).lose()
        await heard.until_kind("agent_end")
        kinds = heard.kinds
        assert kinds[kinds.index("connection_lost") :] == [
            "connection_lost",
            "audio_end",
            "history_updated",
            "agent_end",
        ]
        [end] = heard.of("audio_end")
        assert end.is_cut
        said = session.history[-1]
        assert said == AssistantMessageItem(
            end.item_id, [AssistantAudio(transcript="one two ")], "incomplete"
        )
        await heard.until_kind("agent_end", 2)
        assert told_again(session)[-1] == said
        assert after_that(session) == [ASKED]
        assert [each.is_cut for each in heard.of("audio_end")] == [True, False]
        usage = session._task.context.usage
        assert (usage.requests, usage.unreported) == (2, 1)


async def test_an_answer_that_was_complete_is_played_to_its_end() -> None:
    session = lasting(["all of it"])
    async with talking(session, "hello") as heard:
        await heard.until_kind("agent_end")
        await scripted(session).lose()
        await heard.until_kind("reconnected")
        assert [each.is_cut for each in heard.of("audio_end")] == [False]
        assert heard.of("audio_interrupted") == []
        assert after_that(session) == []


async def test_an_answer_that_was_interrupted_is_not_asked_for_again() -> None:
    class Lost(ScriptedRealtimeModel):
        async def send_event(self, event: Any) -> None:
            await super().send_event(event)
            if isinstance(event, RealtimeModelSendInterrupt) and self.connects == 1:
                await self.lose()

    session = lasting(model=Lost([SLOWLY]))
    async with talking(session, "count") as heard:
        await heard.until_kind("audio")
        await session.interrupt()
        await heard.until_kind("reconnected")
        assert after_that(session) == []


# What is said meanwhile


async def test_messages_wait_and_are_sent_in_their_order() -> None:
    session = lasting(["hello", "one", "two"])
    async with talking(session, "hi") as heard:
        await heard.until_kind("agent_end")
        scripted(session).connect_delay = 1
        await scripted(session).lose()
        await session.send_message("first")
        await heard.until_kind("reconnecting")
        await session.send_message("second")
        await heard.until_kind("agent_end", 3)
        assert inputs(session) == ["hi", "first", "second"]
        assert after_that(session) == [
            RealtimeModelSendUserInput("first"),
            RealtimeModelSendUserInput("second"),
        ]


async def test_one_message_too_many_is_an_error() -> None:
    session = lasting(["a", "b", "c"], held=2)
    async with talking(session) as heard:
        await scripted(session).lose()
        await session.send_message("one")
        await session.send_message("two")
        with pytest.raises(ConnectionEnded, match=r"not sent: .* 2 messages already wait"):
            await session.send_message("three")
        await heard.until_kind("agent_end", 2)
        assert inputs(session) == ["one", "two"]
        await session.send_message("four")
        await heard.until_kind("agent_end", 3)


async def test_messages_sent_while_others_are_being_sent_come_after_them() -> None:
    session = lasting(["a", "b", "c"])
    async with talking(session) as heard:
        model = scripted(session)
        await model.lose()
        await session.send_message("one")
        await session.send_message("two")
        model.send_delay = 5
        await heard.until_kind("reconnecting")
        await anyio.sleep(7)
        await session.send_message("three")
        await heard.until_kind("agent_end", 3)
        assert inputs(session) == ["one", "two", "three"]


async def test_a_message_that_the_server_has_not_confirmed_is_sent_again_and_one_that_it_has_is_not() -> None:
    class Swallowing(ScriptedRealtimeModel):
        async def send_event(self, event: Any) -> None:
            if event == RealtimeModelSendUserInput("two") and self.connects == 1:
                self.sent.append(event)  # on its way, and not there when the connection is lost
                return
            await super().send_event(event)

    session = lasting(model=Swallowing(["a", "b"]))
    async with talking(session, "one") as heard:
        await heard.until_kind("agent_end")
        await session.send_message("two")
        await scripted(session).lose()
        await heard.until_kind("agent_end", 2)
        assert inputs(session) == ["one", "two", "two"]
        said = [item for item in session.history if isinstance(item, UserMessageItem)]
        assert [item.content for item in said] == [[InputText("one")], [InputText("two")]]
        assert told_again(session)[0] is said[0]
        assert len(told_again(session)) == 2


async def test_a_message_that_is_refused_is_not_sent_again() -> None:
    session = lasting(model=StrictModel(["a"]))
    async with talking(session, "one") as heard:
        await heard.until_kind("agent_end")
        wrong: Any = {"type": "message", "role": "user", "content": [{"type": "input_song"}]}
        with pytest.raises(UserError, match="input_song"):
            await session.send_message(wrong)
        await scripted(session).lose()
        await heard.until_kind("reconnected")
        assert after_that(session) == []


async def test_a_message_that_is_refused_when_it_has_waited_is_an_event_and_the_others_are_sent() -> None:
    session = lasting(model=StrictModel(["a", "b"]))
    async with talking(session) as heard:
        await scripted(session).lose()
        wrong: Any = {"type": "message", "role": "user", "content": [{"type": "input_song"}]}
        await session.send_message("one")
        await session.send_message(wrong)
        await session.send_message("two")
        await heard.until_kind("agent_end", 2)
        assert inputs(session) == ["one", "two"]
        assert [type(event.error) for event in heard.of("error")] == [UserError]
        assert len(heard.of("reconnected")) == 1


@pytest.mark.parametrize("seconds", [2, 20])
async def test_a_message_whose_sending_is_cut_off_is_sent_when_it_is_back(seconds: float) -> None:
    """Whether the one who sends it hears of the loss before or after it is back."""
    session = lasting(["a", "b"])
    async with talking(session) as heard:
        model = scripted(session)
        model.send_delay = seconds

        async def lose() -> None:
            await anyio.sleep(1.9)
            await model.lose()
            model.send_delay = 0

        async with anyio.create_task_group() as group:
            group.start_soon(lose)
            await session.send_message("hello")
        await heard.until_kind("agent_end")
        assert inputs(session) == ["hello"]


@pytest.mark.parametrize("seconds", [2, 20])
async def test_an_output_whose_sending_is_cut_off_is_known_when_it_is_back(seconds: float) -> None:
    tool = Tool()
    session = lasting([call("search"), "there"], tool.tool)
    async with talking(session, "where?") as heard:
        await heard.until_kind("agent_end")
        model = scripted(session)
        model.send_delay = seconds
        tool.may_return.set()
        await anyio.sleep(1.9)
        await model.lose()
        model.send_delay = 0
        await heard.until_kind("agent_end", 2)
        await heard.until_kind("tool_end")
        assert len(outputs(session)) <= 1
        said = [
            *(item.output for item in told_again(session) if item.type == "function_call"),
            *outputs(session),
        ]
        assert said[-1] == "found after 1 calls"
        assert session.history[1].output == "found after 1 calls"  # type: ignore[union-attr]


async def test_audio_is_dropped_and_counted() -> None:
    session = lasting()
    async with talking(session) as heard:
        await session.send_audio(bytes(100))
        await scripted(session).lose()
        await session.send_audio(bytes(480))
        await session.send_audio(bytes(20), commit=True)
        back = await heard.until_kind("reconnected")
        assert back.audio_dropped == 500
        await session.send_audio(bytes(7))
        assert [len(event.audio) for event in scripted(session).sent] == [100, 7]  # type: ignore[union-attr]
        await scripted(session).lose()
        assert (await heard.until_kind("reconnected", 2)).audio_dropped == 0


async def test_a_stop_meanwhile_silences_what_is_still_played_and_asks_for_nothing() -> None:
    session = lasting([SLOWLY])
    async with talking(session, "count") as heard:
        await heard.until_kind("audio", 2)
        await scripted(session).lose()
        await session.interrupt()
        stopped = await heard.until_kind("audio_interrupted")
        assert (stopped.item_id, stopped.content_index) == (heard.of("audio")[0].item_id, 0)
        await heard.until_kind("reconnected")
        assert after_that(session) == []


async def test_a_stop_meanwhile_concerns_the_messages_before_it() -> None:
    session = lasting([SLOWLY, "no"])
    async with talking(session) as heard:
        await scripted(session).lose()
        await session.send_message("count")
        await session.interrupt()
        await session.send_message("or not?")
        await heard.until_kind("agent_end", 2)
        assert [type(event).__name__ for event in scripted(session).sent] == [
            "RealtimeModelSendUserInput",
            "RealtimeModelSendInterrupt",
            "RealtimeModelSendUserInput",
        ]


async def test_a_stop_while_the_model_is_asked_again_stops_that_answer() -> None:
    session = lasting([SLOWLY, SLOWLY])
    async with talking(session, "count") as heard:
        await heard.until_kind("audio")
        model = scripted(session)
        model.send_delay = 5
        await model.lose()
        await heard.until_kind("reconnecting")
        await anyio.sleep(7)  # the history is told, and the answer asked for
        await session.interrupt()
        await heard.until_kind("reconnected")
        model.send_delay = 0
        assert [type(event) for event in after_that(session)] == [
            RealtimeModelSendRawMessage,
            RealtimeModelSendInterrupt,
        ]


async def test_an_agent_that_takes_over_while_it_connects_does_not_take_the_place_of_an_answer() -> None:
    session = lasting([SLOWLY, "again"])
    async with talking(session, "count") as heard:
        await heard.until_kind("audio")
        scripted(session).connect_delay = 2
        await scripted(session).lose()
        await heard.until_kind("reconnecting")
        await anyio.sleep(1)
        await session.update_agent(RealtimeAgent("second"))
        await heard.until_kind("agent_end", 2)
        assert ASKED in after_that(session)


@pytest.mark.parametrize("is_confirmed", [True, False])
async def test_audio_that_was_committed_is_answered_if_the_server_has_it(is_confirmed: bool) -> None:
    class Lost(ScriptedRealtimeModel):
        async def send_event(self, event: Any) -> None:
            if self.connects > 1:
                await super().send_event(event)
            elif is_confirmed:
                self.sent.append(event)
                await self.emit(RealtimeModelItemUpdatedEvent(UserMessageItem("item_1", [InputAudio()])))

    session = lasting(model=Lost(["yes?"]))
    async with talking(session) as heard:
        await session.send_audio(bytes(4800), commit=True)
        await scripted(session).lose()
        await heard.until_kind("reconnected")
        assert (ASKED in scripted(session).sent) == is_confirmed


async def test_an_account_of_the_user_that_fails_is_an_event() -> None:
    class Failing(RealtimePlaybackTracker):
        def get_state(self) -> Any:
            raise LookupError("the player is gone")

    session = lasting(["hello"], model_config={"playback_tracker": Failing()})
    async with talking(session, "hi") as heard:
        await heard.until_kind("agent_end")
        await scripted(session).lose()
        await session.interrupt()
        assert isinstance((await heard.until_kind("error")).error, LookupError)
        await heard.until_kind("reconnected")


# Tools


async def test_a_tool_that_is_at_work_is_unknown_until_it_ends_and_is_called_once() -> None:
    tool = Tool()
    session = lasting([call("search"), "there"], tool.tool)
    async with talking(session, "where?") as heard:
        await heard.until_kind("agent_end")
        await scripted(session).lose()
        back = await heard.until_kind("reconnected")
        assert back.unknown_calls == ["call_1"]
        asked = told_again(session)[-1]
        assert asked == session.history[-1]
        assert (asked.call_id, asked.status) == ("call_1", "in_progress")
        assert "unknown" in asked.output
        assert after_that(session) == []  # the call was the answer
        tool.may_return.set()
        await heard.until_kind("agent_end", 2)
        assert tool.calls == 1
        assert outputs(session) == ["found after 1 calls"]
        [answered] = [item for item in session.history if isinstance(item, RealtimeToolCallItem)]
        assert (answered.output, answered.status) == ("found after 1 calls", "completed")
        assert len(heard.of("tool_start")) == len(heard.of("tool_end")) == 1


async def test_a_response_that_has_called_a_tool_goes_on_when_that_ends() -> None:
    """It is cut off behind the call, and the model is not asked to go on without its output."""
    tool = Tool()
    session = lasting([[call("search"), SLOWLY], "there"], tool.tool)
    async with talking(session, "where?") as heard:
        await heard.until_kind("audio", 2)
        await scripted(session).lose()
        await heard.until_kind("reconnected")
        await anyio.sleep(10)
        assert after_that(session) == []
        tool.may_return.set()
        await heard.until_kind("agent_end", 2)
        assert outputs(session) == ["found after 1 calls"]


async def test_a_tool_that_ends_meanwhile_has_its_output_and_the_model_goes_on() -> None:
    tool = Tool()
    session = lasting([call("search"), "there"], tool.tool)
    async with talking(session, "where?") as heard:
        await heard.until_kind("agent_end")
        await scripted(session).lose()
        tool.may_return.set()
        back = await heard.until_kind("reconnected")
        assert back.unknown_calls == []
        assert told_again(session)[-1].output == "found after 1 calls"
        assert told_again(session)[-1].status == "completed"
        await heard.until_kind("agent_end", 2)
        assert after_that(session) == [ASKED]


@pytest.mark.parametrize("when", ["connecting", "being told"])
async def test_a_tool_that_ends_while_the_model_is_brought_back_is_answered_once(when: str) -> None:
    tool = Tool()
    session = lasting([call("search"), "there"], tool.tool)
    async with talking(session, "where?") as heard:
        await heard.until_kind("agent_end")
        model = scripted(session)
        if when == "connecting":
            model.connect_delay = 5
        else:
            model.send_delay = 5
        await model.lose()
        await heard.until_kind("reconnecting")
        await anyio.sleep(1)
        tool.may_return.set()
        back = await heard.until_kind("reconnected")
        model.send_delay = 0
        assert back.unknown_calls == []
        assert "unknown" in told_again(session)[-1].output
        await heard.until_kind("agent_end", 2)
        assert [type(event) for event in after_that(session)] == [RealtimeModelSendToolOutput]


async def test_a_tool_that_ends_between_two_tries_is_in_the_history_alone() -> None:
    tool = Tool()

    class Second(ScriptedRealtimeModel):
        async def connect(self, options: Any) -> None:
            if self.connects == 1:
                self.connects += 1
                tool.may_return.set()
                await anyio.sleep(1)
                raise ConnectionRefusedError("not yet")
            await super().connect(options)

    session = lasting((), tool.tool, model=Second([call("search"), "there"]))
    async with talking(session, "where?") as heard:
        await heard.until_kind("agent_end")
        await scripted(session).lose()
        await heard.until_kind("agent_end", 2)
        assert told_again(session)[-1].output == "found after 1 calls"
        assert after_that(session) == [ASKED]


async def test_a_tool_whose_connection_is_lost_twice_is_still_answered_once() -> None:
    tool = Tool()
    session = lasting([call("search"), "there"], tool.tool)
    async with talking(session, "where?") as heard:
        await heard.until_kind("agent_end")
        for count in (1, 2):
            await scripted(session).lose()
            assert (await heard.until_kind("reconnected", count)).unknown_calls == ["call_1"]
        tool.may_return.set()
        await heard.until_kind("agent_end", 2)
        assert (tool.calls, outputs(session)) == (1, ["found after 1 calls"])


async def test_a_call_that_waits_for_approval_goes_on_waiting() -> None:
    tool = Tool(needs_approval=True)
    tool.may_return.set()
    session = lasting([call("search"), "there"], tool.tool)
    async with talking(session, "where?") as heard:
        asked = await heard.until_kind("tool_approval_required")
        await scripted(session).lose()
        await heard.until_kind("reconnected")
        assert "waits for approval" in told_again(session)[-1].output
        assert len(heard.of("tool_approval_required")) == 1
        assert tool.calls == 0
        await session.approve_tool_call(asked.call_id)
        await heard.until_kind("tool_end")
        await heard.until(lambda: any("there" in str(item) for item in session.history))
        assert outputs(session) == ["found after 1 calls"]


async def test_a_call_that_was_approved_between_two_losses_is_at_work() -> None:
    tool = Tool(needs_approval=True)
    session = lasting([call("search"), "there"], tool.tool)
    async with talking(session, "where?") as heard:
        asked = await heard.until_kind("tool_approval_required")
        await scripted(session).lose()
        await heard.until_kind("reconnected")
        await session.approve_tool_call(asked.call_id)
        await heard.until_kind("tool_start")
        await scripted(session).lose()
        await heard.until_kind("reconnected", 2)
        assert "unknown" in told_again(session)[-1].output


async def test_a_call_that_was_behind_the_cut_is_not_run_and_the_model_hears_so() -> None:
    tool = Tool()
    session = lasting((), tool.tool, model=(model := ScriptedRealtimeModel(["hello", "again"])))
    async with talking(session, "hi") as heard:
        await heard.until_kind("agent_end")
        session._task.on_connection_ended()  # which is told before what had come
        item = RealtimeToolCallItem("item_9", "call_9", "search", "{}")
        await model.emit(RealtimeModelItemUpdatedEvent(item))
        await model.emit(RealtimeModelToolCallEvent("search", "call_9", "{}", "item_9"))
        await model.lose()
        await heard.until_kind("reconnected")
        assert tool.calls == 0
        told = told_again(session)[-1]
        assert (told.call_id, told.status) == ("call_9", "incomplete")
        assert "was not run" in told.output


async def test_a_call_that_was_not_complete_is_left_out_of_what_is_told() -> None:
    session = lasting(model=(model := ScriptedRealtimeModel(["hello"])))
    async with talking(session, "hi") as heard:
        await heard.until_kind("agent_end")
        await model.emit(
            RealtimeModelItemUpdatedEvent(RealtimeToolCallItem("item_9", "call_9", "search", ""))
        )
        await model.lose()
        await heard.until_kind("reconnected")
        told = told_again(session)[-1]
        assert (told.item_id, told.status, told.output) == ("item_9", "incomplete", None)


# Who speaks


async def test_the_agent_that_speaks_now_is_the_one_that_comes_back() -> None:
    desk = RealtimeAgent("desk", "You are the desk.", tools=[Tool("ring").tool])
    session = lasting(
        [call("transfer_to_desk"), "the desk"],
        instructions="You are first.",
        handoffs=[realtime_handoff(desk)],
        config={"model_settings": {"voice": "marin"}},
    )
    async with talking(session, "the desk please") as heard:
        await heard.until_kind("agent_end", 2)
        await scripted(session).lose()
        await heard.until_kind("reconnected")
        options = scripted(session).options
        assert options is not None
        settings = options["initial_model_settings"]
        assert settings["instructions"] == "You are the desk."
        assert [tool.name for tool in settings["tools"]] == ["ring"]
        assert settings["voice"] == "marin"
        assert session.current_agent is desk


@pytest.mark.parametrize("when", ["in the pause", "connecting"])
async def test_an_agent_that_takes_over_meanwhile_is_the_one_that_comes_back(when: str) -> None:
    session = lasting(instructions="You are first.")
    async with talking(session) as heard:
        model = scripted(session)
        model.connect_delay = 2
        await model.lose()
        if when == "connecting":
            await heard.until_kind("reconnecting")
            await anyio.sleep(1)
        await session.update_agent(RealtimeAgent("second", "You are second."))
        await heard.until_kind("reconnected")
        assert model.options is not None
        told = [
            model.options["initial_model_settings"],
            *(getattr(e, "session_settings", {}) for e in model.sent),
        ]
        assert told[-1]["instructions"] == "You are second."
        assert len(told) == (1 if when == "in the pause" else 2)
        assert session.current_agent.name == "second"


# Guardrails


def forbids(word: str, takes: float = 0.0) -> Any:
    @output_guardrail(name="polite")
    async def polite(context: Any, agent: Any, output: str) -> GuardrailFunctionOutput:
        await anyio.sleep(takes)
        return GuardrailFunctionOutput(None, word in output)

    return polite


async def test_what_a_guardrail_has_said_no_to_is_not_told_again() -> None:
    session = lasting(
        [Speech("rude words", pace=1), "sorry"],
        output_guardrails=[forbids("rude", takes=0.5)],
        config={"guardrails_settings": {"debounce_text_length": 2}},
    )
    async with talking(session, "say something") as heard:
        await heard.until_kind("agent_end", 2)
        await scripted(session).lose()
        await heard.until_kind("reconnected")
        assert any("rude" in str(item) for item in session.history)
        assert not any("rude" in str(item) for item in told_again(session))
        assert [item.content[0].text for item in told_again(session) if item.role == "user"] == [
            "say something",
            "guardrail triggered: polite",
        ]


async def test_a_guardrail_looks_at_what_was_cut_off_and_its_no_counts() -> None:
    session = lasting(
        [Speech("one rude word and more", pace=1), "sorry"],
        output_guardrails=[forbids("rude", takes=0.1)],
        config={"guardrails_settings": {"debounce_text_length": 1000}},
    )
    async with talking(session, "say something") as heard:
        await heard.until_kind("audio", 2)
        await scripted(session).lose()
        await heard.until_kind("guardrail_tripped")
        assert heard.of("reconnecting") == []
        await heard.until_kind("audio_interrupted")
        await heard.until_kind("agent_end", 2)
        assert not any("rude" in str(item) for item in told_again(session))
        assert after_that(session) == [RealtimeModelSendUserInput("guardrail triggered: polite")]


async def test_audio_of_a_connection_that_is_given_up_is_not_heard_any_more() -> None:
    session = lasting(["hello"])
    async with talking(session) as heard:
        await scripted(session).lose()
        await session._task.on_event(RealtimeModelAudioEvent(b"late", "resp_1", "item_1", 0))
        await heard.until_kind("reconnected")
        assert heard.of("audio") == []
        await until(lambda: session._task.connected)
