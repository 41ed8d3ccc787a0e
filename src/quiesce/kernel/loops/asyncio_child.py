"""A child task on asyncio.

Why a coroutine of ours runs around the user's function: it contains `SystemExit`, keeps the error, and
reports the end of the child in its own last step. A done-callback would do the same for more, because the
loop has to schedule it, and would have to ask the task how it ended. Only a task that is cancelled before its
first step never gets that far; it is recognised when it is cancelled, and gets a callback then.

Why a task class of ours: `asyncio.run` ends by cancelling every task, which would interrupt a clean-up that
is under way. That cancel comes while the loop is not running, so it can be told from others, and a child that
is already being stopped ignores it. Cancels in a running loop (timeouts, other libraries' scopes) pass as
usual.
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
    at_loop_end,
    current_node,
)

from .anyio_shields import may_enter_one, outermost_shield, when_left

if TYPE_CHECKING:
    from .asyncio_block import AsyncioBlockTask


class AsyncioHandle(Handle):
    """A child task on asyncio."""

    __slots__ = ("_interrupted_block", "_task")

    def __init__(self, core: ScopeCore, label: object, site: Site | None) -> None:
        # Written out, without calls of the base classes: this is the hot path of `spawn`.
        self._core = core
        self._label = label
        self._site = site
        self.state = PENDING
        self.reason = None
        self._at_end = None
        self._token = None
        self._second_cancel = None
        self._on_stop = None
        self._asked = 0
        self._cancel_holds = 0
        self._has_held_cancel = False
        self._task: asyncio.Task[None] | None = None
        self._interrupted_block: AsyncioBlockTask | None = (
            None  # a block in this task whose body we cancelled
        )

    def _deliver_cancel(self) -> None:
        """Cancel the task; while it is still inside its eager first step there is none yet."""
        task = self._task
        if task is None:
            return
        if self._interrupted_block is not None and self._asked < 2:
            # A block in it is already cleaning up after a cancel. This one is due when that block is exited.
            self._interrupted_block.task_cancel_is_due = True
            return
        if self.state is PENDING:
            task.remove_done_callback(self._never_started)
            task.add_done_callback(self._never_started)
        if self._asked < 2 and may_enter_one(task):
            task.get_loop().call_soon(self._cancel_at_await)
            return
        if self._asked < 2 and (shield := outermost_shield(task)) is not None:
            self._has_held_cancel = True
            when_left(shield, self._shield_exited)
            return
        self._has_held_cancel = False
        plain_cancel(task, self.reason.text if self.reason is not None else None)

    def _cancel_at_await(self) -> None:
        """Cancel a task that was running: it now awaits something, perhaps in a shield or a `close()`."""
        if self._cancel_holds:
            self._has_held_cancel = True
        elif self._asked < 2 and not self.done:
            self._deliver_cancel()

    def _shield_exited(self) -> None:
        """It has exited the shield that its cancel waits for. It may be in another one by now."""
        if self._has_held_cancel and not self._cancel_holds and not self.done:
            self._has_held_cancel = False
            self._deliver_cancel()

    def _task_at_work(self) -> object:
        """The task that runs it."""
        return self._task

    def _stuck_at(self) -> str:
        """Where in the source the task waits."""
        return stuck_at(self._task.get_coro(), self._core.backend.thread) if self._task else "not started"

    def _never_started(self, task: asyncio.Task[None]) -> None:
        """The done-callback of a task that may have been cancelled before its first step."""
        if self.state == PENDING:
            self.state = CANCELLED
            self._task = None
            self._ended()


plain_cancel = asyncio.Task.cancel  # not that of `OwnedTask`


class OwnedTask(asyncio.Task[None]):
    """The task of a child."""

    __slots__ = ("handle",)

    handle: AsyncioHandle

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel; but in a clean-up, ignore the cancel at the end of `asyncio.run`: see this module."""
        handle = self.handle
        if handle.state == PENDING:
            self.remove_done_callback(handle._never_started)
            self.add_done_callback(handle._never_started)
        if not self.get_loop().is_running():
            if (leave := at_loop_end.get(handle)) is not None:
                leave()
                return False
            if handle._asked or handle._core.is_clean_up():
                return False
            handle._asked = 1
            handle._note_reason(Reason("shutdown", "the event loop is ending"))
        return super().cancel(msg)

    def set_name(self, value: object) -> None:
        """Set the name of the task, and of the child in reports."""
        self.handle._label = str(value)

    def get_name(self) -> str:
        """The name of the child, computed when it is read."""
        return self.handle.name


class EagerTask(OwnedTask):
    """The task of a child that runs up to its first await while it is being made."""

    __slots__ = ("_coroutine",)

    def __init__(
        self, handle: AsyncioHandle, coro: Any, loop: asyncio.AbstractEventLoop, context: Context | None
    ) -> None:
        self._coroutine = coro
        # Before the constructor: the coroutine runs inside it, and may look for its handle or cancel it.
        self.handle = handle
        handle._task = self
        super().__init__(coro, loop=loop, context=context, eager_start=True)  # type: ignore[call-arg, unused-ignore]

    def get_coro(self) -> Any:
        """The coroutine, at any time."""
        # That of Python 3.12.1 crashes the process before the constructor has run, and after an eager end.
        return self._coroutine


async def run_child(handle: AsyncioHandle, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Run the function of a child, keep how it ends, and report that to its scope."""
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
            handle.state = CANCELLED  # the loop has ended, and the garbage collector closes the coroutine
            raise
        handle._fail(exc)
        if isinstance(exc, KeyboardInterrupt):  # asyncio then ends the whole loop with it
            raise
    finally:
        handle._task = None
        core = handle._core
        core.children.pop(handle, None)
        state: str = handle.state
        if core.children and handle._at_end is None and state is not FAILED and not core.closers:
            # The common case of `child_ended`, written out: others are still running, no callback, no error.
            core.ended += 1
        else:
            core.child_ended(handle)
