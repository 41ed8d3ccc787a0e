"""The task that runs the body of an `async with`, on asyncio.

A body is stopped by `task.cancel()`, which is undone (`uncancel`) when the block is exited. The difficulty is
that other code may cancel the same task at the same moment. That cancel must not be lost, must arrive as the
very exception that its sender will recognise, and ours must not interrupt a clean-up that it has begun.
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
    """The task that runs the body of an `async with`, on asyncio."""

    task: asyncio.Task[Any]
    cancels_before: int  # cancels of the task before it entered the block: they are not ours
    handle_cancels_before: int = 0  # how many of those came from the scope whose child the task is
    task_cancel_is_due: bool = False  # the whole task was cancelled while the body was cleaning up for us
    around: Any = None  # anyio's cancel scope around the block
    cancel_is_deferred: bool = False  # the body is running: it is cancelled at its next await

    def take_task(self, task: asyncio.Task[Any] | None) -> None:
        """Remember the running task, and how often it has been cancelled so far."""
        if task is None:
            raise RuntimeError("a scope needs a task around it, not a bare callback of the loop")
        self.task = task
        self.cancels_before = task.cancelling()
        if (states := table()) and (state := states.get(task)) is not None:
            self.around = state.cancel_scope
        if isinstance(task, OwnedTask) and task.handle._asked:
            self.handle_cancels_before = task.handle._asked

    def is_current(self) -> bool:
        """Whether the calling code runs in this task."""
        return asyncio.current_task() is self.task

    def may_leave(self) -> bool:
        """Whether the event loop is running: asyncio does not care which task exits."""
        return self._core.backend.is_current()

    def cancel_body(self, reason: Reason) -> bool:
        """Cancel the task, unless the body is in a generator that has yielded."""
        task = self.task
        if task.done() or not self._in_body():
            return False
        # Not for a generator: it may yield before its next await, and would then not be in its body any more.
        if self.generator is None and may_enter_one(task):
            self.cancel_is_deferred = True
            task.get_loop().call_soon(self._cancel_at_await, reason)
            return True
        if isinstance(task, OwnedTask) and task.handle._asked > self.handle_cancels_before:
            return False  # the scope that owns the task has cancelled it: ours would interrupt its clean-up
        if task.cancelling() > self.cancels_before:
            # Other code has cancelled it before us, and the clean-up for that has begun. Ours comes only when
            # the time for it is over. Not cancelling at all would be wrong too: the other cancel may be one
            # that the body catches and survives, such as that of a timeout inside it.
            backend = self._core.backend
            backend.call_at(backend.now() + self._core.grace.cancel, partial(self._cancel_after_all, reason))
            return False
        if not self._waits_for_shield(reason):
            self._cancel_task(reason)
            return True
        backend = self._core.backend
        backend.call_at(backend.now() + self._core.grace.cancel, partial(self._cancel_after_all, reason))
        return False

    def _cancel_at_await(self, reason: Reason) -> None:
        """Interrupt a body that was running before: it now awaits something, perhaps in a shield."""
        if self.cancel_is_deferred:
            self.cancel_is_deferred = self.requested = False
            self.interrupt(reason)

    def _waits_for_shield(self, reason: Reason) -> bool:
        shield = outermost_shield(self.task, self.around)
        if shield is not None:
            when_left(shield, partial(self._shield_exited, reason))
        return shield is not None

    def _shield_exited(self, reason: Reason) -> None:
        if self._core.host is not self or self.leaving:  # the block was exited together with the shield
            return
        if not self._waits_for_shield(reason):
            self._cancel_after_all(reason)

    def _cancel_after_all(self, reason: Reason) -> None:
        if self._core.host is self and not (self.leaving or self.requested or self.task.done()):
            self.requested = self._in_body()
            if self.requested:
                self._cancel_task(reason)

    def _cancel_task(self, reason: Reason) -> None:
        if isinstance(self.task, OwnedTask) and self.task.handle._interrupted_block is None:
            self.task.handle._interrupted_block = self
        self.task.cancel(reason.text)

    def _in_body(self) -> bool:
        """Whether the task is in the body now, and not in the consumer of a generator that has yielded."""
        if self.generator is None:
            return True
        if self.is_current():
            frame: FrameType | None = sys._getframe()
            while frame is not None and frame is not self.generator:
                frame = frame.f_back
            return frame is not None
        return self.generator in awaiting_frames(self.task.get_coro())

    async def leave(self, error: BaseException | None) -> BaseException | None:
        """Wait until the scope has settled or expired; then return a cancel of the task that is not ours."""
        core = self._core
        if self.cancel_is_deferred:  # and not needed any more
            self.cancel_is_deferred = self.requested = False
        cancelled: BaseException | None = error if isinstance(error, CancelledError) else None
        self.begin_to_leave(error)
        if not core.is_over():
            late = await core.backend.wait_through(core.until_over(), core.waiters)
            if cancelled is None or (late is not None and self.requested):
                cancelled = late  # the first was ours; this one may be another's
        return await self._undo_cancel(cancelled) if self.requested else cancelled

    async def _undo_cancel(self, cancelled: BaseException | None) -> BaseException | None:
        """Undo our cancel of the body; returns a cancellation by other code, if there was one too."""
        in_own_task = self.is_current()
        if in_own_task and cancelled is None:
            try:
                await asyncio.sleep(0)  # ours may not have been delivered yet
            except CancelledError as exc:
                cancelled = exc
        task = self.task
        if isinstance(task, OwnedTask) and task.handle._interrupted_block is self:
            task.handle._interrupted_block = None
        if self.task_cancel_is_due:
            # Nothing to undo: our cancel now stands for that of the whole task, which was not sent.
            return CancelledError(str(self._core.reason)) if cancelled is None else cancelled
        has_others = task.uncancel() > self.cancels_before
        if in_own_task and has_others and cancelled is not None and str(cancelled) == str(self._core.reason):
            # Both came in one turn, and asyncio delivered only ours. An anyio scope recognises its own
            # cancels by their text, misses it, and sends another, which arrives now. A plain `cancel()` has
            # no such mark: for its sender, this one is as good.
            try:
                await asyncio.sleep(0)
            except CancelledError as exc:
                cancelled = exc
        return cancelled if has_others or not in_own_task else None


class AsyncioCallerTask(AsyncioBlockTask):
    """The task in the block of a resource, whose scope is not a `Scope` of its own."""

    def __init__(self, core: ScopeCore, entered_by: FrameType) -> None:
        self._core = core
        self.take_task(_current_task(core.backend.loop))  # type: ignore[attr-defined]
        self.enter(core, entered_by)
