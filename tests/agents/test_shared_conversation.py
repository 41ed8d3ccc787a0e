"""Conversations that several open at once: one runs it, the others look, say something, and stop it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce import Grace, Reason, StopReport
from quiesce.agents import (
    Agent,
    Conversation,
    ConversationBusy,
    Event,
    MaxTurnsExceeded,
    MemoryStore,
    MessageQueued,
    Posted,
    RunEnded,
    RunStarted,
    Snapshot,
    SQLiteStore,
    StoreFenced,
    StoreInDoubt,
    ToolStarted,
    UserError,
    function_tool,
)
from quiesce.agents.conversation import run as run_module
from quiesce.agents.store.memory import MemoryLog
from quiesce.models import AssistantMessage, ToolCall, ToolResult, UserMessage
from quiesce.testing import ScriptedModel, call
from tests.agents.conversations import asked, parked_tool, running
from tests.agents.scenes import Parked, assert_valid, outcomes

pytestmark = pytest.mark.real_time


def agent(*turns: Any, tools: Sequence[Any] = ()) -> Agent[Any]:
    return Agent(name="assistant", model=ScriptedModel(turns), tools=list(tools))


def opened(store: Any, *turns: Any, tools: Sequence[Any] = (), **options: Any) -> Conversation:
    return Conversation(agent(*turns, tools=tools), store=store, conversation_id="c", **options)


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """What two conversations may share: a store of one process, or a file, that each opens for itself."""
    return MemoryStore() if request.param == "memory" else tmp_path / "chat.db"


@asynccontextmanager
async def run_elsewhere(
    store: Any, *turns: Any, **options: Any
) -> AsyncGenerator[tuple[Conversation, Parked]]:
    """A conversation that is in the middle of a tool."""
    parked = Parked()
    conversation = opened(store, call("park"), *turns, tools=[parked_tool(parked)], **options)
    await conversation.asend_message("Hi")
    async with running(conversation):
        await parked.reached.wait()
        yield conversation, parked
        await conversation.interrupt()
    await conversation.close()


# Looking


async def test_a_second_one_on_a_running_conversation_sees_it_run_and_writes_nothing(store: Any) -> None:
    async with run_elsewhere(store) as (live, _):
        before = await anyio.to_thread.run_sync(live.events)
        async with opened(store) as other:
            assert other.status == "running"
            assert outcomes(other.items) == []
            assert [type(item).__name__ for item in other.items] == ["UserMessage", "ToolCall"]
            with pytest.raises(ConversationBusy, match=r"is being run by process \d+"):
                await other.arun()
            assert other.status == "running"
        assert await anyio.to_thread.run_sync(live.events) == before
        assert live.status == "running"
    async with opened(store) as again:
        assert again.status == "paused"
        assert outcomes(again.items) == ["interrupted"]


async def test_opened_in_an_event_loop_it_is_the_same_conversation(store: Any) -> None:
    async with (
        run_elsewhere(store, "Done."),
        await Conversation.open(agent(), store=store, conversation_id="c") as other,
    ):
        assert other.status == "running"
    async with await Conversation.open(agent("Done."), store=store, conversation_id="c") as other:
        assert other.status == "paused"
        assert await other.arun() == "finished"


async def test_a_message_from_elsewhere_is_answered_by_the_run_that_goes_on(store: Any) -> None:
    reached, go_on = anyio.Event(), anyio.Event()

    @function_tool
    async def look() -> str:
        """Look."""
        reached.set()
        await go_on.wait()
        return "a door"

    conversation = opened(store, call("look"), "It is a door.", "Yes, it is red.", tools=[look])
    await conversation.asend_message("What is there?")
    async with running(conversation) as run:
        await reached.wait()
        async with opened(store) as other:
            await other.asend_message("Is it red?", message_id="m")
            await other.asend_message("Is it red?", message_id="m")
        with anyio.fail_after(10):
            while len(conversation.items) < 3:
                await anyio.sleep(0.01)
        go_on.set()
    assert run.status == "finished"
    texts = [getattr(item, "content", None) or getattr(item, "text", None) for item in conversation.items]
    assert [text for text in texts if text] == [
        "What is there?",
        "Is it red?",
        "It is a door.",
    ]
    asked(conversation)
    await conversation.close()


async def test_what_others_have_done_is_seen_after_a_refresh_and_called_back(store: Any) -> None:
    told: list[Event] = []
    looker = opened(store, callbacks=[told.append])
    async with opened(store, "Hello!") as other:
        await other.asend_message("Hi")
        await other.arun()
        assert looker.items == []
        await looker.refresh()
        assert looker.items == other.items
        assert looker.status == "finished"
        await other.asend_message("And?")
        await looker.refresh()
    assert isinstance(told[-1], MessageQueued)
    assert looker.status == "idle"
    await looker.close()


async def test_a_feed_gives_every_event_once_whoever_writes_it(store: Any) -> None:
    seen: list[int] = []
    kinds: list[str] = []
    looker = opened(store)

    async def follow() -> None:
        async for event in looker.aevents():
            seen.append(event.seq)
            kinds.append(type(event).__name__)

    async with anyio.create_task_group() as group:
        group.start_soon(follow)
        async with opened(store, "Hello!", "Again!") as other:
            await other.asend_message("Hi")
            await other.arun()
            await looker.asend_message("More")
            assert await other.arun() == "finished"
            last = len(await anyio.to_thread.run_sync(other.events))
            with anyio.fail_after(10):
                while len(seen) < last:
                    await anyio.sleep(0.01)
        await looker.close()
    assert seen == list(range(1, last + 1))
    assert kinds.count("RunEnded") == 2


async def test_a_feed_begins_where_its_consumer_has_stopped(store: Any) -> None:
    async with opened(store, "Hello!") as conversation:
        await conversation.asend_message("Hi")
        await conversation.arun()
        first = [event.seq async for event in _some(conversation, 0, 3)]
        rest = [event.seq async for event in _some(conversation, first[-1], 2)]
        assert first + rest == [1, 2, 3, 4, 5]


async def _some(conversation: Conversation, after: int, count: int) -> AsyncGenerator[Event, None]:
    async with conversation.aevents(after=after) as feed:
        async for event in feed:
            yield event
            count -= 1
            if not count:
                return


async def test_a_slow_consumer_of_a_feed_misses_nothing() -> None:
    store = MemoryStore()
    async with opened(store) as conversation:
        feed = conversation.aevents()
        await conversation.asend_message("0")
        first = await anext(feed)
        for number in range(1, 2500):
            await conversation.asend_message(str(number))
        rest = [await anext(feed) for _ in range(2499)]
    assert [event.seq for event in [first, *rest]] == list(range(1, 2501))


# Stopping from elsewhere


async def test_an_interrupt_from_elsewhere_stops_the_run_and_comes_back_with_its_report(store: Any) -> None:
    async with run_elsewhere(store) as (live, _):
        async with opened(store) as other:
            with anyio.fail_after(10):
                report = await other.interrupt("Esc")
        assert report.reason == Reason("user", "Esc")
        assert report.clean
        assert "run of assistant" in str(report)
        assert live.status == "paused"
        assert live.report is not None
        assert live.report.reason == Reason("user", "Esc")


async def test_two_that_interrupt_at_once_both_get_the_report(store: Any) -> None:
    reports: list[StopReport] = []

    async def stop(who: Conversation) -> None:
        reports.append(await who.interrupt())

    async with run_elsewhere(store) as (live, _), opened(store) as one, opened(store) as other:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                for who in (one, other, live):
                    group.start_soon(stop, who)
    assert [report.clean for report in reports] == [True] * 3
    assert len({str(report.to_dict()["elapsed"]) for report in reports}) == 1
    events = await anyio.to_thread.run_sync(opened(store).events)
    assert sum(isinstance(event, RunEnded) for event in events) == 1


async def test_an_interrupt_meant_for_one_run_does_not_stop_the_next(store: Any) -> None:
    async with run_elsewhere(store) as (live, _), opened(store) as other:
        stopping = other.interrupt("late")
        live.interrupt("first")
        with anyio.fail_after(10):
            await stopping
            while live.status == "running":
                await anyio.sleep(0.01)
        # The request is in the log, whether or not it came in time. The next run is not concerned.
        async with opened(store, "Going on.") as again:
            assert await again.arun() == "finished"


async def test_a_pause_from_elsewhere_lets_the_step_end(store: Any) -> None:
    reached, go_on = anyio.Event(), anyio.Event()

    @function_tool
    async def look() -> str:
        """Look."""
        reached.set()
        await go_on.wait()
        return "a door"

    conversation = opened(store, call("look"), "never asked", tools=[look])
    await conversation.asend_message("What is there?")
    async with running(conversation) as run:
        await reached.wait()
        async with opened(store) as other:
            other.pause()
            feed = other.aevents()
            async for event in feed:
                if type(event).__name__ == "StopRequested":
                    break
            await anyio.sleep(0.2)
        go_on.set()
    assert run.status == "paused"
    assert outcomes(conversation.items) == ["finished"]
    await conversation.close()


async def test_nothing_to_stop_elsewhere_is_nothing_to_stop(store: Any) -> None:
    async with opened(store, "Hello!") as conversation:
        with anyio.fail_after(10):
            assert (await conversation.interrupt()).reason is None
        await conversation.asend_message("Hi")
        assert await conversation.arun() == "finished"
        with anyio.fail_after(10):
            assert (await conversation.interrupt()).clean


async def test_closed_while_it_waits_for_a_stop_elsewhere_it_says_that_the_stop_is_not_confirmed(
    store: Any,
) -> None:
    class Stuck:
        released = anyio.Event()

    @function_tool
    async def stuck() -> str:
        """Take long to clean up."""
        reached.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await Stuck.released.wait()
        return ""

    reached = anyio.Event()
    Stuck.released = anyio.Event()
    live = opened(store, call("stuck"), tools=[stuck], grace=Grace(cancel=20))
    await live.asend_message("Hi")
    async with running(live):
        await reached.wait()
        other = opened(store)
        stopping = other.interrupt()
        await anyio.sleep(0.3)
        with anyio.fail_after(10):
            await other.close()
            report = await stopping
        assert not report.clean
        assert "not confirmed" in str(report)
        Stuck.released.set()
    await live.close()


# Approvals


async def test_an_approval_from_elsewhere_counts_in_the_next_run_wherever_that_is(store: Any) -> None:
    paid: list[str] = []

    @function_tool(needs_approval=True)
    async def pay(to: str) -> str:
        """Pay."""
        paid.append(to)
        return "paid"

    one = opened(store, [call("pay", "a", to="Ann"), call("pay", "b", to="Bob")], "Paid.", tools=[pay])
    other = opened(store, tools=[pay])
    await one.asend_message("Pay")
    assert await one.arun() == "waiting_for_approval"
    await other.aapprove("a")
    await other.areject("b", "not him")
    with pytest.raises(UserError):
        await other.aapprove("a")
    with pytest.raises(UserError):  # the first decision counts
        await one.areject("a")
    assert await one.arun() == "finished"
    assert paid == ["Ann"]
    assert outcomes(one.items) == ["finished", "rejected"]
    asked(one)
    await one.close()
    await other.close()


async def test_a_message_from_elsewhere_gives_up_what_waits_for_approval(store: Any) -> None:
    @function_tool(needs_approval=True)
    async def pay(to: str) -> str:
        """Pay."""
        return "paid"

    one = opened(store, call("pay", to="Ann"), "As you like.", tools=[pay])
    other = opened(store, tools=[pay])
    await one.asend_message("Pay")
    assert await one.arun() == "waiting_for_approval"
    await other.asend_message("No, wait")
    assert await one.arun() == "finished"
    assert outcomes(one.items) == ["not_started"]
    asked(one)
    await one.close()
    await other.close()


# Once


async def test_a_message_with_an_id_is_sent_once_however_often_it_is_sent() -> None:
    conversation = Conversation(agent("Hello!", "Again!"))
    conversation.send_message("Hi", message_id="m1")
    await conversation.asend_message("Hi", message_id="m1")
    assert conversation.items == [UserMessage("Hi")]
    assert await conversation.arun() == "finished"
    await conversation.asend_message("Hi", message_id="m1")
    assert conversation.status == "finished"
    assert conversation.items == [UserMessage("Hi"), AssistantMessage("Hello!")]
    await conversation.asend_message("Hi", message_id="m2")
    assert await conversation.arun() == "finished"


async def test_a_message_with_an_id_is_sent_once_by_whomever_and_after_a_restart(store: Any) -> None:
    async with opened(store, "Hello!") as one, opened(store) as other:
        await one.asend_message("Hi", message_id="m1")
        await other.asend_message("Hi", message_id="m1")
        assert await one.arun() == "finished"
    async with opened(store) as again:
        await again.asend_message("Hi", message_id="m1")
        await anyio.to_thread.run_sync(lambda: again.send_message("Hi", message_id="m1"))
        await again.refresh()
        assert again.items == [UserMessage("Hi"), AssistantMessage("Hello!")]
        assert again.status == "finished"


async def test_a_message_id_that_is_no_text_is_refused() -> None:
    conversation = Conversation(agent())
    wrong: Any
    for wrong in ("", 7):
        with pytest.raises(ValueError, match="message_id is a str that is not empty"):
            conversation.send_message("Hi", message_id=wrong)
    assert conversation.items == []


# Leases that are lost


async def test_a_run_that_loses_its_lease_ends_quietly_as_taken_over(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shared = store if isinstance(store, MemoryStore) else SQLiteStore(store)
    parked = Parked()
    live = opened(shared, call("park"), "never", tools=[parked_tool(parked)])
    await live.asend_message("Hi")
    async with running(live) as run:
        await parked.reached.wait()
        lease = await shared.lease("c", epoch=100)
        events = await lease.log.read()
        await lease.log.append([RunStarted(run_id="of the other", agent="assistant")])
    assert run.error is None
    assert run.status == "taken_over"
    assert live.status == "taken_over"
    assert live.report is not None
    assert live.report.reason is not None
    assert live.report.reason.kind == "takeover"
    found = await shared.open("c").read()
    assert len(found) == len(events) + 1, "a run that was taken over has written something"
    with pytest.raises(ConversationBusy):
        await live.arun()
    await lease.release()
    assert not caplog.records
    await live.close()
    assert not caplog.records
    await shared.close()


async def test_a_run_that_finds_at_its_next_write_that_it_was_taken_over_calls_no_tool(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shared = store if isinstance(store, MemoryStore) else SQLiteStore(store)
    called: list[str] = []
    leases: list[Any] = []

    @function_tool
    async def work() -> str:
        """Work."""
        called.append("work")
        return "done"

    async def answer(request: Any) -> Any:
        leases.append(await shared.lease("c", epoch=100))
        return call("work")

    live = opened(shared, answer, "never", tools=[work])
    await live.asend_message("Hi")
    assert await live.arun() == "taken_over"
    assert called == []
    assert not caplog.records
    await live.close()
    await leases[0].release()
    await shared.close()


async def test_with_a_lease_from_outside_the_conversation_takes_and_releases_none(store: Any) -> None:
    shared = store if isinstance(store, MemoryStore) else SQLiteStore(store)
    lease = await shared.lease("c", epoch=7, owner="the engine")
    async with await Conversation.open(
        agent("Hello!"), store=shared, conversation_id="c", lease=lease
    ) as one:
        await one.asend_message("Hi")
        assert await one.arun() == "finished"
    holder = await shared.holder("c")
    assert holder is not None
    assert holder.epoch == 7
    assert await shared.open("c").read()
    with pytest.raises(StoreFenced):
        await shared.lease("c", epoch=7)
    await lease.release()
    await shared.close()


# Runs that were lost

LOST = """
import os, sys
from quiesce.agents import Agent, Conversation, function_tool
from quiesce.testing import ScriptedModel, call

