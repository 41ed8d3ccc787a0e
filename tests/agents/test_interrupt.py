"""Interrupting a conversation: at every moment, by every way of stopping, once and twice; what is left, and how it goes on."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import Any

import anyio
import pytest

from quiesce import CancelToken, Grace, Reason, StopReport, current_token
from quiesce.agents import Agent, Conversation, RunConfig, RunHooks, Stopping, ToolContext, function_tool
from quiesce.agents.conversation.history import History
from quiesce.agents.run.stopping import state_lock
from quiesce.agents.store import RunEnded, StatusChanged
from quiesce.models import AssistantMessage, Note, UserMessage
from quiesce.testing import Answer, ScriptedModel, call
from tests.agents import scenes
from tests.agents.conversations import asked, parked_tool, running, talk
from tests.agents.scenes import (
    Parked,
    SlowModel,
    assert_valid,
    guarded_input,
    outcomes,
    passes,
    results_in,
)
from tests.kernel.temperaments import virtual_worlds
from tests.world import asyncio_only

real_time = pytest.mark.real_time
LONG = 1.0  # seconds


@pytest.fixture
def long_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is parked takes so long to clean up that one can look at it meanwhile."""
    monkeypatch.setattr(scenes, "CLEAN_UP", LONG)


def note_in(conversation: Conversation) -> str:
    last = conversation.items[-1]
    assert isinstance(last, Note)
    return last.text


# Moments


async def test_interrupted_before_its_first_step_a_run_starts_nothing_and_ends_paused() -> None:
    conversation = talk("Hello!")
    coming = conversation.arun()
    stopping = conversation.interrupt()
    assert stopping.done
    assert conversation.status == "paused"
    assert await coming == "paused"
    assert asked(conversation) == []
    assert await conversation.arun() == "finished"


async def test_a_run_that_was_interrupted_before_its_start_does_not_disturb_the_next_one() -> None:
    parked = Parked()
    conversation = talk(call("park"), tools=(parked_tool(parked),))
    old = conversation.arun()
    conversation.interrupt()
    async with running(conversation) as run:
        await parked.reached.wait()
        assert await old == "paused"
        assert conversation.status == "running"
        await conversation.interrupt()
    assert run.status == "paused"


@pytest.mark.parametrize("what", ["interrupt", "pause"])
async def test_of_a_stop_before_the_first_step_callbacks_are_told_once(what: str) -> None:
    told: list[Any] = []
    conversation = talk("Hello!", callbacks=[told.append])
    told.clear()
    coming = conversation.arun()
    getattr(conversation, what)()
    assert [(type(event), event.status) for event in told] == [(StatusChanged, "paused")]
    assert await coming == "paused"
    await conversation.close()
    assert len(told) == 1


@asyncio_only
async def test_cancelled_before_its_first_step_a_run_is_over_and_its_token_is_cancelled() -> None:
    conversation = talk("Hello!")
    task = asyncio.Task(conversation.arun())  # never an eager one
    token = conversation.cancel_token
    assert token is not None
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert conversation.status == "idle"
    assert token.cancelled
    assert await conversation.arun() == "finished"


async def test_instructions_that_swallow_the_cancel_do_not_make_the_model_be_asked() -> None:
    parked = Parked()

    async def instructions(context: Any, agent: Any) -> str:
        try:
            await parked.park()
        except BaseException:
            return "go on all the same"
        return "never"

    model = ScriptedModel(["never"])
    conversation = Conversation(Agent(name="a", model=model, instructions=instructions))
    conversation.send_message("Hi")
    async with running(conversation) as run:
        await parked.reached.wait()
        assert (await conversation.interrupt()).clean
    assert run.status == "paused"
    assert model.requests == []


