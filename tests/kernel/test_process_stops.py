"""Demand 10, the end of a process: whoever asks, however often, the whole tree is gone when the stop is over."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest
import trio

from quiesce import Grace, Reason, Scope
from quiesce.kernel.process.pipe import PipeClosed
from quiesce.kernel.process.process import Process, Stream
from quiesce.kernel.process.process_tree import Tree
from quiesce.kernel.process.procfs import look_up
from quiesce.kernel.scope.lifecycle import ScopeCore
from tests.kernel.processes import is_gone, running, token_of_processes
from tests.kernel.temperaments import forever, on_trio, tidy_up
from tests.world import World, asyncio_only, trio_only

pytestmark = pytest.mark.real_time

BRISK = Grace(cancel=0.1, terminate=0.1, kill=10.0)
PATIENT = Grace(cancel=60, terminate=60, kill=10)
SOON = 8.0  # seconds that a machine that stalls may take for what takes a tenth

EARLY = 0.005  # uvloop counts in milliseconds, from the beginning of its turn

BOTH: tuple[Stream, ...] = ("null", "pipe")

# Six processes: a shell, its children, and a subshell with its own.
FAMILY = "sleep {0} & sleep {0} & (sleep {0} & sleep {0} & wait) & echo up; wait"
# Hears neither the end of its input nor SIGTERM, and neither do its children.
DEAF = "trap '' TERM; (while :; do sleep {0}; done) & echo up; while :; do sleep {0}; done"

# Says what it receives, and when; ends only by SIGKILL.
LOGGER = """
import os, signal, sys, time
def say(what): os.write(1, f"{what} {time.monotonic()}\\n".encode())
signal.signal(signal.SIGTERM, lambda *_: say("term"))
say("up")
if os.read(0, 1) == b"": say("eof")
while True: time.sleep(10)
"""


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


def shell(script: str, token: str) -> list[str]:
    return ["sh", "-c", script.format(token)]


def python(code: str, *args: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code, *args]


async def started(argv: list[str], **options: Any) -> Process:
    """A process that has said its first word."""
    process = await Process.open(argv, **options)
    async for _ in process.lines():
        break
    return process


def core_of(process: Process) -> ScopeCore:
    assert process._child is not None
    return process._child._core


def state_of(pid: int) -> str | None:
    proc = look_up(pid)
    return proc.state if proc is not None else None


def name_of(pid: int) -> str | None:
    proc = look_up(pid)
    return proc.comm if proc is not None else None


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.002)


class Stopwatch:
    def __init__(self) -> None:
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started


# What is gone


async def test_child_and_grandchildren_are_gone_when_close_returns(token: str) -> None:
    process = await started(shell(FAMILY, token))
    await until(lambda: len(running(token)) == 6)
    report = await process.close()
    assert running(token) == []
    assert is_gone(process.pid)
    assert report.clean
    assert [str(outcome) for outcome in report.outcomes] == ["sh: finished"]
    assert process.returncode == -signal.SIGTERM


async def test_they_are_gone_when_the_block_ends(token: str) -> None:
    async with Process(shell(FAMILY, token)) as process:
        await anext(process.lines())
    assert running(token) == []
    assert process.report is not None
    assert process.report.reason == Reason("parent", "its block ended")


async def test_a_polite_server_ends_by_the_end_of_its_input_alone(token: str) -> None:
    script = "trap 'echo term >&2' TERM; cat >/dev/null; echo bye >&2; exit 5 # {0}"
    async with Process(shell(script, token), stdin="pipe", grace=PATIENT) as process:
        watch = Stopwatch()
    assert watch.seconds < SOON
    assert process.returncode == 5
    assert process.stderr_tail == b"bye\n"


async def test_those_who_hear_neither_eof_nor_term_are_killed(token: str) -> None:
    process = await started(shell(DEAF, token), stdin="pipe", grace=BRISK)
    watch = Stopwatch()
    report = await process.close()
    assert 0.2 <= watch.seconds + EARLY < SOON
    assert running(token) == []
    assert report.clean
    assert process.returncode == -signal.SIGKILL


async def test_the_steps_come_when_grace_says_so(token: str) -> None:
    heard: dict[str, float] = {}
    grace = Grace(cooperate=0.1, cancel=1.5, terminate=1.5, kill=10)
    process = Process(python(LOGGER, token), stdin="pipe", grace=grace)
    async with process, anyio.create_task_group() as group:

        async def listen() -> None:
            async for line in process.lines():
                what, when = line.decode().split()
                heard[what] = float(when)

        group.start_soon(listen)
        await until(lambda: "up" in heard)
        asked = time.monotonic()
        await process.close()
        killed = time.monotonic()
    assert list(heard) == ["up", "eof", "term"]
    assert 0.1 <= heard["eof"] - asked + EARLY < 1.6
    assert 1.6 <= heard["term"] - asked + EARLY < 3.1
    assert 3.1 <= killed - asked + EARLY < 3.1 + SOON
    assert process.returncode == -signal.SIGKILL


async def test_without_a_pipe_at_stdin_sigterm_comes_at_once_and_keeps_its_time(token: str) -> None:
    process = await started(shell(DEAF, token), grace=Grace(cancel=60, terminate=0.2, kill=10))
    watch = Stopwatch()
    await process.close()
    assert 0.2 <= watch.seconds + EARLY < SOON


@pytest.mark.parametrize("how", ["by us", "by the child", "by the exit"])
async def test_an_input_that_nobody_reads_is_not_waited_for(token: str, how: str) -> None:
    script = {
        "by us": "sleep {0} & echo up; wait",
        "by the child": "exec <&-; sleep {0} & echo up; wait",
        "by the exit": "sleep {0} & echo up",
    }[how]
    process = await started(shell(script, token), stdin="pipe", grace=PATIENT)
    if how == "by us":
        process.close_stdin()
    await until(lambda: len(running(token)) >= 1)
    watch = Stopwatch()
    await process.close()
    assert watch.seconds < SOON
    assert running(token) == []


async def test_sigterm_is_sent_once(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    really_send = Tree.signal

    def send(tree: Tree, number: int) -> None:
        sent.append(number)
        really_send(tree, number)

    monkeypatch.setattr(Tree, "signal", send)
    for stdin in BOTH:
        process = await started(shell(DEAF, token), stdin=stdin, grace=BRISK)
        process.cancel()
        process.cancel()
        await process.close()
        assert sent[:2] == [signal.SIGTERM, signal.SIGKILL]
        assert sent.count(signal.SIGTERM) == 1
        sent.clear()


async def test_those_whom_a_polite_leader_leaves_behind_are_not_given_its_time(token: str) -> None:
    script = "sleep {0} & sleep {0} & echo up; cat; exit 5"
    process = await started(shell(script, token), stdin="pipe", grace=PATIENT)
    watch = Stopwatch()
    await process.close()
    assert watch.seconds < SOON
    assert running(token) == []
    assert process.returncode == 5


async def test_the_time_of_a_longer_grace_is_not_cut(token: str) -> None:
    script = "trap 'sleep 0.4; exit 6' TERM; echo up; while :; do sleep 0.01; done # {0}"
    process = await started(shell(script, token), grace=Grace(cancel=0.05, terminate=0.05, kill=1))
    await process.close(grace=Grace(cancel=1, terminate=5, kill=1))
    assert process.returncode == 6


async def test_an_endless_cancel_step_still_ends_in_a_kill(token: str) -> None:
    process = await started(shell(DEAF, token), grace=BRISK)
    watch = Stopwatch()
    report = await process.close(grace=Grace(cancel=float("inf"), terminate=0.1, kill=10))
    assert report.clean
    assert watch.seconds < SOON


async def test_a_grandchild_that_holds_the_pipes_does_not_hold_up_the_stop(token: str) -> None:
    process = await started(shell("sleep {0} & echo up", token), stdin="pipe", grace=PATIENT)
    assert await process.wait() == 0
    await until(lambda: len(running(token)) == 1)
    watch = Stopwatch()
    report = await process.close()
    assert watch.seconds < SOON
    assert report.clean
    assert running(token) == []
    assert process.returncode == 0


async def test_a_leader_that_exits_at_once_leaves_nobody(token: str) -> None:
    async with Process(
        shell("(trap '' TERM; sleep {0}) & (sleep {0} &) & exit 4", token), grace=BRISK
    ) as process:
        assert await process.wait() == 4
    assert running(token) == []
    assert process.returncode == 4


async def test_a_child_that_is_stopped_by_a_signal_is_woken_to_end(token: str) -> None:
    script = "trap 'echo term >&2; exit 9' TERM; echo up; kill -STOP $$; sleep {0}"
    process = await started(shell(script, token), grace=PATIENT)
    await until(lambda: state_of(process.pid) == "T")
    watch = Stopwatch()
    await process.close()
    assert watch.seconds < SOON  # by SIGTERM, not by SIGKILL
    assert process.returncode == 9
    assert process.stderr_tail == b"term\n"
    assert running(token) == []


async def test_a_descendant_with_a_session_of_its_own_is_ended_by_its_mark(token: str) -> None:
    process = await started(
        shell("setsid sh -c 'setsid sleep {0} & sleep {0} & echo up; wait' & wait", token)
    )
    await until(lambda: len(running(token)) >= 4)
    await process.close()
    assert running(token) == []


async def test_one_that_left_its_parent_and_its_session_is_ended_too(token: str) -> None:
    process = await started(
        shell("(setsid sh -c 'trap \"\" TERM; echo up; sleep {0}' &) & exit 0", token), grace=BRISK
    )
    await process.wait()
    await until(lambda: running(token))
    await process.close()
    assert running(token) == []


# Three runners, each of which forks, leaves its child to run on, and exits, so that there are never more than a few.
RUNNERS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for number in range(3):
    if os.fork() == 0:
        break
else:
    os.write(1, b"up\\n")
    time.sleep(60)
for step in range(1000):
    if os.fork():
        os._exit(0)
    if step % 5 == number:
        os.setsid()
    time.sleep(0.001)
"""


