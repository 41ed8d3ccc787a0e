"""Demand 10, the use of a process: its pipes, its exit status, its start. How it is stopped: `test_process_stops`."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import pwd
import signal
import sys
import threading
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from quiesce import Grace, Scope, ScopeClosed
from quiesce.kernel.process import guardian
from quiesce.kernel.process.pipe import LineTooLong, Output, Pipe, PipeClosed
from quiesce.kernel.process.process import Process
from quiesce.kernel.process.process_tree import UNKNOWN_STATUS
from quiesce.kernel.scope.backend import current_backend
from quiesce.kernel.scope.scope import root_core
from tests.kernel.processes import running, token_of_processes
from tests.leaks import open_descriptors
from tests.world import World, asyncio_only

pytestmark = pytest.mark.real_time


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


def python(code: str, *args: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", "import os, signal, sys, time\n" + code, *args]


async def all_of(process: Process) -> bytes:
    pieces = []
    while piece := await process.read():
        pieces.append(piece)
    return b"".join(pieces)


async def lines_of(process: Process, **options: Any) -> list[bytes]:
    return [line async for line in process.lines(**options)]


async def until(condition: Any) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.002)


@asynccontextmanager
async def meanwhile(fn: Any, *args: Any) -> AsyncIterator[list[Any]]:
    """Run `fn` beside the block and wait for it; the list holds what it returned, or raised."""
    outcome: list[Any] = []

    async def run() -> None:
        try:
            outcome.append(await fn(*args))
        except Exception as error:
            outcome.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await anyio.sleep(0.02)
        yield outcome


# Reading


async def test_output_is_read_in_pieces_until_its_end() -> None:
    async with Process(["sh", "-c", "printf hello; printf there"]) as process:
        assert await all_of(process) == b"hellothere"
        assert await process.read() == b""
        assert await process.wait() == 0


async def test_a_read_gives_at_most_what_was_asked_for() -> None:
    async with Process(["printf", "abcdef"]) as process:
        assert [await process.read(2) for _ in range(4)] == [b"ab", b"cd", b"ef", b""]


async def test_a_read_of_nothing_is_refused_and_is_not_the_end() -> None:
    async with Process(["printf", "abc"]) as process:
        for most in (0, -1):
            with pytest.raises(ValueError, match="at least one byte"):
                await process.read(most)
        assert await process.read() == b"abc"


async def test_what_nobody_reads_makes_the_process_wait() -> None:
    async with Process(python("os.write(1, bytes(200_000)); os.write(2, b'done')")) as process:
        await anyio.sleep(0.1)
        assert process.returncode is None
        assert process.stderr_tail == b""
        assert len(await all_of(process)) == 200_000
        await process.wait()
        await until(lambda: process.stderr_tail == b"done")


async def test_a_cancelled_read_loses_nothing() -> None:
    code = "for n in range(20):\n  os.write(1, b'%d\\n' % n); time.sleep(0.004)"
    async with Process(python(code)) as process:
        got = b""
        while not got.endswith(b"19\n"):
            with anyio.move_on_after(0.003):
                got += await process.read()
        assert got == b"".join(b"%d\n" % n for n in range(20))


async def test_a_flood_does_not_hold_the_loop_and_can_be_left() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await anyio.sleep(0)
            turns += 1

    flood = Process(["yes", "a rather long line, so that it floods"])
    async with flood as process, anyio.create_task_group() as group:
        group.start_soon(turn)
        started = time.monotonic()
        with anyio.move_on_after(0.1):
            while True:
                await process.read()
        assert time.monotonic() - started < 10
        started = time.monotonic()
        with anyio.move_on_after(0.1):
            async for _ in process.lines():
                pass
        assert time.monotonic() - started < 10
        while turns <= 10:  # where they have none, it never ends
            await process.read()
        group.cancel_scope.cancel()


async def test_others_have_their_turn_between_two_reads_of_what_is_there() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await anyio.sleep(0)
            turns += 1

    async with Process(["printf", "x" * 1000]) as process, anyio.create_task_group() as group:
        await process.wait()
        group.start_soon(turn)
        for _ in range(1000):
            assert await process.read(1) == b"x"
        group.cancel_scope.cancel()
    assert turns >= 500


async def test_two_readers_at_once_are_told_so() -> None:
    async with Process(["cat"], stdin="pipe") as process:
        async with meanwhile(process.read) as first:
            with pytest.raises(RuntimeError, match="another task is already at stdout of 'cat'"):
                await process.read()
            with pytest.raises(RuntimeError, match="one at a time"):
                await anext(process.lines())
            await process.write(b"for the first")
        assert first == [b"for the first"]
        await process.write(b"half a li")
        await anyio.sleep(0.02)
        async with meanwhile(anext, process.lines()) as line:
            with pytest.raises(RuntimeError, match="another task is already at stdout"):
                await process.read()  # not even what is left over of a line
            await process.write(b"ne\nrest")
        assert line == [b"half a line"]
        assert await process.read() == b"rest"


# Lines


async def test_lines_come_without_their_ends_and_the_last_one_needs_none() -> None:
    async with Process(["printf", r"one\ntwo\r\n\n \r\nlast"]) as process:
        assert await lines_of(process) == [b"one", b"two", b"", b" ", b"last"]
        assert await lines_of(process) == []


async def test_no_output_has_no_lines() -> None:
    async with Process(["true"]) as process:
        assert await lines_of(process) == []
        assert await process.read() == b""


async def test_a_limit_below_nothing_is_refused() -> None:
    async with Process(["true"]) as process:
        with pytest.raises(ValueError, match="limit must be a number of bytes, not -1"):
            process.lines(limit=-1)


async def test_breaking_out_of_lines_leaves_the_rest_to_others() -> None:
    async with Process(["printf", r"one\ntwo\nthree\nfour"]) as process:
        async for line in process.lines():
            assert line == b"one"
            break
        assert await anext(process.lines()) == b"two"
        assert await process.read(3) == b"thr"
        assert await lines_of(process) == [b"ee", b"four"]


async def test_a_line_over_the_limit_is_skipped_and_the_next_one_is_whole() -> None:
    script = r"printf '12345\n123456\n'; printf 12345; sleep 0.02; printf 6789; sleep 0.02; printf 'x\nlast'"
    async with Process(["sh", "-c", script]) as process:
        got: list[object] = []
        for _ in range(5):
            try:
                got.append(await anext(process.lines(limit=5), None))
            except LineTooLong as error:
                got.append(str(error))
        too_long = "a line at stdout of 'sh' is longer than the limit of 5 bytes"
        assert got == [b"12345", too_long, too_long, b"last", None]


async def test_what_follows_an_endless_line_is_not_kept() -> None:
    async with Process(python("for _ in range(500): os.write(1, b'x' * 65536)")) as process:
        lines = process.lines(limit=100_000)
        with pytest.raises(LineTooLong):
            await anext(lines)
        peak = 0

        async def watch() -> None:
            nonlocal peak
            child = process._child
            assert child is not None
            assert child.stdout is not None
            while True:
                peak = max(peak, len(child.stdout._buffer))
                await anyio.sleep(0)

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            assert await anext(lines, None) is None
            group.cancel_scope.cancel()
        assert peak <= 200_000


async def test_a_cancelled_line_is_whole_the_next_time() -> None:
    async with Process(["cat"], stdin="pipe") as process:
        lines = process.lines()
        await process.write(b"ab")
        with anyio.move_on_after(0.02):
            await anext(lines)
        await process.write(b"cd\n")
        assert await anext(lines) == b"abcd"


async def test_many_small_lines_and_a_few_large_ones_come_through() -> None:
    code = "sys.stdout.write('0123456789\\n' * 100_000 + ('x' * 3_000_000 + '\\n') * 3)"
    async with Process(python(code)) as process:
        lengths = [len(line) async for line in process.lines()]
        assert lengths == [10] * 100_000 + [3_000_000] * 3


async def test_a_long_line_is_searched_once() -> None:
    searched = 0

    class Counting(bytearray):
        def find(self, what: Any, start: Any = 0, *rest: Any) -> int:
            nonlocal searched
            searched += len(self) - start
            return super().find(what, start, *rest)

    async with Process(python("os.write(1, b'x' * 4_000_000 + b'\\n')")) as process:
        child = process._child
        assert child is not None
        assert isinstance(child.stdout, Output)
        child.stdout._buffer = Counting()
        assert len(await anext(process.lines())) == 4_000_000
    assert searched < 5_000_000


# Writing


async def test_what_is_written_arrives_and_closing_stdin_ends_the_input() -> None:
    async with Process(["cat"], stdin="pipe") as process:
        await process.write(b"one ")
        await process.write(bytearray(b"two "))
        await process.write(memoryview(array("I", [0x64636261])))
        process.close_stdin()
        process.close_stdin()
        assert await all_of(process) == b"one two abcd"
        assert await process.wait() == 0


async def test_a_large_write_waits_for_its_reader() -> None:
    data = os.urandom(3_000_000)
    async with Process(["cat"], stdin="pipe") as process:
        async with meanwhile(process.write, data) as written:
            assert not written
            got = bytearray()
            while len(got) < len(data):
                got += await process.read()
        assert written == [None]
        assert got == data


async def test_a_write_that_nobody_reads_can_be_cancelled(token: str) -> None:
    async with Process(["sleep", token], stdin="pipe", grace=Grace(cancel=0)) as process:
        started = time.monotonic()
        with anyio.move_on_after(0.05) as scope:
            await process.write(bytes(1_000_000))
        assert scope.cancelled_caught
        assert time.monotonic() - started < 10


async def test_many_small_writes_do_not_hold_the_loop() -> None:
    async with Process(["sh", "-c", "cat >/dev/null"], stdin="pipe") as process:
        with anyio.move_on_after(0.05) as scope:
            while True:
                await process.write(b"x")
        assert scope.cancelled_caught


async def test_a_wait_for_what_is_always_ready_can_be_cancelled() -> None:
    # On uvloop the waiter is woken before anyio looks at it, which never cancels one that is woken already.
    backend = current_backend()
    reading, writing = os.pipe()
    try:
        for _ in range(40):
            give_up_at = time.monotonic() + 1
            with anyio.move_on_after(0.002) as scope:
                while time.monotonic() < give_up_at:
                    await backend.wait_writable(writing)
            assert scope.cancelled_caught
    finally:
        os.close(reading)
        os.close(writing)


async def test_a_write_of_nothing_does_nothing() -> None:
    async with Process(["cat"], stdin="pipe") as process:
        await process.write(b"")
        await process.write(memoryview(b""))
        process.close_stdin()
        assert await all_of(process) == b""
        await process.write(b"")


async def test_text_is_not_bytes() -> None:
    async with Process(["cat"], stdin="pipe") as process:
        with pytest.raises(TypeError, match="write takes bytes, not str"):
            await process.write("text")  # type: ignore[arg-type]


async def test_a_write_after_the_exit_says_how_it_ended() -> None:
    async with Process(["sh", "-c", "exit 3"], stdin="pipe") as process:
        await process.wait()
        with pytest.raises(
            BrokenPipeError, match=r"^'sh' does not read its stdin any more \(it exited with 3\)$"
        ):
            await process.write(b"too late")
    async with Process(["sh", "-c", "kill -9 $$"], stdin="pipe", name="victim") as process:
        await process.wait()
        with pytest.raises(BrokenPipeError, match=r"'victim' does not read .* \(signal 9 ended it\)$"):
            await process.write(b"too late")


async def test_a_write_that_waits_learns_that_nobody_will_read_it() -> None:
    async with Process(["sh", "-c", "sleep 0.1; exit 3"], stdin="pipe") as process:
        with pytest.raises(BrokenPipeError, match="does not read its stdin any more"):
            await process.write(bytes(1_000_000))


async def test_a_process_may_close_its_stdin_and_live() -> None:
    async with Process(["sh", "-c", "exec <&-; echo deaf; exec sleep 1000"], stdin="pipe") as process:
        await process.read()
        with pytest.raises(BrokenPipeError, match=r"^'sh' does not read its stdin any more$"):
            await process.write(b"hello?")


async def test_a_write_after_closing_stdin_is_refused() -> None:
    async with Process(["cat"], stdin="pipe") as process:
        process.close_stdin()
        with pytest.raises(PipeClosed, match="cannot write to stdin of 'cat': it was closed"):
            await process.write(b"x")


async def test_closing_stdin_wakes_whoever_writes(token: str) -> None:
    async with Process(["sleep", token], stdin="pipe") as process:
        async with meanwhile(process.write, bytes(1_000_000)) as written:
            process.close_stdin()
        assert isinstance(written[0], PipeClosed)


async def test_two_writers_at_once_are_told_so(token: str) -> None:
    reads_nothing = Process(["sleep", token], stdin="pipe")
    async with reads_nothing as process, meanwhile(process.write, bytes(1_000_000)):
        with pytest.raises(RuntimeError, match="another task is already at stdin of 'sleep'"):
            await process.write(b"x")
        process.close_stdin()


# stderr


async def test_stderr_is_read_without_being_asked_and_its_tail_kept() -> None:
    code = "for n in range(400): os.write(2, b'%06d\\n' % n * 2000)\nprint('done')"
    async with Process(python(code), stderr_limit=1000) as process:
        assert await all_of(process) == b"done\n"  # 5.6 MB have not blocked it
        await process.wait()
        await until(lambda: b"000399" in process.stderr_tail)
        assert len(process.stderr_tail) == 1000
        child = process._child
        assert child is not None
        assert len(child.tail._last) <= 2000 + 65536
    assert process.stderr_tail.endswith(b"000399\n000399\n")


async def test_the_last_words_are_in_the_tail_when_it_has_closed() -> None:
    async with Process(["sh", "-c", "cat; echo goodbye >&2"], stdin="pipe") as process:
        pass
    assert process.stderr_tail == b"goodbye\n"


async def test_every_piece_of_stderr_is_handed_on() -> None:
    heard: list[bytes] = []
    code = "for n in range(100): os.write(2, b'%d\\n' % n * 5000)"
    async with Process(python(code), on_stderr=heard.append, stderr_limit=0) as process:
        await process.wait()
    assert b"".join(heard) == b"".join(b"%d\n" % n * 5000 for n in range(100))
    assert process.stderr_tail == b""


@pytest.mark.parametrize("error", [ValueError("no good"), SystemExit(3)])
async def test_a_listener_that_raises_does_not_stop_the_reading(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    heard = 0

    def listen(data: bytes) -> None:
        nonlocal heard
        heard += len(data)
        raise error

    code = "for n in range(50): os.write(2, bytes(10_000))"
    with caplog.at_level(logging.ERROR, "quiesce"):
        async with Process(python(code), on_stderr=listen) as process:
            assert await process.wait() == 0
    assert heard == 500_000
    assert [record.getMessage() for record in caplog.records] == [
        f"on_stderr of process {os.path.basename(sys.executable)!r} failed; it will still be called"
    ]
    assert caplog.records[0].exc_info is not None


async def test_stderr_can_go_where_stdout_goes() -> None:
    async with Process(["sh", "-c", "echo one; echo two >&2"], stderr="stdout") as process:
        assert await lines_of(process) == [b"one", b"two"]
        assert process.stderr_tail == b""


async def test_streams_can_be_inherited_or_thrown_away(capfd: pytest.CaptureFixture[str]) -> None:
    script = ["sh", "-c", "cat; echo out; echo err >&2"]
    async with Process(script, stdout="inherit", stderr="inherit") as process:
        assert await process.wait() == 0
    assert capfd.readouterr() == ("out\n", "err\n")
    async with Process(script, stdout="null", stderr="null") as process:
        assert await process.wait() == 0
        assert process.stderr_tail == b""
    assert capfd.readouterr() == ("", "")


# The exit


async def test_the_status_is_that_of_the_first_process() -> None:
    async with Process(["sh", "-c", "read line; exit 7"], stdin="pipe") as process:
        statuses = [process.returncode]
        await process.write(b"go\n")
        statuses += [await process.wait(), process.returncode, await process.wait()]
    assert statuses == [None, 7, 7, 7]
    async with Process(["sh", "-c", "kill -TERM $$"]) as process:
        assert await process.wait() == -signal.SIGTERM


@pytest.mark.parametrize("ending", ["exit 3", "kill -9 $$"])
async def test_trap_28_the_exit_is_known_at_once_though_a_grandchild_holds_the_pipes(
    token: str, ending: str
) -> None:
    async with Process(["sh", "-c", f"sleep {token} & {ending}"], stdin="pipe") as process:
        started = time.monotonic()
        assert await process.wait() == (3 if ending == "exit 3" else -9)
        assert time.monotonic() - started < 10
        await until(lambda: len(running(token)) == 1)
        with anyio.move_on_after(0.02) as scope:
            await process.read()
        assert scope.cancelled_caught  # the pipe is open, and says so


async def test_many_may_wait_and_one_may_be_cancelled() -> None:
    async with Process(["cat"], stdin="pipe") as process:
        with anyio.move_on_after(0.01):
            await process.wait()
        async with meanwhile(process.wait) as one, meanwhile(process.wait) as two:
            process.close_stdin()
        assert one == two == [0]


async def test_a_signal_reaches_the_whole_tree(token: str) -> None:
    async with Process(["sh", "-c", f"sleep {token} & sleep {token} & wait"]) as process:
        await until(lambda: len(running(token)) == 3)
        process.signal(signal.SIGUSR1)
        assert await process.wait() == -signal.SIGUSR1
        await until(lambda: not running(token))
        process.signal(signal.SIGTERM)
    process.signal(signal.SIGTERM)  # nobody is hit


async def test_a_signal_may_come_from_a_thread(token: str) -> None:
    async with Process(["sleep", token]) as process:
        thread = threading.Thread(target=process.signal, args=(signal.SIGUSR1,))
        thread.start()
        assert await process.wait() == -signal.SIGUSR1
        thread.join()


async def test_an_exit_that_somebody_else_has_reaped_is_noticed_without_its_status() -> None:
    async with Process(["sh", "-c", "read line; exit 7"], stdin="pipe") as process:
        process.close_stdin()
        os.waitpid(process.pid, 0)  # noqa: ASYNC222 - as rude as it gets
        assert await process.wait() == UNKNOWN_STATUS


@asyncio_only
async def test_trap_29_asyncios_own_subprocesses_are_left_alone(token: str) -> None:
    before = signal.getsignal(signal.SIGCHLD)
    async with Process(["cat"], stdin="pipe") as process:
        assert signal.getsignal(signal.SIGCHLD) == before
        theirs = [await asyncio.create_subprocess_exec("sh", "-c", f"exit {n}") for n in range(5)]
        async with Process(["sh", "-c", "exit 8"]) as other:
            assert [await their.wait() for their in theirs] == list(range(5))
            assert await other.wait() == 8
        process.close_stdin()
        assert await process.wait() == 0


# Starting


async def test_directory_and_environment_are_as_given(tmp_path: Path) -> None:
    async with Process(["/bin/sh", "-c", "pwd; echo $WHO"], cwd=tmp_path, env={"WHO": "me"}) as process:
        assert await lines_of(process) == [os.fsencode(tmp_path), b"me"]


async def test_names_are_in_what_is_shown(token: str) -> None:
    process = Process(["/bin/sleep", token])
    assert process.name == "sleep"
    assert repr(process) == "<Process 'sleep' not started>"
    assert process.returncode is None
    assert process.report is None
    assert process.stderr_tail == b""
    async with process:
        assert repr(process) == f"<Process 'sleep' pid {process.pid}>"
    assert repr(process) == f"<Process 'sleep' pid {process.pid} (signal 15 ended it)>"
    assert Process(["x"], name="server").name == "server"


NO_SUCH = "/no/such/place"


@pytest.mark.parametrize(
    ("argv", "options", "error", "message"),
    [
        (["no-such-program-anywhere"], {}, FileNotFoundError, "cannot start 'no-such-program-anywhere'"),
        (["/etc/passwd"], {}, PermissionError, "may not be executed"),
        (["true"], {"cwd": NO_SUCH}, FileNotFoundError, f"its working directory '{NO_SUCH}' does not exist"),
        (["true"], {"user": "no-such-user"}, OSError, "cannot start 'true': there is no user 'no-such-user'"),
        ("ls -l", {}, TypeError, "a command is a list of strings, not 'ls -l'"),
        ([], {}, ValueError, "it is empty"),
        ([""], {}, ValueError, "its name is empty"),
        ([3], {}, TypeError, "argument 0 of a command is 3"),
        (["true"], {"env": {"NUMBER": 1}}, TypeError, "str"),
    ],
)
async def test_what_cannot_be_started_says_so_and_leaves_nothing(
    argv: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    guardian.ensure()
    scope = await Scope.open()
    before = open_descriptors()
    with pytest.raises(error, match=message):
        async with Process(argv, stdin="pipe", scope=scope, **options):
            pytest.fail("it was started")
    with pytest.raises(error, match=message):
        await Process.open(argv, stdin="pipe", scope=scope, **options)
    gc.collect()
    assert open_descriptors() == before
    assert not scope._opened().nested
    report = await scope.close()
    assert report.clean
    assert report.ended == 0


async def test_it_runs_as_another_user_where_that_is_allowed_and_is_ended_all_the_same() -> None:
    nobody = pwd.getpwnam("nobody")
    for user in (nobody.pw_name, nobody.pw_uid):
        command = Process(["sh", "-c", "id -u; exec sleep 3600"], user=user)
        if os.geteuid() != 0:
            with pytest.raises(PermissionError, match=f"may not be run as {user!r}"):
                await command.__aenter__()
            continue
        async with command as process:
            assert await anext(process.lines()) == str(nobody.pw_uid).encode()
        assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stdin": "tail"}, "stdin must be one of 'pipe', 'null', 'inherit', not 'tail'"),
        ({"stdout": -1}, "stdout must be one of 'pipe', 'null', 'inherit', not -1"),
        ({"stderr": "pipe"}, "stderr must be one of 'tail', 'stdout', 'null', 'inherit', not 'pipe'"),
        ({"stderr": None}, "not None"),
        ({"stdin": []}, "not \\[\\]"),
        ({"stderr": "null", "on_stderr": print}, "on_stderr needs stderr=\"tail\", not 'null'"),
        ({"stderr_limit": -1}, "stderr_limit must be a number of bytes, not -1"),
        ({"stderr_limit": True}, "not True"),
        ({"stderr_limit": 1.5}, "not 1.5"),
    ],
)
def test_bad_options_are_refused_when_it_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Process(["true"], **options)


async def test_it_cannot_be_used_before_it_is_started() -> None:
    process = Process(["true"], stdin="pipe")
    uses: list[Callable[[], Awaitable[object]]] = [
        process.read,
        process.wait,
        process.close,
        lambda: process.write(b""),
    ]
    for use in uses:
        with pytest.raises(RuntimeError, match=r"'true' is not started: use `async with Process"):
            await use()
    asks: list[Callable[[], object]] = [
        process.lines,
        process.close_stdin,
        process.cancel,
        lambda: process.pid,
    ]
    for ask in asks:
        with pytest.raises(RuntimeError, match="is not started"):
            ask()
    with pytest.raises(RuntimeError, match="is not started"):
        process.signal(signal.SIGTERM)


async def test_it_is_started_once() -> None:
    process = Process(["true"])
    async with process:
        with pytest.raises(RuntimeError, match="'true' was started before; make a new Process"):
            await process.__aenter__()
    with pytest.raises(RuntimeError, match="was started before"):
        async with process:
            pass


async def test_it_can_be_started_after_a_failure(tmp_path: Path) -> None:
    place = tmp_path / "later"
    process = Process(["pwd"], cwd=place)
    with pytest.raises(FileNotFoundError):
        await process.__aenter__()
    place.mkdir()
    async with process:
        assert await lines_of(process) == [os.fsencode(place)]


async def test_pipes_that_were_not_asked_for_say_so() -> None:
    async with Process(["true"], stdout="null") as process:
        with pytest.raises(
            RuntimeError, match="process 'true' has no pipe at its stdin: start it with stdin=\"pipe\""
        ):
            await process.write(b"x")
        with pytest.raises(RuntimeError, match="no pipe at its stdin"):
            process.close_stdin()
        with pytest.raises(RuntimeError, match='no pipe at its stdout: start it with stdout="pipe"'):
            await process.read()
        with pytest.raises(RuntimeError, match="no pipe at its stdout"):
            process.lines()


async def test_a_closed_scope_starts_nothing(token: str) -> None:
    scope = await Scope.open("over")
    await scope.close()
    with pytest.raises(ScopeClosed, match="cannot start process 'sleep' in scope 'over'"):
        await Process.open(["sleep", token], scope=scope)
    with pytest.raises(ScopeClosed):
        async with Process(["sleep", token], scope=scope):
            pass


async def test_a_scope_of_another_loop_is_refused(token: str) -> None:
    kept: list[Scope] = []

    async def elsewhere() -> None:
        kept.append(await Scope.open("elsewhere"))

    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    thread.join()
    with pytest.raises(RuntimeError, match="'elsewhere' belongs to another event loop"):
        await Process.open(["sleep", token], scope=kept[0])


async def test_it_cannot_be_closed_from_another_loop(token: str) -> None:
    errors: list[BaseException] = []
    async with Process(["sleep", token]) as process:

        def elsewhere() -> None:
            try:
                asyncio.run(process.close())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        await until(lambda: running(token))
    assert "belongs to another event loop: close it there" in str(errors[0])


def test_a_loop_in_another_thread_may_have_processes(world: World, token: str) -> None:
    results: list[object] = []

    async def main() -> None:
        async with Process(["sh", "-c", f"echo up; exec sleep {token}"]) as process:
            results.append(await anext(process.lines()))
        results.append(process.returncode)

    def run() -> None:
        if world.backend == "trio":
            trio.run(main)
        else:
            asyncio.run(main())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert results == [b"up", -signal.SIGTERM]


async def test_without_a_running_loop_it_says_so() -> None:
    # A coroutine driven by hand, in a thread where nothing runs.
    errors: list[str] = []

    def drive() -> None:
        try:
            Process(["true"]).__aenter__().send(None)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=drive)
    thread.start()
    thread.join()
    assert "needs a running event loop" in errors[0]


async def test_fifty_at_once_share_nothing() -> None:
    async def one(n: int) -> None:
        async with Process(["cat"], stdin="pipe") as process:
            await process.write(b"%d\n" % n * 100)
            process.close_stdin()
            assert await all_of(process) == b"%d\n" % n * 100
            assert await process.wait() == 0

    async with anyio.create_task_group() as group:
        for n in range(50):
            group.start_soon(one, n)


async def test_one_that_ended_by_itself_may_be_dropped_without_a_word() -> None:
    root = root_core(current_backend())
    process = await Process.open(["sh", "-c", "echo unread"], stdin="pipe")
    await process.wait()
    child = process._child
    assert child is not None
    await until(lambda: child.state == "finished")
    assert child._core in root.nested
    del process
    gc.collect()
    await until(lambda: child._core not in root.nested)
    assert isinstance(child.stdin, Pipe)
    assert child.stdin.closed