@pytest.mark.parametrize("moment", ["model", "tool"])
async def test_an_interrupted_turn_does_not_have_the_final_output_of_the_turn_before(moment: str) -> None:
    """One run may answer several messages: what is said while it answers is its next turn."""
    parked = Parked()
    conversation: Conversation

    async def first(request: Any) -> str:
        conversation.send_message("Two?")
        return "one"

    async def never(request: Any) -> str:
        await parked.park()
        return "two"

    second = never if moment == "model" else call("park")
    conversation = talk(first, second, tools=(parked_tool(parked),), said="One?")
    async with running(conversation) as run:
        await parked.reached.wait()
        await conversation.interrupt()
    assert run.status == "paused"
    assert conversation.final_output is None


async def test_interrupted_in_the_model_call_what_was_said_is_kept_and_marked() -> None:
    model = SlowModel("one two three", pause=1.0)
    conversation = Conversation(Agent(name="a", model=model))
    conversation.send_message("count")
    async with running(conversation) as run:
        await model.begun.wait()
        await anyio.sleep(1.5)
        report = await conversation.interrupt("Esc pressed")
        assert model.closed == 1, "settled means that the stream is closed"
    assert run.status == "paused"
    assert report.clean
    assert report.reason == Reason("user", "Esc pressed")
    assert conversation.items == [
        UserMessage("count"),
        AssistantMessage("one", interrupted=True),
        Note("The user has interrupted this on purpose: Esc pressed."),
    ]
    assert conversation.usage.unreported == 1


async def test_interrupted_in_a_tool_the_call_has_a_result_and_the_model_is_told() -> None:
    parked = Parked()
    conversation = talk(call("park"), "Going on.", tools=(parked_tool(parked),))
    async with running(conversation):
        await parked.reached.wait()
        await conversation.interrupt()
        parked.assert_tidy()
    assert outcomes(conversation.items) == ["interrupted"]
    assert "on purpose" in note_in(conversation)
    assert "partially executed" in note_in(conversation)
    assert await conversation.arun() == "finished"
    asked(conversation)


async def test_the_output_so_far_of_a_tool_is_kept() -> None:
    reached = anyio.Event()

    @function_tool
    async def build(context: ToolContext[Any]) -> str:
        """Build something."""
        context.progress("half of it")
        reached.set()
        await anyio.sleep_forever()
        return "all of it"

    conversation = talk(call("build"), tools=(build,))
    async with running(conversation):
        await reached.wait()
        await conversation.interrupt()
    assert "half of it" in results_in(conversation.items)[0].output


async def test_interrupted_with_several_tools_each_call_says_how_far_it_came() -> None:
    parked = Parked()

    @function_tool
    async def quick() -> str:
        """Be quick."""
        return "quick"

    conversation = talk([call("quick"), call("park"), call("park")], tools=(quick, parked_tool(parked)))
    async with running(conversation):
        while parked.begun < 2:
            await anyio.sleep(0.001)
        await anyio.sleep(0.01)
        await conversation.interrupt()
    assert_valid(conversation.items)
    assert outcomes(conversation.items) == ["finished", "interrupted", "interrupted"]


async def test_a_call_that_waited_for_its_turn_was_not_started() -> None:
    parked = Parked()
    conversation = talk(
        [call("park"), call("park")],
        tools=(parked_tool(parked),),
        run_config=RunConfig(max_tool_concurrency=1),
    )
    async with running(conversation):
        await parked.reached.wait()
        await conversation.interrupt()
    assert parked.begun == 1
    assert sorted(outcomes(conversation.items)) == ["interrupted", "not_started"]


@pytest.mark.parametrize("beside", [True, False])
async def test_interrupted_in_a_guardrail_nothing_is_said_and_it_is_asked_again(beside: bool) -> None:
    conversation = talk("Hello!", "Hello!", input_guardrails=[guarded_input(passes(), 60, beside=beside)])
    async with running(conversation):
        await anyio.sleep(0.01)
        assert (await conversation.interrupt()).clean
    assert conversation.status == "paused"
    assert_valid(conversation.items)


