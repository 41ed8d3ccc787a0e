"""Threat: a stop hits a stranger's process, or a process that it should end gets away."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from quiesce import Grace, Process
from quiesce.kernel.process import guardian, procfs
from quiesce.kernel.process.procfs import Proc
from tests.kernel.processes import running, token_of_processes, wait_until

pytestmark = [pytest.mark.real_time, pytest.mark.worlds("asyncio", "trio"), pytest.mark.time_limit(60)]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


def stat_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/stat").read_bytes()


def command_lines() -> bytes:
    """Those of all processes."""
    found = b""
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += place.read_bytes()
    return found


def environment_of(pid: int) -> tuple[bytes, int]:
    """What it holds, and who may read it."""
    place = Path(f"/proc/{pid}/environ")
    return place.read_bytes(), place.stat().st_mode


# Whom a signal reaches


def test_a_number_that_was_given_to_another_process_is_not_signalled() -> None:
    """As if the process that was meant had exited, and its number been reused."""
    with subprocess.Popen(["sleep", "60"]) as stranger:
        try:
            fields = stat_of(stranger.pid).rpartition(b")")
            parts = fields[2].split()
            parts[19] = str(int(parts[19]) - 1).encode()  # its start time
            meant = Proc(stranger.pid, fields[0] + b") " + b" ".join(parts))
            assert not procfs.send_signal(meant, signal.SIGKILL)
            time.sleep(0.05)
            assert stranger.poll() is None
        finally:
            stranger.kill()


# The mark


async def marked_with(program: str, pid: int) -> bool:
    """Whether its environment holds the program's id; during its exec it has none for an instant."""
    for _ in range(100):
        if program.encode() in environment_of(pid)[0]:
            return True
        await anyio.sleep(0.02)
    return False


async def test_no_command_line_holds_the_programs_id_and_only_the_user_can_read_it() -> None:
    async with Process(["sleep", "60"]) as process:
        program = guardian.program_id()
        assert len(program) == 32
        assert program.encode() not in command_lines()
        assert await marked_with(program, process.pid)
        _, mode = environment_of(process.pid)
        assert mode & 0o077 == 0


async def test_a_process_that_carries_another_mark_is_left_alone() -> None:
    guess = f"{'0' * 32}.1"
    stranger = await anyio.open_process(["sleep", "60"], env={**os.environ, procfs.VARIABLE: guess})
    try:
        async with Process(["sleep", "60"]):
            pass
        assert stranger.returncode is None
    finally:
        stranger.kill()
        await stranger.wait()
        await stranger.aclose()


# Who gets away


BECOMES_ROOT = "import os, time; os.setuid(0); time.sleep(8)"


@needs_root
@pytest.mark.parametrize(("program", "left"), [("sleep", 0), ("python3", 1)], ids=["setuid", "root"])
async def test_a_child_that_became_another_user_is_ended_or_named(
    tmp_path: Path, program: str, left: int
) -> None:
    """A setuid program may be signalled by the user who started it. One that has become root altogether may not: it is left over, and named."""
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("there is no interpreter that others may run")
    place = Path("/tmp") / f"quiesce-setuid-{os.getpid()}-{tmp_path.name}"
    place.mkdir(mode=0o755)
    try:
        shutil.copy(
            python if program == "python3" else shutil.which("sleep") or "/bin/sleep", place / program
        )
        (place / program).chmod(0o4755)
        command = [str(place / program), *(["-c", BECOMES_ROOT] if program == "python3" else ["8"])]
        paths = [Path(__file__).parent.parent.parent / "src", Path(anyio.__file__).parent.parent]
        script = (
            "import anyio, os, quiesce\n"
            "from quiesce import Grace, Process\n"
            "async def main():\n"
            f"    process = await Process.open({command!r}, grace=Grace(cancel=0, terminate=1, kill=2))\n"
            "    await anyio.sleep(0.5)\n"
            "    print(os.stat(f'/proc/{process.pid}').st_uid, flush=True)\n"
            "    report = await process.close()\n"
            "    print(len(report.left), *(each.kind for each in report.left), flush=True)\n"
            "quiesce.run(main)\n"
        )
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "HOME": str(place)}
        done = await anyio.run_process([python, "-c", script], user=65534, env=env, cwd="/", check=False)
        said = done.stdout.decode().split("\n")
        if said[0] == "65534":
            pytest.skip("this file system does not honour setuid")
        if not said[0]:
            pytest.skip(f"another user cannot run this interpreter: {done.stderr.decode()[-200:]}")
        assert said[:2] == ["0", "1 process" if left else "0"]
    finally:
        shutil.rmtree(place)


BOMB = """
import os, sys, time
# Each process makes another one in a session of its own, and exits; never more than six at a time, and not for long. Tests that
# run meanwhile come first.
os.nice(19)
until = time.monotonic() + 12
for _ in range(2):
    if os.fork() == 0:
        break
while time.monotonic() < until:
    if os.fork() == 0:
        os.setsid()
        time.sleep(float(sys.argv[1]))
        continue
    os._exit(0)
"""


async def bomb(pause: float, token: str) -> Process:
    grace = Grace(cancel=0, terminate=0.2, kill=3)
    process = await Process.open([sys.executable, "-c", BOMB, str(pause), token], grace=grace)
    await anyio.sleep(0.5)
    await process.close()
    return process


async def test_processes_that_fork_and_exit_for_ever_are_ended() -> None:
    with token_of_processes() as token:
        process = await bomb(0.05, token)
        assert process.report is not None
        assert process.report.clean, str(process.report)
        assert running(token) == []


async def test_processes_that_fork_faster_than_anybody_can_look_are_ended_or_named() -> None:
    with token_of_processes() as token:
        process = await bomb(0.001, token)
        assert process.report is not None
        assert process.report.clean == (not running(token)), str(process.report)
        wait_until(lambda: not running(token), 20)
        assert (await process.close()).clean
