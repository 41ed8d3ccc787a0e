"""What a block has started outside its event loop: processes and threads.

They are looked for three times: when the block ends, before any task is cancelled; when its tasks and what
was opened in it have ended, so that the code that started something has had its chance to end it; and when
the time for that is over, at each further rung of the ladder, since a clean-up may be waiting for the very
process that does not end.

- A process of the block that still runs is stopped with its tree.
- A thread that works for the block is waited for until the time for clean-up is over.
- What may be the block's or not is named and not touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from quiesce.kernel.base import Leftover, Rung
from quiesce.kernel.process import Proc
from quiesce.kernel.scope import Node, ScopeCore, note_unseen

from .adopted_thread import AdoptedThread, BlockThreads
from .block_processes import BlockProcesses, Choice


class ThreadsAndProcesses:
    """The processes and threads of one block."""

    __slots__ = ("_contains", "_core", "_processes", "_threads")

    def __init__(
        self,
        core: ScopeCore,
        choice: Choice,
        contains: Callable[[bool, Node | None], bool],
        loop: asyncio.AbstractEventLoop,
        leaves: Callable[[Proc], bool] | None = None,
    ) -> None:
        self._core = core
        self._contains = contains  # of `at_last` and the node of the work
        self._threads = BlockThreads()
        self._processes = BlockProcesses(choice, loop, self._threads, leaves=leaves)

    def look(self, *, at_last: bool = False) -> None:
        """Make what belongs to the block children of its scope; nothing is stopped yet."""
        core, contains = self._core, partial(self._contains, at_last)
        found = self._threads.adopt(core, contains)
        if found:
            core.include_in_report(found)
        self._processes.adopt(core, contains)

    def are_all_that_is_left(self) -> bool:
        """Whether nothing else is left in the block's scope, except what waits for the block to be exited."""
        core, adopted = self._core, self._processes.adopted
        ours = {child._core for child in adopted} if adopted else ()
        waiting = core.who_waits_for(core.closers)
        return all(child in waiting or isinstance(child, AdoptedThread) for child in core.children) and all(
            scope in waiting or scope in ours for scope in core.nested
        )

    def stop(self) -> bool:
        """Look again, and stop the processes; False if there is nothing to wait for."""
        core = self._core
        self.look()
        assert core.reason is not None
        if stopped := self._processes.stop(core.reason):
            core.include_in_report(stopped)
        return self.waited_for() > 0

    def climb(self, rung: Rung) -> None:
        """Stop them when the code that started them is out of time."""
        if rung >= Rung.TERMINATE:
            self.stop()
            self._core.wake()

    def waited_for(self) -> int:
        """The number of those whose time is not over."""
        core = self._core
        waited_for = sum(child.is_waited_for() for child in self._processes.adopted)
        if core.rung < Rung.TERMINATE:
            waited_for += sum(isinstance(child, AdoptedThread) for child in core.children)
        return waited_for

    def note_unseen(self) -> None:
        """Have the report say so if there may be processes that could not be seen."""
        if why := self._processes.unseen():
            note_unseen(self._core, f"processes that were started in {self._core.label!r}", why)

    def possible_leftovers(self) -> list[Leftover]:
        """What still runs, and may be the block's or not."""
        return [*self._processes.possible_leftovers(), *self._threads.possible_leftovers()]
