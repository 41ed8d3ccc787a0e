"""A program on trio.

trio has no way to leave a task behind: `trio.run` returns when the last task has ended. So what refuses its cancellation
here can be named in time, but only the end of the process ends it (`force_exit`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import trio

from quiesce.kernel.scope import current_backend

from .program import Program


class TrioProgram(Program):
    """One `trio.run`."""

    settles_the_rest = False  # every task is in a scope, or ends with the main task

    _token: trio.lowlevel.TrioToken | None = None
    _main_is_over: trio.Event

    def poke(self, fn: Callable[[], object]) -> None:
        """As trio allows it in a signal handler."""
        if self._token is not None:
            try:
                self._token.run_sync_soon(fn)
            except trio.RunFinishedError:  # all is over
                pass

    def leave_main(self) -> None:
        """Let trio's main task, which is ours, go on."""
        self._main_is_over.set()

    def drive(self) -> None:
        """All of it is in the main task; trio then waits for everybody."""
        trio.run(self._supervise)
        root, report = self.root, self.report
        assert root is not None
        assert report is not None
        # trio is over, and so are tasks that were still there when the report was made.
        left = root._leftovers() if root.children or root.nested else []
        self.report = replace(report, left=left)

    async def _supervise(self) -> None:
        self._main_is_over = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self.start_main()
        await self._main_is_over.wait()
        root = self.root
        assert root is not None
        self.begin_stop()
        await current_backend().wait_through(root.is_over, root.waiters)
        self.report = root.report()
        self.root_over_at = time.monotonic()
