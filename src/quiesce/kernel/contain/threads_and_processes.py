"""What a block has started outside its event loop: processes and threads.

Three looks: when the block ends, before any task is cancelled; when its tasks and what was opened in it are gone, so that
whoever has started something has had its chance to end it; and when the time for that is over, at each further rung
of the ladder, for a clean-up may be waiting for the very process that does not end.

- A process of ours that is still there is ended with its tree.
- A thread at work for us is waited for until the time for clean-up is over.
- What may be ours, or somebody else's, is named and not touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from quiesce.kernel.base import Leftover, Rung
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
    ) -> None:
        self._core = core
        self._contains = contains  # `at_last`, and whose it is
        self._threads = BlockThreads()
        self._processes = BlockProcesses(choice, loop, self._threads)

    def look(self, *, at_last: bool = False) -> None:
        """Take what is ours for children of the block's scope; nothing happens to it yet."""
        core, contains = self._core, partial(self._contains, at_last)
        found = self._threads.adopt(core, contains)
        if found and core.closed:
            core.stopped = [*core.stopped, *found]
        self._processes.adopt(core, contains)

    def is_all_that_is_left(self) -> bool:
        """Whether nobody else is there, except those who wait for the block to be left."""
        core, adopted = self._core, self._processes.adopted
        ours = {child._core for child in adopted} if adopted else ()
        excused = core.who_waits_for(core.closers)
        return all(child in excused or isinstance(child, AdoptedThread) for child in core.children) and all(
            scope in excused or scope in ours for scope in core.nested
        )

    def drain(self) -> bool:
        """Look again, and end the processes; False if there is nothing to wait for."""
        self.look()
        self._tell_to_go()
        return self.waited_for() > 0

    def _tell_to_go(self) -> None:
        core = self._core
        assert core.reason is not None
        if told := self._processes.tell_to_go(core.reason):
            core.stopped = [*core.stopped, *told]

    def climb(self, rung: Rung) -> None:
        """Whoever had the first chance to end them is out of time."""
        if rung >= Rung.TERMINATE:
            self.drain()
            self._core.wake()

    def waited_for(self) -> int:
        """How many there are for which there is time left."""
        core = self._core
        waited_for = sum(child.is_waited_for() for child in self._processes.adopted)
        if core.rung < Rung.TERMINATE:
            waited_for += sum(isinstance(child, AdoptedThread) for child in core.children)
        return waited_for

    def say_what_is_unseen(self) -> None:
        """Have the report say whether a process may be left of which nobody knows."""
        if why := self._processes.unseen():
            note_unseen(self._core, f"processes that were started in {self._core.label!r}", why)

    def perhaps_left(self) -> list[Leftover]:
        """What may be the block's, or somebody else's."""
        return [*self._processes.perhaps_left(), *self._threads.perhaps_left()]
