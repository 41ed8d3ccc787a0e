"""A server that restarts, crashes or hangs, and processes that die or stand still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import anyio
import anyio.to_thread
import pytest
from tests.agents.test_store import message, said

from database_tests.server import PostgresServer
from database_tests.test_contract import queued
from quiesce.agents import PostgresStore
from quiesce.agents.store import (
    Event,
    Holder,
    Log,
    StoreConflict,
    StoreError,
    StoreFenced,
    StoreHeld,
    StoreInDoubt,
)

pytestmark = [pytest.mark.real_time, pytest.mark.time_limit(60)]


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    yield server.url
    server.resume()
    server.start()


class Writer:
    """Appends events until it has so many, as a program does that looks after each failure."""

    def __init__(self, log: Log, until: int) -> None:
        self.log = log
        self.until = until
        self.acknowledged: list[str] = []
        self.failures: list[StoreError] = []

    async def write(self) -> None:
        position = 0
        while position < self.until:
            text = f"{position + 1}"
            try:
                position = await self.log.append([message(text)], after=position)
                self.acknowledged.append(text)
            except StoreError as error:
                self.failures.append(error)
                found = await self.read()
                assert [event.seq for event in found] == list(range(1, len(found) + 1))
                position = len(found)

    async def read(self) -> list[Event]:
        for _ in range(20):
            try:
                return await self.log.read()
            except StoreError as error:
                self.failures.append(error)
        raise self.failures[-1]


Fault = Callable[[PostgresServer], None]


def restart(how: str, server: PostgresServer) -> None:
    server.stop(how)
    time.sleep(0.5)
    server.start()


def hang(seconds: float, server: PostgresServer) -> None:
    server.hang()
    time.sleep(seconds)
    server.resume()


FAULTS: dict[str, Fault] = {
    "fast": partial(restart, "SIGINT"),
    "immediate": partial(restart, "SIGQUIT"),
    "crash": partial(restart, "SIGKILL"),
    "hung": partial(hang, 4.0),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_in_the_middle_of_appends_loses_nothing_that_was_acknowledged_and_leaves_no_gap(
    server: PostgresServer, url: str, schema: str, fault: str
) -> None:
    async with PostgresStore(url, schema=schema, timeout=10.0) as store:
        writers = [Writer(store.open(f"c{number}"), 200) for number in range(4)]
        async with anyio.create_task_group() as group:
            for writer in writers:
                group.start_soon(writer.write)
            while len(writers[0].acknowledged) < 20:
                await anyio.sleep(0.001)
            await anyio.to_thread.run_sync(FAULTS[fault], server)
        for writer in writers:
            assert said(await writer.log.read()) == [f"{number}" for number in range(1, 201)]
            assert set(writer.acknowledged) <= {f"{number}" for number in range(1, 201)}
            assert len(writer.acknowledged) == len(set(writer.acknowledged))
            # What failed was in doubt or a connection that broke; nothing was a conflict with itself.
            assert not [error for error in writer.failures if isinstance(error, StoreConflict)]
        print(fault, [f"{type(error).__name__}: {error}" for writer in writers for error in writer.failures])


async def test_a_server_that_hangs_fails_every_call_within_twice_the_timeout(
    server: PostgresServer, url: str, schema: str
) -> None:
    """A stop that writes to its store must not hang with it."""
    async with PostgresStore(url, schema=schema, timeout=2.0) as store:
        log = store.open("a")
        await log.append([message("one")])
        await anyio.sleep(0.1)  # its hint has been sent
        server.hang()
        try:
            began = time.monotonic()
            ended: list[tuple[float, BaseException]] = []

            async def attempt(call: Callable[..., object], *args: object) -> None:
                try:
                    await call(*args)  # type: ignore[misc]
                except StoreError as error:
                    ended.append((time.monotonic() - began, error))

            async with anyio.create_task_group() as group:
                group.start_soon(attempt, log.append, [message("two")])
                await anyio.sleep(0.1)
                for number in range(10):
                    group.start_soon(attempt, store.open(f"c{number}").read)
                    group.start_soon(attempt, store.open(f"c{number}").post, [queued("m")])
            assert len(ended) == 21
            assert max(seconds for seconds, _ in ended) < 2 * 2.0 + 1
            # Only what was sent is in doubt.
            assert [type(error) for _, error in ended].count(StoreInDoubt) == 1
        finally:
            server.resume()
        assert said(await log.read()) in (["one"], ["one", "two"])


async def test_closing_is_bounded_while_the_server_hangs(
    server: PostgresServer, url: str, schema: str
) -> None:
    store = PostgresStore(url, schema=schema, timeout=2.0)
    lease = await store.lease("a")
    lease.log.watch(print, after=0)
    await anyio.sleep(0.1)
    server.hang()
    began = time.monotonic()
    await store.close()
    assert time.monotonic() - began < 5
    server.resume()


# Holders


HOLD = """
    import sys, time
    from quiesce.agents import PostgresStore
    from quiesce.agents.store import StoreError, ItemPopped
    store = PostgresStore(sys.argv[1], schema=sys.argv[2])
    lease = store.lease_sync("a", owner="the other process")
    lease.log.append_sync([ItemPopped()])
    print(lease.epoch, flush=True)
    for line in sys.stdin:
        try:
            print(lease.log.append_sync([ItemPopped()]), flush=True)
        except StoreError as error:
            print(type(error).__name__, flush=True)
