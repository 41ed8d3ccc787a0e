"""A write whose answer is lost, and what must not come of it: a second copy, or a write of a holder that was replaced."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import anyio
import pytest
from tests.agents.test_store import message, said

from database_tests.proxy import Proxy
from database_tests.server import PostgresServer
from database_tests.test_contract import queued
from quiesce.agents import PostgresStore
from quiesce.agents.store import StoreConflict, StoreError, StoreFenced, StoreInDoubt
from quiesce.testing import check_store

pytestmark = pytest.mark.real_time


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[Proxy]:
    made = Proxy(server.port)
    yield made
    made.close()


@pytest.fixture
def far(server: PostgresServer, schema: str, proxy: Proxy) -> Iterator[PostgresStore]:
    """A store whose connections go through the proxy."""
    made = PostgresStore(server.url_at(proxy.port), schema=schema, timeout=1.0)
    made.lease_sync("nobody's").release_sync()
    made.open("warm").append_sync([message("x")])
    time.sleep(0.05)  # its hint has been sent, and the next thing that it sends is a write
    yield made  # each test closes it, with the connections that it has made in the test
    made.close_sync()


async def test_an_append_whose_answer_is_lost_is_in_doubt_and_reading_shows_one_copy(
    far: PostgresStore, proxy: Proxy
) -> None:
    with proxy, far:
        log = far.open("a")
        proxy.loses_answers = True
        with pytest.raises(
            StoreInDoubt, match="it is not known whether the events were written: read the log"
        ):
            await log.append([message("one"), message("two")])
        assert said(await log.read()) == ["one", "two"]
        assert await log.append([message("three")]) == 3
        assert proxy.cuts == 1


async def test_an_append_that_never_arrived_is_in_doubt_too_and_reading_shows_none(
    far: PostgresStore, proxy: Proxy
) -> None:
    with proxy, far:
        log = far.open("a")
        proxy.loses_requests = True
        with pytest.raises(StoreInDoubt):
            await log.append([message("one")])
        assert await log.read() == []
        assert await log.append([message("one")]) == 1


async def test_after_a_doubt_the_next_append_does_not_write_without_looking(
    far: PostgresStore, proxy: Proxy
) -> None:
    with proxy, far:
        log = far.open("a")
        await log.append([message("one")])
        await anyio.sleep(0.05)
        proxy.loses_answers = True
        with pytest.raises(StoreInDoubt):
            await log.append([message("two")])
        with pytest.raises(StoreConflict):
            await log.append([message("two")])
        assert said(await log.read()) == ["one", "two"]


async def test_a_post_whose_answer_is_lost_can_be_posted_again(far: PostgresStore, proxy: Proxy) -> None:
    with proxy, far:
        log = far.open("a")
        proxy.loses_answers = True
        with pytest.raises(StoreInDoubt):
            await log.post([queued("m1")])
        assert await log.post([queued("m1")]) == 0  # it is there


async def test_all_writes_of_a_transaction_are_in_doubt_each_with_an_error_of_its_own(
    far: PostgresStore, proxy: Proxy
) -> None:
    with proxy, far:
        errors: list[BaseException] = []

        async def write(number: int) -> None:
            try:
                await far.open(f"c{number}").append([message(f"{number}")])
            except StoreInDoubt as error:
                errors.append(error)

        proxy.loses_answers = True
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(write, number)
        assert errors
        assert len({id(error) for error in errors}) == len(errors)
        for number in range(20):
            copies = said(await far.open(f"c{number}").read())
            assert copies in ([], [f"{number}"])


async def test_a_lease_whose_answer_is_lost_is_not_held_by_a_caller_who_does_not_have_it(
    far: PostgresStore, proxy: Proxy, store: PostgresStore
) -> None:
    with proxy, far:
        proxy.loses_answers = True
        with pytest.raises(StoreInDoubt):
            await far.lease("a", owner="far")
        assert await far.holder("a") is None
        assert await store.holder("a") is None
        lease = await store.lease("a")
        await lease.release()


async def test_a_lease_in_doubt_does_not_release_the_one_that_lives(
    far: PostgresStore, proxy: Proxy, store: PostgresStore
) -> None:
    with proxy, far:
        lease = await far.lease("a", owner="first")
        await anyio.sleep(0.05)
        proxy.loses_answers = True
        with pytest.raises(StoreInDoubt):
            await far.lease("a", owner="second")
        holder = await far.holder("a")
        assert holder is not None
        assert holder.owner == "first"
        assert await lease.log.append([message("one")]) == 1
        await lease.release()


async def test_a_connection_that_broke_before_anything_was_sent_is_opened_again_and_not_in_doubt(
    far: PostgresStore, proxy: Proxy
) -> None:
    with proxy, far:
        log = far.open("a")
        for number in range(1, 6):
            proxy.cut()
            assert await log.append([message(f"{number}")]) == number


async def test_a_late_attempt_is_ended_before_its_store_says_what_became_of_it(
    far: PostgresStore, proxy: Proxy
) -> None:
    with proxy, far:
        log = far.open("a")
        proxy.keeps_requests = True
        began = time.monotonic()
        with pytest.raises(StoreInDoubt, match="silent for 1 s"):
            await log.append([message("late")])
        assert time.monotonic() - began < 2.5
        proxy.keeps_requests = False
        assert await log.read() == []
        proxy.deliver()  # to a session that has ended
        await anyio.sleep(0.1)
        assert await log.append([message("one")]) == 1
        assert said(await log.read()) == ["one"]


async def test_a_late_attempt_writes_nothing_if_its_position_is_taken(
    far: PostgresStore, proxy: Proxy, store: PostgresStore, server: PostgresServer
) -> None:
    with proxy, far:
        log = far.open("a")
        proxy.keeps_requests = True
        with pytest.raises(StoreInDoubt):
            await log.append([message("late")], after=0)
        assert (
            await store.open("a").append([message("in time")]) == 1
        )  # another process, which knows nothing of it
        assert proxy.deliver() > 100
        await anyio.sleep(0.2)
        assert said(await store.open("a").read()) == ["in time"]


async def test_a_late_attempt_of_an_older_lease_is_fenced(
    far: PostgresStore, proxy: Proxy, store: PostgresStore
) -> None:
    with proxy, far:
        lease = await far.lease("a")
        await anyio.sleep(0.05)
        proxy.keeps_requests = True
        with pytest.raises(StoreInDoubt):
            await lease.log.append([message("late")])
        new = await store.lease("a", epoch=lease.epoch + 1)
        proxy.deliver()
        await anyio.sleep(0.2)
        assert await store.open("a").read() == []
        with pytest.raises(StoreFenced):
            await lease.log.append([message("late")])
        assert await new.log.append([message("mine")]) == 1
        await new.release()


async def test_a_write_that_waits_too_long_for_another_one_is_refused_and_not_in_doubt(
    far: PostgresStore, proxy: Proxy, server: PostgresServer, schema: str
) -> None:
    with proxy, far:
        await far.open("a").append([message("one")])
        with server.session() as session:
            session.execute("BEGIN")
            session.execute(f"SELECT * FROM {schema}.quiesce_conversations FOR UPDATE")
            with pytest.raises(StoreError, match=r"try again") as refused:
                await far.open("a").append([message("two")], after=1)
            assert not isinstance(refused.value, StoreInDoubt)
        assert await far.open("a").append([message("two")], after=1) == 2


@pytest.mark.time_limit(60)
async def test_the_store_keeps_the_whole_contract_also_when_answers_are_lost(
    server: PostgresServer, schema: str, proxy: Proxy
) -> None:
    @asynccontextmanager
    async def lose_answer() -> AsyncGenerator[None, None]:
        await anyio.sleep(0.1)  # hints of earlier writes have been sent
        proxy.loses_answers = True
        yield
        proxy.loses_answers = False

    with proxy:
        url = server.url_at(proxy.port)
        rules = await check_store(lambda: PostgresStore(url, schema=schema), lose_answer=lose_answer)
    assert len(rules) == 21
