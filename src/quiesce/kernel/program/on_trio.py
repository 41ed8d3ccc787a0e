"""A program on trio.

trio cannot leave a task behind: `trio.run` returns when the last task has ended. So a task that refuses its
cancellation can be named in time, but only the end of the process ends it (`force_exit`).
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
    _main_ended: trio.Event

    def call_soon(self, fn: Callable[[], object]) -> None:
        """By trio's own queue, which a signal handler may use."""
        if self._token is not None:
            try:
                self._token.run_sync_soon(fn)
            except trio.RunFinishedError:  # too late: there is nothing left to stop
                pass

    def leave_main(self) -> None:
        """Let trio's main task, which is ours, go on."""
        self._main_ended.set()

    def drive(self) -> None:
        """Run everything in trio's main task; `trio.run` then waits for all tasks."""
        trio.run(self._supervise)
        root, report = self.root, self.report
        assert root is not None
        assert report is not None
        # When `trio.run` returns, all tasks have ended, also those in the report: name what is left now.
        left = root._leftovers() if root.children or root.nested else []
        self.report = replace(report, left=left)

    async def _supervise(self) -> None:
        self._main_ended = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self.start_main()
        await self._main_ended.wait()
        root = self.root
        assert root is not None
        self.begin_stop()
        await current_backend().wait_through(root.is_over, root.waiters)
        self.report = root.report()
        self.root_ended_at = time.monotonic()