"""


@contextmanager
def holding_elsewhere(url: str, schema: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lease of "a", and appends for each line that it reads."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLD), url, schema],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_the_lease_of_a_process_that_was_killed_is_free_at_once(
    store: PostgresStore, url: str, schema: str
) -> None:
    with holding_elsewhere(url, schema) as process:
        assert process.stdout is not None
        epoch = int(process.stdout.readline())
        assert store.holder_sync("a") == Holder("the other process", epoch)
        with pytest.raises(StoreHeld):
            store.lease_sync("a")
        process.kill()
        process.wait()
        began = time.monotonic()
        while store.holder_sync("a") is not None:
            assert time.monotonic() - began < 2
        print(f"free {(time.monotonic() - began) * 1000:.0f} ms after SIGKILL")
        lease = store.lease_sync("a")
        assert (lease.epoch, lease.last_seq) == (epoch + 1, 1)
        lease.release_sync()


def test_a_process_that_stands_still_holds_its_lease_and_is_fenced_when_another_one_takes_over(
    store: PostgresStore, url: str, schema: str
) -> None:
    with holding_elsewhere(url, schema) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        epoch = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(0.2)
        with pytest.raises(StoreHeld):
            store.lease_sync("a")
        lease = store.lease_sync("a", owner="successor", epoch=epoch + 1)
        assert lease.log.append_sync([message("mine")]) == 2
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline().strip() == "StoreFenced"
        assert store.holder_sync("a") == Holder("successor", epoch + 1)
        assert len(store.open("a").read_sync()) == 2
        lease.release_sync()


@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL"])
async def test_a_holder_keeps_its_leases_through_a_restart_of_the_server(
    server: PostgresServer, url: str, schema: str, how: str
) -> None:
    async with PostgresStore(url, schema=schema) as store, PostgresStore(url, schema=schema) as other:
        lease = await store.lease("a", owner="me")
        await anyio.to_thread.run_sync(restart, how, server)
        with anyio.fail_after(10):
            while await other.holder("a") is None:
                await anyio.sleep(0.01)
        with pytest.raises(StoreHeld):
            await other.lease("a")
        assert await lease.log.append([message("one")]) == 1
        await lease.release()


async def test_a_lock_session_that_was_cut_is_opened_again_and_meanwhile_the_epoch_protects(
    server: PostgresServer, url: str, schema: str
) -> None:
    async with PostgresStore(url, schema=schema) as store, PostgresStore(url, schema=schema) as other:
        lease = await store.lease("a", owner="me")
        for _ in range(3):
            server.cut("lease")
            with anyio.fail_after(5):
                while await other.holder("a") is None:
                    await anyio.sleep(0.005)
        assert await lease.log.append([message("one")]) == 1
        await lease.release()


async def test_a_release_while_the_server_is_away_is_made_up_for(
    server: PostgresServer, url: str, schema: str
) -> None:
    async with PostgresStore(url, schema=schema, timeout=1.0) as store:
        lease = await store.lease("a")
        other_lease = await store.lease("b")
        await anyio.to_thread.run_sync(server.stop)
        await lease.release()
        await anyio.to_thread.run_sync(server.start)
        async with PostgresStore(url, schema=schema) as other:
            await store.ids()
            assert await other.holder("a") is None
            with anyio.fail_after(5):
                while await other.holder("b") is None:
                    await anyio.sleep(0.01)
        await other_lease.release()


# Hints that are lost


async def test_a_watch_whose_session_was_cut_finds_what_it_has_missed(
    server: PostgresServer, url: str, schema: str
) -> None:
    async with PostgresStore(url, schema=schema) as store, PostgresStore(url, schema=schema) as other:
        seen: list[Event] = []
        store.open("a").watch(seen.extend, after=0)
        for number in range(1, 6):
            server.cut("watch")
            await other.open("a").post([queued(f"m{number}")])
            with anyio.fail_after(10):
                while len(seen) < number:
                    await anyio.sleep(0.005)
        assert [event.seq for event in seen] == [1, 2, 3, 4, 5]


async def test_a_watch_finds_by_looking_what_no_hint_has_told_of(
    server: PostgresServer, url: str, schema: str
) -> None:
    async with PostgresStore(url, schema=schema) as store, PostgresStore(url, schema=schema) as other:
        seen: list[Event] = []
        store.open("a").watch(seen.extend, after=0)
        await other.ids()
        await anyio.sleep(0.3)
        other._database.send_hints = other._database._changed.clear  # type: ignore[method-assign]
        began = time.monotonic()
        await other.open("a").post([queued("m1")])
        with anyio.fail_after(5):
            while not seen:
                await anyio.sleep(0.01)
        assert 0.1 < time.monotonic() - began < 3.0


async def test_a_hint_of_another_program_makes_a_watch_do_nothing_wrong(
    server: PostgresServer, url: str, schema: str
) -> None:
    async with PostgresStore(url, schema=schema) as store:
        seen: list[Event] = []
        store.open("a").watch(seen.extend, after=0)
        await store.open("a").append([message("one")])
        with anyio.fail_after(5):
            while not seen:
                await anyio.sleep(0.01)
        for payload in ("", "*", "{", "\x01 \x02", "0" * 16, " ", "x" * 7999, "[" * 7999, "a " * 3999):
            server.query("SELECT pg_notify(%s, %s)", store._database.channel, payload)
        await store.open("a").append([message("two")])
        with anyio.fail_after(5):
            while len(seen) < 2:
                await anyio.sleep(0.01)
        assert [event.seq for event in seen] == [1, 2]


async def test_a_watch_survives_a_restart_of_the_server(
    server: PostgresServer, url: str, schema: str
) -> None:
    async with PostgresStore(url, schema=schema) as store, PostgresStore(url, schema=schema) as other:
        seen: list[Event] = []
        store.open("a").watch(seen.extend, after=0)
        await other.open("a").post([queued("m1")])
        await anyio.to_thread.run_sync(restart, "SIGINT", server)
        await other.open("a").post([queued("m2")])
        with anyio.fail_after(10):
            while len(seen) < 2:
                await anyio.sleep(0.01)
        assert [event.seq for event in seen] == [1, 2]


# Processes


def test_a_store_refuses_to_be_used_in_a_forked_child(store: PostgresStore) -> None:
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            store.ids_sync()
        except StoreError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    told = os.read(reader, 1000).decode()
    os.close(reader)
    assert "made before a fork" in told
    assert "make a new PostgresStore in the child" in told
    assert store.ids_sync() == []


def test_a_program_that_ends_without_close_says_nothing_and_loses_nothing(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    program = """
        import sys
        from quiesce.agents import PostgresStore
        from quiesce.agents.store import ItemPopped
        store = PostgresStore(sys.argv[1], schema=sys.argv[2])
        lease = store.lease_sync("a")
        lease.log.watch(lambda events: None, after=0)
        print(lease.log.append_sync([ItemPopped()]))
    """
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program), server.url, schema],
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    assert time.monotonic() - began < 5
    assert len(store.open("a").read_sync()) == 1
    assert store.holder_sync("a") is None


WRITE = """
    import sys
    from quiesce.agents import PostgresStore
    from quiesce.agents.store import ItemAdded, MessageQueued, StoreConflict
    from quiesce.models import UserMessage
    store = PostgresStore(sys.argv[1], schema=sys.argv[2])
    me, done = sys.argv[3], 0
    print("ready", flush=True)
    sys.stdin.readline()
    shared = store.open("shared")
    while done < 50:
        try:
            shared.append_sync([ItemAdded(item=UserMessage(f"{me} {done}"))])
            done += 1
        except StoreConflict:
            shared.read_sync()
        store.open(f"own {me}").post_sync([MessageQueued(message_id=f"{done}", item=UserMessage("x"))])
    store.close_sync()
