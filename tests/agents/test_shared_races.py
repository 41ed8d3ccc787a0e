"""Conversations that several open: what meets in the moments in which one waits for the store.

No test here samples a race. A store waits at a gate, in the one call that a test names, until the test opens it.
"""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce import Grace, Reason, Scope, ScopeClosed
from quiesce.agents import (
    Agent,
    Conversation,
    ConversationBusy,
    Event,
    LogSession,
    MemoryStore,
    MessageQueued,
    Posted,
    RunEnded,
    RunStarted,
    SQLiteStore,
    StatusChanged,
    StoreError,
    ToolStarted,
    decode_event,
    encode_event,
    function_tool,
)
from quiesce.agents.conversation import remote_stop
from quiesce.agents.conversation import run as run_module
from quiesce.agents.store import ItemAdded, recover, stamp
from quiesce.agents.store.memory import MemoryLease, MemoryLog
from quiesce.models import (
    AssistantMessage,
    ItemDone,
    ModelEvent,
    ModelRequest,
    Reasoning,
    ResponseDone,
    ToolResult,
    Usage,
    UserMessage,
)
from quiesce.testing import call
from tests.agents.conversations import running
from tests.agents.scenes import assert_valid, outcomes
from tests.agents.test_shared_conversation import Doubtful, _DoubtfulLog, agent, opened, run_elsewhere
from tests.agents.test_shared_conversation import store as store  # noqa: PLC0414 - a fixture

pytestmark = pytest.mark.real_time


class Gate:
    """Where a call of the store waits: before it does its work, or behind it."""

    def __init__(self, place: str) -> None:
        self.name, self.when = place.split()
        self.reached = anyio.Event()
        self.open = anyio.Event()


class Gated(MemoryStore):
    """One in memory whose calls can be made to wait, and whose writes can be made to fail."""

    gate: Gate | None = None
    #: What every append raises.
    failure: StoreError | None = None

    def wait_at(self, place: str) -> Gate:
        """Let the next call wait there, such as "lease before" and "load after"."""
        self.gate = Gate(place)
        return self.gate

    async def pass_gate(self, name: str, when: str) -> None:
        gate = self.gate
        if gate is not None and (gate.name, gate.when) == (name, when):
            self.gate = None
            gate.reached.set()
            await gate.open.wait()

    def open(self, conversation_id: str) -> MemoryLog:
        return _GatedLog(self, conversation_id)

    async def lease(self, conversation_id: str, *, owner: str = "", epoch: int | None = None) -> MemoryLease:
        await self.pass_gate("lease", "before")
        lease = self.lease_sync(conversation_id, owner=owner, epoch=epoch)
        try:
            await self.pass_gate("lease", "after")
        except BaseException:
            lease.release_sync()
            raise
        return lease


class _GatedLog(MemoryLog):
    __slots__ = ()

    _store: Gated

    async def append(self, events: Sequence[Event], *, after: int | None = None) -> int:
        if self._store.failure is not None:
            raise self._store.failure
        await self._store.pass_gate("append", "before")
        last = self.append_sync(events, after=after)
        await self._store.pass_gate("append", "after")
        return last

    async def post(self, events: Sequence[Posted]) -> int:
        await self._store.pass_gate("post", "before")
        last = self.post_sync(events)
        await self._store.pass_gate("post", "after")
        return last

    async def read(self, after: int = 0) -> list[Event]:
        await self._store.pass_gate("read", "before")
        found = self.read_sync(after)
        await self._store.pass_gate("read", "after")
        return found

    async def load(self) -> list[Event]:
        await self._store.pass_gate("load", "before")
        found = self.load_sync()
        await self._store.pass_gate("load", "after")
        return found


TAKING_THE_LEASE = ["lease before", "lease after", "load before", "load after"]

QUICK = Grace(cooperate=0.05, cancel=0.05, terminate=0.05, kill=0.05)


def shared_by(store: Any) -> MemoryStore | SQLiteStore:
    """The store itself."""
    return store if isinstance(store, MemoryStore) else SQLiteStore(store)


