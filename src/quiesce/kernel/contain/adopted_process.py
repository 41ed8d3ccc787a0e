"""A process tree of other code, as a child of the containment that it was started from.

It has a scope of its own, nested in the containment's, and a ladder of its own. Nothing happens to it while
the tasks of the block clean up: the code that started it has the first chance to end it, by closing its input
or in its own way. When those tasks have ended, or their time is over, the tree gets SIGTERM, then SIGKILL,
with the seconds of `Grace`. SIGKILL is repeated as long as a member is found, so that a process that forks
meanwhile does not escape.

Its exit is polled, not awaited: the descriptor that reports it belongs to other code, and so does the right
to reap it.
"""

from __future__ import annotations

import signal
from typing import Any
from weakref import WeakSet

from quiesce.kernel.base import EXPIRED, SETTLED, STOPPING, Grace, Reason, Rung, Site
from quiesce.kernel.process import LookInterval
from quiesce.kernel.scope import CANCELLED, RUNNING, Child, Handle, ScopeCore

from .adopted_tree import AdoptedTree
from .ancestry import leads_to


class AdoptedProcess(Child):
    """A tree that other code started. It is left alone until `stop`."""

    __slots__ = ("__weakref__", "_interval", "_is_polled", "_killed", "transport", "tree")

    _kind = "process"

    def __init__(self, containment: ScopeCore, tree: AdoptedTree, transport: Any, site: Site | None) -> None:
        # Without the first rung: during that one, the code that started it has its chance.
        grace = containment.grace
        # Shielded: a containment that is being stopped still takes it, and only `stop` stops it.
        core = containment.backend.make_core(
            name=tree.name,
            site=site,
            on_error="report",
            grace=Grace(cancel=0.0, terminate=grace.terminate, kill=grace.kill),
            parent=containment,
            shielded=True,
        )
        core.disown_opener()
        super().__init__(core, tree.name, site)
        self.state = RUNNING
        self.tree = tree
        self.transport = transport
        self._killed = self._is_polled = False
        self._interval = LookInterval()
        core.add(self)
        adopted_processes.add(self)

    def is_gone(self) -> bool:
        """Whether all of the tree has exited, and the event loop that is to reap it has done so."""
        reaped = self.transport is None or self.transport.get_returncode() is not None
        return not self.tree.members() and reaped

    def is_headless(self) -> bool:
        """Whether the process itself has exited, and descendants of it have not."""
        members = self.tree.members()
        return bool(members) and self.tree.leader not in members

    def is_waited_for(self) -> bool:
        """Whether its stop is not over: neither settled nor expired."""
        return not self._core.is_over()

    def dismiss(self) -> None:
        """Let go of a tree that has exited by itself."""
        self._core.forget_children()
        self._core.settle()

    def stop(self, reason: Reason) -> None:
        """Begin the ladder: the code that started it has had its chance."""
        if not self._core.closed:
            self._core.stop(reason)

    def _climb(self, rung: Rung) -> None:
        """Send SIGTERM, send SIGKILL: one per rung."""
        if self._core.reason is not None:
            self._note_reason(self._core.reason)
        if rung is Rung.TERMINATE:
            self.tree.signal(signal.SIGTERM)
        elif rung is Rung.KILL:
            self.tree.signal(signal.SIGKILL)
            self._killed = True
        self._interval.restart()
        if not self._is_polled:
            self._is_polled = True
            self._poll()

    def _abandon(self) -> None:
        """Send SIGTERM at once, unless it was sent: no task will wait for the ladder."""
        if self._core.rung < Rung.TERMINATE:
            self.tree.signal(signal.SIGTERM)

    def _poll(self) -> None:
        core = self._core
        if core.state is SETTLED:
            return
        if self.is_gone():
            self._end()
            return
        if core.rung >= Rung.KILL:
            self.tree.signal(signal.SIGKILL)
        if core.state is EXPIRED and core.parent is not None:
            core.parent.wake()  # the containment waits for it no longer
        backend = core.backend
        seconds = self._interval.next(in_stop=core.state is STOPPING)
        backend.call_at(backend.now() + seconds, self._poll)

    def _end(self) -> None:
        transport, self.transport = self.transport, None
        if transport is not None:
            transport.close()  # output that was not read until now is lost
        containment = self._core.parent
        if self._killed and containment is not None:
            leader = f"process {self.tree.name!r} (pid {self.tree.leader.pid})"
            containment.add_notes([f"{leader} did not respond to SIGTERM and was killed with its tree"])
        self.state = CANCELLED
        self._ended()

    def _stuck_at(self) -> str:
        """The processes that are still alive."""
        return self.tree.describe()


adopted_processes: WeakSet[AdoptedProcess] = WeakSet()  # of all containments


def belongs_to(child: Child, handle: Handle) -> bool:
    """Whether `child` is `handle` itself, or something that it has started."""
    if isinstance(child, AdoptedProcess):
        # It belongs to the scope around the children. If several of them were stopped, it counts for each.
        around = child._core.parent
        return around is handle._core or leads_to(around, handle)
    return leads_to(child, handle)