async def test_those_who_fork_while_they_are_killed_do_not_get_away(token: str) -> None:
    process = await started(python(RUNNERS, token), grace=Grace(cancel=0.05, terminate=0.03, kill=5))
    report = await process.close()
    assert report.clean
    assert running(token) == []


async def test_a_stderr_that_floods_does_not_hold_up_the_stop(token: str) -> None:
    script = "trap '' TERM; echo up; yes {0} >&2"
    process = await started(shell(script, token), stdin="pipe", grace=BRISK, stderr_limit=100)
    await until(lambda: len(process.stderr_tail) == 100)
    await anyio.sleep(0.05)
    watch = Stopwatch()
    await process.close()
    assert watch.seconds < SOON
    assert len(process.stderr_tail) == 100
    assert running(token) == []


async def test_a_stdout_that_nobody_reads_does_not_hold_up_the_stop(token: str) -> None:
    for script in ("yes {0}", "trap '' TERM; yes {0}"):
        process = await Process.open(shell(script, token), stdin="pipe", grace=BRISK)
        await anyio.sleep(0.05)
        watch = Stopwatch()
        await process.close()
        assert watch.seconds < SOON
        assert running(token) == []


async def test_one_that_is_blocked_on_its_stdout_still_sees_the_end_of_its_input(token: str) -> None:
    code = "import os; os.write(1, bytes(300_000)); os.read(0, 1); os.write(2, b'saw it'); os._exit(8)"
    process = await Process.open(python(code, token), stdin="pipe", grace=PATIENT)
    await anyio.sleep(0.1)
    watch = Stopwatch()
    await process.close()
    assert watch.seconds < SOON
    assert process.returncode == 8
    assert process.stderr_tail == b"saw it"


