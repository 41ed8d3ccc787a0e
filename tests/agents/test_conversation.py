"""Conversations: messages, runs, states, events, approvals, closing."""

from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import anyio
import pytest

from quiesce import Grace, StopReport
from quiesce.agents import (
    Agent,
    Conversation,
    ConversationBusy,
    ConversationClosed,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    MemoryStore,
    RunConfig,
    RunHooks,
    UserError,
    function_tool,
    handoff,
)
from quiesce.agents.store import ItemAdded, MessageQueued, RunEnded, RunStarted, StatusChanged
from quiesce.models import (
    AssistantMessage,
    ModelEvent,
    ModelRequest,
    ModelSettings,
    Note,
    ResponseDone,
    ToolResult,
    Usage,
    UserMessage,
)
from quiesce.testing import Answer, ScriptedModel, call
from tests.agents.conversations import asked, parked_tool, running, talk
from tests.agents.scenes import Parked, SlowModel, assert_valid, guarded_input, outcomes, passes, trips


@function_tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


made: list[str] = []


@function_tool(needs_approval=True)
async def pay(to: str) -> str:
    """Pay somebody."""
    made.append(to)
    return f"paid {to}"


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    made.clear()


# Runs


async def test_a_run_answers_what_was_said() -> None:
    conversation = talk(call("add", a=1, b=2), "It is 3.", tools=(add,))
    assert conversation.status == "idle"
    assert await conversation.arun() == "finished"
    assert conversation.status == "finished"
    assert conversation.final_output == "It is 3."
    kinds = [type(item).__name__ for item in conversation.items]
    assert kinds == ["UserMessage", "ToolCall", "ToolResult", "AssistantMessage"]
    assert conversation.report is not None
    assert conversation.report.clean


async def test_the_next_run_goes_on_with_the_same_history() -> None:
    conversation = talk("Hello!", "Fine.")
    await conversation.arun()
    conversation.send_message("How are you?")
    assert conversation.status == "idle"
    await conversation.arun()
    assert asked(conversation)[1].items == [
        UserMessage("Hello"),
        AssistantMessage("Hello!"),
        UserMessage("How are you?"),
    ]


async def test_usage_is_that_of_all_runs() -> None:
    first = Answer(["a"], usage=Usage(requests=1, input_tokens=5, output_tokens=1))
    second = Answer(["b"], usage=Usage(requests=1, input_tokens=7, output_tokens=2))
    conversation = talk(first, second)
    assert conversation.usage == Usage()
    await conversation.arun()
    conversation.send_message("again")
    await conversation.arun()
    assert conversation.usage == Usage(requests=2, input_tokens=12, output_tokens=3)


async def test_with_nothing_to_answer_a_run_says_so() -> None:
    with pytest.raises(UserError, match="send_message"):
        _ = talk(said=None).arun()


async def test_a_finished_conversation_has_nothing_to_run_and_asks_nobody() -> None:
    conversation = talk("Hello!")
    await conversation.arun()
    assert await conversation.arun() == "finished"
    assert len(asked(conversation)) == 1


async def test_a_failed_run_raises_the_error_itself_and_can_be_run_again() -> None:
    failure = RuntimeError("no connection")
    conversation = talk(failure, "Hello!")
    with pytest.raises(RuntimeError, match="no connection") as raised:
        await conversation.arun()
    assert raised.value is failure
    assert conversation.status == "error"
    assert await conversation.arun() == "finished"
    assert conversation.items == [UserMessage("Hello"), AssistantMessage("Hello!")]


async def test_max_turns_bounds_each_run_and_the_next_one_goes_on() -> None:
    conversation = talk(call("add", a=1, b=2), call("add", a=2, b=2), "Done.", tools=(add,), max_turns=2)
    with pytest.raises(MaxTurnsExceeded) as raised:
        await conversation.arun()
    assert raised.value.run_data is not None
    assert conversation.status == "error"
    assert await conversation.arun() == "finished"
    asked(conversation)


async def test_the_context_and_the_hooks_are_those_of_each_run() -> None:
    told: list[tuple[str, Any]] = []

    class Told(RunHooks[Any]):
        async def on_agent_start(self, context: Any, agent: Any) -> None:
            told.append(("start", context.context))

        async def on_settled(self, context: Any, agent: Any, report: StopReport) -> None:
            told.append(("settled", report.clean))

    conversation = talk("a", "b", context={"user": 7}, hooks=Told())
    await conversation.arun()
    conversation.send_message("more")
    await conversation.arun()
    assert told == [("start", {"user": 7}), ("settled", True)] * 2


