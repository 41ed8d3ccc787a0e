"""Process trees that other code holds: stopped from any thread, without an event loop, also if the program is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from quiesce import Grace
from quiesce.kernel.contain.held_trees import HeldTrees
from quiesce.kernel.process import procfs
from tests.kernel.processes import is_gone, running, token_of_processes, wait_until

pytestmark = pytest.mark.skipif(not procfs.available(), reason="needs /proc")

PROGRAM = """
import subprocess, sys, time
from quiesce.kernel.contain.held_trees import HeldTrees

process = subprocess.Popen(["sh", "-c", f"trap '' TERM HUP; sleep 300.{sys.argv[1]} & wait"], start_new_session=True)
held = HeldTrees()
held.hold(process.pid)
print("held", flush=True)
time.sleep(300)
"""


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


def start(script: str, token: str, expected: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["sh", "-c", script.replace("TOKEN", f"300.{token}")])
    assert wait_until(lambda: len(running(token)) == expected)
    return process


def test_what_is_held_is_stopped_with_its_tree_and_its_exit_is_noted(token: str) -> None:
    process = start("sleep TOKEN & setsid sleep TOKEN & wait", token, 3)
    held = HeldTrees()
    held.hold(process.pid, process.poll)
    leader = procfs.look_up(process.pid)
    assert leader in held
    assert held.stop(Grace()) == []
    assert running(token) == []
    assert process.returncode == -signal.SIGTERM
    assert leader not in held


def test_what_ignores_sigterm_is_killed(token: str) -> None:
    process = start("trap '' TERM; sleep TOKEN & while :; do wait; done", token, 2)
    held = HeldTrees()
    held.hold(process.pid, process.poll)
    assert held.stop(Grace(terminate=0.2)) == []
    assert running(token) == []
    assert process.returncode == -signal.SIGKILL


def test_a_process_that_has_lost_its_parent_after_a_look_is_stopped_too(token: str) -> None:
    process = start("setsid sleep TOKEN & wait", token, 2)
    held = HeldTrees()
    held.hold(process.pid, process.poll)
    assert len(held.look()) == 2
    process.kill()
    process.wait()
    assert len(running(token)) == 1
    assert held.stop(Grace()) == []
    assert running(token) == []


def test_a_process_that_has_exited_is_not_held() -> None:
    process = subprocess.Popen(["true"])
    held = HeldTrees()
    assert wait_until(lambda: is_gone(process.pid))
    held.hold(process.pid, process.poll)
    assert list(held) == []
    process.wait()


def test_what_does_not_end_is_named(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start("sleep TOKEN; true", token, 2)
    held = HeldTrees()
    held.hold(process.pid, process.poll)
    monkeypatch.setattr(procfs, "send_signal", lambda proc, number: True)
    monkeypatch.setattr(procfs, "signal_group", lambda group, number: True)
    (left,) = held.stop(Grace(terminate=0.05, kill=0.05))
    assert (left.kind, left.name) == ("process", "sh")
    assert f"pid {process.pid}" in left.stuck_at
    monkeypatch.undo()
    assert held.stop(Grace()) == []


@pytest.mark.time_limit(30)
def test_if_the_program_is_killed_the_guard_kills_what_is_held(token: str) -> None:
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, token], stdout=subprocess.PIPE)
    assert program.stdout is not None
    with program:
        assert program.stdout.readline() == b"held\n"
        assert wait_until(lambda: len(running(token)) == 3)  # the program has the token too
        program.kill()
    assert wait_until(lambda: running(token) == [])
