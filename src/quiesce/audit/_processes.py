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


def has_children() -> bool:
    return bool(children_of("self"))


def kill_tree(pid: str) -> None:
    """End a child of ours with all that it has started, and wait for it."""
    for child in children_of(pid):
        kill_tree(child)
    with contextlib.suppress(OSError):
        os.kill(int(pid), signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.waitpid(int(pid), 0)
