"""The task that runs an `async with` body, on asyncio.

A body is stopped by `task.cancel()`, and that is taken back (`uncancel`) when the block is left. What makes it
delicate is that a task may be cancelled by others in the same moment: theirs must not be lost, must
arrive as the very exception they will recognise, and ours must not cut a clean-up that theirs has begun.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import CancelledError
from functools import partial
from types import FrameType
from typing import Any

from quiesce.kernel.base import Reason, awaiting_frames
from quiesce.kernel.scope import BlockTask, ScopeCore

from .anyio_shields import may_enter_one, outermost_shield, table, when_left
from .asyncio_child import OwnedTask

_current_task = asyncio.current_task


class AsyncioBlockTask(BlockTask):
    """The task that runs an `async with` body, on asyncio."""

    task: asyncio.Task[Any]
    cancels_before: int  # those that are not ours
    asked_before: int = 0  # by the scope that the task is a child of
    owed: bool = False  # a cancel of the whole task that came while we had cancelled the body
    around: Any = None  # anyio's scope that the block is in
    unsent: bool = False  # the body runs: it is cancelled when it awaits something

    def take_task(self, task: asyncio.Task[Any] | None) -> None:
        """The task at hand, and how often it has been cancelled so far."""
        if task is None:
            raise RuntimeError("a scope needs a task around it, not a bare callback of the loop")
        self.task = task
        self.cancels_before = task.cancelling()
        if (states := table()) and (state := states.get(task)) is not None:
            self.around = state.cancel_scope
        if isinstance(task, OwnedTask) and task.handle._asked:
            self.asked_before = task.handle._asked

    def is_current(self) -> bool:
        """Whether the calling code runs in this task."""
        return asyncio.current_task() is self.task

    def may_leave(self) -> bool:
        """asyncio does not mind which task leaves."""
        return self._core.backend.is_current()

    def cancel_body(self, reason: Reason) -> bool:
        """Cancel the task, unless the body is a generator that has handed out a value."""
        task = self.task
        if task.done() or not self._in_body():
            return False
        # Not for a generator: it may hand out a value before it awaits anything, and would then not be in its body any more.
        if self.generator is None and may_enter_one(task):
            self.unsent = True
            task.get_loop().call_soon(self._awaits_now, reason)
            return True
        if isinstance(task, OwnedTask) and task.handle._asked > self.asked_before:
            return False  # its own scope has cancelled it: a second one would cut its clean-up
        if task.cancelling() > self.cancels_before:
            # Somebody has cancelled it before us: that was its one cancel. Ours comes when its time is over.
            backend = self._core.backend
            backend.call_at(backend.now() + self._core.grace.cancel, partial(self._insist, reason))
            return False
        if not self._waits_for_shield(reason):
            self._cancel_task(reason)
            return True
        backend = self._core.backend
        backend.call_at(backend.now() + self._core.grace.cancel, partial(self._insist, reason))
        return False

    def _awaits_now(self, reason: Reason) -> None:
        """The body ran when its cancel was due; now it awaits something, perhaps in a shield, or has been left."""
        if self.unsent:
            self.unsent = self.requested = False
            self.interrupt(reason)

    def _waits_for_shield(self, reason: Reason) -> bool:
        shield = outermost_shield(self.task, self.around)
        if shield is not None:
            when_left(shield, partial(self._shield_left, reason))
        return shield is not None

    def _shield_left(self, reason: Reason) -> None:
        if self._core.host is not self or self.leaving:  # the block was left with the shield
            return
        if not self._waits_for_shield(reason):
            self._insist(reason)

    def _insist(self, reason: Reason) -> None:
        if self._core.host is self and not (self.leaving or self.requested or self.task.done()):
            self.requested = self._in_body()
            if self.requested:
                self._cancel_task(reason)

    def _cancel_task(self, reason: Reason) -> None:
        if isinstance(self.task, OwnedTask) and self.task.handle._interrupted is None:
            self.task.handle._interrupted = self
        self.task.cancel(reason.text)

    def _in_body(self) -> bool:
        if self.generator is None:
            return True
        if self.is_current():
            frame: FrameType | None = sys._getframe()
            while frame is not None and frame is not self.generator:
                frame = frame.f_back
            return frame is not None
        return self.generator in awaiting_frames(self.task.get_coro())

    async def leave(self, error: BaseException | None) -> BaseException | None:
        """Wait until all is over, and tell our own cancel from other people's."""
        core = self._core
        if self.unsent:  # and not needed any more
            self.unsent = self.requested = False
        cancelled: BaseException | None = error if isinstance(error, CancelledError) else None
        self.begin_to_leave(error)
        if not core.is_over():
            late = await core.backend.wait_through(core.until_over(), core.waiters)
            if cancelled is None or (late is not None and self.requested):
                cancelled = late  # the first was ours, so this is the one to be told apart
        return await self._whose(cancelled) if self.requested else cancelled

    async def _whose(self, cancelled: BaseException | None) -> BaseException | None:
        """We cancelled the body: take that back, and see whether somebody else did too."""
        mine = self.is_current()
        if mine and cancelled is None:
            try:
                await asyncio.sleep(0)  # ours may not have been delivered yet
            except CancelledError as exc:
                cancelled = exc
        task = self.task
        if isinstance(task, OwnedTask) and task.handle._interrupted is self:
            task.handle._interrupted = None
        if self.owed:  # ours has become the one that is owed
            return CancelledError(str(self._core.reason)) if cancelled is None else cancelled
        others = task.uncancel() > self.cancels_before
        if mine and others and cancelled is not None and str(cancelled) == str(self._core.reason):
            # Both came in one turn and only ours was delivered. An anyio scope knows its own by their
            # text and sends another; a plain cancel was this one.
            try:
                await asyncio.sleep(0)
            except CancelledError as exc:
                cancelled = exc
        return cancelled if others or not mine else None


class AsyncioCallerTask(AsyncioBlockTask):
    """The host of a scope that is not a `Scope`'s own block, but that of something which it was made for."""

    def __init__(self, core: ScopeCore, entered_by: FrameType) -> None:
        self._core = core
        self.take_task(_current_task(core.backend.loop))  # type: ignore[attr-defined]
        self.enter(core, entered_by)