async def test_after_a_handoff_the_other_agent_goes_on() -> None:
    expert: Agent[Any] = Agent(name="expert", model=ScriptedModel(["I know.", "Still me."]))
    conversation = talk(call("transfer_to_expert"), handoffs=[handoff(expert)])
    await conversation.arun()
    assert conversation.agent is expert
    conversation.send_message("Sure?")
    await conversation.arun()
    assert conversation.final_output == "Still me."


# One at a time


async def test_a_second_run_is_refused_clearly() -> None:
    parked = Parked()
    conversation = talk(call("park"), tools=(parked_tool(parked),))
    async with running(conversation) as run:
        await parked.reached.wait()
        assert conversation.status == "running"
        with pytest.raises(ConversationBusy, match="one run at a time"):
            _ = conversation.arun()
        assert not run.ended.is_set()
        await conversation.interrupt()
    assert run.status == "paused"


async def test_run_refuses_inside_an_event_loop_and_leaves_the_conversation_free() -> None:
    conversation = talk("Hello!")
    with pytest.raises(RuntimeError, match="await arun"):
        conversation.run()
    assert await conversation.arun() == "finished"


@pytest.mark.filterwarnings("ignore:coroutine 'Conversation._arun' was never awaited")
async def test_an_arun_that_is_dropped_unawaited_is_registered_no_longer() -> None:
    conversation = talk("Hello!")
    dropped = conversation.arun()
    with pytest.raises(ConversationBusy):
        _ = conversation.arun()
    dropped.close()
    del dropped
    assert conversation.status == "idle"
    assert await conversation.arun() == "finished"


@pytest.mark.filterwarnings("ignore:coroutine 'Conversation._arun' was never awaited")
async def test_the_token_of_an_arun_that_is_collected_with_its_conversation_is_cancelled() -> None:
    conversation = talk("Hello!")
    cycle: list[Any] = [conversation, conversation.arun()]
    cycle.append(cycle)
    token = conversation.cancel_token
    assert token is not None
    del conversation, cycle
    gc.collect()
    assert token.cancelled


# Messages during a run


async def test_a_message_sent_during_a_run_waits_for_the_next_turn_of_the_model() -> None:
    conversation: Conversation

    @function_tool
    async def tell() -> str:
        """Say something while a tool runs."""
        conversation.send_message("And hurry!")
        assert isinstance(conversation.items[-1], UserMessage)
        return "told"

    conversation = talk([call("tell"), call("add", a=1, b=1)], "Yes.", tools=(tell, add))
    assert await conversation.arun() == "finished"
    kinds = [type(item).__name__ for item in asked(conversation)[1].items]
    assert kinds == ["UserMessage", "ToolCall", "ToolCall", "ToolResult", "ToolResult", "UserMessage"]


async def test_what_is_said_meanwhile_is_in_the_log_before_the_model_is_asked_about_it() -> None:
    conversation: Conversation
    log: list[Any] = []

    async def first(request: Any) -> str:
        conversation.send_message("Two?")
        return "one"

    async def second(request: Any) -> str:
        log.extend(event.item for event in conversation.events() if isinstance(event, ItemAdded))
        return "two"

    conversation = talk(first, second, said="One?")
    assert await conversation.arun() == "finished"
    assert log == [UserMessage("One?"), AssistantMessage("one"), UserMessage("Two?")]


async def test_a_message_that_comes_with_the_last_answer_is_answered_too() -> None:
    conversation: Conversation

    async def answer(request: Any) -> str:
        conversation.send_message("One more thing.")
        return "Done."

    conversation = talk(answer, "That too.")
    assert await conversation.arun() == "finished"
    assert conversation.final_output == "That too."
    asked(conversation)


async def test_a_message_sent_during_a_run_passes_the_guardrails_too() -> None:
    conversation: Conversation
    seen: list[Any] = []

    async def check(context: Any, agent: Any, said: Any) -> Any:
        seen.append(said)
        return trips() if "secret" in str(said) else passes()

    @function_tool
    async def tell() -> str:
        """Say something while a tool runs."""
        conversation.send_message("the secret")
        return "told"

    conversation = talk(call("tell"), "never", tools=(tell,), input_guardrails=[InputGuardrail(check)])
    with pytest.raises(InputGuardrailTripwireTriggered):
        await conversation.arun()
    assert len(asked(conversation)) == 1
    assert seen[0] == "Hello"


