"""What a test may not leave in the process: threads, child processes, open file descriptors.

Tasks are the business of the world they ran in (`tests.world`). This looks at the process from outside,
before and after the test. What is on its way out gets some seconds of real time to go.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import ModuleType

from trio._core._thread_cache import THREAD_CACHE

PATIENCE = 10.0
HAS_PROC = Path("/proc/self/fd").exists()


class Snapshot:
    """The threads, processes and descriptors of this process at one moment."""

    def __init__(self) -> None:
        self._threads = set(threading.enumerate())
        self._pids = all_pids()
        self._descriptors = open_descriptors()

    def wait_for_leaks_to_go(self) -> list[str]:
        """Describe what is new since the snapshot and still here after `PATIENCE` seconds."""
        give_up_at = time.monotonic() + PATIENCE
        while leaks := [*self._new_threads(), *self._new_children(), *self._new_descriptors()]:
            if time.monotonic() > give_up_at:
                break
            time.sleep(0.005)
            gc.collect()
        return leaks

    def end_new_children(self) -> None:
        """Kill and reap what the test has left running, so that it troubles no later test."""
        for pid in self._new_child_pids():
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _new_threads(self) -> list[str]:
        idle = {worker._thread for worker in list(THREAD_CACHE._idle_workers)}
        new = [
            thread for thread in threading.enumerate() if thread not in self._threads and thread not in idle
        ]
        return [describe_thread(thread) for thread in new if not is_resident(thread)]

    def _new_children(self) -> list[str]:
        return [describe_process(pid) for pid in self._new_child_pids()]

    def _new_child_pids(self) -> list[int]:
        # A process that was there before the test cannot have become our child, so only new ones are looked
        # at.
        if not has_children():
            return []
        ours, guardian = os.getpid(), guardian_value("pid")
        return [pid for pid in sorted(all_pids() - self._pids) if parent_of(pid) == ours and pid != guardian]

    def _new_descriptors(self) -> list[str]:
        guardian = guardian_value("fd")
        new = sorted(open_descriptors() - self._descriptors)
        return [f"file descriptor {fd}, open on {target}" for fd, target in new if fd != guardian]


def is_resident(thread: threading.Thread) -> bool:
    """A thread that quiesce keeps for the life of the process, by design."""
    return thread.daemon and thread.name.startswith(("quiesce-watchdog", "quiesce-idle"))


def guardian_value(name: str) -> int | None:
    """The pid or pipe of the process that outlives us by design, if it was ever started."""
    guardian: ModuleType | None = sys.modules.get("quiesce.kernel.process.guardian")
    ask = getattr(guardian, name, None)
    value = ask() if callable(ask) else None
    return value if isinstance(value, int) else None


def describe_thread(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    stack = "".join(traceback.format_stack(frame)) if frame is not None else "  (gone)\n"
    return f"{'daemon ' if thread.daemon else ''}thread {thread.name!r}:\n{stack.rstrip()}"


def describe_process(pid: int) -> str:
    command, state = "", ""
    with contextlib.suppress(OSError):
        command = (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        )
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return f"child process {pid}" + (", a zombie nobody waited for" if state == "Z" else f": {command}")


def all_pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()} if HAS_PROC else set()


def has_children() -> bool:
    if sys.platform == "win32":  # cannot ask, and has no /proc to look for them
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def parent_of(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may hold anything at all: what follows the last one is regular.
    return int(stat.rpartition(")")[2].split()[1])


def open_descriptors() -> set[tuple[int, str]]:
    found: set[tuple[int, str]] = set()
    for name in os.listdir("/proc/self/fd") if HAS_PROC else []:
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed by now
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
    return found
