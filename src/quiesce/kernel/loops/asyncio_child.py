"""A child task on asyncio.

Why a child is a coroutine of ours around the user's function: it contains `SystemExit`, keeps the error, and
reports its own end from its last step. That costs less than a done-callback (which the loop has to
schedule) and needs no look at the task afterwards. Only a task cancelled before its first step never gets
there; that case is seen when it is cancelled, and gets a callback of its own.

Why a task class of ours: `asyncio.run` ends by cancelling every task again, which would cut a clean-up in
half. A second cancel that comes while the loop is not running is that one, and is ignored by a child that is
already being stopped. Cancels inside a running loop (timeouts, other people's scopes) pass as always.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any

from quiesce.kernel.base import Reason, Site, stuck_at
from quiesce.kernel.scope import (
    CANCELLED,
    FAILED,
    FINISHED,
    PENDING,
    RUNNING,
    Handle,
    ScopeCore,
    current_node,
)

from .anyio_shields import may_enter_one, outermost_shield, when_left

if TYPE_CHECKING:
    from .asyncio_block import AsyncioBlockTask


class AsyncioHandle(Handle):
    """A child task on asyncio."""

    __slots__ = ("_interrupted", "_task")

    def __init__(self, core: ScopeCore, label: object, site: Site | None) -> None:
        # Written out flat, without the calls to the bases: this is the hot path of `spawn`.
        self._core = core
        self._label = label
        self._site = site
        self.state = PENDING
        self.reason = None
        self._at_end = None
        self._token = None
        self._hurry = None
        self._on_stop = None
        self._asked = 0
        self._deferred = 0
        self._withheld = False
        self._task: asyncio.Task[None] | None = None
        self._interrupted: AsyncioBlockTask | None = None  # a block in this task that is being stopped

    def _deliver_cancel(self) -> None:
        """Cancel the task; while it is still inside its eager first step there is none yet."""
        task = self._task
        if task is None:
            return
        if self._interrupted is not None and self._asked < 2:
            # Its block is cleaning up after a cancel already: this one is due when the block is left.
            self._interrupted.owed = True
            return
        if self.state is PENDING:
            task.remove_done_callback(self._never_started)
            task.add_done_callback(self._never_started)
        if self._asked < 2 and may_enter_one(task):
            task.get_loop().call_soon(self._awaits_now)
            return
        if self._asked < 2 and (shield := outermost_shield(task)) is not None:
            self._withheld = True
            when_left(shield, self._shield_left)
            return
        self._withheld = False
        plain_cancel(task, self.reason.text if self.reason is not None else None)

    def _awaits_now(self) -> None:
        """It ran when its cancel was due; now it awaits something, perhaps in a shield or in a close of its own scope."""
        if self._deferred:
            self._withheld = True
        elif self._asked < 2 and not self.done:
            self._deliver_cancel()

    def _shield_left(self) -> None:
        """It has left the shield that its cancel waits for, and may be in another one."""
        if self._withheld and not self._deferred and not self.done:
            self._withheld = False
            self._deliver_cancel()

    def _runs_in(self, task: object) -> bool:
        """Whether `task` is this child's own."""
        return self._task is task

    def _stuck_at(self) -> str:
        """Where the task waits."""
        return stuck_at(self._task.get_coro(), self._core.backend.thread) if self._task else "not started"

    def _never_started(self, task: asyncio.Task[None]) -> None:
        """Done-callback for a task that may have been cancelled before its first step."""
        if self.state == PENDING:
            self.state = CANCELLED
            self._task = None
            self._ended()


plain_cancel = asyncio.Task.cancel  # without the detour through `OwnedTask.cancel`


class OwnedTask(asyncio.Task[None]):
    """The task of a child."""

    __slots__ = ("handle",)

    handle: AsyncioHandle

    def cancel(self, msg: Any | None = None) -> bool:
        """As ever, except for the sweep at the end of `asyncio.run`: see the top of this module."""
        handle = self.handle
        if handle.state == PENDING:
            self.remove_done_callback(handle._never_started)
            self.add_done_callback(handle._never_started)
        if not self.get_loop().is_running():
            if handle._asked or handle._core.is_clean_up():
                return False
            handle._asked = 1
            handle._note_reason(Reason("shutdown", "the event loop is ending"))
        return super().cancel(msg)

    def set_name(self, value: object) -> None:
        """It is called that in reports too."""
        self.handle._label = str(value)

    def get_name(self) -> str:
        """The child's name, worked out only when somebody looks."""
        return self.handle.name


class EagerTask(OwnedTask):
    """The same, run up to its first await while it is being made."""

    __slots__ = ("_coroutine",)

    def __init__(
        self, handle: AsyncioHandle, coro: Any, loop: asyncio.AbstractEventLoop, context: Context | None
    ) -> None:
        self._coroutine = coro
        self.handle = handle  # its body may look for it, or cancel it, before the constructor returns
        handle._task = self
        super().__init__(coro, loop=loop, context=context, eager_start=True)  # type: ignore[call-arg, unused-ignore]

    def get_coro(self) -> Any:
        """As ever, at any time: that of 3.12.1 crashes the process before the constructor has run and after an eager end."""
        return self._coroutine


async def run_child(handle: AsyncioHandle, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    handle.state = RUNNING
    current_node.set(handle)
    try:
        handle._value = await fn(*args)
        handle.state = FINISHED
    except CancelledError as exc:
        if handle._asked and exc.__cause__ is None:
            handle.state = CANCELLED
        else:
            handle._end_cancelled(exc)
        raise
    except BaseException as exc:
        if isinstance(exc, GeneratorExit) and not handle._core.backend.is_current():
            handle.state = CANCELLED  # the loop is gone and the collector closes the coroutine
            raise
        handle._fail(exc)
        if isinstance(exc, KeyboardInterrupt):
            raise
    finally:
        handle._task = None
        core = handle._core
        core.children.pop(handle, None)
        state: str = handle.state
        if core.children and handle._at_end is None and state is not FAILED and not core.closers:
            core.ended += 1  # nobody to tell
        else:
            core.child_ended(handle)