async def test_interrupted_while_somebody_is_asked_for_approval_the_call_goes_on_waiting() -> None:
    asked_for = anyio.Event()
    answers = iter([None, True])

    async def approve(context: Any, tool: Any) -> bool:
        answer = next(answers)
        if answer is None:
            asked_for.set()
            await anyio.sleep_forever()
        return bool(answer)

    @function_tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    conversation = talk(call("pay"), "Done.", tools=(pay,), run_config=RunConfig(approve=approve))
    async with running(conversation) as run:
        await asked_for.wait()
        assert (await conversation.interrupt()).clean
    assert run.status == "paused"
    assert [one.name for one in conversation.pending_approvals] == ["pay"]
    assert await conversation.arun() == "finished", "the next run asks again"
    assert outcomes(conversation.items) == ["finished"]
    asked(conversation)


async def test_interrupted_in_a_sub_agent_that_stops_too_and_calls_nothing_more() -> None:
    parked = Parked()
    inner = ScriptedModel([call("park"), call("park"), "never"])
    sub: Agent[Any] = Agent(name="sub", model=inner, tools=[parked_tool(parked)])
    conversation = talk(call("sub", input="go"), "Done.", tools=(sub.as_tool(),))
    async with running(conversation) as run:
        await parked.reached.wait()
        assert (await conversation.interrupt()).clean
        parked.assert_tidy()
    assert run.status == "paused"
    await anyio.sleep(1)
    assert parked.begun == 1
    assert len(inner.requests) == 1
    assert await conversation.arun() == "finished"
    asked(conversation)


async def test_interrupted_in_a_hook_the_run_ends() -> None:
    parked = Parked()

    class Slow(RunHooks[Any]):
        async def on_llm_start(self, context: Any, agent: Any, *asked: Any) -> None:
            await parked.park()

    conversation = talk("Hello!", hooks=Slow())
    async with running(conversation) as run:
        await parked.reached.wait()
        await conversation.interrupt()
        parked.assert_tidy()
    assert run.status == "paused"


async def test_idle_there_is_nothing_to_stop() -> None:
    conversation = talk("Hello!")
    stopping = conversation.interrupt()
    assert stopping.done
    report = await stopping
    assert report.clean
    assert report.reason is None
    assert stopping.wait(0) is report
    assert (await conversation.interrupt()).clean
    assert conversation.status == "idle"
    assert await conversation.arun() == "finished"
    assert (await conversation.interrupt()).clean
    assert conversation.status == "finished"


async def test_an_interrupt_that_comes_with_the_last_answer_takes_nothing_from_it() -> None:
    class Late(RunHooks[Any]):
        async def on_settled(self, context: Any, agent: Any, report: StopReport) -> None:
            conversation.interrupt()

    conversation = talk("Hello!", hooks=Late())
    assert await conversation.arun() == "finished"
    assert conversation.items == [UserMessage("Hello"), AssistantMessage("Hello!")]


# Twice, and by many


async def test_the_second_interrupt_makes_it_faster_and_cuts_no_clean_up() -> None:
    parked = Parked()
    begun = anyio.Event()

    @function_tool
    async def slow_to_stop() -> str:
        """Take two seconds to clean up."""
        try:
            begun.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(20):
                    await anyio.sleep(0.1)
            parked.begun = parked.tidied = 1
        return ""

    conversation = talk(call("slow_to_stop"), tools=(slow_to_stop,), grace=Grace(cancel=100))
    async with running(conversation):
        await begun.wait()
        first = conversation.interrupt()
        await anyio.sleep(0.5)
        second = conversation.interrupt()
        assert second is first
        assert not first.done
        await first
    parked.assert_tidy()


@virtual_worlds
async def test_each_further_interrupt_halves_the_time_that_is_left() -> None:
    begun = anyio.Event()

    @function_tool
    async def stubborn() -> str:
        """Never stop before an hour is over."""
        begun.set()
        ends = anyio.current_time() + 3600
        while anyio.current_time() < ends:
            try:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(60)
            except anyio.get_cancelled_exc_class():
                pass
        return "at last"

    conversation = talk(call("stubborn"), tools=(stubborn,), grace=Grace(cancel=100, terminate=0, kill=0))
    async with running(conversation):
        await begun.wait()
        started = anyio.current_time()
        for _ in range(6):
            conversation.interrupt()
        report = await conversation.interrupt()
        assert anyio.current_time() - started < 100 / 2**5
        assert "stubborn" in [left.name for left in report.left]
        kept = list(conversation.items)
        seen = conversation.report
        assert seen is not None
        assert not seen.clean
        with anyio.move_on_after(4000):
            while not (await conversation.close()).clean:
                pass
    seen = conversation.report
    assert seen is not None
    assert seen.clean
    assert conversation.items == kept, "what comes late does not get into the history"


