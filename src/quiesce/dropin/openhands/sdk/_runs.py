"""A run of a conversation: a contained call that `interrupt()` ends without an error, and its tool calls."""

from __future__ import annotations

import asyncio
import threading
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from quiesce import Leftover, Reason
from quiesce.kernel.inner import thread_stuck_at
from quiesce.dropin.contained import Call

from ._processes import ConversationProcesses


class Run(Call[None]):
    """A run that was asked for, and has not ended."""

    def __init__(
        self, fn: Callable[[], Awaitable[None]], name: str, processes: ConversationProcesses
    ) -> None:
        super().__init__(fn, name=name, leaves=processes.__contains__)
        self.reason: Reason | None = None  # why we have stopped it
        self.loop: asyncio.AbstractEventLoop | None = None  # where it runs, once it does
        self.has_ended = threading.Event()
        self.pause: Callable[[], object] | None = None  # for a sync run, in its thread
        self._calls: dict[int, str] = {}  # names of the tool calls that have not returned, by their thread

    def calls_left(self, made_at: str) -> list[Leftover]:
        """The tool calls that have not returned."""
        return [
            Leftover("thread", name, made_at, thread_stuck_at(thread))
            for thread, name in list(self._calls.items())
        ]

    def cancel(self, reason: Reason) -> None:
        self.reason = self.reason or reason
        super().cancel(reason)

    async def result(self) -> None:
        """Wait for its end; raises its error, and a cancel that is not ours."""
        self.loop, us = asyncio.get_running_loop(), asyncio.current_task()
        assert us is not None
        cancels = us.cancelling()
        token = current_run.set(self)
        try:
            await super().result()
        except CancelledError:
            if self.reason is None or us.cancelling() > cancels:
                raise
        finally:
            current_run.reset(token)
            self.has_ended.set()
            self._fn = _over  # contexts of idle threads may keep this run, but not the conversation


current_run: ContextVar[Run | None] = ContextVar("quiesce_openhands_run", default=None)


async def _over() -> None:
    """What a run that has ended would do."""


@contextmanager
def calls(name: str) -> Iterator[None]:
    """In the thread of a tool call, around it: its run knows that it has not returned."""
    run, thread = current_run.get(), threading.get_ident()
    if run is not None:
        run._calls[thread] = name
    try:
        yield
    finally:
        if run is not None:
            del run._calls[thread]
