"""The processes that this one has started, and those below them, read from /proc.

The kernel keeps a list of children a *thread*: `/proc/<pid>/task/<tid>/children`. So it also tells which thread has started
one; but the children of a thread that has ended are handed on, as a rule to the main thread, so that being on the main
thread's list means nothing. Where the kernel was built without these lists, every process is asked for its parent.

Walking down these lists finds a process in whatever session it is, and reads only about the tree at hand. It loses whoever
has lost its parent: those are kept by who has seen them before.

The guard process runs this file outside the package: import nothing here but `procfs`, and little of the standard library.
"""

from __future__ import annotations

import os

from . import procfs
from .procfs import Proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

NO_THREAD = 0  # nobody knows which


_ASK_ONLY = os.WEXITED | os.WNOHANG | os.WNOWAIT if hasattr(os, "waitid") else 0


def have_any() -> bool:
    """Whether this process has any child, alive or not. A microsecond at most, where a look into /proc takes fifty.

    False where it cannot be asked, on macOS before Python 3.13.
    """
    if not _ASK_ONLY:
        return False
    try:
        os.waitid(os.P_ALL, 0, _ASK_ONLY)
    except ChildProcessError:
        return False
    return True


def ours() -> dict[int, int]:
    """The pids of our children, alive or not, each with the thread that has it on its list. Raises OSError if it cannot look."""
    return _listed(os.getpid()) if have_any() else {}


_start_times: dict[int, int] = {}  # of our children, as they were first seen


def since(began: int) -> dict[int, int]:
    """As `ours`, without those that had been started before `began`, in clock ticks since boot.

    Each child is asked only once when it was started. So one is missed that got its number from a child which has ended since
    the last look; the kernel goes through all numbers before it gives one away again.
    """
    listed = ours()
    for gone in _start_times.keys() - listed.keys():
        _start_times.pop(gone, None)
    for pid in listed.keys() - _start_times.keys():
        if started := procfs.start_time(pid):
            _start_times[pid] = started
    # A tick is not the same moment for everybody.
    return {pid: thread for pid, thread in listed.items() if _start_times.get(pid, began) + 1 >= began}


def below(roots: Iterable[Proc]) -> list[Proc]:
    """The living among `roots`, and whoever descends from them; no guard of another program. Raises OSError if it cannot look."""
    found = [now for proc in roots if (now := as_it_is_now(proc)) is not None]
    known = set(found)
    for parent in found:  # grows as it goes: children of children
        for pid in _listed(parent.pid):
            child = _look_at(pid)
            if (
                child is not None
                and not child.zombie
                # If not, one of the two numbers was given to another process in between.
                and child.ppid == parent.pid
                and child.starttime >= parent.starttime
                and child not in known
                and procfs.GUARD_TAG not in procfs._tags(pid)
            ):
                found.append(child)
                known.add(child)
    return found


def as_it_is_now(proc: Proc) -> Proc | None:
    """What is known of it now; None if it is gone."""
    now = _look_at(proc.pid)
    return now if now is not None and now == proc and not now.zombie else None


def _look_at(pid: int) -> Proc | None:
    """As `_procfs.look_up`, but raises OSError where no descriptor is left to look with."""
    stat = procfs._read_if_there(f"/proc/{pid}/stat")
    return Proc(pid, stat) if stat else None


def _listed(parent: int) -> dict[int, int]:
    try:
        threads = os.listdir(f"/proc/{parent}/task")
    except (FileNotFoundError, PermissionError, ProcessLookupError):  # it is gone, or another user's by now
        return {}
    found: dict[int, int] = {}
    for thread in threads:
        pids = procfs._read_if_there(f"/proc/{parent}/task/{thread}/children")
        if pids is None:
            if thread == str(parent) and procfs.look_up(parent) is not None:
                return _whose_parent_is(parent)
            continue
        found.update(dict.fromkeys(map(int, pids.split()), int(thread)))
    return found


def _whose_parent_is(parent: int) -> dict[int, int]:
    return {proc.pid: NO_THREAD for proc in procfs._scan() if proc.ppid == parent}