async def test_all_who_wait_for_a_stop_get_the_same_report() -> None:
    parked = Parked()
    conversation = talk(call("park"), tools=(parked_tool(parked),))
    reports: list[StopReport] = []

    async def wait(stopping: Stopping) -> None:
        reports.append(await stopping)

    async with running(conversation):
        await parked.reached.wait()
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(wait, conversation.interrupt())
    assert len({id(report) for report in reports}) == 1


@pytest.mark.usefixtures("long_clean_up")
async def test_who_stops_to_wait_does_not_stop_the_stop() -> None:
    parked = Parked()
    conversation = talk(call("park"), tools=(parked_tool(parked),))
    async with running(conversation):
        await parked.reached.wait()
        with anyio.move_on_after(0.001) as time_out:
            await conversation.interrupt()
        assert time_out.cancelled_caught
        parked_before = parked.tidied
        await conversation.interrupt()
        assert parked_before == 0
        parked.assert_tidy()


async def test_a_run_that_is_being_stopped_is_still_one_run() -> None:
    parked = Parked()
    conversation = talk(call("park"), tools=(parked_tool(parked),))
    async with running(conversation):
        await parked.reached.wait()
        stopping = conversation.interrupt()
        with pytest.raises(Exception, match="one run at a time"):
            _ = conversation.arun()
        await stopping
        assert conversation.status == "paused"


async def test_a_tool_may_interrupt_its_own_conversation() -> None:
    conversation: Conversation

    @function_tool
    async def enough() -> str:
        """Stop everything."""
        await conversation.interrupt("enough")
        return "never"

    conversation = talk(call("enough"), "Fine.", tools=(enough,))
    assert await conversation.arun() == "paused"
    assert outcomes(conversation.items) == ["interrupted"]
    assert await conversation.arun() == "finished"


async def test_everything_is_settled_before_anybody_is_told() -> None:
    parked = Parked()
    told: list[str] = []

    def tell(event: Any) -> None:
        if isinstance(event, (RunEnded, StatusChanged)) and stopping:
            parked.assert_tidy()
            assert_valid(conversation.items)
            assert conversation.status == "paused"
            assert not stopping[0].done
            told.append(type(event).__name__)

    stopping: list[Stopping] = []
    conversation = talk(call("park"), tools=(parked_tool(parked),), callbacks=[tell])
    async with running(conversation) as run:
        await parked.reached.wait()
        stopping.append(conversation.interrupt())
        await stopping[0]
        assert told == ["RunEnded", "StatusChanged"]
    assert run.status == "paused"
    ended = [event for event in conversation.events() if isinstance(event, RunEnded)]
    assert [(event.status, event.reason) for event in ended] == [("interrupted", "user")]


async def test_the_hooks_hear_of_it() -> None:
    heard: list[str] = []
    parked = Parked()

    class Hear(RunHooks[Any]):
        async def on_cancel(self, context: Any, agent: Any, reason: Reason) -> None:
            parked.assert_tidy()
            heard.append(f"cancel {reason}")

        async def on_settled(self, context: Any, agent: Any, report: StopReport) -> None:
            heard.append(f"settled {report.clean}")

    conversation = talk(call("park"), tools=(parked_tool(parked),), hooks=Hear())
    async with running(conversation):
        await parked.reached.wait()
        await conversation.interrupt("stop")
        assert heard == ["cancel user: stop", "settled True"]


# Somebody else's cancel


