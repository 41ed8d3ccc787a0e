"""Finding the processes of a test: each has the test's token in its command line, most as the odd duration of a sleep."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quiesce.kernel.process import procfs
from quiesce.kernel.process.process_tree import Tree


@contextmanager
def token_of_processes() -> Iterator[str]:
    """A new token. No process that carries it may be left at the end."""
    token = str(uuid.uuid4().int)[:12]
    yield token
    wait_until(lambda: not running(token))  # what was killed may take an instant to go
    left = running(token)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def running(token: str) -> list[int]:
    """The pids of all living processes with this token, whatever they have become."""
    found = []
    for name in os.listdir("/proc"):  # not by glob, which raises if one of them ends meanwhile
        try:
            if name.isdigit() and token.encode() in _command_line(Path("/proc", name, "cmdline")):
                found.append(int(name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def _command_line(path: Path) -> bytes:
    """Empty for a zombie and for the kernel's own, which run no file; for others only while they start."""
    give_up_at = time.monotonic() + 1
    while not (line := path.read_bytes()) and time.monotonic() < give_up_at:
        os.readlink(path.with_name("exe"))  # raises if it runs no file
        time.sleep(0.001)
    return line


def is_gone(pid: int) -> bool:
    proc = procfs.look_up(pid)
    return proc is None or proc.zombie


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    give_up_at = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.005)
    return True


def die_slowly(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """As a process does that has gigabytes to give back: it dies this long after the SIGKILL."""
    send, told = Tree.signal, set[Tree]()

    def signal_tree(tree: Tree, number: int) -> None:
        if number != signal.SIGKILL:
            send(tree, number)
        elif tree not in told:
            told.add(tree)
            timer = threading.Timer(seconds, send, (tree, number))
            timer.daemon = True
            timer.start()

    patch.setattr(Tree, "signal", signal_tree)
