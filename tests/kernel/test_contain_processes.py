"""Processes that were started inside a containment, by whatever means, and that nobody has ended."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing.resource_tracker
import os
import signal
import subprocess
import sys
import threading
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest

from quiesce import Grace, Leftover, Process, Scope, contain, own, to_thread
from quiesce.kernel.contain.adopted_tree import AdoptedTree
from quiesce.kernel.contain.containment import leave_processes
from quiesce.kernel.process import descendants, procfs
from tests.kernel.processes import is_gone, running, token_of_processes, wait_until
from tests.world import asyncio_only

pytestmark = [asyncio_only, pytest.mark.real_time]

BRISK = Grace(cancel=0.4, terminate=0.3, kill=10.0)
Started = Any  # whatever the way of starting it gives: it has a `pid`


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as made:
        yield made


def tree(token: str) -> list[str]:
    """A shell with a child, both of which end when they are asked."""
    return ["sh", "-c", f"sleep 1{token} & sleep 2{token} & echo up; wait; exit 7"]


def stubborn(token: str) -> list[str]:
    """The same, and neither heeds a SIGTERM, nor the end of its input."""
    deaf = "trap '' TERM HUP INT"
    return ["sh", "-c", f"{deaf}; sleep 1{token} & sleep 2{token} & echo up; while :; do wait; done"]


def reader(token: str) -> list[str]:
    """Ends with its input, as a good server does."""
    return ["sh", "-c", f": {token}; echo up; while read line; do :; done; exit 5"]


async def by_asyncio(argv: list[str]) -> Started:
    process = await asyncio.create_subprocess_exec(*argv, stdin=PIPE, stdout=PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    return process


async def by_asyncio_without_pipes(argv: list[str]) -> Started:
    process = await asyncio.create_subprocess_exec(*argv, stdin=DEVNULL, stdout=DEVNULL)
    token = argv[2].partition("sleep 1")[2].split()[0]
    assert await asyncio.to_thread(wait_until, lambda: len(running(token)) == 3)
    return process


async def by_asyncio_in_a_session_of_its_own(argv: list[str]) -> Started:
    process = await asyncio.create_subprocess_exec(*argv, stdin=PIPE, stdout=PIPE, start_new_session=True)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    return process


async def by_anyio(argv: list[str]) -> Started:
    process = await anyio.open_process(argv, start_new_session=True)
    assert process.stdout is not None
    assert await process.stdout.receive() == b"up\n"
    return process


async def by_a_library(argv: list[str]) -> Started:
    """In a task of its own, which goes on reading, and has no close()."""
    process = await asyncio.create_subprocess_exec(*argv, stdin=PIPE, stdout=PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    _library_tasks.add(asyncio.ensure_future(process.stdout.read()))
    return process


async def by_a_task_of_a_library(argv: list[str]) -> Started:
    return await asyncio.ensure_future(by_anyio(argv))


_library_tasks: set[asyncio.Future[Any]] = set()

WAYS = [
    by_asyncio,
    by_asyncio_without_pipes,
    by_asyncio_in_a_session_of_its_own,
    by_anyio,
    by_a_library,
    by_a_task_of_a_library,
]


def by_hand(argv: list[str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.stdout.close()
    return process


def end(process: subprocess.Popen[bytes]) -> int:
    """What a test has started by hand it also ends, and says how it had ended by then."""
    process.kill()
    return process.wait()


def state_of(pid: int) -> str | None:
    proc = procfs.look_up(pid)
    return proc.state if proc is not None else None


async def end_tree(token: str) -> None:
    while pids := running(token):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)  # for the loop to notice


# Ended with its tree ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", WAYS, ids=lambda way: way.__name__)
async def test_a_process_that_was_left_is_ended_with_its_tree(
    start: Callable[[list[str]], Awaitable[Started]], token: str
) -> None:
    async with contain(grace=Grace(terminate=30)) as box:
        process = await start(tree(token))
        assert len(running(token)) == 3
    assert running(token) == []
    assert process.returncode == -signal.SIGTERM
    assert box.report is not None
    assert box.report.clean
    assert ("sh", "cancelled") in [(outcome.name, outcome.state) for outcome in box.report.outcomes]
    assert box.report.notes == ()


@pytest.mark.parametrize("start", [by_asyncio, by_anyio], ids=lambda way: way.__name__)
async def test_one_that_heeds_neither_eof_nor_term_is_killed_with_its_tree(
    start: Callable[[list[str]], Awaitable[Started]], token: str
) -> None:
    began = time.monotonic()
    async with contain(grace=BRISK) as box:
        process = await start(stubborn(token))
    assert time.monotonic() - began < BRISK.total
    assert running(token) == []
    assert process.returncode == -signal.SIGKILL
    assert box.report is not None
    assert box.report.clean
    assert box.report.notes == [
        f"process 'sh' (pid {process.pid}) did not respond to SIGTERM and was killed with its tree"
    ]


async def test_whoever_has_started_it_has_the_first_chance_to_end_it(token: str) -> None:
    codes: list[int] = []

    async def library() -> None:
        process = await by_asyncio(reader(token))
        try:
            up.set()
            await asyncio.sleep(1000)
        finally:
            process.stdin.close()
            codes.append(await process.wait())

    up = asyncio.Event()
    async with contain() as box:
        task = asyncio.ensure_future(library())
        await up.wait()
    assert task.cancelled()
    assert codes == [5]
    assert box.report is not None
    assert [outcome.name.rpartition(".")[2] for outcome in box.report.outcomes] == ["library"]


async def test_what_was_opened_in_the_block_closes_its_process_itself(token: str) -> None:
    codes: list[int] = []

    @contextlib.asynccontextmanager
    async def client() -> Any:
        process = await by_asyncio(reader(token))
        yield process
        process.stdin.close()
        codes.append(await process.wait())

    async with contain() as box:
        held = await own(client()).open()
        assert not is_gone(held.value.pid)
    assert codes == [5]
    assert box.report is not None
    assert box.report.clean


@pytest.mark.parametrize(
    "start", [by_asyncio, by_asyncio_in_a_session_of_its_own], ids=lambda way: way.__name__
)
async def test_grandchildren_are_ended_though_the_clean_up_has_ended_their_parent(
    start: Callable[[list[str]], Awaitable[Started]], token: str
) -> None:
    async def library() -> None:
        process = await start(tree(token))
        try:
            up.set()
            await asyncio.sleep(1000)
        finally:
            process.kill()
            while not is_gone(process.pid):
                await asyncio.sleep(0.001)
            orphans.extend(running(token))

    up, orphans = asyncio.Event(), list[int]()
    async with contain() as box:
        task = asyncio.ensure_future(library())
        await up.wait()
    assert task.cancelled()
    assert len(orphans) == 2
    assert running(token) == []
    assert box.report is not None
    assert box.report.clean


async def test_stopped_ones_are_woken_to_end(token: str) -> None:
    async with contain(grace=Grace(terminate=60)) as box:
        process = await by_asyncio(tree(token))
        for pid in running(token):
            os.kill(pid, signal.SIGSTOP)
        assert wait_until(lambda: {state_of(pid) for pid in running(token)} == {"T"})
    assert process.returncode == -signal.SIGTERM
    assert box.report is not None
    assert box.report.elapsed < 10


async def test_a_child_of_a_scope_inside_has_started_it(token: str) -> None:
    async with contain() as box:
        scope = await Scope.open("session")
        handle = scope.spawn(by_asyncio, tree(token))
        await handle.wait()
        await scope.close()
        assert len(running(token)) == 3
    assert running(token) == []
    assert box.report is not None
    assert box.report.clean


async def test_one_that_could_not_be_ended_in_time_is_named(token: str) -> None:
    async with contain(grace=Grace(cancel=0, terminate=0, kill=0)) as box:
        process = await by_asyncio(stubborn(token))
    assert box.report is not None
    if not box.report.clean:  # SIGKILL takes its time
        (left,) = box.report.left
        assert (left.kind, left.name) == ("process", "sh")
        if sys.version_info < (3, 12) and isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):
            assert "test_contain_processes.py" in left.made_at
    assert await process.wait() == -signal.SIGKILL
    await asyncio.sleep(0.3)
    assert await asyncio.to_thread(wait_until, lambda: running(token) == [])


# Whose ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", ["known", "all"])
async def test_of_two_containments_at_once_each_ends_its_own(processes: Any, token: str) -> None:
    async def use(number: int) -> Started:
        async with contain(processes=processes) as box:
            process = await by_asyncio(tree(f"{number}{token}"))
            both.append(process)
            await leave[number].wait()
        assert box.report is not None
        assert box.report.clean
        assert running(f"{number}{token}") == []
        return process

    both: list[Started] = []
    leave = [asyncio.Event(), asyncio.Event()]
    tasks = [asyncio.ensure_future(use(number)) for number in (0, 1)]
    while len(both) < 2:
        await asyncio.sleep(0.005)
    leave[1].set()
    assert (await tasks[1]).returncode == -signal.SIGTERM
    assert len(running(f"0{token}")) == 3
    leave[0].set()
    assert (await tasks[0]).returncode == -signal.SIGTERM


@pytest.mark.parametrize("start", [by_asyncio, by_asyncio_without_pipes], ids=lambda way: way.__name__)
async def test_one_that_a_task_outside_has_started_meanwhile_is_not_touched(
    start: Callable[[list[str]], Awaitable[Started]], token: str
) -> None:
    async def outside() -> None:
        await begin.wait()
        started.append(await start(tree(token)))

    begin, started = asyncio.Event(), list[Started]()
    task = asyncio.ensure_future(outside())
    async with contain(processes="all") as box:
        begin.set()
        while not started:
            await asyncio.sleep(0.005)
    await task
    assert len(running(token)) == 3
    assert box.report is not None
    assert box.report.clean
    assert box.report.outcomes == []
    await end_tree(token)


@pytest.mark.parametrize("processes", ["known", "all"])
async def test_one_from_before_the_block_is_not_touched(processes: Any, token: str) -> None:
    by_loop = await by_asyncio(tree(token))
    popen = by_hand(tree(token))
    async with contain(processes=processes) as box:
        await asyncio.sleep(0)
    assert box.report is not None
    assert box.report.clean
    assert len(running(token)) == 6
    assert by_loop.returncode is None
    assert popen.poll() is None
    await end_tree(token)
    end(popen)


@pytest.mark.parametrize("processes", ["known", "all"])
async def test_one_that_another_thread_of_the_program_has_started_is_not_touched(
    processes: Any, token: str
) -> None:
    """Such as one that runs an event loop of its own, or does jobs."""

    def jobs() -> None:
        begin.wait()
        started.append(by_hand(tree(token)))
        leave.wait()

    begin, leave, started = threading.Event(), threading.Event(), list[Started]()
    thread = threading.Thread(target=jobs)
    thread.start()
    try:
        async with contain(processes=processes) as box:
            begin.set()
            while not started:
                await asyncio.sleep(0.005)
        assert box.report is not None
        assert box.report.clean
        assert started[0].poll() is None
    finally:
        leave.set()
        thread.join()
        await end_tree(token)
        end(started[0])


async def test_one_of_a_containment_inside_belongs_to_that_one(token: str) -> None:
    async with contain() as outer:
        async with contain() as inner:
            await by_asyncio(tree(token))
        assert running(token) == []
    assert inner.report is not None
    assert outer.report is not None
    assert len(inner.report.outcomes) == 1
    assert outer.report.outcomes == []


async def test_what_a_containment_inside_did_not_look_for_is_ended_by_the_outer_one(token: str) -> None:
    async with contain() as outer:
        async with contain(processes="none") as inner:
            await by_asyncio(tree(token))
        assert len(running(token)) == 3
    assert running(token) == []
    assert inner.report is not None
    assert inner.report.clean
    assert outer.report is not None
    assert [outcome.name for outcome in outer.report.outcomes] == ["sh"]


async def test_what_a_task_that_is_kept_may_need_is_left_alone(token: str) -> None:
    async def server() -> None:
        process = await by_asyncio(tree(token))
        await process.wait()

    async with contain(keep=lambda task: True) as box:
        task = asyncio.ensure_future(server())
        await asyncio.to_thread(wait_until, lambda: len(running(token)) == 3)
    assert box.report is not None
    assert box.report.clean
    assert len(running(token)) == 3
    await end_tree(token)
    await task


async def test_a_process_of_quiesce_belongs_to_its_scope(token: str) -> None:
    app = await Scope.open("app")
    async with contain(processes="all") as box:
        inside = await Process.open(tree(token))
        outside = await Process.open(tree(token), scope=app)
        await inside.read()
        await outside.read()
    assert inside.returncode == -signal.SIGTERM
    assert outside.returncode is None
    assert box.report is not None
    assert box.report.clean
    assert (await app.close()).clean


async def test_the_guard_and_the_servers_of_multiprocessing_are_not_touched(token: str) -> None:
    tracker: Any = multiprocessing.resource_tracker._resource_tracker
    try:
        async with contain(processes="all") as box:
            tracker.ensure_running()
            process = await Process.open(tree(token))
            await process.read()
        assert box.report is not None
        assert box.report.clean
        assert not is_gone(tracker._pid)
    finally:
        tracker._stop()


# Nobody can say whose ---------------------------------------------------------------------------------------


def perhaps(left: Leftover) -> bool:
    return "perhaps" in left.made_at


async def test_a_popen_in_the_loops_own_thread_is_named_and_not_touched(token: str) -> None:
    async with contain() as box:
        process = by_hand(tree(token))
    assert box.report is not None
    (left,) = box.report.left
    assert (left.kind, left.name) == ("process", "sh")
    assert perhaps(left)
    assert f"pid {process.pid}" in left.stuck_at
    assert process.poll() is None
    await end_tree(token)
    end(process)


async def test_a_popen_is_ended_where_all_are(token: str) -> None:
    async with contain(processes="all") as box:
        process = by_hand(tree(token))
    assert running(token) == []
    assert box.report is not None
    assert box.report.clean
    assert process.wait() == -signal.SIGTERM  # nobody has taken its status from who started it


async def test_where_none_are_looked_for_none_are_named(token: str) -> None:
    async with contain(processes="none") as box:
        process = by_hand(tree(token))
        await by_asyncio(tree(token))
    assert box.report is not None
    assert box.report.clean
    assert len(running(token)) == 6
    await end_tree(token)
    end(process)


async def test_what_belongs_to_something_else_is_neither_touched_nor_named(token: str) -> None:
    theirs: list[int] = []
    box = contain()
    leave_processes(box, lambda proc: proc.pid in theirs)
    async with box:
        by_us = by_hand(tree(token))
        by_a_task = await by_asyncio(tree(token))
        theirs += [by_us.pid, by_a_task.pid]
        await by_asyncio(tree(token))
    assert box.report is not None
    assert box.report.clean
    assert len(running(token)) == 6
    await end_tree(token)
    end(by_us)


async def test_a_popen_that_has_ended_is_nobodys_business() -> None:
    async with contain() as box:
        process = by_hand(["echo", "up"])
        await asyncio.to_thread(wait_until, lambda: is_gone(process.pid))
    assert box.report is not None
    assert box.report.clean
    process.wait()


@pytest.mark.parametrize(
    "way", [asyncio.to_thread, anyio.to_thread.run_sync, to_thread], ids=["asyncio", "anyio", "quiesce"]
)
async def test_a_process_that_a_sync_tool_waits_for_is_ended_and_so_is_the_tool(way: Any, token: str) -> None:
    def tool() -> None:
        ended.append(subprocess.run(tree(token), stdout=subprocess.DEVNULL, check=False).returncode)

    async def use() -> None:
        async with contain(grace=grace) as box:
            boxes.append(box)
            await way(tool)

    # Ours waits for its thread, until the time to clean up is over; others give it up, and then the process is signalled at once.
    grace = BRISK if way is to_thread else Grace(cancel=15.0)
    ended, boxes = list[int](), list[Any]()
    task = asyncio.ensure_future(use())
    await asyncio.to_thread(wait_until, lambda: len(running(token)) == 3)
    began = time.monotonic()
    task.cancel()
    await asyncio.wait([task])
    assert time.monotonic() - began < (grace.total if way is to_thread else grace.cancel)
    assert task.cancelled()
    assert ended == [-signal.SIGTERM]
    assert boxes[0].report.clean


async def test_a_process_that_a_tool_of_somebody_else_waits_for_is_not_touched(token: str) -> None:
    def tool() -> None:
        subprocess.run(tree(token), stdout=subprocess.DEVNULL, check=False)

    async def outside() -> None:
        await begin.wait()
        await asyncio.to_thread(tool)

    begin = asyncio.Event()
    task = asyncio.ensure_future(outside())
    async with contain(processes="all") as box:
        begin.set()
        while len(running(token)) < 3:
            await asyncio.sleep(0.01)
    assert box.report is not None
    assert box.report.clean
    assert len(running(token)) == 3
    await end_tree(token)
    await task


# Stopped once, twice, three times ---------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_cancelled_again_and_again_it_leaves_no_stubborn_server(times: int, token: str) -> None:
    began = time.monotonic()

    async def use() -> None:
        async with contain(grace=BRISK):
            await by_a_library(stubborn(token))
            up.set()
            await asyncio.sleep(1000)

    up = asyncio.Event()
    task = asyncio.ensure_future(use())
    await up.wait()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.01)
    await asyncio.wait([task])
    assert time.monotonic() - began < BRISK.total
    assert task.cancelled()
    assert running(token) == []


async def test_timeouts_around_it_are_timeouts_when_the_server_is_gone(token: str) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as outer:
            with anyio.CancelScope() as inner:
                async with contain(grace=BRISK):
                    await by_asyncio(stubborn(token))
                    inner.deadline = anyio.current_time() + 0.1
                    outer.reschedule(asyncio.get_running_loop().time() + 0.2)
                    await asyncio.sleep(1000)
            await asyncio.sleep(1000)
    assert running(token) == []


@pytest.mark.parametrize("closes", [1, 2, 3])
async def test_an_owner_that_closes_ends_a_server_that_the_clean_up_waits_for(
    closes: int, token: str
) -> None:
    """As a client does that closes the input of its server, and trusts it to end."""
    owner = await Scope.open("owner", grace=BRISK)
    began = time.monotonic()

    async def use() -> None:
        async with contain(scope=owner):
            process = await by_asyncio(stubborn(token))
            up.set()
            try:
                await asyncio.sleep(1000)
            finally:
                process.stdin.close()
                await process.wait()

    up = asyncio.Event()
    task = asyncio.ensure_future(use())
    await up.wait()
    await asyncio.gather(*(owner.close() for _ in range(closes)))
    assert (await owner.close()).clean
    assert time.monotonic() - began < BRISK.total + 0.5
    assert running(token) == []
    await asyncio.wait([task])


async def test_a_clean_up_of_a_task_inside_that_waits_for_a_stubborn_server_comes_to_its_end(
    token: str,
) -> None:
    codes: list[int] = []

    async def library() -> None:
        process = await by_asyncio(stubborn(token))
        try:
            up.set()
            await asyncio.sleep(1000)
        finally:
            process.stdin.close()
            with contextlib.suppress(asyncio.CancelledError):
                await process.wait()
            codes.append(await process.wait())

    up = asyncio.Event()
    began = time.monotonic()
    async with contain(grace=BRISK) as box:
        task = asyncio.ensure_future(library())
        await up.wait()
    assert time.monotonic() - began < BRISK.total + 0.5
    assert task.done()
    assert codes == [-signal.SIGKILL]
    assert box.report is not None
    assert box.report.clean


async def test_a_swallowed_cancel_is_raised_when_the_process_is_gone(token: str) -> None:
    async def use() -> None:
        async with contain():
            await by_asyncio(tree(token))
            up.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)

    up = asyncio.Event()
    task = asyncio.ensure_future(use())
    await up.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert running(token) == []


# What it costs, and what cannot be done ---------------------------------------------------------------------


async def test_where_nothing_was_started_nothing_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def look(pid: int) -> dict[int, int]:
        looked.append(pid)
        return {}

    monkeypatch.setattr(descendants, "have_any", lambda: False)
    monkeypatch.setattr(descendants, "_children_of", look)
    async with contain():
        await asyncio.sleep(0)
    assert looked == []


async def test_without_the_kernels_lists_everybody_is_asked_for_its_parent(
    monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    reads = procfs.read_if_there

    def no_lists(path: str) -> bytes | None:
        return None if path.endswith("/children") else reads(path)

    monkeypatch.setattr(procfs, "read_if_there", no_lists)
    async with contain() as box:
        await by_asyncio(tree(token))
    assert running(token) == []
    assert box.report is not None
    assert box.report.clean


async def test_without_the_kernels_lists_a_session_from_outside_a_container_is_looked_into_too(
    monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    reads = procfs.read_if_there
    monkeypatch.setattr(
        procfs, "read_if_there", lambda path: None if path.endswith("/children") else reads(path)
    )
    monkeypatch.setattr(os, "getsid", lambda pid: 0)  # what it says where the session has no number
    async with contain() as box:
        await by_asyncio(tree(token))
    assert running(token) == []
    assert box.report is not None
    assert box.report.clean


async def test_out_of_descriptors_nobody_is_taken_for_gone(
    monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    process = by_hand(tree(token))
    proc = procfs.look_up(process.pid)
    assert proc is not None
    found = AdoptedTree(proc)
    assert len(found.members()) == 3

    def cannot(roots: object) -> list[procfs.Proc]:
        raise OSError(24, "no descriptor left")

    monkeypatch.setattr(descendants, "below", cannot)
    assert len(found.members()) == 3
    await end_tree(token)
    end(process)


@pytest.mark.worlds("asyncio")
async def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="'known', 'all', 'none', not 'some'"):
        contain(processes="some")  # type: ignore[arg-type]


async def test_a_shell_that_forks_while_it_is_told_to_go_leaves_no_child_behind(token: str) -> None:
    forking = f"echo up; i=0; while [ $i -lt 300 ]; do sleep 1{token} & i=$((i+1)); done; wait"
    for pause in (0.002, 0.005, 0.01, 0.02, 0.03):
        async with contain(grace=Grace(cancel=0.0, terminate=2.0, kill=10.0)) as containment:
            await by_asyncio(["sh", "-c", forking])
            await asyncio.sleep(pause)
        assert containment.report is not None
        assert containment.report.clean, containment.report
        assert not running(token)


async def test_members_of_a_group_that_cannot_be_signalled_as_one_are_signalled_one_by_one(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await by_asyncio_in_a_session_of_its_own(tree(token))
    leader = procfs.look_up(process.pid)
    assert leader is not None
    whole = AdoptedTree(leader)
    assert len(whole.members()) == 3
    # As if its number could be somebody else's by now.
    monkeypatch.setattr(AdoptedTree, "_is_group", lambda self, alive: False)
    whole.signal(signal.SIGTERM)
    await process.wait()
    assert wait_until(lambda: not running(token))
