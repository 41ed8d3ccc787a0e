"""Somebody else's tree, held still while it is signalled: so that nobody forks behind the look."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from quiesce.kernel.contain import adopted_tree
from quiesce.kernel.contain.adopted_tree import AdoptedTree
from quiesce.kernel.process import procfs
from tests.kernel.processes import running, token_of_processes, wait_until

pytestmark = pytest.mark.skipif(not procfs.available(), reason="needs /proc")


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


@contextmanager
def started(*argv: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        with process.stdout:
            yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def a_busy_processor(number: int, token: str) -> Iterator[None]:
    spin = f"import os; os.sched_setaffinity(0, {{{number}}})\nwhile True: pass"
    hogs = [subprocess.Popen([sys.executable, "-I", "-S", "-c", spin, token]) for _ in range(3)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def tree_of(process: subprocess.Popen[bytes]) -> AdoptedTree:
    leader = procfs.look_up(process.pid)
    assert leader is not None
    return AdoptedTree(leader)


def state_of(pid: int) -> str:
    proc = procfs.look_up(pid)
    return proc.state if proc is not None else "gone"


@pytest.mark.slow
def test_one_that_a_busy_machine_is_slow_to_stop_is_waited_for(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told to stop inside a fork, it makes its child first; signalled before that is seen, the child would be lost."""
    monkeypatch.setattr(adopted_tree, "_LOOKS", 30 * adopted_tree._LOOKS)  # this machine may be busier still
    processor = max(os.sched_getaffinity(0))
    with started("sh", "-c", f": {token}; while :; do :; done") as slow, a_busy_processor(processor, token):
        os.sched_setaffinity(slow.pid, {processor})
        os.sched_setscheduler(slow.pid, os.SCHED_IDLE, os.sched_param(0))
        found: list[str] = []
        for _ in range(5):
            tree_of(slow)._freeze()
            found.append(state_of(slow.pid))
            slow.send_signal(signal.SIGCONT)
            time.sleep(0.2)  # it needs the processor, to be in the middle of something again
    assert found == ["T"] * 5


def test_one_that_may_not_be_signalled_is_not_waited_for(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with started("sleep", f"300.{token}") as anothers:
        tree = tree_of(anothers)
        told: list[procfs.Proc] = []

        def refuse(proc: procfs.Proc, sig: int) -> bool:
            told.append(proc)
            return False

        monkeypatch.setattr(procfs, "send_signal", refuse)
        assert tree._freeze() == [tree.leader]
        assert told == [tree.leader]


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="the number of the clone call is not known here"
)
def test_one_that_waits_in_a_vfork_is_ended_with_the_child_it_waits_for(token: str) -> None:
    number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    code = f"""
import ctypes, signal, time
vfork = 0x4000
if ctypes.CDLL(None).syscall({number}, vfork | signal.SIGCHLD, 0, 0, 0, 0) == 0:
    print(flush=True)
    time.sleep(300)
"""
    with started(sys.executable, "-I", "-S", "-c", code, token) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert wait_until(lambda: state_of(parent.pid) == "D")
        tree = tree_of(parent)
        assert len(tree.members()) == 2
        tree.signal(signal.SIGTERM)
        assert parent.wait(10) == -signal.SIGTERM
        assert wait_until(lambda: not running(token))


FORKS_WITH_SIGNALS_BLOCKED = """
import os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("up", flush=True)
time.sleep(0.03)
if os.fork() == 0:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.execvp("sleep", ["sleep", "1" + sys.argv[1]])
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
time.sleep(60)
"""


def test_one_that_blocks_signals_around_its_fork_leaves_no_child_behind(token: str) -> None:
    """As shells do: it would make its child first, and only then die from the signal."""
    with started(sys.executable, "-I", "-S", "-c", FORKS_WITH_SIGNALS_BLOCKED, token) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"up\n"
        tree_of(shell).signal(signal.SIGTERM)
        assert shell.wait(5) == -signal.SIGTERM
    assert wait_until(lambda: not running(token))


def test_one_that_always_blocks_the_signal_gets_it_all_the_same(token: str) -> None:
    waits = f"import signal; signal.pthread_sigmask(0, [15]); print('up {token}', flush=True); signal.sigwait([15])"
    with started(sys.executable, "-I", "-S", "-c", waits) as patient:
        assert patient.stdout is not None
        assert patient.stdout.readline().startswith(b"up")
        tree_of(patient).signal(signal.SIGTERM)
        assert patient.wait(5) == 0
