"""A run that is stopped, paused or killed before a verdict keeps no text that waits for it; a write that is cut loses and repeats nothing."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce.agents import (
    Agent,
    Conversation,
    MemorySession,
    MemoryStore,
    OutputGuardrail,
    OutputGuardrailTripwireTriggered,
    Runner,
    SQLiteStore,
    function_tool,
)
from quiesce.agents.conversation.restore import restore
from quiesce.agents.store import recover
from quiesce.agents.store.memory import MemoryLog
from quiesce.models import (
    AssistantMessage,
    ToolCall,
    ToolResult,
    UserMessage,
)
from quiesce.testing import ScriptedModel, call
from tests.agents.conversations import parked_tool, running
from tests.agents.scenes import (
    Parked,
    SlowModel,
    assert_valid,
    guarded_input,
    guarded_output,
    outcomes,
    passes,
    scripted,
    trips,
)
from tests.agents.talks import SECRET, TWO_TURNS, Reports, Talk, every_way, look
from tests.kernel.temperaments import forever

# Stops ------------------------------------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("guardrail", ["none", "input", "input that has passed", "output"])
async def test_an_interrupt_keeps_partial_text_only_if_no_guardrail_is_to_come(
    how: str, guardrail: str
) -> None:
    model = SlowModel("well so far so good", pause=1)
    options: dict[str, Any] = {}
    if guardrail == "output":
        options["output_guardrails"] = [guarded_output(passes())]
    elif guardrail != "none":
        options["input_guardrails"] = [guarded_input(passes(), 60 if guardrail == "input" else 0.1)]
    agent: Agent[Any] = Agent(name="a", model=model, **options)
    hooks = Reports()
    talk = Talk(how, agent, hooks=hooks)
    with anyio.move_on_after(2.5):
        await talk.say()
    partial = AssistantMessage("wellso", interrupted=True)
    is_kept = guardrail in ("none", "input that has passed")
    kept = await talk.kept()
    assert kept[1:] == ([partial] if is_kept else [])
    assert ("wellso" in await talk.written()) is is_kept
    (report,) = hooks.texts
    assert ("note: not kept, since no guardrail has passed it: 'wellso'" in report) is not is_kept


async def test_an_interrupted_conversation_says_in_its_report_what_was_not_kept() -> None:
    model = SlowModel("well so far", pause=1)
    agent: Agent[Any] = Agent(name="a", model=model, output_guardrails=[guarded_output(passes())])
    conversation = Conversation(agent)
    conversation.send_message("Hello")
    async with running(conversation):
        await anyio.sleep(2.5)
        report = await conversation.interrupt("Esc pressed")
    assert any("wellso" in note for note in report.notes)
    assert conversation.report is not None
    assert conversation.report.notes == report.notes
    assert "wellso" not in str(conversation.items)
    assert conversation.usage.unreported == 1


@every_way
async def test_a_stop_while_the_output_guardrail_looks_keeps_the_tool_calls_alone(how: str) -> None:
    parked = Parked()
    agent = scripted(*TWO_TURNS, "fine", tools=[look], output_guardrails=[OutputGuardrail(parked.park)])
    talk = Talk(how, agent)
    with anyio.move_on_after(1):
        await talk.say()
    parked.assert_tidy()
    kept = await talk.kept()
    assert [type(item).__name__ for item in kept if not isinstance(item, UserMessage)] == [
        "ToolCall",
        "ToolResult",
    ]
    assert SECRET not in await talk.written()


@every_way
async def test_a_stop_in_a_tool_keeps_no_text_that_was_said_beside_the_call(how: str) -> None:
    parked = Parked()
    agent = scripted(
        [f"I dig for {SECRET}.", call("park")],
        tools=[parked_tool(parked)],
        output_guardrails=[guarded_output(passes())],
    )
    talk = Talk(how, agent)
    with anyio.move_on_after(1):
        await talk.say()
    parked.assert_tidy()
    assert outcomes(await talk.kept()) == ["interrupted"]
    assert SECRET not in await talk.written()


async def test_a_conversation_whose_event_loop_is_closed_keeps_no_text_either() -> None:
    """Nobody has a place to wait there."""

    def lose() -> Conversation:
        import asyncio

        agent = scripted(
            [f"I look for {SECRET}.", call("look")],
            tools=[function_tool(forever, name_override="look")],
            output_guardrails=[guarded_output(passes())],
        )
        conversation = Conversation(agent)
        conversation.send_message("Hello")
        loop = asyncio.new_event_loop()
        task = loop.create_task(conversation.arun())
        for _ in range(50):
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        return conversation

    conversation = await anyio.to_thread.run_sync(lose)
    assert conversation.status == "paused"
    assert SECRET not in str(conversation.items)
    assert outcomes(conversation.items) == ["interrupted"]
    assert conversation.report is not None
    assert any(SECRET in note for note in conversation.report.notes)


# Waiting for somebody -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decided", ["approve", "reject"])
async def test_text_beside_a_call_that_waits_for_approval_is_kept_when_the_answer_has_passed(
    decided: str,
) -> None:
    pay = function_tool(_pay, name_override="pay", needs_approval=True)
    agent = scripted(
        ["Shall I?", call("pay")],
        "Done.",
        tools=[pay],
        output_guardrails=[guarded_output(passes())],
    )
    talk = Talk("conversation", agent)
    conversation = talk.conversation
    assert conversation is not None
    assert await talk.say() == "waiting_for_approval"
    assert conversation.items == [UserMessage("Hello"), ToolCall("call_1", "pay")]
    assert "Shall I?" not in await talk.written()
    getattr(conversation, decided)()
    assert await conversation.arun() == "finished"
    kept = await talk.kept()
    assert [type(item).__name__ for item in kept] == [
        *["UserMessage", "AssistantMessage", "ToolCall", "ToolResult", "AssistantMessage"]
    ]
    assert kept[1] == AssistantMessage("Shall I?")
    assert_valid(kept)


async def _pay() -> str:
    return "paid"


async def test_a_run_that_waits_for_approval_has_no_text_before_it_goes_on_and_passes() -> None:
    pay = function_tool(_pay, name_override="pay", needs_approval=True)
    agent = scripted(
        ["Shall I?", call("pay")], "Done.", tools=[pay], output_guardrails=[guarded_output(passes())]
    )
    session = MemorySession("s")
    result = await Runner.run(agent, "Hello", session=session)
    assert [type(item) for item in result.new_items] == [ToolCall]
    state = result.to_state()
    state.approve(state.interruptions[0])
    result = await Runner.run(agent, state)
    assert [type(item) for item in result.new_items] == [
        *[AssistantMessage, ToolCall, ToolResult, AssistantMessage]
    ]
    assert (await session.get_items())[1:] == result.new_items


@pytest.mark.parametrize("verdict", [passes(), trips()], ids=["passes", "trips"])
async def test_text_of_a_turn_before_a_pause_waits_for_the_verdict_after_it(verdict: Any) -> None:
    @function_tool
    async def look() -> str:
        conversation.pause()
        return "a door"

    agent = scripted(
        ["I look.", call("look")], "A door.", tools=[look], output_guardrails=[guarded_output(verdict)]
    )
    talk = Talk("conversation", agent)
    assert talk.conversation is not None
    conversation = talk.conversation
    assert await talk.say() == "paused"
    assert "I look." not in str(await talk.kept())
    if not verdict.tripwire_triggered:
        await conversation.arun()
        assert [type(item).__name__ for item in await talk.kept()] == [
            *["UserMessage", "AssistantMessage", "ToolCall", "ToolResult", "AssistantMessage"]
        ]
        return
    with pytest.raises(OutputGuardrailTripwireTriggered) as caught:
        await conversation.arun()
    assert caught.value.run_data is not None
    assert caught.value.run_data.blocked == [AssistantMessage("I look."), AssistantMessage("A door.")]
    assert "I look." not in await talk.written()
    assert [type(item).__name__ for item in await talk.kept()] == ["UserMessage", "ToolCall", "ToolResult"]


# Writes that are cut ------------------------------------------------------------------------------------------------------


class SlowLog(MemoryLog):
    """Says that it has written only after a while."""

    __slots__ = ()

    async def append(self, events: Any, *, after: int | None = None) -> int:
        last = self.append_sync(events, after=after)
        await anyio.sleep(1)
        return last


class SlowStore(MemoryStore):
    __slots__ = ()

    def open(self, conversation_id: str) -> MemoryLog:
        return SlowLog(self, conversation_id)


@every_way
@pytest.mark.parametrize("moment", [1.5, 2.5, 3.5, 4.5, 5.5])
async def test_a_stop_in_the_middle_of_a_write_neither_loses_nor_repeats_what_has_passed(
    how: str, moment: float
) -> None:
    agent = scripted(
        *[["One. ", call("look")], ["Two. ", call("look")], "Three."],
        tools=[look],
        output_guardrails=[guarded_output(passes())],
    )
    talk = Talk(how, agent, SlowStore())
    with anyio.move_on_after(moment):
        await talk.say()
    kept = await talk.kept()
    assert_valid(kept)
    texts = [item.text for item in kept if isinstance(item, AssistantMessage)]
    assert texts in ([], ["One. ", "Two. ", "Three."])
    if texts:
        assert [type(item).__name__ for item in kept] == [
            "UserMessage",
            *["AssistantMessage", "ToolCall", "ToolResult"] * 2,
            "AssistantMessage",
        ]


# Crashes ------------------------------------------------------------------------------------------------------------------

CRASH = textwrap.dedent(
    """
    import os, signal, sys
    import anyio
    from quiesce.agents import Agent, Conversation, InputGuardrail, OutputGuardrail, Runner, SQLiteSession, function_tool
    from quiesce.models import Usage
    from quiesce.testing import Answer, ScriptedModel, call

    how, which, path = sys.argv[1:]
    answered = anyio.Event()

    @function_tool
    async def look() -> str:
        return "a door"

    async def dies(*_):
        if which == "input":
            await answered.wait()
            await anyio.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)

    async def answer(request):
        answered.set()
        return Answer(["I look for the launch code."], [call("look")], Usage(requests=1, output_tokens=7), "the launch code")

    guardrails = {f"{which}_guardrails": [(InputGuardrail if which == "input" else OutputGuardrail)(dies)]}
    last = Answer(["the launch code"], usage=Usage(requests=1, output_tokens=5))
    agent = Agent(name="a", model=ScriptedModel([answer, last]), tools=[look], **guardrails)

    async def main():
        if how == "session":
            await Runner.run(agent, "Hello", session=SQLiteSession("talk", path))
        else:
            conversation = Conversation(agent, store=path, conversation_id="talk")
            await conversation.asend_message("Hello")
            await conversation.arun()

    anyio.run(main)
    """
)


@pytest.mark.parametrize("how", ["session", "conversation"])
@pytest.mark.parametrize("which", ["input", "output"])
def test_a_program_that_is_killed_before_the_verdict_comes_back_without_the_text(
    how: str, which: str, tmp_path: Path
) -> None:
    path = tmp_path / "chat.db"
    killed = subprocess.run([sys.executable, "-c", CRASH, how, which, str(path)], timeout=15, check=False)
    assert killed.returncode == -9
    with sqlite3.connect(path) as file:
        written = str(file.execute("SELECT payload FROM quiesce_events").fetchall())
    file.close()
    assert SECRET not in written
    with SQLiteStore(path) as store:
        events = store.open("talk").read_sync()
        restored = restore(recover(events))
    items = restored.history.items
    assert items[0] == UserMessage("Hello")
    assert outcomes(items) == ([] if which == "input" else ["finished"])
    assert_valid(items)
    if how == "conversation":
        assert restored.found.usage.output_tokens == (7 if which == "input" else 12)
        model = ScriptedModel(["Where were we?"])
        with Conversation(
            Agent(name="a", model=model, tools=[look]), store=path, conversation_id="talk"
        ) as again:
            assert again.run() == "finished"
            assert SECRET not in str(model.requests[0])
            assert again.usage.output_tokens == restored.found.usage.output_tokens