"""


def test_processes_that_write_at_once_keep_their_conversations_and_never_mix_one(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITE), server.url, schema, f"{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        assert process.wait(30) == 0
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
    shared = store.open("shared").read_sync()
    assert [event.seq for event in shared] == list(range(1, 151))
    for number in range(3):
        mine = [text for text in said(shared) if text.startswith(f"{number} ")]
        assert mine == [f"{number} {count}" for count in range(50)]
        assert len(store.open(f"own {number}").read_sync()) >= 50


# Cancels


@pytest.mark.parametrize("delay", [0.0, 0.0002, 0.0005, 0.001, 0.002, 0.005])
async def test_a_caller_who_is_cancelled_at_any_moment_knows_by_then_what_became_of_it(
    store: PostgresStore, delay: float
) -> None:
    for number in range(10):
        log = store.open(f"c{number}")
        with anyio.move_on_after(delay):
            await log.append([message("one"), message("two")])
        assert said(store.open(f"c{number}").read_sync()) in ([], ["one", "two"])
        with anyio.move_on_after(delay):
            await log.post([queued("m1")])
        with anyio.move_on_after(delay):
            await (await store.lease(f"c{number}")).release()
        with anyio.fail_after(5):
            while await store.holder(f"c{number}") is not None:
                await anyio.sleep(0.001)


async def test_a_cancelled_append_is_there_in_full_before_its_caller_goes_on(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    log = store.open("a")
    await log.append([message("first")])
    is_over = threading.Event()
    with server.session() as session:
        session.execute("BEGIN")
        session.execute(f"SELECT * FROM {schema}.quiesce_conversations FOR UPDATE")

        def let_go() -> None:
            time.sleep(0.4)
            is_over.set()
            session.execute("COMMIT")

        holder = threading.Thread(target=let_go)
        holder.start()
        with anyio.move_on_after(0.02) as timeout:
            await log.append([message("second"), message("third")])
        assert timeout.cancelled_caught
        assert is_over.is_set()
        holder.join()
    assert said(await log.read()) == ["first", "second", "third"]
    assert await log.append([message("fourth")]) == 4


async def test_a_lease_that_its_caller_was_cancelled_for_is_not_held(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    await store.open("a").append([message("first")])
    with server.session() as session:
        session.execute("BEGIN")
        session.execute(f"SELECT * FROM {schema}.quiesce_conversations FOR UPDATE")
        timer = threading.Timer(0.3, session.execute, ["COMMIT"])
        timer.start()
        with anyio.move_on_after(0.02) as timeout:
            await store.lease("a")
        assert timeout.cancelled_caught
        timer.join()
    assert await store.holder("a") is None
    with pytest.raises(StoreFenced):
        await store.lease("a", epoch=1)  # it had been granted, and was given up
