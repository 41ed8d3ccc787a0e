"""`run` as pid 1 of a container: orphans are reaped, and nobody's exit status is taken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from tests.kernel.namespaces import as_pid_1, enter, in_namespaces, pid_of_init, zombies_of
from tests.kernel.processes import running, token_of_processes, wait_until
from tests.kernel.programs import PREAMBLE, RunningProgram, program

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux"),
    pytest.mark.time_limit(60),
    in_namespaces,
]

flavours = pytest.mark.parametrize("flavour", ["asyncio", "uvloop", "trio"])


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


def started(flavour: str, text: str) -> AbstractContextManager[RunningProgram]:
    return program(flavour, text, by=as_pid_1([]))


def init_of(running: RunningProgram) -> int:
    return pid_of_init(running.pid)


WAITS = """
async def main():
    ready()
    await sleep(3600)
go(main)
"""


@flavours
def test_orphans_are_reaped(flavour: str, token: str) -> None:
    text = """
    import subprocess
    async def main():
        subprocess.run(["sh", "-c", "for i in 1 2 3; do (sleep 0.1 &) ; done"])
        ready()
        await sleep(3600)
    go(main)
    """
    with started(flavour, text) as running_program:
        init = init_of(running_program)
        enter(init, ["sh", "-c", f"sleep 0.1 & (sleep 0.2 &); exit 0 # {token}"])
        assert wait_until(lambda: not _has_children_but_the_program(init))
        os.kill(init, signal.SIGTERM)
        assert running_program.wait().status == 143


def _has_children_but_the_program(init: int) -> list[str]:
    children = Path(f"/proc/{init}/task/{init}/children").read_text().split()
    return [] if len(children) == 1 and not zombies_of(init) else children


@flavours
def test_no_exit_status_is_taken_from_other_code(flavour: str) -> None:
    text = """
    import os, subprocess
    async def main():
        ready()
        for _ in range(50):
            started = [subprocess.Popen(["sh", "-c", "(true &); exit 7"]) for _ in range(3)]
            await sleep(0.001)
            assert [process.wait() for process in started] == [7, 7, 7]
        pid = os.fork()
        if pid == 0:
            os._exit(9)
        await sleep(0.05)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
        return 0
    sys.exit(go(main) or 42)
    """
    with started(flavour, text) as running_program:
        assert running_program.wait().status == 42


@flavours
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_pid_1_stops_the_program(number: signal.Signals, flavour: str) -> None:
    text = """
    async def main():
        try:
            ready()
            await sleep(3600)
        finally:
            await tidy(0.05)
            print("cleaned up, because:", current_token().reason, "as pid 1:", os.getpid() == 1)
    go(main)
    """
    with started(flavour, text) as running_program:
        os.kill(init_of(running_program), number)
        ended = running_program.wait()
    assert ended.status == 128 + number
    kind = {signal.SIGTERM: "shutdown", signal.SIGINT: "user", signal.SIGHUP: "disconnect"}[number]
    assert ended.stdout == f"cleaned up, because: {kind}: {number.name} as pid 1: False\n"


@flavours
def test_other_signals_are_passed_on(flavour: str) -> None:
    text = """
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(31))
    async def main():
        ready()
        await sleep(3600)
    go(main)
    """
    with started(flavour, text) as running_program:
        os.kill(init_of(running_program), signal.SIGUSR1)
        assert running_program.wait().status == 31


ENDS = {
    "a result": ("return 1", 0),
    "an error": ("raise RuntimeError", 1),
    "an exit code": ("sys.exit(5)", 5),
    "an exit at once": ("os._exit(6)", 6),
    "a fault": ("os.kill(os.getpid(), signal.SIGSEGV)", 128 + signal.SIGSEGV),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
}


@flavours
@pytest.mark.parametrize(("line", "status"), ENDS.values(), ids=ENDS)
def test_pid_1_exits_as_the_program_does(line: str, status: int, flavour: str) -> None:
    text = f"""
    print("before", end=" ")
    async def main():
        ready()
        {line}
    go(main)
    """
    command = as_pid_1([sys.executable, "-c", _whole(text), flavour])
    ended = subprocess.run(command, capture_output=True, timeout=30, check=False)
    assert ended.returncode == status
    assert ended.stdout == b"before ready\n", "what was printed before is printed once"


def test_a_program_that_ends_before_pid_1_looks_for_it() -> None:
    text = """
    fork = os.fork
    def fork_and_wait():
        pid = fork()
        if pid:
            time.sleep(0.5)
        return pid
    os.fork = fork_and_wait
    async def main():
        os._exit(6)
    go(main)
    """
    command = as_pid_1([sys.executable, "-c", _whole(text), "asyncio"])
    assert subprocess.run(command, timeout=30, check=False).returncode == 6


def _whole(text: str) -> str:
    return PREAMBLE + textwrap.dedent(text)


def opened_by(pid: int) -> set[str]:
    """What a process has open, without the null device; names may be those of another mount namespace."""
    names = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it has just been closed
            if path.stat().st_rdev != os.stat(os.devnull).st_rdev:
                names.add(os.readlink(path))
    return names


def test_pid_1_keeps_nothing_open_that_the_program_may_close(tmp_path: Path) -> None:
    text = f"""
    import socket
    kept = [open({str(tmp_path / "file")!r}, "w"), socket.create_server(("127.0.0.1", 0))]
    async def main():
        ready()
        await sleep(3600)
    go(main)
    """
    with started("asyncio", text) as running_program:
        init = init_of(running_program)
        # Its last descriptor comes last: what Python opens to import something is closed by then.
        assert wait_until(lambda: "anon_inode:[signalfd]" in opened_by(init))
        # Newer releases of libffi keep their own file open.
        assert {name for name in opened_by(init) if "/libffi.so" not in name} == {"anon_inode:[signalfd]"}
        os.kill(init, signal.SIGTERM)
        running_program.wait()


@pytest.mark.parametrize("flavour", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("before", "what"),
    [
        (
            "import threading; threading.Thread(target=time.sleep, args=[3600], daemon=True).start()",
            "more than one thread",
        ),
        ("import subprocess; child = subprocess.Popen(['sleep', '3600'])", "started other processes already"),
    ],
)
def test_where_a_fork_would_harm_the_program_a_warning_says_what_to_do(
    before: str, what: str, flavour: str
) -> None:
    text = f"""
    {before}
    async def main():
        ready()
        print(os.getpid(), flush=True)
    go(main)
    os._exit(0)
    """
    ended = subprocess.run(
        as_pid_1([sys.executable, "-c", _whole(text), flavour]),
        capture_output=True,
        timeout=30,
        check=False,
        text=True,
    )
    assert ended.stdout == "ready\n1\n"
    assert f"this program is pid 1, and has {what}" in ended.stderr
    assert "`quiesce exec --`" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_elsewhere_there_is_no_other_process(token: str) -> None:
    with program("asyncio", f"token = '{token}'\n{WAITS}") as running_program:
        assert len(running(token)) == 1
        running_program.send(signal.SIGTERM)
        running_program.wait()