async def test_an_exit_in_the_moment_of_the_stop_is_an_ordinary_end(token: str) -> None:
    for n in range(20):
        process = await Process.open(shell("read line; exit 3 # {0}", token), stdin="pipe")
        await process.write(b"go\n")
        await anyio.sleep(0.0003 * n)
        report = await process.close()
        assert report.clean
        assert (
            process.returncode == 3 or n < 5
        )  # before it has even executed, it may meet the end of its input


async def test_stopped_before_it_has_done_anything(token: str) -> None:
    for stdin in BOTH:
        process = await Process.open(shell(FAMILY, token), stdin=stdin, grace=BRISK)
        report = await process.close()
        assert report.clean
        assert running(token) == []


# Who closes


async def test_closing_twice_gives_the_same_report(token: str) -> None:
    process = await started(shell(FAMILY, token))
    first = await process.close(reason="one")
    second = await process.close(reason="two")
    assert first.reason == second.reason == Reason("user", "one")
    assert first.elapsed == second.elapsed


async def test_several_closers_wait_for_the_same_end(token: str) -> None:
    process = await started(shell(DEAF, token), grace=BRISK)
    reports = []

    async def close() -> None:
        reports.append(await process.close())
        assert running(token) == []

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(close)
    assert len(reports) == 3


