"""The command's tree: everything below the process that is its parent, however it got there.

That parent is a subreaper (the guard, or we ourselves), so the tree is complete: a process that lost its parent
is below the subreaper again. A look at it is still not an instant. So the end of a tree is two looks in a row
that find nothing, and SIGKILL is repeated until then.

Without a /proc of our own PID namespace there is nothing to look at: another one shows strangers by our numbers.
Then the command's process group is all that can be signalled.
"""

from __future__ import annotations

import os
import signal
import time

from quiesce.kernel.inner import descendants, procfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

KILL_WITHIN = 2.0  # seconds until what has not exited after SIGKILL is called left over
_LOOK_EVERY = 0.01


class Tree:
    """The living descendants of the process `parent()`, without that process."""

    def __init__(
        self, parent: Callable[[], int], signal_group: Callable[[int], object] = lambda number: None
    ) -> None:
        self._parent = parent
        self._signal_group = signal_group
        self._signalled = set[procfs.Proc]()
        self.unseen = procfs.unavailable()
        self._is_blind = bool(self.unseen)

    def members(self) -> list[procfs.Proc]:
        """Those that are alive, parents before children."""
        root = None if self._is_blind else procfs.look_up(self._parent())
        if root is None:
            return []
        try:
            found = descendants.below(
                [root], guards=True
            )  # a variable in its environment hides nothing from us
        except OSError as error:
            self.unseen = f"/proc could not be read: {error.strerror}"
            return []
        return [proc for proc in found if proc != root and proc.pid != os.getpid()]

    def terminate(self, *, but: Collection[int] = ()) -> None:
        """Send SIGTERM to each process once, except to those with the pids `but`, and continue stopped ones."""
        if self._is_blind:
            self._signal_group(signal.SIGTERM)
        for proc in self.members():
            if proc not in self._signalled:
                self._signalled.add(proc)
                if proc.pid not in but:
                    procfs.send_signal(proc, signal.SIGTERM)
            if proc.state == "T":
                procfs.send_signal(proc, signal.SIGCONT)

    def kill(self) -> list[procfs.Proc]:
        """Send SIGKILL to everything, again and again, until nothing is found; returns what is left."""
        if self._is_blind:
            self._signal_group(signal.SIGKILL)
        give_up_at = time.monotonic() + KILL_WITHIN
        quiet_looks = 0
        left: list[procfs.Proc] = []
        while quiet_looks < 2 and time.monotonic() < give_up_at:
            left = self.members()
            for proc in left:
                procfs.send_signal(proc, signal.SIGKILL)
            quiet_looks = 0 if left else quiet_looks + 1
            time.sleep(_LOOK_EVERY if left else 0)
        return left
