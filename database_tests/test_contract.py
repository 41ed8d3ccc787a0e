"""`PostgresStore` keeps to the contract of every store: the tests of the other stores, and those of leases, posts and watches."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Sequence

import anyio
import pytest
from tests.agents.test_store import (  # noqa: F401
    message,
    said,
    test_a_closed_log_or_store_refuses_and_says_so,
    test_a_conversation_that_nobody_wrote_to_is_not_there,
    test_a_store_and_its_logs_keep_to_the_protocols,
    test_a_writer_can_say_itself_which_event_it_follows,
    test_a_writer_notices_that_its_conversation_was_deleted,
    test_an_event_that_was_read_from_one_log_can_be_written_to_another,
    test_an_id_is_a_text,
    test_conversations_do_not_see_each_other_and_go_one_by_one,
    test_events_come_back_in_order_numbered_and_dated,
    test_many_tasks_and_threads_write_to_one_log_and_every_batch_stays_whole,
    test_reading_goes_on_after_any_event,
    test_the_second_writer_of_a_conversation_is_refused_until_it_has_read,
    test_the_sync_and_the_async_way_are_two_ways_to_the_same_log,
    test_what_is_no_event_is_refused_and_nothing_is_written,
)
from tests.world import asyncio_only

from database_tests.server import PostgresServer
from quiesce.agents import Agent, Conversation, PostgresStore
from quiesce.agents.store import (
    ApprovalDecided,
    Event,
    Holder,
    ItemPopped,
    MessageQueued,
    Snapshot,
    StoreConflict,
    StoreFenced,
    StoreHeld,
    UnknownEvent,
)
from quiesce.models import UserMessage
from quiesce.testing import ScriptedModel

pytestmark = pytest.mark.real_time


def queued(message_id: str, text: str = "hello") -> MessageQueued:
    return MessageQueued(message_id=message_id, item=UserMessage(text))


def numbers(events: Sequence[Event]) -> list[int]:
    return [event.seq for event in events]


@pytest.fixture
def other(server: PostgresServer, schema: str, store: PostgresStore) -> PostgresStore:
    """What another process would have; each test closes it."""
    return PostgresStore(server.url, schema=schema)


# Leases


async def test_a_lease_is_held_until_it_is_released_and_the_next_one_has_a_higher_epoch(
    store: PostgresStore, other: PostgresStore
) -> None:
    async with other:
        lease = await store.lease("a", owner="process 1")
        assert await other.holder("a") == await store.holder("a") == Holder("process 1", lease.epoch)
        for one in (store, other):
            with pytest.raises(StoreHeld, match="is being run by process 1") as refused:
                await one.lease("a")
            assert refused.value.holder == Holder("process 1", lease.epoch)
        await lease.release()
        await lease.release()
        assert await other.holder("a") is None
        second = await other.lease("a")
        assert second.epoch > lease.epoch
        await lease.release()  # of an old lease: nothing
        assert await store.holder("a") == Holder("", second.epoch)
        await second.release()


async def test_a_lease_knows_the_last_event_and_its_log_goes_on_after_it(store: PostgresStore) -> None:
    await store.open("a").append([message("one"), message("two")])
    lease = await store.lease("a")
    assert lease.last_seq == 2
    assert await lease.log.append([message("three")]) == 3
    await lease.release()
    assert await lease.log.append([message("four")]) == 4  # no other lease was granted since


async def test_an_older_lease_is_fenced_and_writes_nothing(
    store: PostgresStore, other: PostgresStore
) -> None:
    async with other:
        old = await store.lease("a")
        new = await other.lease("a", epoch=old.epoch + 10)
        assert new.epoch == old.epoch + 10
        with pytest.raises(StoreFenced, match=f"lease {new.epoch} was granted since"):
            await old.log.append([message("late")])
        with pytest.raises(StoreFenced):
            await other.lease("a", epoch=new.epoch)
        assert await other.open("a").read() == []
        await old.release()
        assert await store.holder("a") == Holder("", new.epoch)


async def test_what_needs_no_lease_is_refused_while_one_is_held_unless_it_is_posted(
    store: PostgresStore, other: PostgresStore
) -> None:
    async with other:
        lease = await store.lease("a", owner="me")
        with pytest.raises(StoreHeld, match="is being run by me"):
            await other.open("a").append([message("no")])
        assert await other.open("a").post([queued("m1")]) == 1
        with pytest.raises(StoreConflict):
            await lease.log.append([message("has not read the post")])
        assert numbers(await lease.log.read(after=0)) == [1]
        assert await lease.log.append([message("now")]) == 2
        await lease.release()


async def test_a_deleted_conversation_is_empty_and_an_old_lease_is_not_valid_again(
    store: PostgresStore,
) -> None:
    old = await store.lease("a")
    await old.log.append([queued("m1")])
    await old.release()
    assert await store.delete("a")
    assert not await store.delete("a")
    assert await store.ids() == []
    assert await store.open("a").post([queued("m1")]) == 1  # its messages are forgotten, too
    new = await store.lease("a")
    assert new.epoch > old.epoch
    with pytest.raises(StoreFenced):
        await old.log.append([message("late")], after=1)
    await new.release()


async def test_a_lease_that_is_dropped_is_released(store: PostgresStore) -> None:
    lease = await store.lease("a")
    assert await store.holder("a") is not None
    del lease
    gc.collect()
    assert await store.holder("a") is None


async def test_the_leases_of_a_store_end_when_it_is_closed(
    store: PostgresStore, other: PostgresStore
) -> None:
    lease = await other.lease("a")
    await other.close()
    await lease.release()
    assert await store.holder("a") is None
    again = await store.lease("a")
    assert again.epoch == lease.epoch + 1
    await again.release()


async def test_of_many_who_want_a_lease_at_once_one_gets_it(
    store: PostgresStore, other: PostgresStore
) -> None:
    async with other:
        granted = []

        async def want(one: PostgresStore) -> None:
            try:
                granted.append(await one.lease("a"))
            except StoreHeld:
                pass

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(want, (store, other)[number % 2])
        assert len(granted) == 1
        await granted[0].release()


# Posts


async def test_a_message_is_in_the_log_once_however_often_it_is_posted(store: PostgresStore) -> None:
    log = store.open("a")
    assert await log.post([queued("m1"), queued("m2"), queued("m1")]) == 2
    assert await log.post([queued("m1")]) == 0
    assert await log.post([ApprovalDecided(call_id="c", approved=True), queued("m3")]) == 4
    await store.open("b").append([queued("m4")])
    assert await store.open("b").post([queued("m4"), queued("m5")]) == 2
    assert numbers(await log.read()) == [1, 2, 3, 4]


async def test_what_many_post_at_once_is_all_there_without_gaps(
    store: PostgresStore, other: PostgresStore
) -> None:
    async with other:
        async with anyio.create_task_group() as group:
            for number in range(60):
                log = (store, other)[number % 2].open("a")
                group.start_soon(log.post, [queued(f"m{number % 40}")])
        assert numbers(await store.open("a").read()) == list(range(1, 41))


async def test_only_what_anybody_may_say_can_be_posted(store: PostgresStore) -> None:
    with pytest.raises(TypeError, match="cannot be posted"):
        await store.open("a").post([message("x")])  # type: ignore[list-item]


# Loading


async def test_a_log_is_loaded_from_its_last_snapshot(store: PostgresStore) -> None:
    log = store.open("a")
    assert await log.load() == []
    await log.append([message("one"), Snapshot(items=[UserMessage("one")]), message("two")])
    await log.append([Snapshot(items=[UserMessage("one"), UserMessage("two")]), message("three")])
    opened = store.open("a")
    assert numbers(await opened.load()) == [2, 4, 5]
    assert await opened.append([message("four")]) == 6


async def test_an_event_may_be_large_and_a_log_long(store: PostgresStore) -> None:
    log = store.open("a")
    await log.append([message("x" * 5_000_000)])
    assert len(said(await store.open("a").read())[0]) == 5_000_000
    long = store.open("b")
    await long.append([message(f"{number}") for number in range(10_000)])
    began = time.monotonic()
    events = await store.open("b").read()
    print(f"10,000 events were read in {(time.monotonic() - began) * 1000:.0f} ms")
    assert numbers(events) == list(range(1, 10_001))
    assert numbers(await store.open("b").read(after=9_990)) == list(range(9_991, 10_001))


# Texts


async def test_any_text_is_kept_even_what_postgresql_has_no_character_for(store: PostgresStore) -> None:
    texts = ["a\0b", "\\u0000", "\ud800", "\x01\x1f", "it's; DROP TABLE x --", "{\"a\": 'b\\\\'}", "😀"]
    await store.open("ä'\"\\😀").append([message(text) for text in texts])
    assert said(await store.open("ä'\"\\😀").read()) == texts
    await store.open("b").append([UnknownEvent(data={"event": "n\0w"})])
    assert (await store.open("b").read())[0] == UnknownEvent(
        data={"event": "n\0w"}, seq=1, time=(await store.open("b").read())[0].time
    )


@pytest.mark.parametrize(
    ("text", "complaint"), [("a\0b", "NUL"), ("a\ud800", "surrogate"), ("x" * 1001, "1000 bytes")]
)
def test_an_id_that_postgresql_cannot_hold_is_refused_with_the_reason(
    store: PostgresStore, text: str, complaint: str
) -> None:
    with pytest.raises(ValueError, match=f"the id of a conversation may.*{complaint}"):
        store.open(text)
    with pytest.raises(ValueError, match=f"the id of a conversation may.*{complaint}"):
        store.holder_sync(text)
    with pytest.raises(ValueError, match=f"the id of a message may.*{complaint}"):
        store.open("a").post_sync([queued(text)])
    with pytest.raises(ValueError, match=f"the owner of a lease may.*{complaint}"):
        store.lease_sync("a", owner=text)


async def test_ids_are_sorted_as_python_sorts(store: PostgresStore) -> None:
    ids = ["b", "B", "a", "Z", "ä", "😀", "~", " ", "aa", "_"]
    for name in ids:
        await store.open(name).append([ItemPopped()])
    assert await store.ids() == sorted(ids)


# Watches


async def wait_until(has_come: object, seconds: float = 10.0) -> None:
    with anyio.fail_after(seconds):
        while not has_come():  # type: ignore[operator]
            await anyio.sleep(0.005)


async def test_a_watch_hands_over_what_is_there_and_what_comes_from_here_and_elsewhere(
    store: PostgresStore, other: PostgresStore
) -> None:
    async with other:
        log = store.open("a")
        await log.append([message("one"), message("two")])
        seen: list[Event] = []
        threads: set[int] = set()

        def on_events(events: Sequence[Event]) -> None:
            threads.add(threading.get_ident())
            seen.extend(events)

        end = log.watch(on_events, after=1)
        await wait_until(lambda: len(seen) == 1)
        await log.append([message("three")])
        await wait_until(lambda: len(seen) == 2)
        began = time.monotonic()
        await other.open("a").post([queued("m1")])
        await wait_until(lambda: len(seen) == 3)
        print(f"a hint took {(time.monotonic() - began) * 1000:.1f} ms")
        assert time.monotonic() - began < 1.5  # by a hint: looking without one takes up to two seconds
        assert numbers(seen) == [2, 3, 4]
        assert threading.get_ident() not in threads
        end()
        await log.read()
        await log.append([message("five")])
        await anyio.sleep(0.1)
        assert numbers(seen) == [2, 3, 4]


async def test_a_watch_misses_nothing_while_many_write(store: PostgresStore, other: PostgresStore) -> None:
    async with other:
        seen: list[Event] = []
        end = store.open("a").watch(seen.extend, after=0)
        other_seen: list[Event] = []
        end_other = other.open("b").watch(other_seen.extend, after=0)
        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(other.open("a").post, [queued(f"m{number}")])
                group.start_soon(store.open("b").post, [queued(f"m{number}")])
        await wait_until(lambda: len(seen) == len(other_seen) == 100)
        assert numbers(seen) == numbers(other_seen) == list(range(1, 101))
        end()
        end_other()


async def test_a_watch_that_is_not_ended_ends_with_its_store(server: PostgresServer, schema: str) -> None:
    store = PostgresStore(server.url, schema=schema)
    seen: list[Event] = []
    store.open("a").watch(seen.extend, after=0)
    await store.open("a").append([message("one")])
    await wait_until(lambda: seen)
    await store.close()
    with anyio.fail_after(5):
        while server.sessions("watch"):  # the server ends a session a bit later
            await anyio.sleep(0.01)


# What it leaves


async def test_a_closed_store_leaves_no_session(server: PostgresServer, schema: str) -> None:
    store = PostgresStore(server.url, schema=schema)
    lease = await store.lease("a")
    lease.log.watch(print, after=0)
    assert server.sessions("store")
    assert server.sessions("lease")
    await store.close()
    await store.close()
    with anyio.fail_after(5):
        while any(server.sessions(purpose) for purpose in ("store", "lease", "watch")):
            await anyio.sleep(0.01)


async def test_a_store_that_is_dropped_leaves_no_session_and_keeps_what_was_acknowledged(
    server: PostgresServer, schema: str
) -> None:
    store = PostgresStore(server.url, schema=schema)
    await store.open("a").append([message("one")])
    lease = await store.lease("a")
    del store, lease
    gc.collect()
    with anyio.fail_after(5):
        while any(server.sessions(purpose) for purpose in ("store", "lease")):
            await anyio.sleep(0.01)
    async with PostgresStore(server.url, schema=schema) as again:
        assert said(await again.open("a").read()) == ["one"]
        assert await again.holder("a") is None


def test_plain_threads_use_a_store_as_tasks_do(store: PostgresStore) -> None:
    def write(name: str) -> None:
        log = store.open(name)
        for number in range(20):
            log.append_sync([message(f"{number}")])

    threads = [threading.Thread(target=write, args=[f"c{number}"]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.ids_sync()) == 8
    assert all(len(store.open(name).read_sync()) == 20 for name in store.ids_sync())


async def test_a_conversation_lives_in_it(store: PostgresStore, other: PostgresStore) -> None:
    agent = Agent(name="assistant", model=ScriptedModel(["Hello.", "Again."]))
    async with Conversation(agent, store=store, conversation_id="7") as conversation:
        await conversation.asend_message("Hi!")
        await conversation.arun()
    async with other, Conversation(agent, store=other, conversation_id="7") as conversation:
        await conversation.asend_message("Hi again!")
        await conversation.arun()
        assert conversation.final_output == "Again."
        assert len(conversation.items) == 4


@asyncio_only
async def test_the_store_goes_on_while_the_event_loop_is_blocked(store: PostgresStore) -> None:
    log = store.open("a")
    task = asyncio.ensure_future(log.append([message("one")]))
    await asyncio.sleep(0)
    until = time.monotonic() + 5
    while not store.open("a").read_sync():  # blocks the loop
        assert time.monotonic() < until
    assert await task == 1