async def test_a_thread_may_ask_for_the_stop(token: str) -> None:
    process = await started(shell(FAMILY, token))
    thread = threading.Thread(target=process.cancel, args=("from a thread",))
    thread.start()
    assert await process.wait() == -signal.SIGTERM
    thread.join()
    report = await process.close()
    assert report.reason == Reason("user", "from a thread")


async def test_asking_again_makes_it_faster(token: str) -> None:
    process = await started(shell(DEAF, token), stdin="pipe", grace=Grace(cancel=30, terminate=30, kill=5))
    process.cancel()
    await anyio.sleep(0.02)
    watch = Stopwatch()
    report = await process.close(grace=BRISK)
    assert report.clean
    assert watch.seconds < SOON


@asyncio_only
@pytest.mark.parametrize("cancels", [1, 2, 3])
async def test_a_closer_that_is_cancelled_again_and_again_waits_for_the_end(token: str, cancels: int) -> None:
    process = await started(shell(DEAF, token), stdin="pipe", grace=BRISK)
    gone_at_the_end: list[bool] = []

    async def close() -> None:
        try:
            await process.close()
        finally:
            gone_at_the_end.append(running(token) == [])

    closer = asyncio.ensure_future(close())
    for _ in range(cancels):
        await asyncio.sleep(0.02)
        closer.cancel()
    await asyncio.wait([closer])
    assert closer.cancelled()
    assert gone_at_the_end == [True]
    assert process.report is not None
    assert process.report.clean


@trio_only
async def test_a_closer_inside_cancelled_trio_scopes_waits_for_the_end(token: str) -> None:
    process = await started(shell(DEAF, token), stdin="pipe", grace=BRISK)
    with trio.move_on_after(0.02) as outer, trio.move_on_after(0.04) as inner:
        try:
            await process.close()
        finally:
            assert running(token) == []
    assert outer.cancelled_caught or inner.cancelled_caught
    assert process.report is not None


@asyncio_only
async def test_a_timeout_round_a_close_raises_timeout_error_when_it_is_over(token: str) -> None:
    process = await started(shell(DEAF, token), stdin="pipe", grace=BRISK)
    watch = Stopwatch()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await process.close()
    assert watch.seconds + EARLY >= 0.2
    assert running(token) == []
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_closer_inside_a_cancelled_anyio_scope_waits_without_spinning(token: str) -> None:
    process = await started(shell(DEAF, token), stdin="pipe", grace=Grace(cancel=0.3, terminate=0.1, kill=10))
    with anyio.CancelScope() as scope:
        scope.cancel()
        cpu = time.process_time()
        try:
            await process.close()
        finally:
            cpu = time.process_time() - cpu
            assert running(token) == []
    assert scope.cancelled_caught
    assert cpu < 0.2