async def test_a_timeout_around_arun_raises_after_the_same_settlement() -> None:
    parked = Parked()
    conversation = talk(call("park"), "Going on.", tools=(parked_tool(parked),))
    with pytest.raises(TimeoutError):
        with anyio.fail_after(1):
            await conversation.arun()
    parked.assert_tidy()
    assert conversation.status == "paused"
    assert outcomes(conversation.items) == ["interrupted"]
    assert await conversation.arun() == "finished"
    asked(conversation)


async def test_cancelled_twice_it_is_settled_all_the_same() -> None:
    parked = Parked()
    conversation = talk(call("park"), "Going on.", tools=(parked_tool(parked),))
    with anyio.move_on_after(1.02), anyio.move_on_after(1):
        await conversation.arun()
    parked.assert_tidy()
    assert conversation.status == "paused"
    assert_valid(conversation.items)
    assert await conversation.arun() == "finished"


async def test_cancelled_while_an_interrupt_goes_on_the_cancel_is_not_swallowed() -> None:
    parked = Parked()
    conversation = talk(call("park"), tools=(parked_tool(parked),))
    after: list[str] = []
    async with anyio.create_task_group() as group:

        async def go() -> None:
            await conversation.arun()
            after.append("went on")

        group.start_soon(go)
        await parked.reached.wait()
        conversation.interrupt()
        group.cancel_scope.cancel()
    assert after == []
    parked.assert_tidy()
    assert conversation.status == "paused"
    assert_valid(conversation.items)


@asyncio_only
async def test_a_task_that_is_cancelled_is_cancelled() -> None:
    parked = Parked()
    conversation = talk(call("park"), tools=(parked_tool(parked),))
    task = asyncio.ensure_future(conversation.arun())
    await parked.reached.wait()
    token = conversation.cancel_token
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert token is not None
    assert token.cancelled
    parked.assert_tidy()
    assert conversation.status == "paused"


@asyncio_only
async def test_a_task_that_is_cancelled_before_its_first_step_leaves_the_conversation_free() -> None:
    conversation = talk("Hello!")
    task = asyncio.ensure_future(conversation.arun())
    task.cancel()
    await asyncio.wait([task])
    del task
    assert conversation.status in ("idle", "paused", "finished")
    assert await conversation.arun() == "finished"


def test_the_end_of_asyncio_run_settles_it_too() -> None:
    parked: list[Parked] = []
    kept: list[Any] = []

    async def main() -> None:
        parked.append(Parked())
        conversation = talk(call("park"), tools=(parked_tool(parked[0]),))
        kept.append(conversation)
        kept.append(asyncio.ensure_future(conversation.arun()))
        await parked[0].reached.wait()

    asyncio.run(main())
    conversation = kept[0]
    parked[0].assert_tidy()
    assert conversation.status == "paused"
    assert_valid(conversation.items)
    assert kept[1].cancelled()


def test_a_loop_that_is_closed_under_it_leaves_a_conversation_that_can_go_on() -> None:
    parked: list[Parked] = []
    kept: list[Any] = []

    async def main() -> None:
        parked.append(Parked())
        conversation = talk(call("park"), "Going on.", tools=(parked_tool(parked[0]),))
        kept.append(conversation)
        kept.append(asyncio.ensure_future(conversation.arun()))
        await parked[0].reached.wait()

    loop = asyncio.new_event_loop()
    complaints: list[Any] = []
    loop.set_exception_handler(lambda loop, context: complaints.append(context["message"]))
    loop.run_until_complete(main())
    loop.close()
    conversation = kept[0]
    kept.clear()
    gc.collect()
    assert conversation.status == "paused"
    assert_valid(conversation.items)
    assert conversation.run() == "finished"
    asked(conversation)


