"""Child processes, as Linux shows them in /proc. On systems without /proc no processes are found."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator


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


def guardian() -> tuple[int | None, int | None]:
    """The pid of quiesce's guardian process and the descriptor that leads to it; None for both if it has not started.

    The guardian is started once and lasts as long as this process, so it is not a leftover.
    """
    # Looked up, not imported: the audit imports nothing of what it audits.
    module = sys.modules.get("quiesce.kernel.process.guardian")
    return (module.pid(), module.fd()) if module is not None else (None, None)


def command_if_alive(pid: str) -> str:
    """The short name of a process; "" if it has ended, even if it is still a zombie."""
    with (
        contextlib.suppress(OSError, ValueError),
        open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file,
    ):
        stat = file.read()
        if stat.rpartition(") ")[2][:1] not in ("Z", "X"):
            return stat[stat.index("(") + 1 : stat.rindex(")")]
    return ""


def work_of(pid: str) -> int:
    """A number that grows while a process or one of its descendants computes or waits for a processor."""
    return sum(map(work_of_thread, _threads_below(pid)))


def work_of_thread(thread: str) -> int:
    """The same for one thread, named by its folder in /proc; in nanoseconds, 0 if unknown."""
    return sum(_processor_time(thread))


def waits_for_processor(children: Iterable[str]) -> dict[str, int]:
    """How long each thread of this process, and of the trees below `children`, has waited for a processor.

    The keys are the folders of the threads in /proc, the values nanoseconds.
    """
    threads = [*_threads_of("self"), *(thread for child in children for thread in _threads_below(child))]
    return {thread: _processor_time(thread)[1] for thread in threads}


def _threads_below(pid: str) -> Iterator[str]:
    """The threads of a process and of its descendants."""
    yield from _threads_of(pid)
    for child in children_of(pid):
        yield from _threads_below(child)


def _threads_of(pid: str) -> list[str]:
    """The folders in /proc of the threads of one process."""
    with contextlib.suppress(OSError):
        return [f"{pid}/task/{thread}" for thread in os.listdir(f"/proc/{pid}/task")]
    return []


def _processor_time(thread: str) -> tuple[int, int]:
    """How long a thread has run, and how long it has waited for a processor; in nanoseconds, 0 if unknown."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{thread}/schedstat", "rb") as file:
        running, waiting, _ = file.read().split()
        return int(running), int(waiting)
    return 0, 0


def kill_tree(pid: str) -> None:
    """Kill a child process and all its descendants, and reap it."""
    for child in children_of(pid):
        kill_tree(child)
    with contextlib.suppress(OSError):
        os.kill(int(pid), signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.waitpid(int(pid), 0)
