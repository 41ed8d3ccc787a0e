"""The processes that an owner task started, for `own`'s context manager or `stream`'s generator; on asyncio.

They are known by the context of their start, as in a containment: whatever the owner task and the tasks below
it have started. What the users of the owned thing start is theirs, and what an owner task further in has
started is its own.

It looks four times, each time with a single system call if this program has no child process at all:

- when the owned thing can be used: the guard learns of what has been started, in case this program is killed;
- when the stop begins, before the owner task is asked to exit: a process that the clean-up orphans must have
  been seen;
- when the time to exit is over: SIGTERM to the trees, which may be what the clean-up is waiting for;
- when the owner task has ended: what still runs was left over.

A process that may not be ours is not even named, other than in a containment's report: the owned thing may
live as long as the program, and then everything that the program starts would be in doubt.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from quiesce.kernel.base import SETTLED, Reason
from quiesce.kernel.process import Proc, descendants
from quiesce.kernel.scope import Node, note_unseen

from .adopted_task import TaskStarts
from .ancestry import descends, open_blocks
from .block_processes import BlockProcesses, ticks_since_boot

if TYPE_CHECKING:
    from quiesce.kernel.scope import ScopeCore


class OwnerProcesses:
    """The processes of one owner task."""

    __slots__ = ("_began", "_core", "_guarded_leaders", "_loop", "_processes", "_task_starts")

    def __init__(self, core: ScopeCore) -> None:
        self._core = core
        self._loop: Any = getattr(core.backend, "loop", None)  # trio has none
        self._processes: BlockProcesses | None = None
        self._guarded_leaders: list[Proc] = []
        self._task_starts: TaskStarts | None = None
        self._began = ticks_since_boot()

    @classmethod
    def begin(cls, core: ScopeCore) -> OwnerProcesses | None:
        """The processes of an owner task that is about to start; None on trio, which records no starters."""
        if core.backend.name != "asyncio":
            return None
        processes = cls(core)
        if sys.version_info < (3, 12) and isinstance(processes._loop, asyncio.BaseEventLoop):
            processes._task_starts = TaskStarts.begin(processes._loop, tasks=False)
            core.when_settled(processes._forget)
        return processes

    def guard(self) -> None:
        """Register the processes that have been started so far with the guard."""
        if not descendants.have_any():
            return
        processes = self._block_processes()
        try:
            found = processes.known(self._is_ours)
        except Exception as error:
            processes.stop_looking(error)
            return
        if found and self._core.state is not SETTLED:
            self._register(found)

    def _register(self, leaders: list[Proc]) -> None:
        from quiesce.kernel.process import guardian

        new = [proc for proc in leaders if proc not in self._guarded_leaders]
        self._guarded_leaders += new
        self._core.when_settled(self._forget)
        for proc in new:
            guardian.register_tree(proc)

    def look(self) -> None:
        """Adopt the processes that are ours as nested scopes; nothing is stopped yet."""
        core = self._core
        if core.state is not SETTLED and descendants.have_any() and core.backend.is_current():
            processes = self._block_processes()
            try:
                processes.adopt(core, self._is_ours)
            # Broad: this reads the internals of whatever event loop it is, and must not break a stop.
            except Exception as error:
                processes.stop_looking(error)

    def tell_to_go(self) -> None:
        """Look again, and stop the processes that still run."""
        self.look()
        core, processes = self._core, self._processes
        if processes is not None and (why := processes.unseen()):
            note_unseen(core, f"processes that were started in {core.label!r}", why)
        if processes is not None and core.backend.is_current():  # if not, the loop has ended
            stopped = processes.stop(core.reason or Reason("parent", f"{core.label!r} ended"))
            if stopped:
                core.include_in_report(stopped)
                # If the event loop ends now, it sends no SIGKILL any more: then the end of the program does.
                self._register([child.tree.leader for child in stopped])

    def stop_orphans(self) -> None:
        """Stop the descendants of processes that have exited by themselves."""
        adopted = self._processes.adopted if self._processes is not None else []
        for child in adopted:
            if child.is_headless():
                child.stop(Reason("parent", f"process {child.name!r} exited"))

    def _block_processes(self) -> BlockProcesses:
        if self._processes is None:
            self._processes = BlockProcesses("known", self._loop, since=self._began)
        return self._processes

    def _is_ours(self, node: Node | None) -> bool:
        return descends(node, self._core, _claims_its_work)

    def _forget(self) -> None:
        if self._guarded_leaders:
            from quiesce.kernel.process import guardian

            for proc in self._guarded_leaders:
                guardian.forget_tree(proc)
        if self._task_starts is not None:
            self._task_starts.end(self._loop, tasks=False)


def _claims_its_work(core: ScopeCore) -> bool:
    """Whether it is the scope of a containment that is still open, or of an owner task that has not ended."""
    if core in open_blocks:
        return True
    owners = (getattr(getattr(child, "_on_stop", None), "__self__", None) for child in core.children)
    return any(isinstance(getattr(owner, "processes", None), OwnerProcesses) for owner in owners)
