"""Child processes, by what the kernel says of them in /proc. Without /proc there are none to be seen."""

from __future__ import annotations

import contextlib
import os
import signal


def children_of(pid: int | str) -> set[str]:
    """The children of a process, whichever of its threads started them."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file,
            ):
                found.update(file.read().split())
    return found


def command_if_alive(pid: str) -> str:
    """The short name of a process; "" if it has ended, also if nobody has waited for it."""
    with (
        contextlib.suppress(OSError, ValueError),
        open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file,
    ):
        stat = file.read()
        if stat.rpartition(") ")[2][:1] not in ("Z", "X"):
            return stat[stat.index("(") + 1 : stat.rindex(")")]
    return ""


def work_of(pid: str) -> int:
    """A number that grows while a process, or one that it has started, computes or waits for a processor."""
    threads: list[str] = []
    with contextlib.suppress(OSError):
        threads = os.listdir(f"/proc/{pid}/task")
    own = sum(work_of_thread(f"{pid}/task/{thread}") for thread in threads)
    return own + sum(work_of(child) for child in children_of(pid))


def work_of_thread(thread: str) -> int:
    """The same for a thread, by its folder in /proc, in nanoseconds; 0 if it is not known."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{thread}/schedstat", "rb") as file:
        running, waiting, _ = file.read().split()
        return int(running) + int(waiting)
    return 0


def kill_tree(pid: str) -> None:
    """End a child of ours with all that it has started, and wait for it."""
    for child in children_of(pid):
        kill_tree(child)
    with contextlib.suppress(OSError):
        os.kill(int(pid), signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.waitpid(int(pid), 0)
