"""A SQLite store and what can happen to it: cancelled callers, other processes, wrong files, full disks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from quiesce import Grace, Scope, to_thread
from quiesce.agents.store import ItemAdded, StoreClosed, StoreError, StoreHeld, ToolStarted
from quiesce.agents.store.sqlite import SQLiteLog, SQLiteStore
from quiesce.models import UserMessage
from tests.agents.test_store import message, said
from tests.world import World, asyncio_only

pytestmark = pytest.mark.real_time


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(path) as made:
        made.ids_sync()  # opened here and closed here: what the test itself opens is its own to close
        yield made


@contextlib.contextmanager
def writing_elsewhere(path: Path, seconds: float = 60.0) -> Iterator[threading.Event]:
    """Somebody else has the write lock of the file, for so long, but not longer than this block; the event says when it is let go.

    SQLite keeps the descriptor of a second connection of this process until the first one is closed too.
    """
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    is_over, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        is_over.wait(seconds)
        let_go.set()
        other.execute("ROLLBACK")

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        yield let_go
    finally:
        is_over.set()
        holder.join()
        other.close()


def count_calls(thing: object, name: str) -> list[None]:
    """A list that grows by one with each call of this method."""
    calls: list[None] = []
    method = getattr(thing, name)

    def counted() -> None:
        calls.append(None)
        method()

    setattr(thing, name, counted)
    return calls


def run_python(source: str, *args: str, expect: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *args],
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout


# Cancelled callers


async def test_a_cancelled_append_is_there_in_full_before_its_caller_goes_on(
    store: SQLiteStore, path: Path
) -> None:
    log = store.open("a")
    await log.append([message("first")])
    with writing_elsewhere(path, 0.6) as let_go:
        with anyio.move_on_after(0.02) as timeout:
            await log.append([message("second"), message("third")])
        assert timeout.cancelled_caught
        assert let_go.is_set()
    assert said(await log.read()) == ["first", "second", "third"]
    assert await log.append([message("fourth")]) == 4
    await store.close()


@asyncio_only
async def test_an_append_survives_being_cancelled_three_times(store: SQLiteStore, path: Path) -> None:
    log = store.open("a")
    await log.append([message("first")])
    with writing_elsewhere(path, 0.6):
        task = asyncio.create_task(log.append([message("second")]))
        for _ in range(3):
            await asyncio.sleep(0.02)
            task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert said(await log.read()) == ["first", "second"]
    await store.close()


async def test_a_scope_that_stops_waits_for_the_append_in_it(store: SQLiteStore, path: Path) -> None:
    log = store.open("a")
    await log.append([message("first")])
    with writing_elsewhere(path, 0.6):
        scope = await Scope.open(grace=Grace(cancel=5))
        child = scope.spawn(log.append, [message("second")])
        await anyio.sleep(0.02)
        report = await scope.close()
    assert report.clean
    assert child.state == "cancelled"
    assert said(await log.read()) == ["first", "second"]
    await store.close()


async def test_a_cancelled_caller_whose_append_fails_has_the_error_as_its_cause(
    path: Path,
) -> None:
    async with SQLiteStore(path, busy_timeout=0.6) as store:
        log = store.open("a")
        await log.append([message("first")])
        seen: list[BaseException | None] = []
        with writing_elsewhere(path), anyio.move_on_after(0.02):
            try:
                await log.append([message("second")])
            except BaseException as cancelled:
                seen.append(cancelled.__cause__)
                raise
        assert [type(cause) for cause in seen] == [StoreError]
        assert said(await log.read()) == ["first"]
        await log.append([message("second")])


async def test_a_caller_that_is_cancelled_already_writes_all_or_nothing_and_has_its_cancel(
    store: SQLiteStore, world: World
) -> None:
    log = store.open("a")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await log.append([message("late")])
    assert scope.cancelled_caught
    # asyncio tells a caller only when it waits, and then the append is under way.
    assert said(await log.read()) == ([] if world.backend == "trio" else ["late"])


async def test_the_event_loop_goes_on_while_the_file_is_busy(store: SQLiteStore, path: Path) -> None:
    log = store.open("a")
    await log.append([message("first")])
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            await anyio.sleep(0.005)
            turns += 1

    with writing_elsewhere(path, 0.6):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tick)
            await log.append([message("second")])
            tasks.cancel_scope.cancel()
    assert turns >= 5
    await store.close()


async def test_close_waits_for_what_is_being_written_even_if_it_is_cancelled(path: Path) -> None:
    store = SQLiteStore(path)
    log = store.open("a")
    await log.append([message("first")])
    async with anyio.create_task_group() as tasks:
        with writing_elsewhere(path, 0.6):
            tasks.start_soon(log.append, [message("second")])
            await anyio.sleep(0.02)
            for _ in range(3):
                tasks.start_soon(store.close)
            with anyio.move_on_after(0.02) as timeout:
                await store.close()
            assert timeout.cancelled_caught
    with pytest.raises(StoreClosed, match=r"chat.db' was closed: make a new SQLiteStore"):
        store.open("a")
    with SQLiteStore(path) as again:
        assert said(again.open("a").read_sync()) == ["first", "second"]
    assert not path.with_name("chat.db-wal").exists()


def test_ctrl_c_in_a_sync_append_is_raised_when_it_is_known_how_it_ended(
    store: SQLiteStore, path: Path
) -> None:
    log = store.open("a")
    log.append_sync([message("first")])
    with writing_elsewhere(path, 1.0) as let_go:
        press = threading.Timer(0.3, signal.pthread_kill, [threading.get_ident(), signal.SIGINT])
        with pytest.raises(KeyboardInterrupt):
            press.start()
            log.append_sync([message("second")])
        assert let_go.is_set()
        press.join()
    assert said(log.read_sync()) == ["first", "second"]
    store.close_sync()


async def test_threads_of_a_scope_write_too(store: SQLiteStore) -> None:
    log = store.open("a")
    assert await to_thread(log.append_sync, [message("from a thread")]) == 1
    assert said(await log.read()) == ["from a thread"]


async def test_many_waiting_appends_share_one_transaction_and_one_that_is_refused_spoils_no_other(
    store: SQLiteStore, path: Path
) -> None:
    stale, fresh = store.open("0"), store.open("0")
    await stale.read()
    await fresh.append([message("ahead")])
    refused: list[StoreError] = []
    commits = count_calls(store._file, "commit")

    async def write(log: SQLiteLog) -> None:
        try:
            await log.append([message("one"), message("two")])
            await log.append([message("three")])
        except StoreError as error:
            refused.append(error)

    with writing_elsewhere(path, 0.6):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fresh.append, [message("leading")])
            await anyio.sleep(0.02)
            for log in (stale, *(store.open(str(number)) for number in range(1, 20))):
                tasks.start_soon(write, log)
    assert len(refused) == 1
    assert [len(await store.open(str(number)).read()) for number in range(1, 20)] == [3] * 19
    assert said(await fresh.read()) == ["ahead", "leading"]
    assert 3 <= len(commits) < 12  # the leading one, those that waited, and then they come as they like
    await store.close()


async def test_if_a_shared_transaction_fails_its_appends_are_made_one_by_one(
    store: SQLiteStore, path: Path
) -> None:
    logs = [store.open(str(number)) for number in range(5)]
    await logs[0].append([message("first")])
    store._file._open().execute(
        "CREATE TRIGGER picky BEFORE INSERT ON quiesce_events WHEN NEW.payload LIKE '%poison%' "
        "BEGIN SELECT RAISE(ABORT, 'not that'); END"
    )
    outcomes: dict[str, object] = {}

    async def write(log: SQLiteLog, *texts: str) -> None:
        try:
            outcomes[texts[0]] = await log.append([message(text) for text in texts])
        except StoreError as error:
            outcomes[texts[0]] = str(error)

    with writing_elsewhere(path, 0.6):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, logs[0], "second")
            await anyio.sleep(0.02)
            tasks.start_soon(write, logs[1], "good")
            await anyio.sleep(0.01)
            tasks.start_soon(write, logs[2], "better", "poison")
            await anyio.sleep(0.01)
            tasks.start_soon(write, logs[1], "best")
    assert outcomes.pop("better") == f"store {str(path)!r}: SQLite reports an error (not that)"
    assert outcomes == {"second": 2, "good": 1, "best": 2}
    assert [said(await log.read()) for log in logs[:3]] == [["first", "second"], ["good", "best"], []]
    await store.close()


# Files: what is so in one event loop is so in the others

one_world = pytest.mark.worlds("asyncio")


def test_nothing_touches_the_file_before_the_first_use(path: Path) -> None:
    with SQLiteStore(path) as store:
        store.open("a")
        assert not path.exists()
        store.ids_sync()
        assert path.exists()


@pytest.fixture
def open_umask() -> Iterator[None]:
    """New files are for everybody, unless who makes them says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize("has_mknod", [True, False])
