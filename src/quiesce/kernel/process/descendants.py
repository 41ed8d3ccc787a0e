"""The processes that this program started, and their descendants, read from /proc.

Linux keeps one list of children per *thread*: `/proc/<pid>/task/<tid>/children`. So the lists also say which
thread started a process. But when a thread ends, its children move to another list, usually that of the main
thread: to be on the main thread's list means nothing. Where Linux was built without these lists, every
process is asked for its parent.

Walking down the lists finds a process in any session, and reads only the tree in question. It cannot find a
process whose parent has exited: callers remember the processes that they have seen.

The guard process runs this file outside the package: import nothing here but `procfs`, and little of the
standard library.
"""

from __future__ import annotations

import os

from . import procfs
from .procfs import Proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

NO_THREAD = 0  # the starting thread is unknown

# Ask whether there is a child without reaping it, which is its starter's right.
_PROBE = os.WEXITED | os.WNOHANG | os.WNOWAIT if hasattr(os, "waitid") else 0


def have_any() -> bool:
    """Whether this process has any child, alive or zombie. Takes a microsecond (reading /proc: fifty).

    False where it cannot be known: on macOS before Python 3.13.
    """
    if not _PROBE:
        return False
    try:
        os.waitid(os.P_ALL, 0, _PROBE)
    except ChildProcessError:
        return False
    return True


def ours() -> dict[int, int]:
    """The pids of our children, alive or zombie, each with the thread that lists it. OSError: cannot look."""
    return _children_of(os.getpid()) if have_any() else {}


_start_times: dict[int, int] = {}  # of our children, as first seen


def since(began: int) -> dict[int, int]:
    """As `ours`, without the children that were started before `began`, in clock ticks since boot."""
    # The start time of a child is read once and kept. The price: a new child that got the number of one which
    # exited since the last call is taken for the old one. Linux goes through all numbers before it reuses
    # one, so reading every start time on every call would buy nothing.
    children = ours()
    for exited in _start_times.keys() - children.keys():
        _start_times.pop(exited, None)
    for pid in children.keys() - _start_times.keys():
        if started := procfs.start_time(pid):
            _start_times[pid] = started
    # Start times are rounded to ticks, our own clock is not: allow for one.
    return {pid: thread for pid, thread in children.items() if _start_times.get(pid, began) + 1 >= began}


def below(roots: Iterable[Proc], *, guards: bool = False) -> list[Proc]:
    """The living of `roots` and their descendants, `guards` among them or not. Raises OSError if it cannot look."""
    found = [now for proc in roots if (now := as_it_is_now(proc)) is not None]
    known = set(found)
    for parent in found:  # the list grows in the loop: children of children
        for pid in _children_of(parent.pid):
            child = procfs.read_process(pid)
            if (
                child is not None
                and not child.zombie
                # If either of these fails, one of the two pids was reused since the list was read.
                and child.ppid == parent.pid
                and child.starttime >= parent.starttime
                and child not in known
                and (guards or procfs.GUARD_TAG not in procfs.tags_of(pid))
            ):
                found.append(child)
                known.add(child)
    return found


def as_it_is_now(proc: Proc) -> Proc | None:
    """The same process with its present state; None if it has exited. Raises OSError if it cannot look."""
    now = procfs.read_process(proc.pid)
    return now if now is not None and now == proc and not now.zombie else None


def _children_of(parent: int) -> dict[int, int]:
    try:
        threads = os.listdir(f"/proc/{parent}/task")
    except (FileNotFoundError, PermissionError, ProcessLookupError):  # it has exited, or changed its user
        return {}
    found: dict[int, int] = {}
    for thread in threads:
        pids = procfs.read_if_there(f"/proc/{parent}/task/{thread}/children")
        if pids is None:
            # A thread may end at any time, but a living process has its main thread: Linux has no such lists.
            if thread == str(parent) and procfs.look_up(parent) is not None:
                return {proc.pid: NO_THREAD for proc in procfs.scan() if proc.ppid == parent}
            continue
        found.update(dict.fromkeys(map(int, pids.split()), int(thread)))
    return found