async def test_a_cancelled_block_ends_the_tree_and_keeps_the_cancel(token: str) -> None:
    with anyio.CancelScope() as scope:
        async with Process(shell(FAMILY, token)) as process:
            await anext(process.lines())
            scope.deadline = anyio.current_time() + 0.05
            await forever()
    assert scope.cancelled_caught
    assert running(token) == []
    assert process.report is not None
    assert process.report.reason is not None
    assert process.report.reason.kind == ("timeout" if on_trio() else "cancelled")


async def test_the_reason_of_a_cancelled_block_is_the_one_that_its_task_was_given(token: str) -> None:
    processes: list[Process] = []

    async def child_with_process() -> None:
        try:
            async with Process(shell(FAMILY, token)) as process:
                processes.append(process)
                await forever()
        finally:
            assert running(token) == []

    scope = await Scope.open()
    handle = scope.spawn(child_with_process)
    await until(lambda: processes)
    await scope.close(reason=Reason("disconnect", "the client left"))
    assert handle.state == "cancelled"
    assert processes[0].report is not None
    assert processes[0].report.reason == Reason("disconnect", "the client left")


async def test_an_error_in_the_block_ends_the_tree_and_is_raised(token: str) -> None:
    error = ValueError("no good")
    with pytest.raises(ValueError, match="no good") as caught:
        async with Process(shell(FAMILY, token)) as process:
            await anext(process.lines())
            raise error
    assert caught.value is error
    assert running(token) == []
    assert process.report is not None
    assert process.report.reason == Reason("error", "the body raised ValueError('no good')", error)


@asyncio_only
async def test_a_block_that_is_cancelled_while_it_ends_raises_that_cancel(token: str) -> None:
    async def block() -> None:
        async with Process(shell(DEAF, token), stdin="pipe", grace=BRISK) as process:
            await anext(process.lines())

    task = asyncio.ensure_future(block())
    await until(lambda: len(running(token)) >= 2)
    await asyncio.sleep(0.05)
    task.cancel()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert running(token) == []


