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

from ._anyio_shield import outermost_shield, when_left
from ._child import CANCELLED, FAILED, FINISHED, PENDING, RUNNING, Handle
from ._core import ScopeCore
from ._current import current_node
from ._reason import Reason
from ._site import Site, stuck_at

if TYPE_CHECKING:
    from ._asyncio_host import AsyncioHost


class AsyncioHandle(Handle):
    """A child task on asyncio."""

    __slots__ = ("interrupted", "task")

    def __init__(self, core: ScopeCore, label: object, site: Site | None) -> None:
        # Written out flat, without the calls to the bases: this is the hot path of `spawn`.
        self.core = core
        self.label = label
        self.site = site
        self.state = PENDING
        self.reason = None
        self.waiters = None
        self._token = None
        self._hurry = None
        self.on_stop = None
        self.asked = 0
        self.deferred = 0
        self.withheld = False
        self.task: asyncio.Task[None] | None = None
        self.interrupted: AsyncioHost | None = None  # a block in this task that is being stopped

    def deliver_cancel(self) -> None:
        """Cancel the task; while it is still inside its eager first step there is none yet."""
        task = self.task
        if task is None:
            return
        if self.interrupted is not None and self.asked < 2:
            # Its block is cleaning up after a cancel already: this one is due when the block is left.
            self.interrupted.owed = True
            return
        if self.state is PENDING:
            task.remove_done_callback(self.never_started)
            task.add_done_callback(self.never_started)
        if self.asked < 2 and (shield := outermost_shield(task)) is not None:
            self.withheld = True
            when_left(shield, self._shield_left)
            return
        self.withheld = False
        plain_cancel(task, self.reason.text if self.reason is not None else None)

    def _shield_left(self) -> None:
        """It has left the shield that its cancel waits for, and may be in another one."""
        if self.withheld and not self.deferred and not self.done:
            self.withheld = False
            self.deliver_cancel()

    def runs_in(self, task: object) -> bool:
        """Whether `task` is this child's own."""
        return self.task is task

    def stuck_at(self) -> str:
        """Where the task waits."""
        return stuck_at(self.task.get_coro(), self.core.backend.thread) if self.task else "not started"

    def never_started(self, task: asyncio.Task[None]) -> None:
        """Done-callback for a task that may have been cancelled before its first step."""
        if self.state == PENDING:
            self.state = CANCELLED
            self.task = None
            self.ended()


plain_cancel = asyncio.Task.cancel  # without the detour through `OwnedTask.cancel`


class OwnedTask(asyncio.Task[None]):
    """The task of a child."""

    __slots__ = ("handle",)

    handle: AsyncioHandle

    def cancel(self, msg: Any | None = None) -> bool:
        """As ever, except for the sweep at the end of `asyncio.run`: see the top of this module."""
        handle = self.handle
        if handle.state == PENDING:
            self.remove_done_callback(handle.never_started)
            self.add_done_callback(handle.never_started)
        if not self.get_loop().is_running():
            if handle.asked or handle.core.is_clean_up():
                return False
            handle.asked = 1
            handle.note_reason(Reason("shutdown", "the event loop is ending"))
        return super().cancel(msg)

    def set_name(self, value: object) -> None:
        """It is called that in reports too."""
        self.handle.label = str(value)

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
        handle.task = self
        super().__init__(coro, loop=loop, context=context, eager_start=True)  # type: ignore[call-arg, unused-ignore]

    def get_coro(self) -> Any:
        """As ever, at any time: that of 3.12.1 crashes the process before the constructor has run and after an eager end."""
        return self._coroutine


async def run_child(handle: AsyncioHandle, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    handle.state = RUNNING
    current_node.set(handle)
    try:
        handle.value = await fn(*args)
        handle.state = FINISHED
    except CancelledError as exc:
        if handle.asked and exc.__cause__ is None:
            handle.state = CANCELLED
        else:
            handle.end_cancelled(exc)
        raise
    except BaseException as exc:
        if isinstance(exc, GeneratorExit) and not handle.core.backend.is_current():
            handle.state = CANCELLED  # the loop is gone and the collector closes the coroutine
            raise
        handle.fail(exc)
        if isinstance(exc, KeyboardInterrupt):
            raise
    finally:
        handle.task = None
        core = handle.core
        core.children.pop(handle, None)
        state: str = handle.state
        if core.children and handle.waiters is None and state is not FAILED and not core.closers:
            core.ended += 1  # nobody to tell
        else:
            core.child_ended(handle)