def said(items: Sequence[Any]) -> list[Any]:
    return [getattr(item, "content", None) or getattr(item, "text", None) for item in items]


async def log_of(store: Any) -> list[Event]:
    """What is in the log of the conversation."""
    if isinstance(store, MemoryStore):
        return store.open("c").read_sync()
    async with SQLiteStore(store) as other:
        return await other.open("c").read()


async def behind(store: Gated, *turns: Any, **options: Any) -> Conversation:
    """A conversation that has to look first when it is run: another one has said something since."""
    conversation = opened(store, "Hello!", *turns, **options)
    await conversation.asend_message("Hi")
    assert await conversation.arun() == "finished"
    async with opened(store) as other:
        await other.asend_message("From elsewhere")
    return conversation


@function_tool(needs_approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


# Messages that are sent while it looks


async def run_to_the_end(conversation: Conversation) -> None:
    for _ in range(3):
        if await conversation.arun() == "finished" and conversation.status == "finished":
            return
    raise AssertionError(f"after three runs: {conversation.status}")


def assert_said_once(conversation: Conversation, text: str) -> None:
    assert said(conversation.items).count(text) == 1
    model: Any = conversation.agent.model
    assert said(model.requests[-1].items).count(text) == 1


async def assert_kept_once(store: Any, text: str) -> None:
    assert recover(await log_of(store)).queued == {}, "it was answered, and waits in the log"
    async with opened(store) as again:
        assert said(again.items).count(text) == 1
        assert again.status == "finished"


@pytest.mark.parametrize("place", TAKING_THE_LEASE)
async def test_a_message_that_is_sent_while_a_run_takes_its_lease_is_answered_once(place: str) -> None:
    store = Gated()
    conversation = await behind(store, "One.", "Two.", "Three.")
    gate = store.wait_at(place)
    async with running(conversation) as run:
        await gate.reached.wait()
        await conversation.asend_message("And this")
        gate.open.set()
    assert run.error is None
    if conversation.status != "finished":
        await run_to_the_end(conversation)
    assert_said_once(conversation, "And this")
    assert_said_once(conversation, "From elsewhere")
    await conversation.close()
    await assert_kept_once(store, "And this")


@pytest.mark.parametrize("place", ["post before", "post after"])
async def test_a_message_on_its_way_while_a_run_takes_its_lease_is_answered_once(place: str) -> None:
    store = Gated()
    conversation = await behind(store, "One.", "Two.", "Three.")
    gate = store.wait_at(place)
    async with anyio.create_task_group() as group:
        group.start_soon(conversation.asend_message, "And this")
        await gate.reached.wait()
        await conversation.arun()
        gate.open.set()
    if conversation.status != "finished":
        await run_to_the_end(conversation)
    assert_said_once(conversation, "And this")
    await conversation.close()
    await assert_kept_once(store, "And this")


@pytest.mark.parametrize("place", ["read before", "read after", "load before", "load after"])
async def test_a_message_that_is_sent_during_a_refresh_is_there_once(place: str) -> None:
    store = Gated()
    conversation = await behind(store, "One.", "Two.")
    gate = store.wait_at(place)
    async with anyio.create_task_group() as group:
        group.start_soon(conversation.refresh)
        await gate.reached.wait()
        await conversation.asend_message("And this")
        gate.open.set()
    assert said(conversation.items).count("And this") == 1
    await run_to_the_end(conversation)
    assert_said_once(conversation, "And this")
    assert_said_once(conversation, "From elsewhere")
    await conversation.close()
    await assert_kept_once(store, "And this")


@pytest.mark.parametrize("place", ["post before", "post after"])
async def test_a_message_that_a_refresh_finds_before_it_is_acknowledged_is_there_once(place: str) -> None:
    store = Gated()
    conversation = await behind(store, "One.", "Two.")
    gate = store.wait_at(place)
    async with anyio.create_task_group() as group:
        group.start_soon(conversation.asend_message, "And this")
        await gate.reached.wait()
        await conversation.refresh()
        gate.open.set()
    assert said(conversation.items).count("And this") == 1
    await run_to_the_end(conversation)
    assert_said_once(conversation, "And this")
    await conversation.close()
    await assert_kept_once(store, "And this")


@pytest.mark.parametrize("place", ["post before", "post after"])
async def test_a_message_whose_sender_is_cancelled_during_a_run_is_there_once_or_not_at_all(
    place: str,
) -> None:
    store = Gated()
    reached, go_on = anyio.Event(), anyio.Event()

    @function_tool
    async def look() -> str:
        """Look."""
        reached.set()
        await go_on.wait()
        return "a door"

    conversation = opened(store, call("look"), "A door.", "Yes.", tools=[look])
    await conversation.asend_message("What is there?")
    async with running(conversation):
        await reached.wait()
        gate = store.wait_at(place)
        async with anyio.create_task_group() as group:
            group.start_soon(conversation.asend_message, "And this")
            await gate.reached.wait()
            group.cancel_scope.cancel()
        go_on.set()
    if conversation.status != "finished":
        await run_to_the_end(conversation)
    assert said(conversation.items).count("And this") == (1 if place == "post after" else 0)
    await conversation.close()
    assert recover(await log_of(store)).queued == {}


# Stops while it takes its lease


async def test_an_interrupt_with_nothing_to_stop_does_not_stop_a_run_that_begins_after_it() -> None:
    class Late(MemoryStore):
        """A stop that was asked for looks at it only when the run has begun."""

        has_begun = threading.Event()

        def holder_sync(self, conversation_id: str) -> Any:
            if threading.current_thread().name == "quiesce-remote-stop":
                assert self.has_begun.wait(10)
            return super().holder_sync(conversation_id)

        async def holder(self, conversation_id: str) -> Any:
            return super().holder_sync(conversation_id)

    store = Late()

    async def think(request: Any) -> str:
        store.has_begun.set()
        with anyio.fail_after(10):
            await stopping
        return "Done."

    conversation = opened(store, think)
    await conversation.asend_message("Hi")
    stopping = conversation.interrupt()
    assert await conversation.arun() == "finished"
    report = await stopping
    assert report.reason is None
    assert report.clean
    await conversation.close()
    assert [type(one).__name__ for one in await log_of(store)].count("StopRequested") == 0


@pytest.mark.parametrize("place", TAKING_THE_LEASE)
async def test_a_run_that_is_interrupted_while_it_takes_its_lease_is_paused_and_the_next_one_works(
    place: str,
) -> None:
    store = Gated()
    conversation = await behind(store, "Well.")
    gate = store.wait_at(place)
    async with running(conversation) as run:
        await gate.reached.wait()
        stopping = conversation.interrupt("enough")
        with pytest.raises(ConversationBusy):
            await conversation.arun()
        gate.open.set()
        with anyio.fail_after(10):
            report = await stopping
    assert run.error is None
    assert run.status == "paused"
    assert report.reason == Reason("user", "enough")
    assert report.clean
    assert store.holder_sync("c") is None
    assert not any(isinstance(one, RunStarted) for one in (await log_of(store))[-2:])
    assert await conversation.arun() == "finished"
    assert_said_once(conversation, "From elsewhere")
    await conversation.close()


@pytest.mark.parametrize("place", TAKING_THE_LEASE)
async def test_a_run_that_is_paused_while_it_takes_its_lease_does_not_begin(place: str) -> None:
    store = Gated()
    conversation = await behind(store, "Well.")
    gate = store.wait_at(place)
    async with running(conversation) as run:
        await gate.reached.wait()
        conversation.pause()
        with pytest.raises(ConversationBusy):
            await conversation.arun()
        gate.open.set()
    assert run.status == "paused"
    assert store.holder_sync("c") is None
    assert await conversation.arun() == "finished"
    await conversation.close()


@pytest.mark.parametrize("place", TAKING_THE_LEASE)
async def test_a_conversation_that_is_closed_while_a_run_takes_its_lease_keeps_none(place: str) -> None:
    store = Gated()
    conversation = await behind(store, "never")
    gate = store.wait_at(place)
    async with anyio.create_task_group() as group, running(conversation) as run:
        await gate.reached.wait()
        group.start_soon(conversation.close)
        await anyio.sleep(0.01)
        gate.open.set()
    assert run.error is None
    assert run.status == "paused"
    assert conversation.status == "closed"
    assert store.holder_sync("c") is None


@pytest.mark.parametrize("place", TAKING_THE_LEASE)
async def test_while_a_lost_run_is_settled_no_other_begins_and_there_is_nothing_to_stop(place: str) -> None:
    store = Gated()
    lost: list[Event] = [ItemAdded(item=UserMessage("Hi")), RunStarted(run_id="lost")]
    store.open("c").append_sync(lost)
    conversation = opened(store, "Well.")
    gate = store.wait_at(place)
    async with anyio.create_task_group() as group:
        group.start_soon(conversation.settle)
        await gate.reached.wait()
        with pytest.raises(ConversationBusy):
            await conversation.arun()
        stopping = conversation.interrupt()
        conversation.pause()
        with pytest.raises(ConversationBusy):
            await conversation.arun()
        gate.open.set()
        with anyio.fail_after(10):
            assert (await stopping).clean
    assert store.holder_sync("c") is None
    ended = [one for one in await log_of(store) if isinstance(one, RunEnded)]
    assert [(one.run_id, one.lost) for one in ended] == [("lost", True)]
    assert await conversation.arun() == "finished"
    await conversation.close()


async def test_a_second_interrupt_reports_what_the_first_has_left_over() -> None:
    let_go = threading.Event()

    @function_tool
    def stuck() -> str:
        """Heed nothing."""
        let_go.wait(10)
        return ""

    conversation = opened(MemoryStore(), call("stuck"), tools=[stuck], grace=QUICK)
    await conversation.asend_message("Hi")
    try:
        async with running(conversation):
            with anyio.fail_after(10):
                while not any(isinstance(one, ToolStarted) for one in conversation.events()):
                    await anyio.sleep(0.01)
            await anyio.sleep(0.05)
            first = await conversation.interrupt()
        again = await conversation.interrupt()
    finally:
        let_go.set()
    assert len(first.left) == 1
    assert [left.name for left in again.left] == [left.name for left in first.left]
    assert not again.clean
    await conversation.close()


async def test_a_stop_of_a_conversation_whose_store_was_closed_does_not_raise(store: Any) -> None:
    shared = shared_by(store)
    conversation = await Conversation.open(agent(), store=shared, conversation_id="c")
    await shared.close()
    conversation.pause()
    with anyio.fail_after(10):
        report = await conversation.interrupt()
    assert not report.clean
    assert "not confirmed" in str(report)
    await conversation.close()


async def test_a_stop_elsewhere_that_is_not_answered_is_reported_as_not_confirmed_when_its_grace_is_over(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_stop, "_MARGIN_SECONDS", 0.1)
    shared = shared_by(store)
    lease = await shared.lease("c", owner="one that does not answer")
    await lease.log.append([ItemAdded(item=UserMessage("Hi")), RunStarted(run_id="r")])
    conversation = await Conversation.open(agent(), store=shared, conversation_id="c")
    assert conversation.status == "running"
    with anyio.fail_after(5):
        report = await conversation.interrupt(grace=QUICK)
    assert not report.clean
    assert [left.kind for left in report.left] == ["run"]
    assert "not confirmed" in str(report)
    # The request is in the log, for when the holder goes on.
    assert type((await shared.open("c").read())[-1]).__name__ == "StopRequested"
    await conversation.close()
    await lease.release()
    await shared.close()


# What is settled


async def test_settled_after_its_results_could_not_be_saved_a_run_has_its_results() -> None:
    store = Gated()

    @function_tool
    async def work() -> str:
        """Work."""
        store.failure = StoreError("the disk is full")
        return "the result"

    conversation = opened(store, call("work"), "never", tools=[work])
    await conversation.asend_message("Hi")
    with pytest.raises(StoreError, match="the disk is full"):
        await conversation.arun()
    store.failure = None
    await conversation.settle()
    assert outcomes(conversation.items) == ["finished"]
    assert store.holder_sync("c") is None
    await conversation.close()
    async with opened(store) as again:
        results = [item for item in again.items if isinstance(item, ToolResult)]
        assert [(one.output, one.outcome) for one in results] == [("the result", "finished")]
    ended = [one for one in await log_of(store) if isinstance(one, RunEnded)]
    assert [one.lost for one in ended] == [False]


# Approvals


async def test_a_message_that_is_sent_again_does_not_give_up_what_waits_for_approval(store: Any) -> None:
    async with opened(store, call("pay"), tools=[pay]) as one:
        await one.asend_message("Pay", message_id="m")
        assert await one.arun() == "waiting_for_approval"
        await one.asend_message("Pay", message_id="m")
        assert len(one.pending_approvals) == 1
    async with opened(store, tools=[pay]) as again:
        await again.asend_message("Pay", message_id="m")
        assert len(again.pending_approvals) == 1
        assert again.status == "waiting_for_approval"
    async with opened(store, "Paid.", tools=[pay]) as later:
        assert len(later.pending_approvals) == 1
        await later.aapprove()
        assert await later.arun() == "finished"
        assert outcomes(later.items) == ["finished"]


async def test_a_message_that_was_sent_during_a_run_does_not_give_up_what_waits_at_its_end(
    store: Any,
) -> None:
    asked, go_on = anyio.Event(), anyio.Event()

    async def think(request: Any) -> Any:
        asked.set()
        await go_on.wait()
        return call("pay")

    conversation = opened(store, think, tools=[pay])
    await conversation.asend_message("Pay")
    async with running(conversation) as run:
        await asked.wait()
        await conversation.asend_message("And hurry")
        go_on.set()
    assert run.status == "waiting_for_approval"
    assert len(conversation.pending_approvals) == 1
    await conversation.refresh()
    assert len(conversation.pending_approvals) == 1
    assert conversation.status == "waiting_for_approval"
    await conversation.close()
    async with opened(store, "Paid.", tools=[pay]) as again:
        assert again.status == "waiting_for_approval"
        assert len(again.pending_approvals) == 1
        await again.aapprove()
        assert await again.arun() == "finished"
        assert outcomes(again.items) == ["finished"]
        assert said(again.items).count("And hurry") == 1


# Looking


async def test_one_that_only_sends_a_message_writes_nothing_else_and_takes_no_lease(store: Any) -> None:
    shared = shared_by(store)
    lease = await shared.lease("c")
    await lease.release()
    async with opened(shared, "Hello!", call("pay"), tools=[pay]) as one:
        await one.asend_message("Hi")
        assert await one.arun() == "finished"
        for status in ("finished", "waiting_for_approval"):
            assert one.status == status
            before = await shared.open("c").read()
            async with await Conversation.open(agent(), store=shared, conversation_id="c") as other:
                await other.asend_message("Go on")
            added = (await shared.open("c").read())[len(before) :]
            assert [type(event) for event in added] == [MessageQueued]
            if status == "finished":
                assert await one.arun() == "waiting_for_approval"
    # Two runs have taken one each, and no one else.
    last = await shared.lease("c")
    assert last.epoch == lease.epoch + 3
    await last.release()
    await shared.close()


async def test_callbacks_are_called_once_with_what_comes_after_it_was_opened(store: Any) -> None:
    seen: list[int] = []
    async with opened(store, "One.") as first:
        await first.asend_message("Before")
        assert await first.arun() == "finished"
    there = len(await log_of(store))
    one = opened(store, "Two.", callbacks=[lambda event: seen.append(event.seq)])
    assert seen == []
    async with opened(store) as other:
        await other.asend_message("From elsewhere")
        await one.asend_message("From here")
    assert await one.arun() == "finished"
    await one.refresh()
    await one.close()
    assert sorted(seen) == list(range(there + 1, len(await log_of(store)) + 1))


async def test_callbacks_of_one_that_was_opened_empty_are_called_with_what_others_write(store: Any) -> None:
    seen: list[int] = []
    async with opened(store, callbacks=[lambda event: seen.append(event.seq)]) as looker:
        async with opened(store, "Hello!") as other:
            await other.asend_message("Hi")
            await looker.refresh()
            assert seen == [1]
            assert await other.arun() == "finished"
        await looker.refresh()
    assert seen == list(range(1, len(await log_of(store)) + 1))


async def test_a_feed_whose_consumer_was_cancelled_while_it_read_misses_nothing() -> None:
    store = Gated()
    many = 1500  # more than a feed holds
    async with opened(store) as conversation:
        feed = conversation.aevents()
        log = store.open("c")
        log.append_sync([ItemAdded(item=UserMessage("0"))])
        seen = [(await anext(feed)).seq]
        log.append_sync([ItemAdded(item=UserMessage(str(number))) for number in range(many)])
        gate = store.wait_at("read before")
        async with anyio.create_task_group() as group:
            group.start_soon(anext, feed)
            await gate.reached.wait()
            group.cancel_scope.cancel()
        with anyio.fail_after(10):
            seen += [(await anext(feed)).seq for _ in range(many)]
    assert seen == list(range(1, many + 2))


async def test_a_damaged_event_stops_the_watch_of_its_own_conversation_alone(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    async with SQLiteStore(path) as store:
        damaged, healthy = store.open("a"), store.open("b")
        seen: list[Event] = []
        began = threading.Event()
        await damaged.append([StatusChanged(status="x")])
        ends = [
            damaged.watch(lambda events: began.set(), after=0),
            healthy.watch(seen.extend, after=0),
        ]
        assert await anyio.to_thread.run_sync(began.wait, 10)

        def damage() -> None:
            with closing(sqlite3.connect(path)) as other, other:
                other.execute(
                    "INSERT INTO quiesce_events (conversation_id, seq, time, payload) "
                    """VALUES ('a', 2, 0, '{"event":"status","status":7}')"""
                )

        await anyio.to_thread.run_sync(damage)
        await healthy.append([StatusChanged(status="y")])
        with anyio.fail_after(10):
            while len(seen) < 1:
                await anyio.sleep(0.01)
        await healthy.append([StatusChanged(status="z")])
        with anyio.fail_after(10):
            while len(seen) < 2:
                await anyio.sleep(0.01)
        for end in ends:
            end()


async def test_a_watch_that_hands_over_late_what_an_earlier_run_wrote_does_not_stop_the_next() -> None:
    late: list[Callable[[], None]] = []

    class LateLog(MemoryLog):
        __slots__ = ()

        def watch(self, on_events: Any, *, after: int) -> Callable[[], None]:
            def keep(events: Sequence[Event]) -> None:
                found = list(events)
                late.append(lambda: on_events(found))

            return super().watch(keep, after=after)

    class LateStore(MemoryStore):
        def open(self, conversation_id: str) -> MemoryLog:
            return LateLog(self, conversation_id)

    async def think(request: Any) -> str:
        for hand_over in late[:]:
            hand_over()
        await anyio.sleep(0.02)
        return "Two."

    async with opened(LateStore(), "One.", think) as conversation:
        await conversation.asend_message("Hi")
        assert await conversation.arun() == "finished"
        assert late
        await conversation.asend_message("And?")
        assert await conversation.arun() == "finished"
        assert said(conversation.items) == ["Hi", "One.", "And?", "Two."]


# Leases


async def test_a_file_that_is_reached_by_a_link_is_the_same_conversation(tmp_path: Path) -> None:
    path, link = tmp_path / "chat.db", tmp_path / "link.db"
    async with run_elsewhere(path) as (live, _):
        link.symlink_to(path)
        async with opened(link) as other:
            assert other.status == "running"
            with pytest.raises(ConversationBusy):
                await other.settle()
            with pytest.raises(ConversationBusy):
                await other.arun()
        assert live.status == "running"


async def test_with_a_lease_from_outside_what_others_say_between_two_runs_is_answered(store: Any) -> None:
    shared = shared_by(store)
    lease = await shared.lease("c", owner="the engine")
    worker = await Conversation.open(agent("1", "2", "3"), store=shared, conversation_id="c", lease=lease)
    async with opened(shared) as other:
        await other.asend_message("one")
        assert await worker.arun() == "finished"
        await other.asend_message("two")
        await worker.refresh()
        assert said(worker.items) == ["one", "1", "two"]
        assert await worker.arun() == "finished"
        await other.asend_message("three")
        assert await worker.arun() == "finished"
    assert said(worker.items) == ["one", "1", "two", "2", "three", "3"]
    await worker.close()
    assert (await shared.holder("c")) is not None
    await lease.release()
    await shared.close()


async def test_a_run_that_cannot_begin_releases_its_lease_and_leaves_no_start(store: Any) -> None:
    shared = shared_by(store)
    conversation = opened(shared, "never")
    await conversation.asend_message("Hi")
    errors: list[BaseException] = []
    reached = anyio.Event()

    async def child() -> None:
        reached.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await conversation.arun()
                except ScopeClosed as error:
                    errors.append(error)

    scope = await Scope.open()
    scope.spawn(child)
    await reached.wait()
    await scope.close()
    assert len(errors) == 1
    assert await shared.holder("c") is None
    await conversation.close()
    assert not any(isinstance(event, RunStarted) for event in await shared.open("c").read())
    async with opened(shared, "Hello!") as other:
        assert await other.arun() == "finished"
    await shared.close()


async def test_a_run_that_finds_at_its_last_write_that_it_was_taken_over_ends_quietly(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shared = shared_by(store)
    asked = anyio.Event()

    async def think(request: Any) -> str:
        asked.set()
        await anyio.sleep_forever()
        return ""

    conversation = opened(shared, think)
    await conversation.asend_message("Hi")
    async with running(conversation) as run:
        await asked.wait()
        lease = await shared.lease("c", epoch=50)  # and has written nothing yet
        await conversation.interrupt()
    assert run.error is None
    assert run.status == "taken_over"
    assert conversation.status == "taken_over"
    await conversation.close()
    assert not caplog.records
    assert not any(isinstance(event, RunEnded) for event in await shared.open("c").read())
    await lease.release()
    await shared.close()


async def test_a_run_after_one_whose_start_could_not_be_saved_is_not_taken_for_a_takeover() -> None:
    store = Gated()
    async with opened(store, "Hello!") as conversation:
        await conversation.asend_message("Hi")
        store.failure = StoreError("the disk is full")
        with pytest.raises(StoreError, match="the disk is full"):
            await conversation.arun()
        store.failure = None
        assert await conversation.arun() == "finished"
    async with opened(store) as again:
        assert said(again.items) == ["Hi", "Hello!"]


# Event loops that are closed


def lose_the_loop(conversation: Conversation, until: Callable[[], bool]) -> None:
    """Close the event loop under a run."""

    async def wait() -> None:
        async with asyncio.timeout(10):
            while not until():
                await asyncio.sleep(0.005)

    loop = asyncio.new_event_loop()
    task = loop.create_task(conversation.arun())
    loop.run_until_complete(wait())
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def wait_for_release(store: Any) -> None:
    for _ in range(1000):
        if store.holder_sync("c") is None:
            return
        threading.Event().wait(0.005)
    raise AssertionError(f"the lease is held: {store.holder_sync('c')}")


def test_a_run_whose_event_loop_was_closed_gives_up_its_lease_and_another_loop_can_run_it(store: Any) -> None:
    shared = shared_by(store)
    asked = threading.Event()

    async def think(request: Any) -> str:
        asked.set()
        await asyncio.sleep(1000)
        return ""

    conversation = opened(shared, think, "Hello!")
    conversation.send_message("Hi")
    lose_the_loop(conversation, asked.is_set)
    assert conversation.status == "paused"
    wait_for_release(shared)
    with opened(shared) as other:
        assert other.status != "running"
    assert asyncio.run(conversation.arun()) == "finished"
    conversation.close_sync()
    assert_valid(conversation.items)
    gc.collect()
    shared.close_sync()


@pytest.mark.parametrize("place", ["append before", "append after"])
def test_a_run_whose_event_loop_was_closed_during_an_append_can_be_run_in_another(place: str) -> None:
    store = Gated()
    conversation = opened(store, "Hello!", "Hello again!")
    conversation.send_message("Hi")
    gate = store.wait_at(place)
    lose_the_loop(conversation, gate.reached.is_set)
    assert conversation.status == "paused"
    wait_for_release(store)

    async def again() -> str:
        await conversation.asend_message("And?")
        async with asyncio.timeout(10):
            return await conversation.arun()

    assert asyncio.run(again()) == "finished"
    assert [text for text in said(conversation.items) if text in ("Hi", "And?")] == ["Hi", "And?"]
    conversation.close_sync()
    with opened(store) as reopened:
        assert reopened.items == conversation.items
    events = store.open("c").read_sync()
    starts = [one.run_id for one in events if isinstance(one, RunStarted)]
    assert len(starts) == len(set(starts))
    gc.collect()


# Writes of nothing


def test_nothing_that_is_posted_makes_no_conversation(store: Any) -> None:
    with shared_by(store) as shared:
        shared.open("c").post_sync([])
        assert shared.ids_sync() == []


# Snapshots


async def test_what_a_session_has_removed_does_not_come_back_with_a_snapshot(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "EVENTS_PER_SNAPSHOT", 4)
    shared = shared_by(store)
    async with opened(shared, "a1") as one:
        await one.asend_message("q1")
        await one.arun()
    session = LogSession(shared.open("c"))
    await session.pop_item()
    await session.pop_item()
    async with opened(shared, "a2", "a3") as one:
        for question in ("q2", "q3"):
            await one.asend_message(question)
            assert await one.arun() == "finished"
        assert said(one.items) == ["q2", "a2", "q3", "a3"]
    async with opened(shared) as again:
        assert said(again.items) == ["q2", "a2", "q3", "a3"]
    assert said(recover(await shared.open("c").read()).items) == ["q2", "a2", "q3", "a3"]
    await shared.close()


async def test_a_result_without_a_call_does_not_shift_what_a_snapshot_keeps(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "EVENTS_PER_SNAPSHOT", 4)
    async with opened(store, "a1") as one:
        await one.asend_message([ToolResult("gone", "of another history"), UserMessage("q1")])
        await one.arun()
    async with opened(store, "a2", "a3") as one:
        for question in ("q2", "q3"):
            await one.asend_message(question)
            assert await one.arun() == "finished"
        items = one.items
    async with opened(store) as again:
        assert again.items == items
        assert [text for text in said(again.items) if text] == ["q1", "a1", "q2", "a2", "q3", "a3"]


# Answers that are lost


class FromDisk(Doubtful):
    """What is read from it has been JSON."""

    def open(self, conversation_id: str) -> MemoryLog:
        return _FromDiskLog(self, conversation_id)


class _FromDiskLog(_DoubtfulLog):
    __slots__ = ()

    async def read(self, after: int = 0) -> list[Event]:
        found = self.read_sync(after)
        return [stamp(decode_event(encode_event(event)), event.seq, event.time) for event in found]


class Thinking:
    """A model whose reasoning has values that JSON changes."""

    name = "thinking"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        yield ItemDone(Reasoning("hm", data={"ids": ("a", "b")}))
        yield ItemDone(AssistantMessage("Hello!"))
        yield ResponseDone(Usage(requests=1), "stop")


async def test_a_write_whose_answer_was_lost_is_found_though_json_has_changed_its_values() -> None:
    store = FromDisk(Reasoning, "after")
    thinking: Agent[Any] = Agent(name="assistant", model=Thinking())
    async with Conversation(thinking, store=store, conversation_id="c") as conversation:
        await conversation.asend_message("Hi")
        assert await conversation.arun() == "finished"
    assert store.kind is None, "no answer was lost"
    kept = [one.item for one in await log_of(store) if isinstance(one, ItemAdded)]
    assert [type(item) for item in kept] == [UserMessage, Reasoning, AssistantMessage]