def test_a_file_that_it_makes_is_for_its_owner_alone(
    has_mknod: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_mknod:
        monkeypatch.delattr(os, "mknod", raising=False)
    with SQLiteStore(path) as store:
        store.open("a").append_sync([message("a secret")])
        made = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert made == dict.fromkeys((path.name, f"{path.name}-wal", f"{path.name}-shm"), 0o600)


def test_a_file_that_is_there_keeps_its_permissions(path: Path) -> None:
    path.touch()
    path.chmod(0o640)
    with SQLiteStore(path) as store:
        store.open("a").append_sync([message("for my group")])
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_who_may_write_to_the_file_may_use_its_locks_too(mode: int, path: Path) -> None:
    path.touch()
    path.chmod(mode)
    with SQLiteStore(path) as store:
        lease = store.lease_sync("a")
        assert stat.S_IMODE(path.with_name(f"{path.name}-running").stat().st_mode) == mode
        lease.release_sync()


def test_a_lease_that_could_not_be_written_down_is_not_held(path: Path) -> None:
    with SQLiteStore(path) as store, contextlib.closing(sqlite3.connect(path)) as other:
        store.lease_sync("b").release_sync()
        other.execute(
            "CREATE TRIGGER full BEFORE INSERT ON quiesce_leases BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
        with pytest.raises(StoreError, match="full"):
            store.lease_sync("a")
        other.execute("DROP TRIGGER full")
        assert store.holder_sync("a") is None
        store.lease_sync("a").release_sync()


def test_by_a_link_it_is_the_same_file_with_the_same_leases(path: Path) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    with SQLiteStore(path) as store, SQLiteStore(link) as other:
        lease = store.lease_sync("a")
        assert other.holder_sync("a") is not None
        with pytest.raises(StoreHeld):
            other.lease_sync("a")
        lease.release_sync()
        assert other.holder_sync("a") is None


@one_world
async def test_a_commit_is_synced_to_the_disk(store: SQLiteStore) -> None:
    await store.ids()
    connection = store._file._open()
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_a_file_that_is_no_database_is_named_and_left_as_it_is(path: Path) -> None:
    path.write_text("Dear diary, " * 500)
    with SQLiteStore(path) as store:
        with pytest.raises(StoreError, match=r"chat.db': it is not a SQLite database, and was left as it is"):
            store.open("a").append_sync([message("one")])
        with pytest.raises(StoreError, match="not a SQLite database"):
            store.open("a").read_sync()
    assert path.read_text() == "Dear diary, " * 500
    assert os.listdir(path.parent) == ["chat.db"]


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with (
        SQLiteStore(tmp_path / "missing" / "chat.db") as store,
        pytest.raises(StoreError, match=r"missing/chat.db': it cannot be opened: its directory must exist"),
    ):
        store.open("a").append_sync([message("one")])


def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(path: Path) -> None:
    with SQLiteStore(path) as store:
        store.open("a").append_sync([message("one")])
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE quiesce_schema SET version = 7")
    before = path.read_bytes()
    with (
        SQLiteStore(path) as store,
        pytest.raises(
            StoreError, match=r"made by a newer version of quiesce \(schema 7, and this one knows 2\)"
        ),
    ):
        store.open("a").read_sync()
    assert path.read_bytes() == before


@one_world
async def test_the_tables_of_others_in_the_file_are_let_alone(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE events (mine TEXT)")
        connection.execute("INSERT INTO events VALUES ('precious')")
        connection.execute("PRAGMA user_version = 42")
    async with SQLiteStore(path) as store:
        await store.open("a").append([message("one")])
        await store.delete("a")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM events").fetchall() == [("precious",)]
        assert connection.execute("PRAGMA user_version").fetchone() == (42,)


@one_world
async def test_a_lock_that_is_held_for_too_long_is_an_error_and_the_next_append_works(path: Path) -> None:
    async with SQLiteStore(path, busy_timeout=0.05) as store:
        log = store.open("a")
        await log.append([message("first")])
        with writing_elsewhere(path):
            with pytest.raises(StoreError, match=r"another process has held its write lock for 0.05 s"):
                await log.append([message("second")])
            assert said(await log.read()) == ["first"]
        assert await log.append([message("second")]) == 2


@one_world
async def test_a_full_disk_loses_nothing_that_was_acknowledged(store: SQLiteStore) -> None:
    log = store.open("a")
    await log.append([message("first")])
    connection = store._file._open()
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    acknowledged = ["first"]
    with pytest.raises(StoreError, match="the disk is full; what was acknowledged is safe: make room"):
        for number in range(100):
            await log.append([message(f"{number} " + "x" * 1000), ToolStarted(call_id="c")])
            acknowledged.append(f"{number} " + "x" * 1000)
    assert said(await log.read()) == acknowledged
    large = "after room was made" * 1000
    await log.append([message(large)])  # on a connection of its own, without the limit
    assert said(await log.read()) == [*acknowledged, large]
    await store.close()


def test_a_disk_that_refuses_to_write_loses_nothing_that_was_acknowledged(path: Path) -> None:
    printed = run_python(
        """
        import resource, signal, sys
        from quiesce.agents.store import ItemAdded, StoreError
        from quiesce.agents.store.sqlite import SQLiteStore
        from quiesce.models import UserMessage

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        with SQLiteStore(sys.argv[1]) as store:
            log = store.open("a")
            resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, hard))
            count = 0
            try:
                while count < 1000:
                    count = log.append_sync([ItemAdded(item=UserMessage("x" * 1000))])
            except StoreError as error:
                print("the disk reports an error" in str(error) or "the disk is full" in str(error))
            print(0 < count < 1000, len(log.read_sync()) == count)
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            print(log.append_sync([ItemAdded(item=UserMessage("again"))]) == count + 1)
        with SQLiteStore(sys.argv[1]) as store:
            print(len(store.open("a").read_sync()) == count + 1)
        """,
        str(path),
    )
    assert printed.split() == ["True"] * 5


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that other users may use: pytest's own are for this one alone."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


def test_a_file_that_may_only_be_read_can_be_read_and_says_why_it_cannot_be_written(
    open_directory: Path,
) -> None:
    path = open_directory / "chat.db"
    with SQLiteStore(path) as store:
        store.open("a").append_sync([message("first")])
    path.chmod(0o444)
    printed = run_python(
        """
        import os, sys
        from quiesce.agents.store import ItemAdded, StoreError
        from quiesce.agents.store.sqlite import SQLiteStore
        from quiesce.models import UserMessage

        if os.geteuid() == 0:
            os.setuid(65534)  # root may write to anything
        with SQLiteStore(sys.argv[1]) as store:
            log = store.open("a")
            print(len(log.read_sync()))
            try:
                log.append_sync([ItemAdded(item=UserMessage("second"))])
            except StoreError as error:
                print(error)
            print(len(log.read_sync()))
        """,
        str(path),
    )
    read, refused, read_again = printed.splitlines()
    assert (read, read_again) == ("1", "1")
    assert "chat.db': it cannot be written to: check the permissions of the file" in refused


@one_world
async def test_a_file_that_was_removed_or_replaced_is_not_written_to_unseen(
    store: SQLiteStore, path: Path
) -> None:
    log = store.open("a")
    await log.append([message("first")])
    for file in path.parent.iterdir():
        file.unlink()
    with pytest.raises(StoreError, match="was removed or replaced while it was in use: nothing was written"):
        await log.append([message("second")])
    with pytest.raises(StoreError, match="was deleted by another writer"):
        await log.append([message("second")])
    assert await log.read() == []
    assert await log.append([message("anew")]) == 1
    await store.close()


@one_world
async def test_an_event_that_somebody_has_damaged_or_removed_is_named(store: SQLiteStore, path: Path) -> None:
    await store.open("a").append([message(text) for text in "abc"])
    await store.open("b").append([message(text) for text in "abc"])
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE quiesce_events SET payload = '{' WHERE conversation_id = 'a' AND seq = 2")
        connection.execute("DELETE FROM quiesce_events WHERE conversation_id = 'b' AND seq = 2")
    with pytest.raises(StoreError, match=r"event 2 of conversation 'a' in '.*chat.db' cannot be read"):
        await store.open("a").read()
    with pytest.raises(StoreError, match=r"conversation 'b' in .* has no event 2, but later ones"):
        await store.open("b").read()
    await store.close()


@pytest.mark.parametrize("wrong", [":memory:"])
def test_a_store_in_memory_is_another_class(wrong: str) -> None:
    with pytest.raises(ValueError, match="use MemoryStore"):
        SQLiteStore(wrong)


# Its life


def test_a_store_that_is_dropped_keeps_what_was_acknowledged_and_leaves_nothing_open(path: Path) -> None:
    SQLiteStore(path).open("a").append_sync([message("first")])
    gc.collect()
    assert not [
        name for name in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{name}") == str(path)
    ]
    with SQLiteStore(path) as store:
        assert said(store.open("a").read_sync()) == ["first"]


def test_a_program_that_ends_without_close_says_nothing_and_loses_nothing(path: Path) -> None:
    printed = run_python(
        """
        import sys, warnings
        warnings.simplefilter("error")
        from quiesce.agents.store import ItemAdded
        from quiesce.agents.store.sqlite import SQLiteStore
        from quiesce.models import UserMessage
        store = SQLiteStore(sys.argv[1])
        log = store.open("a")
        log.append_sync([ItemAdded(item=UserMessage("first"))])
        """,
        str(path),
    )
    assert printed == ""
    with SQLiteStore(path) as store:
        assert said(store.open("a").read_sync()) == ["first"]


def test_a_store_refuses_to_be_used_in_a_forked_child(path: Path) -> None:
    printed = run_python(
        """
        import os, sys
        from quiesce.agents.store import ItemAdded, StoreError
        from quiesce.agents.store.sqlite import SQLiteStore
        from quiesce.models import UserMessage
        store = SQLiteStore(sys.argv[1])
        log = store.open("a")
        log.append_sync([ItemAdded(item=UserMessage("first"))])
        if (child := os.fork()) == 0:
            try:
                log.append_sync([ItemAdded(item=UserMessage("second"))])
            except StoreError as error:
                print(error, flush=True)
            sys.exit()
        os.waitpid(child, 0)
        print(log.append_sync([ItemAdded(item=UserMessage("second"))]))
        """,
        str(path),
    )
    refused, number = printed.splitlines()
    assert "was made before a fork" in refused
    assert number == "2"


async def test_where_no_thread_can_be_started_the_caller_does_the_work_itself(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more_threads(*args: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("quiesce.agents.store.job_thread.run_in_thread", no_more_threads)
    log = store.open("a")
    assert await log.append([message("first")]) == 1
    assert log.append_sync([message("second")]) == 2
    assert said(await log.read()) == ["first", "second"]


def test_a_program_can_write_at_its_very_end(path: Path) -> None:
    run_python(
        """
        import atexit, sys
        from quiesce.agents.store import ItemAdded
        from quiesce.agents.store.sqlite import SQLiteStore
        from quiesce.models import UserMessage
        store = SQLiteStore(sys.argv[1])
        atexit.register(lambda: store.open("a").append_sync([ItemAdded(item=UserMessage("last words"))]))
        """,
        str(path),
    )
    with SQLiteStore(path) as store:
        assert said(store.open("a").read_sync()) == ["last words"]


# Several processes


def test_processes_that_write_to_one_file_at_once_keep_their_conversations_and_never_mix_one(
    path: Path,
) -> None:
    source = textwrap.dedent(
        """
        import sys
        from quiesce.agents.store import ItemAdded, StoreConflict
        from quiesce.agents.store.sqlite import SQLiteStore
        from quiesce.models import UserMessage

        path, me = sys.argv[1:]
        print("ready", flush=True)
        sys.stdin.readline()
        won = 0
        with SQLiteStore(path) as store:
            mine, shared = store.open(me), store.open("shared")
            for number in range(25):
                mine.append_sync([ItemAdded(item=UserMessage(f"{number}"))])
                shared.read_sync()
                try:
                    shared.append_sync([ItemAdded(item=UserMessage(f"{me}{number}{part}")) for part in "ab"])
                    won += 1
                except StoreConflict:
                    pass
        print(won)
        """
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", source, str(path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "xyz"
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"  # all have imported: they make the file at the same time
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    won = [int(writer.communicate(timeout=15)[0]) for writer in writers]
    with SQLiteStore(path) as store:
        for name in "xyz":
            assert said(store.open(name).read_sync()) == [str(number) for number in range(25)]
        shared = said(store.open("shared").read_sync())
    assert len(shared) == 2 * sum(won) > 0
    assert all(first[:-1] == second[:-1] for first, second in zip(shared[::2], shared[1::2], strict=True))


def test_what_an_item_is_in_the_file_can_be_read_with_any_tool(store: SQLiteStore, path: Path) -> None:
    store.open("a").append_sync([ItemAdded(item=UserMessage("Zoë"), run_id="r1")])
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT conversation_id, seq, payload FROM quiesce_events").fetchall()
    assert rows == [("a", 1, '{"event":"item","item":{"type":"user","content":"Zoë"},"run_id":"r1"}')]
    store.close_sync()