def test_of_a_run_whose_loop_was_closed_callbacks_are_told_while_no_lock_is_held() -> None:
    kept: list[Any] = []
    free: list[bool] = []

    class Hooks(RunHooks[Any]):
        async def on_settled(self, context: Any, agent: Any, report: Any) -> None:
            kept[1].set()
            await anyio.sleep_forever()

    def look() -> None:
        free.append(state_lock.acquire(timeout=1))
        if free[-1]:
            state_lock.release()

    def told(event: Any) -> None:
        if loop.is_closed():
            other = threading.Thread(target=look)
            other.start()
            other.join()

    async def main() -> None:
        kept.append(talk("Hello!", "Going on.", hooks=Hooks(), callbacks=[told]))
        kept.append(anyio.Event())
        kept.append(asyncio.ensure_future(kept[0].arun()))
        await kept[1].wait()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)
    loop.run_until_complete(main())
    loop.close()
    conversation: Conversation = kept[0]
    conversation.send_message("And now?")
    assert conversation.status == "idle"
    kept.clear()
    gc.collect()
    assert free
    assert all(free)


# Tokens


async def test_the_old_runs_token_stays_cancelled_and_the_new_run_has_a_fresh_one() -> None:
    tokens: list[CancelToken] = []
    reached = anyio.Event()

    @function_tool
    async def look(context: ToolContext[Any]) -> str:
        """Keep the token of this call."""
        tokens.append(context.token)
        assert context.token is current_token()
        if len(tokens) == 1:
            reached.set()
            await anyio.sleep_forever()
        return "looked"

    conversation = talk(call("look"), call("look"), "Done.", tools=(look,))
    before = conversation.cancel_token
    assert before is None
    async with running(conversation):
        await reached.wait()
        old = conversation.cancel_token
        assert old is not None
        await conversation.interrupt("first")
    assert conversation.cancel_token is old
    assert await conversation.arun() == "finished"
    assert old.cancelled
    assert old.reason == Reason("user", "first")
    assert [token.cancelled for token in tokens] == [True, False], "the new run's was never cancelled"
    assert tokens[0].reason == Reason("user", "first")


async def test_a_token_that_was_given_out_before_the_start_is_that_of_the_run() -> None:
    parked = Parked()
    conversation = talk(call("park"), tools=(parked_tool(parked),))
    coming = conversation.arun()
    early = conversation.cancel_token
    assert early is not None
    async with anyio.create_task_group() as group:

        async def go() -> None:
            await coming

        group.start_soon(go)
        await parked.reached.wait()
        assert conversation.cancel_token is early
        await conversation.interrupt()
        assert early.cancelled
    unstarted = conversation.arun()
    early = conversation.cancel_token
    conversation.interrupt("not now")
    assert early is not None
    assert early.reason == Reason("user", "not now")
    assert await unstarted == "paused"


async def test_after_a_run_that_nobody_looked_at_the_token_says_that_it_was_stopped() -> None:
    model = SlowModel()
    conversation = Conversation(Agent(name="a", model=model))
    conversation.send_message("hi")
    async with running(conversation):
        await model.begun.wait()
        await conversation.interrupt("enough")
    token = conversation.cancel_token
    assert token is not None
    assert token.reason == Reason("user", "enough")
    assert conversation.cancel_token is token


# A signal handler


@pytest.mark.parametrize("fails", [False, True])
async def test_a_signal_handler_that_stops_a_run_which_finds_nothing_to_do_gets_its_report(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    conversation = talk("Hello!")
    await conversation.arun()
    stops: list[Stopping] = []

    def has_work(*_: Any, **__: Any) -> bool:
        stops.append(conversation.interrupt())  # in the thread that holds the lock, as a signal handler does
        if fails:
            raise OSError("no room")
        return False

    monkeypatch.setattr(History, "has_work", has_work)
    if fails:
        with pytest.raises(OSError, match="no room"):
            await conversation.arun()
    else:
        assert await conversation.arun() == "finished"
    (stopping,) = stops
    assert stopping.done
    assert not (await stopping).left


# Reasons


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (Reason("user", "Esc"), "on purpose: Esc"),
        (Reason("timeout"), "time ran out"),
        (Reason("disconnect"), "client disconnected"),
        (Reason("shutdown"), "program is shutting down"),
        (Reason("cancelled"), "stopped before it was finished"),
    ],
)
async def test_the_model_is_told_why(reason: Reason, told: str) -> None:
    model = SlowModel()
    conversation = Conversation(Agent(name="a", model=model))
    conversation.send_message("hi")
    async with running(conversation):
        await model.begun.wait()
        await conversation.interrupt(reason)
    assert told in note_in(conversation)


