"""What goes into one transaction, and what each of its writes is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest
from tests.agents.test_store import message, said

from database_tests.server import PostgresServer
from database_tests.test_contract import queued
from quiesce.agents import PostgresStore
from quiesce.agents.store import ItemAdded, StoreConflict, StoreError, StoreFenced

pytestmark = pytest.mark.real_time


def transactions(server: PostgresServer, table: str, schema: str) -> int:
    """How many transactions have written to a table."""
    return len(server.query(f"SELECT DISTINCT xmin::text FROM {schema}.{table}"))


@contextmanager
def locked(server: PostgresServer, schema: str) -> Iterator[None]:
    """Nothing can be written inside, for at most 0.3 seconds."""
    with server.session() as session:
        session.execute("BEGIN")
        session.execute(f"SELECT * FROM {schema}.quiesce_conversations FOR UPDATE")
        timer = threading.Timer(0.3, session.execute, ["COMMIT"])
        timer.start()
        yield
        timer.join()


async def test_appends_that_wait_share_one_transaction(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    await store.open("first").append([message("x")])
    with locked(server, schema):
        async with anyio.create_task_group() as group:
            group.start_soon(store.open("first").append, [message("y")])
            await anyio.sleep(0.05)
            for number in range(100):
                group.start_soon(store.open(f"c{number}").append, [message("one"), message("two")])
    written = server.query(
        f"SELECT count(DISTINCT xmin::text) FROM {schema}.quiesce_events WHERE conversation_id LIKE 'c%%'"
    )
    assert written == [(1,)]
    assert len(await store.ids()) == 101


async def test_fifty_conversations_at_once_take_far_fewer_transactions_than_appends(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    async def write(number: int) -> None:
        log = store.open(f"c{number}")
        for count in range(10):
            await log.append([message(f"{count}")])

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(write, number)
    count = transactions(server, "quiesce_events", schema)
    print(f"500 appends took {count} transactions")
    assert count < 250


async def test_a_refused_append_does_not_affect_the_others_of_its_transaction(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    lease = await store.lease("fenced")
    newer = await store.lease("fenced", epoch=lease.epoch + 1)
    behind = store.open("behind")
    assert await behind.read() == []
    await store.open("behind").append([message("before")])
    refused: dict[str, StoreError] = {}

    async def expect_refusal(name: str, log: object) -> None:
        with pytest.raises(StoreError) as error:
            await log.append([message("no")])  # type: ignore[attr-defined]
        refused[name] = error.value

    with locked(server, schema):
        async with anyio.create_task_group() as group:
            group.start_soon(store.open("behind").post, [queued("m0")])
            await anyio.sleep(0.05)
            group.start_soon(expect_refusal, "behind", behind)
            group.start_soon(expect_refusal, "fenced", lease.log)
            group.start_soon(store.open("good").append, [message("yes")])
            group.start_soon(store.open("posted").post, [queued("m1")])
            group.start_soon(newer.log.append, [message("mine")])
    assert type(refused["behind"]) is StoreConflict
    assert type(refused["fenced"]) is StoreFenced
    assert said(await store.open("good").read()) == ["yes"]
    assert said(await store.open("fenced").read()) == ["mine"]
    assert len(await store.open("posted").read()) == 1
    assert len(await store.open("behind").read()) == 2
    await newer.release()
    await lease.release()


async def test_appends_of_one_log_in_one_transaction_follow_each_other(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    log = store.open("a")
    numbers: list[int] = []

    async def append(text: str) -> None:
        numbers.append(await log.append([message(text), message(text)]))

    await store.open("first").append([message("x")])
    with locked(server, schema):
        async with anyio.create_task_group() as group:
            group.start_soon(store.open("first").append, [message("y")])
            await anyio.sleep(0.05)
            for number in range(10):
                group.start_soon(append, f"{number}")
    assert sorted(numbers) == list(range(2, 21, 2))
    texts = said(await log.read())
    assert texts[::2] == texts[1::2]
    assert await log.append([message("last")]) == 21


async def test_if_one_append_of_a_log_is_refused_those_behind_it_are_too(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    """They would otherwise follow the events of somebody else, if these are as many as the refused ones."""
    log = store.open("a")
    assert await log.read() == []
    refusals: list[StoreError] = []

    async def append(text: str) -> None:
        with pytest.raises(StoreConflict) as error:
            await log.append([message(text)])
        refusals.append(error.value)

    await store.open("a").append([message("of another writer")])
    with locked(server, schema):
        async with anyio.create_task_group() as group:
            group.start_soon(store.open("a").post, [queued("m")])
            await anyio.sleep(0.05)
            for number in range(5):
                group.start_soon(append, f"{number}")
    assert len(refusals) == 5
    assert len(await log.read()) == 2


async def test_if_a_transaction_fails_its_writes_are_made_one_by_one(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    await store.open("first").append([message("x")])
    server.query(
        f"ALTER TABLE {schema}.quiesce_events ADD CONSTRAINT taboo CHECK (payload NOT LIKE '%%forbidden%%')"
    )
    with locked(server, schema):
        async with anyio.create_task_group() as group:
            group.start_soon(store.open("first").append, [message("y")])
            await anyio.sleep(0.05)
            for number in range(5):
                group.start_soon(store.open(f"c{number}").append, [message("fine")])

            async def forbidden() -> None:
                with pytest.raises(StoreError, match="taboo"):
                    await store.open("bad").append([message("forbidden")])

            group.start_soon(forbidden)
    assert await store.ids() == ["c0", "c1", "c2", "c3", "c4", "first"]


async def test_groups_of_several_stores_with_conversations_in_common_do_not_deadlock(
    server: PostgresServer, schema: str
) -> None:
    names = [f"c{number}" for number in range(20)]

    async def post(store: PostgresStore, name: str, text: str) -> None:
        for count in range(5):
            await store.open(name).post([queued(f"{text} {count}")])

    async with (
        PostgresStore(server.url, schema=schema) as one,
        PostgresStore(server.url, schema=schema) as two,
        PostgresStore(server.url, schema=schema) as three,
    ):
        async with anyio.create_task_group() as group:
            for number, store in enumerate((one, two, three)):
                for name in names if number % 2 else reversed(names):
                    group.start_soon(post, store, name, f"{number}")
        for name in names:
            assert [event.seq for event in await one.open(name).read()] == list(range(1, 16))
    assert "deadlock" not in server.log()


async def test_a_hint_is_not_part_of_a_write(server: PostgresServer, store: PostgresStore) -> None:
    """NOTIFY takes a lock of the whole server for its commit."""
    with server.session() as session:
        session.execute(f"LISTEN {store._database.channel}")
        for number in range(20):
            await store.open("a").append([ItemAdded(item=message("x").item)], after=number)
        heard = [notify.payload for notify in session.notifies(timeout=1.0, stop_after=1)]
    assert heard
    assert "a" not in heard[0].split()  # a digest: anyone can listen


def test_a_hint_fits_into_a_notification_however_many_conversations_it_is_about() -> None:
    from quiesce.agents.store.postgres_database import digest_of, digests_in, hint_of

    few = [digest_of(f"{number}") for number in range(400)]
    assert digests_in(hint_of(few)) == few
    many = [digest_of(f"{number}") for number in range(1000)]
    assert len(hint_of(many)) < 8000
    assert digests_in(hint_of(many)) is None


@pytest.mark.slow
@pytest.mark.time_limit(120)
async def test_ten_thousand_appends_of_a_hundred_conversations_are_all_there(store: PostgresStore) -> None:
    async def write(number: int) -> None:
        log = store.open(f"c{number:03}")
        for count in range(100):
            assert await log.append([message(f"{count}")]) == count + 1

    began = time.monotonic()
    async with anyio.create_task_group() as group:
        for number in range(100):
            group.start_soon(write, number)
    print(f"{10_000 / (time.monotonic() - began):.0f} appends/s")
    for name in await store.ids():
        assert said(await store.open(name).read()) == [f"{count}" for count in range(100)]
