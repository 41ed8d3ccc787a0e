"""The processes that were started by what an owner task holds: `own`'s context manager, `stream`'s generator. On asyncio.

They are known by the context of their start, as a containment knows its own: whatever the owner task and the tasks below it
have started. What the users of the held thing start is theirs, and what a held thing further in has started is that one's.

Four looks, each a single system call while this program has no child process at all:

- when it can be used: what has been started by then is made known to the guard, should this program be killed;
- when the stop begins, before anybody is asked to leave: whoever loses its parent by the clean-up must have been seen before;
- when the time to leave is over: SIGTERM to the trees, for it may be these that do not let the clean-up come to its end;
- when the owner has ended: what is there now was left.

What cannot be said to be ours is not named either, other than in a containment's report: a held thing may live as long as the
program, and all that the program starts meanwhile might be meant.
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

    __slots__ = ("_began", "_births", "_core", "_guarded", "_loop", "_processes")

    def __init__(self, core: ScopeCore) -> None:
        self._core = core
        self._loop: Any = getattr(core.backend, "loop", None)  # trio has none
        self._processes: BlockProcesses | None = None
        self._guarded: list[Proc] | None = None
        self._births: TaskStarts | None = None
        self._began = ticks_since_boot()

    @classmethod
    def begin(cls, core: ScopeCore) -> OwnerProcesses | None:
        """Those of the owner task that is about to start; None on trio, where nothing keeps who has started what."""
        if core.backend.name != "asyncio":
            return None
        held = cls(core)
        if sys.version_info < (3, 12) and isinstance(held._loop, asyncio.BaseEventLoop):
            held._births = TaskStarts.begin(held._loop, tasks=False)
            core.on_settled = held._settled
        return held

    def guard(self) -> None:
        """Have the guard know of what has been started by now."""
        if not descendants.have_any():
            return
        processes = self._all()
        try:
            found = processes.known(self._is_ours)
        except Exception as error:
            processes.give_up(error)
            return
        if found and self._core.state is not SETTLED:
            self._hand_to_guard(found)

    def _hand_to_guard(self, found: list[Proc]) -> None:
        from quiesce.kernel.process import guardian

        new = [proc for proc in found if proc not in (self._guarded or ())]
        self._guarded = [*(self._guarded or ()), *new]
        self._core.on_settled = self._settled
        for proc in new:
            guardian.register_tree(proc)

    def look(self) -> None:
        """Take what is ours for nested scopes; nothing happens to it yet."""
        core = self._core
        if core.state is not SETTLED and descendants.have_any() and core.backend.is_current():
            processes = self._all()
            try:
                processes.adopt(core, self._is_ours)
            except Exception as error:  # an event loop of another make: that must not break a stop
                processes.give_up(error)

    def tell_to_go(self) -> None:
        """Look again, and end those that are still there."""
        self.look()
        core = self._core
        if self._processes is not None and (why := self._processes.unseen()):
            note_unseen(core, f"processes that were started in {core.label!r}", why)
        if self._processes is not None and core.backend.is_current():  # if not, the loop is gone
            told = self._processes.tell_to_go(core.reason or Reason("parent", f"{core.label!r} ended"))
            if told and core.closed:
                core.stopped = [*core.stopped, *told]
            if told:
                # The event loop may be about to end, and nobody there to send the SIGKILL: then the end of the program does.
                self._hand_to_guard([child.tree.leader for child in told])

    def _all(self) -> BlockProcesses:
        if self._processes is None:
            self._processes = BlockProcesses("known", self._loop, since=self._began)
        return self._processes

    def _is_ours(self, node: Node | None) -> bool:
        return descends(node, self._core, _is_anothers)

    def _settled(self) -> None:
        if self._guarded:
            from quiesce.kernel.process import guardian

            for proc in self._guarded:
                guardian.forget_tree(proc)
        if self._births is not None:
            self._births.end(self._loop, tasks=False)


def _is_anothers(core: ScopeCore) -> bool:
    """Whether it is a containment's that has not been left, or that of an owner task that has not ended."""
    if core in open_blocks:
        return True
    owners = (getattr(getattr(child, "_on_stop", None), "__self__", None) for child in core.children)
    return any(isinstance(getattr(owner, "processes", None), OwnerProcesses) for owner in owners)