async def test_a_message_in_a_run_that_goes_on_after_a_stop_passes_the_guardrails_too() -> None:
    conversation: Conversation
    parked = Parked()

    async def check(context: Any, agent: Any, said: Any) -> Any:
        return trips() if "secret" in str(said) else passes()

    async def answer(request: Any) -> str:
        conversation.send_message("the secret")
        return "Done."

    conversation = talk(
        *(call("park"), answer, "never"),
        tools=(parked_tool(parked),),
        input_guardrails=[InputGuardrail(check, run_in_parallel=False)],
    )
    async with running(conversation):
        await parked.reached.wait()
        await conversation.interrupt()
    for _ in range(2):
        with pytest.raises(InputGuardrailTripwireTriggered):
            await conversation.arun()
    assert len(asked(conversation)) == 2


async def test_the_same_item_may_be_said_twice() -> None:
    again = UserMessage("And now?")
    conversation = talk("a", "b", said=None)
    conversation.send_message(again)
    conversation.send_message([again, again])
    assert await conversation.arun() == "finished"
    queued = [event.message_id for event in conversation.events() if isinstance(event, MessageQueued)]
    taken = [event.message_id for event in conversation.events() if isinstance(event, ItemAdded)]
    assert len(set(queued)) == 3
    assert taken[:3] == queued


async def test_what_a_guardrail_has_refused_is_not_let_through_by_running_again() -> None:
    conversation = talk("a", "b", input_guardrails=[guarded_input(trips(), beside=False)])
    for _ in range(2):
        with pytest.raises(InputGuardrailTripwireTriggered):
            await conversation.arun()
    assert asked(conversation) == []


async def test_asend_message_does_the_same_without_blocking() -> None:
    conversation = talk("Hello!", said=None)
    await conversation.asend_message([UserMessage("a"), UserMessage("b")])
    await conversation.arun()
    assert asked(conversation)[0].items == [UserMessage("a"), UserMessage("b")]


def test_a_message_is_text_or_items() -> None:
    with pytest.raises(TypeError, match="str, an item"):
        talk(said=None).send_message(7)  # type: ignore[arg-type]


# Pause


async def test_pause_lets_the_step_end_and_the_next_run_goes_on() -> None:
    conversation: Conversation

    @function_tool
    async def stop() -> str:
        """Pause, and end well."""
        conversation.pause()
        await anyio.sleep(0.1)
        return "the step is complete"

    conversation = talk(call("stop"), "Done.", tools=(stop,))
    assert await conversation.arun() == "paused"
    assert outcomes(conversation.items) == ["finished"]
    assert not any(isinstance(item, Note) for item in conversation.items)
    assert await conversation.arun() == "finished"


async def test_pause_before_the_first_step_starts_nothing() -> None:
    conversation = talk("Hello!")
    coming = conversation.arun()
    conversation.pause()
    assert await coming == "paused"
    assert asked(conversation) == []
    assert await conversation.arun() == "finished"


def test_pause_without_a_run_does_nothing() -> None:
    conversation = talk("Hello!")
    conversation.pause()
    conversation.pause()
    assert conversation.status == "idle"


# Events


async def test_callbacks_are_told_in_order_and_see_the_status_that_they_are_told_of() -> None:
    told: list[Any] = []

    def tell(event: Any) -> None:
        told.append(event)
        if isinstance(event, StatusChanged):
            assert conversation.status == event.status

    conversation = talk("Hello!", callbacks=[tell])
    await conversation.arun()
    assert [event.seq for event in told] == list(range(1, len(told) + 1))
    assert [type(event).__name__ for event in told] == [
        "MessageQueued",
        "RunStarted",
        "ItemAdded",
        "ItemAdded",
        "UsageAdded",
        "RunEnded",
        "StatusChanged",
    ]
    assert all(event.time > 0 for event in told)
    assert [type(event) for event in conversation.events()] == [type(event) for event in told]
    assert conversation.events(after=6)[0].seq == 7