@asyncio_only
async def test_a_start_that_is_cancelled_leaves_nothing(token: str, world: World) -> None:
    for turns in range(4):
        task = asyncio.ensure_future(Process.open(shell(FAMILY, token)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if turns < 2 and world.name != "asyncio-eager":
            assert task.cancelled()
        if not task.cancelled():
            await task.result().close()
        assert running(token) == []


async def test_a_start_inside_a_cancelled_scope_leaves_nothing(token: str, world: World) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            async with Process(shell(FAMILY, token)):
                assert world.name == "asyncio-eager"  # there, nothing has been waited for yet
                await forever()
        finally:
            assert running(token) == []
    assert scope.cancelled_caught


# Others who use it meanwhile


async def test_a_close_from_elsewhere_ends_reads_writes_waits_and_lines(token: str) -> None:
    process = await Process.open(shell("trap '' TERM; sleep {0} # deaf", token), stdin="pipe", grace=BRISK)
    lined = await Process.open(["sleep", token])
    outcomes: dict[str, object] = {}

    async def use(name: str, fn: Callable[[], Awaitable[object]]) -> None:
        try:
            outcomes[name] = await fn()
        except OSError as error:
            outcomes[name] = error

    async def all_lines() -> list[bytes]:
        return [line async for line in lined.lines()]

    async with anyio.create_task_group() as group:
        group.start_soon(use, "read", process.read)
        group.start_soon(use, "write", lambda: process.write(bytes(1_000_000)))
        group.start_soon(use, "wait", process.wait)
        group.start_soon(use, "lines", all_lines)
        # It is deaf once it runs something else, in a process of its own or in its place.
        await until(lambda: len(running(token)) == 3 or name_of(process.pid) == "sleep")
        await anyio.sleep(0.05)
        await process.close()
        await lined.close()
    refusal = outcomes.pop("write")
    assert isinstance(refusal, PipeClosed)
    assert str(refusal) == "cannot write to stdin of 'sh': it was closed"
    assert outcomes == {"read": b"", "wait": -signal.SIGKILL, "lines": []}
    assert await process.read() == b""
    assert [line async for line in process.lines()] == []
    with pytest.raises(PipeClosed):
        await process.write(b"x")


async def test_what_it_had_written_can_be_read_when_it_has_closed(token: str) -> None:
    for _ in range(5):
        process = await Process.open(
            shell("echo one; cat; echo two; printf three # {0}", token), stdin="pipe"
        )
        await process.close()
        assert [line async for line in process.lines()] in ([b"one", b"two", b"three"], [])
        assert process.returncode in (0, -signal.SIGTERM)
        assert await process.read() == b""


async def test_half_a_line_that_a_close_cut_off_is_not_a_line(token: str) -> None:
    # Somebody who is not of the tree has the pipe too: that it closes is our doing, not the end of the output.
    process = await Process.open(shell("printf 'whole\\nhal'; sleep {0}", token))
    got: list[bytes] = []

    async def read_lines() -> None:
        async for line in process.lines():
            got.append(line)  # noqa: PERF401 – each as it comes

    assert process._child is not None
    holder = os.open(f"/proc/{process.pid}/fd/1", os.O_WRONLY)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(read_lines)
            await until(lambda: got)
            await anyio.sleep(0.05)
            await process.close()
    finally:
        os.close(holder)
    assert got == [b"whole"]


async def test_last_words_are_still_read_while_it_is_being_stopped(token: str) -> None:
    for _ in range(5):
        process = await Process.open(
            shell("cat; echo one; echo two; printf three # {0}", token), stdin="pipe"
        )
        got: list[bytes] = []

        async def read_lines(process: Process = process, got: list[bytes] = got) -> None:
            got.extend([line async for line in process.lines()])

        async with anyio.create_task_group() as group:
            group.start_soon(read_lines)
            await process.write(b"zero\n")
            await anyio.sleep(0.005)
            await process.close()
        assert got == [b"zero", b"one", b"two", b"three"]


async def test_its_own_reader_may_close_it_and_read_on_to_the_end(token: str) -> None:
    seen: list[bytes] = []

    async def reader(process: Process) -> None:
        async for line in process.lines():
            if not seen:
                report = await process.close(reason="enough")
                assert report.clean
                assert running(token) == []
            seen.append(line)

    async with Scope() as scope:
        process = await Process.open(shell("while :; do echo line; done # {0}", token))
        scope.spawn(reader, process)
    assert set(seen) == {b"line"}


# In a scope


async def test_the_tasks_of_a_scope_end_before_its_process_is_told_to(token: str) -> None:
    log: list[str] = []

    async def user(process: Process) -> None:
        try:
            await forever()
        finally:
            await tidy_up(0.1)
            with anyio.CancelScope(shield=True):
                await process.write(b"goodbye\n")
                log.append((await anext(process.lines())).decode())
            log.append("user ends")

    scope = await Scope.open()
    process = await Process.open(shell("cat; echo eof >&2 # {0}", token), stdin="pipe", scope=scope)
    scope.spawn(user, process)
    await anyio.sleep(0.02)
    report = await scope.close(reason="done")
    assert log == ["goodbye", "user ends"]
    assert report.clean
    assert process.stderr_tail == b"eof\n"
    assert process.report is None or process.report.clean
    assert running(token) == []


async def test_a_scope_that_fails_ends_its_process(token: str) -> None:
    async def fail() -> None:
        await anyio.sleep(0.02)
        raise KeyError("broken")

    with pytest.raises(ExceptionGroup) as caught:
        async with Scope() as scope:
            process = await started(shell(FAMILY, token))
            scope.spawn(fail)
            await forever()
    assert caught.group_contains(KeyError)
    assert running(token) == []
    assert process.returncode == -signal.SIGTERM


async def test_the_end_of_a_block_ends_the_processes_that_were_opened_in_it(token: str) -> None:
    async with Scope() as scope:
        processes = [await started(shell(FAMILY, token)), await started(shell(FAMILY, token), scope=scope)]
        await until(lambda: len(running(token)) >= 2)
    assert running(token) == []
    assert [process.returncode for process in processes] == [-signal.SIGTERM] * 2


async def test_the_grace_of_the_owner_is_the_process_s_unless_it_has_one(token: str) -> None:
    async with Scope(grace=BRISK):
        process = await started(shell(DEAF, token), stdin="pipe")
        watch = Stopwatch()
        await process.close()
    assert 0.2 <= watch.seconds + EARLY < SOON


async def test_a_process_opened_by_a_task_that_is_long_gone_is_closed_by_another(token: str) -> None:
    kept: list[Process] = []

    async def opener() -> None:
        kept.append(await started(shell(FAMILY, token)))

    async with anyio.create_task_group() as group:
        group.start_soon(opener)
    process = kept.pop()
    await until(lambda: len(running(token)) >= 2)

    async def close() -> None:
        assert (await process.close()).clean

    async with anyio.create_task_group() as group:
        group.start_soon(close)
    assert running(token) == []


# Out of time


class Immortal:
    """Signals that are not sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __enter__(self) -> None:
        self._monkeypatch.setattr(Tree, "signal", lambda tree, number: None)

    def __exit__(self, *_: object) -> None:
        self._monkeypatch.undo()


async def test_a_deadline_of_a_tenth_of_a_second_is_kept_and_what_is_left_is_named(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await started(shell(DEAF, token), stdin="pipe", name="the deaf one")
    with Immortal(monkeypatch):
        watch = Stopwatch()
        report = await process.close(deadline=0.1)
        assert 0.1 <= watch.seconds + EARLY < 4  # and not the five of the default
    assert not report.clean
    left = {leftover.kind: leftover for leftover in report.left}["process"]
    assert left.name == "the deaf one"
    for pid in running(token):
        assert f"pid {pid}: " in left.stuck_at
    assert "test_process_stops.py" in left.made_at
    assert process.report is report
    again = await process.close(grace=Grace(cancel=0, terminate=0, kill=5))
    assert again.clean
    assert running(token) == []


async def test_an_owner_names_the_process_that_is_left(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = await Scope.open("owner")
    process = await started(shell("sleep {0} & echo up; wait", token), scope=scope)
    with Immortal(monkeypatch):
        report = await scope.close(deadline=0.1)
    assert [left.kind for left in report.left] == ["process"]
    assert f"pid {process.pid}: " in report.left[0].stuck_at
    process.signal(signal.SIGKILL)
    assert (await scope.close()).clean
    assert running(token) == []


async def test_closing_an_owner_again_reaches_the_process_that_had_expired_in_it(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = await Scope.open()
    process = await Process.open(["sleep", token], scope=scope, grace=BRISK)
    with Immortal(monkeypatch):
        assert not (await scope.close(deadline=0.05)).clean
    try:
        assert (await scope.close(grace=BRISK)).clean
    finally:
        await process.close()
    assert running(token) == []


async def test_no_time_at_all_still_signals_everybody(token: str) -> None:
    process = await started(shell(DEAF, token), stdin="pipe")
    report = await process.close(deadline=0)
    assert [left.kind for left in report.left] in (["process"], [])
    await until(lambda: not running(token))
    assert (await process.close()).clean


async def test_one_that_ends_after_its_time_settles_by_itself(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await started(shell("sleep {0} & echo up; wait", token))
    with Immortal(monkeypatch):
        assert not (await process.close(deadline=0.05)).clean
    process.signal(signal.SIGKILL)
    await until(lambda: core_of(process).state == "settled")
    assert running(token) == []


async def test_a_block_whose_process_stays_says_so(
    token: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Immortal(monkeypatch):
        async with Process(
            shell("sleep {0} & echo up; wait", token), grace=Grace(cancel=0, terminate=0.02, kill=0.02)
        ) as process:
            await anext(process.lines())
    assert "left: process 'sh', stuck at pid" in caplog.text
    assert (await process.close(grace=BRISK)).clean


# Dropped


def drop(kept: list[Any]) -> None:
    kept.clear()
    gc.collect()


async def until_settled(core: ScopeCore) -> None:
    await until(lambda: core.state == "settled")
    await anyio.sleep(0.01)  # for tasks to take their last step


async def test_a_dropped_process_is_ended_with_a_warning(token: str) -> None:
    kept = [await started(shell(FAMILY, token))]
    pid, core = kept[0].pid, core_of(kept[0])
    await until(lambda: len(running(token)) == 6)
    with pytest.warns(
        ResourceWarning, match=rf"'sh' \(pid {pid}\), started at .*test_process_stops.py:\d+ in"
    ):
        drop(kept)
    await until_settled(core)
    assert running(token) == []
    assert is_gone(pid)
    assert core.reason == Reason("parent", "dropped without close()")


async def test_a_dropped_process_is_signalled_before_the_next_line_runs(token: str) -> None:
    script = "trap 'echo term >&2' TERM; echo up; cat; sleep {0}"
    kept = [await started(shell(script, token), stdin="pipe", grace=BRISK)]
    core = core_of(kept[0])
    sent: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tree, "signal", lambda tree, number: sent.append(number))
        with pytest.warns(ResourceWarning, match="without close"):
            drop(kept)
    assert sent == [signal.SIGTERM]
    await until_settled(core)


async def test_whoever_holds_only_its_lines_holds_the_process(token: str) -> None:
    process = await Process.open(["yes", token])
    core, kept = core_of(process), [process.lines()]
    del process
    gc.collect()
    assert await anext(kept[0]) == token.encode()
    with pytest.warns(ResourceWarning, match="was dropped without close"):
        drop(kept)
    await until_settled(core)


async def test_one_that_is_dropped_in_another_thread_is_ended_too(token: str) -> None:
    kept = [await started(shell(FAMILY, token))]
    core = core_of(kept[0])

    def drop_elsewhere() -> None:
        thread = threading.Thread(target=drop, args=(kept,))
        thread.start()
        thread.join()

    with pytest.warns(ResourceWarning, match="was dropped without close"):
        drop_elsewhere()
    await until_settled(core)


async def test_a_generator_that_is_left_in_the_middle_ends_its_process(token: str) -> None:
    cores: list[ScopeCore] = []

    async def words() -> AsyncGenerator[bytes, None]:
        async with Process(shell("while :; do echo word; done # {0}", token)) as process:
            cores.append(core_of(process))
            async for line in process.lines():
                yield line

    generator = words()
    async for word in generator:
        assert word == b"word"
        break
    await generator.aclose()
    assert running(token) == []
    kept = [words()]
    assert await anext(kept[0]) == b"word"
    if on_trio():
        with pytest.warns(ResourceWarning, match="was garbage collected before it had been exhausted"):
            drop(kept)
    else:
        drop(kept)
    await until_settled(cores[1])


@pytest.mark.parametrize("depth", [0, 3])
async def test_a_process_deep_inside_has_time_to_heed_sigterm(token: str, depth: int) -> None:
    slow_to_leave = "trap 'sleep 1.4; exit 7' TERM; echo up; while :; do sleep 0.01; done # {0}"
    outer = inner = await Scope.open("outer", grace=Grace(cancel=0, terminate=6, kill=3))
    for _ in range(depth):
        inner = await Scope.open(scope=inner)
    process = await started(shell(slow_to_leave, token), scope=inner)
    assert (await outer.close()).clean
    assert process.returncode == 7