@function_tool
async def charge(card: str) -> str:
    "Charge it."
    print("charging", flush=True)
    import anyio
    await anyio.sleep(60)

agent = Agent(name="assistant", model=ScriptedModel([call("charge", "c1", card="1234")]), tools=[charge])
with Conversation(agent, store=sys.argv[1], conversation_id="c") as conversation:
    conversation.send_message("Charge it")
    conversation.run()
"""


def start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


@asynccontextmanager
async def in_a_process(path: Path) -> AsyncGenerator[subprocess.Popen[str], None]:
    """A program that is in the middle of a tool."""
    process = start([sys.executable, "-c", LOST, str(path)])
    try:
        assert process.stdout is not None
        assert await anyio.to_thread.run_sync(process.stdout.readline) == "charging\n"
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def test_another_process_is_seen_to_run_it_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    async with in_a_process(path) as process:
        async with opened(path) as other:
            assert other.status == "running"
            assert outcomes(other.items) == []
        process.send_signal(signal.SIGSTOP)  # it does not run, but it may go on at any time
        async with opened(path) as other:
            assert other.status == "running"
        process.send_signal(signal.SIGCONT)
        process.kill()
        await anyio.to_thread.run_sync(process.wait)
        async with opened(path, "I cannot tell.") as other:
            assert other.status == "paused"
            assert outcomes(other.items) == ["unknown"]
            assert await other.arun() == "finished"


async def test_another_process_is_interrupted_through_the_file(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    async with in_a_process(path) as process:
        async with opened(path) as other:
            with anyio.fail_after(15):
                report = await other.interrupt("enough")
            assert report.clean
            assert report.reason == Reason("user", "enough")
        assert await anyio.to_thread.run_sync(lambda: process.wait(10)) == 0
    async with opened(path) as again:
        assert outcomes(again.items) == ["interrupted"]


async def test_an_interrupt_of_a_process_that_dies_says_what_may_have_had_an_effect(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    async with in_a_process(path) as process, opened(path) as other:
        assert other.status == "running"
        process.send_signal(signal.SIGSTOP)
        stopping = other.interrupt("enough")
        await anyio.sleep(0.3)
        assert not stopping.done
        process.kill()
        with anyio.fail_after(15):
            report = await stopping
        assert not report.clean
        assert [left.kind for left in report.left] == ["tool"]
        assert report.left[0].name == "charge (c1)"
        await other.refresh()
        assert other.status == "paused"
        assert outcomes(other.items) == ["unknown"]
        ended = [one for one in await anyio.to_thread.run_sync(other.events) if isinstance(one, RunEnded)]
        assert [one.lost for one in ended] == [True]
        assert str(ended[0].stop_report) == str(report)


async def test_a_lost_run_is_settled_without_running_anything(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    async with in_a_process(path) as process, opened(path) as other:
        with pytest.raises(ConversationBusy):
            await other.settle()
        process.kill()
        process.wait()
        report = await other.settle("found dead")
        assert report.reason == Reason("user", "found dead")
        assert [left.name for left in report.left] == ["charge (c1)"]
        assert other.status == "paused"
        assert_valid(other.items)
        assert outcomes(other.items) == ["unknown"]
        assert (await other.settle()).clean
    async with opened(path) as again:
        assert outcomes(again.items) == ["unknown"]
        events = await anyio.to_thread.run_sync(again.events)
        assert sum(isinstance(event, RunEnded) for event in events) == 1
    async with Conversation(agent()) as never_stored:
        assert (await never_stored.settle()).clean


async def test_a_run_that_is_lost_again_and_again_has_no_more_turns_than_one(store: Any) -> None:
    shared = store if isinstance(store, MemoryStore) else SQLiteStore(store)
    leases = [await shared.lease("c", epoch=1)]
    requests: list[int] = []

    @function_tool
    async def spin() -> str:
        """Spin."""
        return "again"

    @function_tool
    async def die() -> str:
        """What another process sees when this one is killed: a tool that has started, and nothing more."""
        leases.append(await shared.lease("c", epoch=len(leases) + 1))
        return ""

    async def attempt() -> None:
        script = [call("spin"), call("spin"), call("die"), "never"]
        conversation = await Conversation.open(
            agent(*script, tools=[spin, die]),
            store=shared,
            conversation_id="c",
            lease=leases[-1],
            max_turns=7,
        )
        if len(leases) == 1:
            await conversation.asend_message("Go")
        try:
            assert await conversation.arun() == "taken_over"
        finally:
            model: Any = conversation.agent.model
            requests.append(len(model.requests))

    await attempt()
    await attempt()
    with pytest.raises(MaxTurnsExceeded):
        await attempt()
    assert requests == [3, 3, 1]
    events = await shared.open("c").read()
    assert [event.turns for event in events if isinstance(event, RunStarted)] == [0, 3, 6]
    # That run has ended by itself, and the user may go on.
    async with await Conversation.open(
        agent("Done."), store=shared, conversation_id="c", lease=leases[-1], max_turns=7
    ) as again:
        assert again.status == "error"
        await again.asend_message("Go on")
        assert await again.arun() == "finished"
    await shared.close()


# Snapshots


async def test_a_long_conversation_is_opened_from_its_snapshots(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "EVENTS_PER_SNAPSHOT", 20)

    @function_tool
    async def look() -> str:
        """Look."""
        return "a door"

    async with opened(store, *[call("look"), "A door."] * 12, tools=[look]) as one:
        for number in range(12):
            await one.asend_message(f"What is {number}?")
            assert await one.arun() == "finished"
        items, usage = one.items, one.usage
        events = await anyio.to_thread.run_sync(one.events)
    snapshots = [event for event in events if isinstance(event, Snapshot)]
    assert len(snapshots) > 2
    assert [one.kept for one in snapshots][1:] == [
        sum(len(one.items) for one in snapshots[:place]) for place in range(1, len(snapshots))
    ]
    async with opened(store, "And now?") as again:
        assert again.items == items
        assert again.usage == usage
        assert again.status == "finished"
        assert_valid(again.items)
        await again.asend_message("More")
        assert await again.arun() == "finished"


async def test_what_waits_is_not_lost_in_a_snapshot(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "EVENTS_PER_SNAPSHOT", 1)

    @function_tool(needs_approval=True)
    async def pay(to: str) -> str:
        """Pay."""
        return "paid"

    other = opened(store)

    async def last(request: Any) -> str:
        await other.asend_message("One more thing", message_id="late")
        return "Paid."

    one = opened(store, call("pay", to="Ann"), last, "Yes?", tools=[pay])
    await one.asend_message("Pay")
    assert await one.arun() == "waiting_for_approval"
    async with opened(store, tools=[pay]) as looker:
        assert len(looker.pending_approvals) == 1
        await looker.aapprove()
    await one.arun()
    await one.close()
    async with opened(store, "Yes?") as again:
        assert UserMessage("One more thing") in again.items
        if again.status == "idle":
            assert await again.arun() == "finished"
        assert [item for item in again.items if item == UserMessage("One more thing")] == [
            UserMessage("One more thing")
        ]
    await other.close()


async def test_opening_a_long_log_does_not_hold_up_the_event_loop(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    async with SQLiteStore(path) as store:
        log = store.open("c")
        events: list[Any] = []
        for number in range(10_000):
            events += [
                RunStarted(run_id=str(number)),
                _item(UserMessage(f"question {number}")),
                _item(AssistantMessage(f"answer {number}")),
                RunEnded(run_id=str(number), status="finished"),
            ]
        await log.append(events)
    longest = 0.0
    over = False

    async def beat() -> None:
        nonlocal longest
        while not over:
            began = time.perf_counter()
            await anyio.sleep(0.001)
            longest = max(longest, time.perf_counter() - began)

    async with anyio.create_task_group() as group:
        group.start_soon(beat)
        began = time.perf_counter()
        conversation = await Conversation.open(agent(), store=path, conversation_id="c")
        took = time.perf_counter() - began
        over = True
    assert len(conversation.items) == 20_000
    assert longest < took / 2
    await conversation.close()


def _item(item: Any) -> Any:
    from quiesce.agents import ItemAdded

    return ItemAdded(item=item)


# Answers that are lost


class Doubtful(MemoryStore):
    """The answer to the next write of a certain event is lost: before it took place, or after."""

    __slots__ = ("kind", "when")

    def __init__(self, kind: type[Any], when: str) -> None:
        super().__init__()
        self.kind: type[Any] | None = kind
        self.when = when

    def open(self, conversation_id: str) -> MemoryLog:
        return _DoubtfulLog(self, conversation_id)


class _DoubtfulLog(MemoryLog):
    __slots__ = ()

    def _is_lost(self, events: Sequence[Event]) -> bool:
        store = self._store
        assert isinstance(store, Doubtful)
        kind = store.kind
        if kind is None or not any(isinstance(getattr(event, "item", event), kind) for event in events):
            return False
        store.kind = None
        return True

    async def append(self, events: Sequence[Event], *, after: int | None = None) -> int:
        if not self._is_lost(events):
            return self.append_sync(events, after=after)
        if self._store.when == "after":  # type: ignore[attr-defined]
            self.append_sync(events, after=after)
        raise StoreInDoubt("the connection broke")

    async def post(self, events: Sequence[Posted]) -> int:
        if not self._is_lost(events):
            return self.post_sync(events)
        if self._store.when == "after":  # type: ignore[attr-defined]
            self.post_sync(events)
        raise StoreInDoubt("the connection broke")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", [ToolCall, ToolStarted, ToolResult, AssistantMessage, RunEnded])
async def test_a_write_whose_answer_was_lost_is_asked_for_and_never_there_twice(
    kind: type[Any], when: str
) -> None:
    store = Doubtful(kind, when)

    @function_tool
    async def look() -> str:
        """Look."""
        return "a door"

    conversation = opened(store, call("look"), "It is a door.", "Yes.", tools=[look])
    await conversation.asend_message("What is there?")
    assert await conversation.arun() == "finished"
    assert store.kind is None
    await conversation.asend_message("Go on")
    assert await conversation.arun() == "finished"
    await conversation.close()
    events = await store.open("c").read()
    items = [event.item for event in events if type(event).__name__ == "ItemAdded"]  # type: ignore[union-attr]
    for one in (ToolCall, ToolResult):
        assert sum(isinstance(item, one) for item in items) == 1
    starts = [event for event in events if isinstance(event, RunStarted)]
    ends = [event for event in events if isinstance(event, RunEnded)]
    assert len(starts) == len(ends)
    async with opened(store) as again:
        assert again.items == conversation.items
        assert_valid(again.items)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_message_whose_answer_was_lost_was_sent_or_not_and_the_caller_knows(when: str) -> None:
    store = Doubtful(UserMessage, when)
    conversation = opened(store, "Hello!")
    if when == "before":
        with pytest.raises(StoreInDoubt):
            await conversation.asend_message("Hi", message_id="m")
        assert conversation.items == []
    await conversation.asend_message("Hi", message_id="m")
    assert conversation.items == [UserMessage("Hi")]
    assert await conversation.arun() == "finished"
    assert len([one for one in await store.open("c").read() if isinstance(one, MessageQueued)]) == 1


# The lock that says so


async def test_a_forked_child_does_not_hold_what_its_parent_held(tmp_path: Path) -> None:
    program = """
import os, sys, time
from quiesce.agents import SQLiteStore
store = SQLiteStore(sys.argv[1])
lease = store.lease_sync("c", owner="parent")
if os.fork() == 0:
    os.close(1)
    time.sleep(60)
print(os.getpid(), flush=True)
os.kill(os.getpid(), 9)
"""
    path = tmp_path / "chat.db"
    process = start([sys.executable, "-c", program, str(path)])
    try:
        assert process.stdout is not None
        await anyio.to_thread.run_sync(process.stdout.read)
        process.wait()
        async with SQLiteStore(path) as store:
            assert await store.holder("c") is None
            lease = await store.lease("c")
            await lease.release()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout is not None
        process.stdout.close()


async def test_a_lease_that_is_dropped_is_released(store: Any) -> None:
    shared = store if isinstance(store, MemoryStore) else SQLiteStore(store)
    lease = await shared.lease("c")
    assert await shared.holder("c") is not None
    del lease
    assert await shared.holder("c") is None
    await shared.close()