async def test_a_callback_that_fails_is_logged_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fails(event: Any) -> None:
        raise ValueError("my screen is broken")

    conversation = talk("Hello!", callbacks=[fails])
    assert await conversation.arun() == "finished"
    assert "a callback of conversation" in caplog.text


async def test_a_callback_may_start_the_next_run() -> None:
    coming: list[Any] = []

    def tell(event: Any) -> None:
        if isinstance(event, StatusChanged) and event.status == "finished" and not coming:
            conversation.send_message("More.")
            coming.append(conversation.arun())

    conversation = talk("Hello!", "More!", callbacks=[tell])
    await conversation.arun()
    assert await coming[0] == "finished"
    assert conversation.final_output == "More!"


async def test_a_run_is_in_the_log_from_its_start_to_its_end() -> None:
    conversation = talk("Hello!")
    await conversation.arun()
    started = [e for e in conversation.events() if isinstance(e, RunStarted)]
    ended = [e for e in conversation.events() if isinstance(e, RunEnded)]
    assert [e.run_id for e in started] == [e.run_id for e in ended]
    assert ended[0].status == "finished"
    assert all(e.run_id == started[0].run_id for e in conversation.events() if isinstance(e, ItemAdded))


# Approvals


async def test_a_call_that_needs_approval_waits_and_is_made_when_it_has_it() -> None:
    conversation = talk([call("pay", to="Ann"), call("add", a=1, b=2)], "Paid.", tools=(pay, add))
    assert await conversation.arun() == "waiting_for_approval"
    assert [one.name for one in conversation.pending_approvals] == ["pay"]
    assert made == []
    assert await conversation.arun() == "waiting_for_approval", "undecided: at once, and nobody is asked"
    conversation.approve()
    assert conversation.pending_approvals == []
    assert await conversation.arun() == "finished"
    assert made == ["Ann"]
    assert outcomes(conversation.items) == ["finished", "finished"]
    asked(conversation)


async def test_a_call_that_is_rejected_is_not_made_and_the_model_is_told_why() -> None:
    conversation = talk(call("pay", to="Ann"), "As you wish.", tools=(pay,))
    await conversation.arun()
    conversation.reject(reason="too much")
    assert await conversation.arun() == "finished"
    assert made == []
    results = [item for item in conversation.items if isinstance(item, ToolResult)]
    assert [(result.outcome, result.output) for result in results] == [("rejected", "too much")]


async def test_each_call_can_be_decided_on_by_itself() -> None:
    conversation = talk([call("pay", "a", to="Ann"), call("pay", "b", to="Bob")], "Done.", tools=(pay,))
    await conversation.arun()
    conversation.approve("b")
    assert [one.call_id for one in conversation.pending_approvals] == ["a"]
    assert await conversation.arun() == "waiting_for_approval"
    conversation.reject("a")
    with pytest.raises(UserError, match="does not wait"):
        conversation.approve("a")
    await conversation.arun()
    assert made == ["Bob"]
    assert outcomes(conversation.items) == ["rejected", "finished"]


async def test_reject_pending_actions_is_for_all_of_them_and_for_none() -> None:
    conversation = talk([call("pay", to="Ann"), call("pay", to="Bob")], "Done.", tools=(pay,))
    conversation.reject_pending_actions()
    await conversation.arun()
    conversation.reject_pending_actions("not today")
    assert await conversation.arun() == "finished"
    assert outcomes(conversation.items) == ["rejected", "rejected"]


async def test_a_message_gives_up_what_waits_for_approval() -> None:
    conversation = talk([call("pay", to="Ann"), call("add", a=1, b=2)], "All right.", tools=(pay, add))
    await conversation.arun()
    conversation.send_message("Forget it.")
    assert conversation.status == "idle"
    assert conversation.pending_approvals == []
    assert_valid(conversation.items)
    assert await conversation.arun() == "finished"
    assert outcomes(conversation.items) == ["not_started", "finished"]
    asked(conversation)


async def test_approvals_wait_through_an_interrupt_and_a_pause() -> None:
    conversation = talk(call("pay", to="Ann"), "Paid.", tools=(pay,))
    await conversation.arun()
    assert (await conversation.interrupt()).clean
    conversation.pause()
    assert conversation.status == "waiting_for_approval"
    assert len(conversation.pending_approvals) == 1
    conversation.approve()
    assert await conversation.arun() == "finished"
    assert made == ["Ann"]