async def test_interrupts_without_progress_leave_one_note() -> None:
    model = SlowModel(pause=1)
    conversation = Conversation(Agent(name="a", model=model))
    conversation.send_message("hi")
    for _ in range(3):
        model.begun = anyio.Event()
        async with running(conversation):
            await model.begun.wait()
            await conversation.interrupt()
    assert len(conversation.items) == 2


async def test_what_was_spent_counts_also_when_it_was_cut() -> None:
    conversation = talk(Answer(["a"]), said="hi")
    await conversation.arun()
    assert conversation.usage.requests == 1


# From threads


@real_time
@pytest.mark.usefixtures("long_clean_up")
async def test_from_a_thread_it_neither_blocks_nor_needs_the_loop() -> None:
    parked = Parked()
    conversation = talk(call("park"), tools=(parked_tool(parked),))
    took: list[float] = []
    tidied: list[int] = []
    reports: list[StopReport | None] = []

    def stop() -> None:
        before = time.monotonic()
        stopping = conversation.interrupt()
        took.append(time.monotonic() - before)
        tidied.append(parked.tidied)
        token = conversation.cancel_token
        assert token is not None
        assert token.cancelled
        reports.append(stopping.wait(15))

    async with running(conversation) as run:
        await parked.reached.wait()
        await anyio.to_thread.run_sync(stop)
    assert run.status == "paused"
    assert took[0] < LONG
    assert tidied == [0]
    assert reports[0] is not None
    assert reports[0].clean
    parked.assert_tidy()


@real_time
async def test_wait_in_the_loop_that_has_to_stop_is_refused() -> None:
    parked = Parked()
    conversation = talk(call("park"), tools=(parked_tool(parked),))
    async with running(conversation):
        await parked.reached.wait()
        stopping = conversation.interrupt()
        with pytest.raises(RuntimeError, match="await the Stopping"):
            stopping.wait()
        with pytest.raises(RuntimeError, match="await the Stopping"):
            conversation.close_sync()
        await stopping
    assert "nothing left" in repr(stopping)


@real_time
@pytest.mark.usefixtures("long_clean_up")
async def test_wait_gives_up_after_its_timeout() -> None:
    parked = Parked()
    conversation = talk(call("park"), tools=(parked_tool(parked),))
    async with running(conversation):
        await parked.reached.wait()
        stopping = conversation.interrupt()
        assert await anyio.to_thread.run_sync(stopping.wait, 0.001) is None
        assert "under way" in repr(stopping)
        await stopping


@real_time
async def test_another_event_loop_may_wait_too() -> None:
    parked = Parked()
    conversation = talk(call("park"), tools=(parked_tool(parked),))
    reports: list[StopReport] = []

    async def elsewhere() -> None:
        reports.append(await conversation.interrupt())
        reports.append(await conversation.close())

    async with running(conversation):
        await parked.reached.wait()
        await anyio.to_thread.run_sync(lambda: anyio.run(elsewhere))
        await anyio.to_thread.run_sync(lambda: anyio.run(elsewhere, backend="trio"))
    assert all(report.clean for report in reports)
    assert conversation.status == "closed"


@real_time
@pytest.mark.parametrize("round_", range(5))
async def test_threads_that_interrupt_at_any_moment_leave_it_in_order(round_: int) -> None:
    conversation = talk(*(["ok"] * 200), said="go")
    over = threading.Event()

    def pester() -> None:
        while not over.is_set():
            conversation.interrupt()
            conversation.pause()
            _ = conversation.status, conversation.items, conversation.report, conversation.cancel_token
            time.sleep(0.0003 * (1 + round_))

    threads = [threading.Thread(target=pester) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(25):
            conversation.send_message(f"number {number}")
            status = await conversation.arun()
            assert status in ("paused", "finished", "idle")
            assert_valid(conversation.items)
    finally:
        over.set()
        for thread in threads:
            await anyio.to_thread.run_sync(thread.join)
    assert await conversation.arun() in ("finished", "paused")
