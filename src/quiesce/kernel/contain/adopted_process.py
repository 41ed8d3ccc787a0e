"""Somebody else's process tree, as a child of the containment that it was started from.

It has a scope of its own, nested in the containment's, and a ladder of its own: nothing happens to it while the tasks of
the block clean up, for whoever has started it has the first chance to end it, by the end of its input or as it
pleases. When they are gone, or their time is over, the tree gets SIGTERM, then SIGKILL, with the seconds of `Grace`. SIGKILL
is repeated as long as anybody is found: whoever forks while the tree is being killed does not get away.

Its exit is not awaited but looked for. The descriptor that tells of it is somebody else's, and so is the right to reap it.
"""

from __future__ import annotations

import signal
from typing import Any
from weakref import WeakSet

from quiesce.kernel.base import EXPIRED, SETTLED, STOPPING, Grace, Reason, Rung, Site
from quiesce.kernel.scope import CANCELLED, RUNNING, Child, ScopeCore

from .adopted_tree import AdoptedTree

# Seconds between two looks at a tree: at first, while it is being stopped, and when that was in vain.
_LOOK_SOON, _LOOK_AGAIN, _LOOK_SELDOM = 0.001, 0.02, 0.25


class AdoptedProcess(Child):
    """A tree that somebody else has started. Quiet until it is told to go."""

    __slots__ = ("__weakref__", "_killed", "_looking", "_pause", "transport", "tree")

    _kind = "process"

    def __init__(self, containment: ScopeCore, tree: AdoptedTree, transport: Any, site: Site | None) -> None:
        grace = containment.grace  # from the second rung on; the first is its starter's
        # Accepted though the containment may be stopping, and stopped by nobody but us.
        core = containment.backend.make_core(
            name=tree.name,
            site=site,
            on_error="report",
            grace=Grace(cancel=0.0, terminate=grace.terminate, kill=grace.kill),
            parent=containment,
            late=True,
        )
        core.opener = None
        super().__init__(core, tree.name, site)
        self.state = RUNNING
        self.tree = tree
        self.transport = transport
        self._killed = self._looking = False
        self._pause = _LOOK_SOON
        core.children[self] = None
        watched.add(self)

    def is_gone(self) -> bool:
        """Whether nobody of the tree is left, and whoever is to reap it has done so."""
        reaped = self.transport is None or self.transport.get_returncode() is not None
        return not self.tree.members() and reaped

    def is_waited_for(self) -> bool:
        """Whether its time is not over."""
        return not self._core.is_over()

    def dismiss(self) -> None:
        """It has ended without our help."""
        self._core.children.clear()
        self._core.settle()

    def tell_to_go(self, reason: Reason) -> None:
        """Its starter has had its chance."""
        if not self._core.closed:
            self._core.stop(reason)

    def _climb(self, rung: Rung) -> None:
        """SIGTERM, SIGKILL."""
        if self._core.reason is not None:
            self._note_reason(self._core.reason)
        if rung is Rung.TERMINATE:
            self.tree.signal(signal.SIGTERM)
        elif rung is Rung.KILL:
            self.tree.signal(signal.SIGKILL)
            self._killed = True
        self._pause = _LOOK_SOON
        if not self._looking:
            self._looking = True
            self._look()

    def _abandon(self) -> None:
        """Nobody waits: SIGTERM at once, unless it had that."""
        if self._core.rung < Rung.TERMINATE:
            self.tree.signal(signal.SIGTERM)

    def _look(self) -> None:
        core = self._core
        if core.state is SETTLED:
            return
        if self.is_gone():
            self._end()
            return
        if core.rung >= Rung.KILL:
            self.tree.signal(signal.SIGKILL)
        if core.state is EXPIRED and core.parent is not None:
            core.parent.wake()  # nothing to wait for here
        backend = core.backend
        backend.call_at(backend.now() + self._pause, self._look)
        self._pause = min(self._pause * 2, _LOOK_AGAIN if core.state is STOPPING else _LOOK_SELDOM)

    def _end(self) -> None:
        transport, self.transport = self.transport, None
        if transport is not None:
            transport.close()  # what nobody has read is read by nobody now
        containment = self._core.parent
        if self._killed and containment is not None:
            leader = self.tree.leader
            note = f"process {self.tree.name!r} (pid {leader.pid}) did not heed SIGTERM and was killed with its tree"
            containment.notes = [*containment.notes, note]
        self.state = CANCELLED
        self._ended()

    def _stuck_at(self) -> str:
        """Who is still there."""
        return self.tree.describe()


watched: WeakSet[AdoptedProcess] = WeakSet()  # by whichever containment