async def test_an_interrupt_stops_the_tools_beside_a_call_that_waits_and_that_goes_on_waiting() -> None:
    parked = Parked()
    conversation = talk([call("park"), call("pay", to="Ann")], "Paid.", tools=(parked_tool(parked), pay))
    async with running(conversation) as run:
        await parked.reached.wait()
        await conversation.interrupt()
    assert run.status == "paused"
    parked.assert_tidy()
    assert [one.name for one in conversation.pending_approvals] == ["pay"]
    conversation.approve()
    assert await conversation.arun() == "finished"
    assert outcomes(conversation.items) == ["interrupted", "finished"]
    asked(conversation)


async def test_an_approval_is_for_one_call_and_not_for_a_later_one_of_the_same_id() -> None:
    conversation = talk(call("pay", "c1", to="Ann"), call("pay", "c1", to="Bob"), "Paid.", tools=(pay,))
    assert await conversation.arun() == "waiting_for_approval"
    conversation.approve()
    assert await conversation.arun() == "waiting_for_approval"
    assert made == ["Ann"]
    assert [one.arguments for one in conversation.pending_approvals] == ['{"to":"Bob"}']


async def test_stopped_while_one_call_is_asked_about_the_next_one_waits_too() -> None:
    parked = Parked()
    store = MemoryStore()
    calls = [call("pay", "a", to="Ann"), call("add", "b", a=1, b=2), call("pay", "c", to="Bob")]
    conversation = talk(
        *(calls, "Paid."),
        tools=(pay, add),
        run_config=RunConfig(approve=lambda context, tool: parked.park()),
        store=store,
        conversation_id="c",
    )
    async with running(conversation):
        await parked.reached.wait()
        await conversation.interrupt()
    assert [one.call_id for one in conversation.pending_approvals] == ["a", "c"]
    again = Conversation(conversation.agent, store=store, conversation_id="c")
    assert [one.call_id for one in again.pending_approvals] == ["a", "c"]
    again.approve("a")
    again.reject("c")
    assert await again.arun() == "finished"
    assert made == ["Ann"]
    assert outcomes(again.items) == ["finished", "not_started", "rejected"]


async def test_a_call_that_a_stop_kept_from_being_looked_at_waits_for_its_approval() -> None:
    parked = Parked()

    @function_tool(needs_approval=lambda context, arguments, call_id: parked.park())
    async def send(to: str) -> str:
        """Send something."""
        return f"sent to {to}"

    calls = [call("send", "a", to="Ann"), call("pay", "b", to="Bob"), call("add", "c", a=1, b=2)]
    conversation = talk(calls, "Paid.", tools=(send, pay, add))
    async with running(conversation):
        await parked.reached.wait()
        await conversation.interrupt()
    assert [one.call_id for one in conversation.pending_approvals] == ["b"]
    conversation.approve("b")
    assert await conversation.arun() == "finished"
    assert made == ["Bob"]
    assert outcomes(conversation.items) == ["not_started", "finished", "not_started"]


async def test_a_decision_outlives_a_stop_that_came_before_anybody_looked_at_it() -> None:
    parked = Parked()
    reached: list[str] = []

    @function_tool(needs_approval=lambda context, arguments, call_id: look(call_id))
    async def send(to: str) -> str:
        """Send something."""
        return f"sent to {to}"

    async def look(call_id: str) -> bool:
        reached.append(call_id)
        if len(reached) == 2:
            await parked.park()
        return True

    calls = [call("send", "a", to="Ann"), call("pay", "b", to="Bob")]
    conversation = talk(calls, "Sent.", tools=(send, pay))
    assert await conversation.arun() == "waiting_for_approval"
    conversation.approve()
    async with running(conversation):
        await parked.reached.wait()
        await conversation.interrupt()
    assert conversation.pending_approvals == []
    assert await conversation.arun() == "finished"
    assert outcomes(conversation.items) == ["finished", "finished"]
    assert made == ["Bob"]


async def test_stopped_again_and_again_while_it_asks_each_result_is_in_the_log_once() -> None:
    parked = Parked()
    conversation = talk(
        *([call("add", a=1, b=2), call("pay", to="Ann")], "Paid."),
        tools=(add, pay),
        run_config=RunConfig(approve=lambda context, tool: parked.park()),
    )
    for _ in range(3):
        parked.reached = anyio.Event()
        async with running(conversation):
            await parked.reached.wait()
            await conversation.interrupt()
    results = [
        e.item for e in conversation.events() if isinstance(e, ItemAdded) and type(e.item) is ToolResult
    ]
    assert len(results) == 1


async def test_an_approver_is_asked_in_the_run() -> None:
    async def approve(context: Any, tool: Any) -> bool:
        return bool(context.tool_arguments == '{"to":"Ann"}')

    config = RunConfig(approve=approve)
    conversation = talk(
        [call("pay", to="Ann"), call("pay", to="Bob")], "Done.", tools=(pay,), run_config=config
    )
    assert await conversation.arun() == "finished"
    assert made == ["Ann"]


def test_without_a_call_that_waits_there_is_nothing_to_approve() -> None:
    with pytest.raises(UserError, match="no call waits"):
        talk("a").approve()


# Closing


async def test_close_ends_the_run_reports_and_refuses_everything_after() -> None:
    parked = Parked()
    conversation = talk(call("park"), tools=(parked_tool(parked),))
    async with running(conversation) as run:
        await parked.reached.wait()
        report = await conversation.close()
        assert report.clean
        assert report.reason is not None
        assert report.reason.kind == "user"
        parked.assert_tidy()
    assert run.status == "paused"
    assert conversation.status == "closed"
    assert_valid(conversation.items)
    for use in (
        conversation.arun,
        lambda: conversation.send_message("x"),
        conversation.approve,
        conversation.run,
    ):
        with pytest.raises((ConversationClosed, RuntimeError)):
            use()
    assert (await conversation.close()).clean
    assert (await conversation.interrupt()).clean


async def test_a_block_closes_it() -> None:
    parked = Parked()
    conversation = talk(call("park"), tools=(parked_tool(parked),))
    async with anyio.create_task_group() as group:
        async with conversation:
            group.start_soon(conversation.arun)
            await parked.reached.wait()
        parked.assert_tidy()
    assert conversation.status == "closed"


async def test_several_may_close_at_once() -> None:
    parked = Parked()
    conversation = talk(call("park"), tools=(parked_tool(parked),))
    reports: list[StopReport] = []

    async def close() -> None:
        reports.append(await conversation.close())

    async with running(conversation):
        await parked.reached.wait()
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(close)
    assert [report.clean for report in reports] == [True] * 3
    parked.assert_tidy()


async def test_a_closer_who_is_cancelled_gets_that_when_it_is_closed() -> None:
    parked = Parked()
    conversation = talk(call("park"), tools=(parked_tool(parked),))
    async with running(conversation):
        await parked.reached.wait()
        with anyio.move_on_after(0.01) as time:
            await conversation.close()
        assert time.cancelled_caught
        parked.assert_tidy()
    assert conversation.status == "closed"


async def test_a_tool_may_close_its_own_conversation() -> None:
    conversation: Conversation

    @function_tool
    async def leave() -> str:
        """Close the conversation that it runs in."""
        await conversation.close()
        await anyio.sleep(1)
        return "never"

    conversation = talk(call("leave"), "never", tools=(leave,))
    with anyio.fail_after(10):
        assert await conversation.arun() == "paused"
    assert conversation.status == "closed"
    assert_valid(conversation.items)


@pytest.mark.parametrize("hook", ["on_cancel", "on_settled"])
@pytest.mark.parametrize("what", ["close", "interrupt"])
async def test_a_hook_that_hears_of_the_end_may_close_or_interrupt_the_conversation(
    hook: str, what: str
) -> None:
    parked = Parked()
    reports: list[StopReport] = []

    async def stop(*_: object) -> None:
        reports.append(await getattr(conversation, what)())

    hooks: RunHooks[Any] = RunHooks()
    setattr(hooks, hook, stop)
    conversation = talk(call("park"), tools=(parked_tool(parked),), hooks=hooks)
    async with running(conversation) as run:
        await parked.reached.wait()
        began = anyio.current_time()
        await conversation.interrupt()
        assert anyio.current_time() - began < 1
    assert run.error is None
    assert run.status == "paused"
    assert reports == [conversation.report]
    assert conversation.status == ("closed" if what == "close" else "paused")


def test_in_a_program_that_is_not_async_a_block_closes_it_too() -> None:
    with talk("Hello!") as conversation:
        assert conversation.run() == "finished"
    assert conversation.status == "closed"
    with pytest.raises(ConversationClosed):
        conversation.run()


# What is refused, and what it costs


def test_wrong_arguments_are_refused_with_a_hint() -> None:
    with pytest.raises(TypeError, match="an Agent"):
        Conversation("agent")  # type: ignore[arg-type]
    agent: Agent[Any] = Agent(name="a", model=ScriptedModel([]))
    with pytest.raises(TypeError, match="a path, a Store or None"):
        Conversation(agent, store=7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Grace"):
        Conversation(agent, grace=3)  # type: ignore[arg-type]
    assert "assistant" in repr(talk("a"))


async def test_the_grace_of_a_conversation_bounds_its_stops() -> None:
    class Stubborn(SlowModel):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
            self.begun.set()
            ends = anyio.current_time() + 1
            while anyio.current_time() < ends:
                with suppress(anyio.get_cancelled_exc_class()), anyio.CancelScope(shield=True):
                    await anyio.sleep(0.1)
            yield ResponseDone(Usage(requests=1))

    model = Stubborn()
    conversation = Conversation(
        Agent(name="a", model=model, model_settings=ModelSettings()),
        grace=Grace(cancel=0.02, terminate=0.02, kill=0.02),
    )
    conversation.send_message("hi")
    async with running(conversation) as run:
        await model.begun.wait()
        before = anyio.current_time()
        report = await conversation.interrupt()
        assert anyio.current_time() - before < 0.4
        assert [left.kind for left in report.left] == ["task"]
        assert conversation.report is not None
        assert conversation.report.left
        report = await conversation.close()  # waits for it again
        while not report.clean:
            report = await conversation.close()
    assert run.status == "paused"


def test_an_idle_conversation_takes_less_than_six_kibibytes() -> None:
    agent: Agent[Any] = Agent(name="a", model=ScriptedModel(["ok"] * 1000))

    async def talk_once(conversations: list[Conversation]) -> None:
        for conversation in conversations:
            conversation.send_message("hi")
            await conversation.arun()

    warm = [Conversation(agent) for _ in range(10)]
    anyio.run(talk_once, warm)
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        idle = [Conversation(agent) for _ in range(200)]
        assert isinstance(agent.model, ScriptedModel)
        agent.model.requests.clear()
        anyio.run(talk_once, idle)
        agent.model.requests.clear()
        gc.collect()
        each = (tracemalloc.get_traced_memory()[0] - before) / len(idle)
    finally:
        tracemalloc.stop()
    assert each < 6 * 1024, f"{each:.0f} bytes"
    assert sys.getsizeof(idle[0]) < 400


@pytest.mark.real_time
async def test_many_threads_may_talk_at_once() -> None:
    conversation = talk("ok", said=None, callbacks=[lambda event: None])

    def say(who: int) -> None:
        for number in range(50):
            conversation.send_message(f"{who} {number}")

    threads = [threading.Thread(target=say, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join)
    await conversation.arun()
    said = [item.content for item in conversation.items if isinstance(item, UserMessage)]
    assert sorted(said) == sorted(f"{who} {number}" for who in range(4) for number in range(50))
    for who in range(4):
        mine = [one for one in said if one.startswith(f"{who} ")]  # type: ignore[union-attr]
        assert mine == [f"{who} {number}" for number in range(50)]


async def test_a_conversation_that_ended_with_what_a_tool_returned_has_nothing_to_answer() -> None:
    @function_tool
    async def look() -> str:
        return "seen"

    model, store = ScriptedModel([call("look"), "extra"]), MemoryStore()
    agent: Agent[Any] = Agent(
        name="assistant", model=model, tools=[look], tool_use_behavior="stop_on_first_tool"
    )
    async with Conversation(agent, store=store, conversation_id="1") as conversation:
        conversation.send_message("?")
        for _ in range(2):
            assert await conversation.arun() == "finished"
            assert conversation.final_output == "seen"
    async with Conversation(agent, store=store, conversation_id="1") as again:
        assert await again.arun() == "finished"
        assert len(model.requests) == 1
        again.send_message("and now?")
        assert await again.arun() == "finished"
        assert again.final_output == "extra"
