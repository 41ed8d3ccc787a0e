"""The task that runs the body of an `async with`.

A failing child stops the body too. On asyncio that is a `cancel()` of the body's task, undone at the exit; on
trio it is a cancel scope around the body. Both are wrong for a body that is not running: when an async
generator yields from inside its `async with`, the task runs the consumer's code, which has nothing to do with
the scope. So a body inside a plain async generator is stopped only while the generator itself runs. (A
generator under `contextlib.asynccontextmanager` is different: there, the code that runs at the yield *is* the
body.)
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from inspect import CO_ASYNC_GENERATOR
from types import FrameType
from typing import TYPE_CHECKING

from quiesce.kernel.base import Reason

from .current import Node, current_node

if TYPE_CHECKING:
    from .lifecycle import ScopeCore

_CONTEXTLIB = contextlib.__file__


def generator_frame(frame: FrameType | None) -> FrameType | None:
    """The frame of the plain async generator whose body enters an `async with` in `frame`, if it is one."""
    while frame is not None and frame.f_code.co_filename == _CONTEXTLIB:  # AsyncExitStack
        frame = frame.f_back
    if frame is None or not frame.f_code.co_flags & CO_ASYNC_GENERATOR:
        return None
    driver = frame.f_back
    if driver is not None and driver.f_code.co_filename == _CONTEXTLIB:
        return None
    return frame


class BlockTask(ABC):
    """One task, while it is inside the `async with` of a scope."""

    _core: ScopeCore
    # Attributes of the class, because few blocks ever need other values: entering a block sets none of them.
    generator: FrameType | None = None  # the async generator that the body is in
    requested: bool = False  # the scope has cancelled the body
    leaving: bool = False  # the body has ended
    # How many calls of `close()` the body is in that close a scope around it. Its cancel waits for them.
    cancel_holds: int = 0

    def enter(self, core: ScopeCore, entered_by: FrameType) -> None:
        """The frame `entered_by` enters the block of `core`; what the body opens belongs to `core`."""
        code = entered_by.f_code
        if code.co_flags & CO_ASYNC_GENERATOR or code.co_filename == _CONTEXTLIB:
            generator = generator_frame(entered_by)
            if generator is not None:
                self.generator = generator
                return
        current_node.set(core)

    @property
    def outer(self) -> Node | None:
        """The current node outside the block, which is restored at the exit."""
        return self._core.opener

    @abstractmethod
    def is_current(self) -> bool:
        """Whether the calling code runs in this task."""

    def interrupt(self, reason: Reason) -> None:
        """Stop the body, if it is running."""
        if not self.requested:
            self.requested = not self.cancel_holds and self.cancel_body(reason)

    @abstractmethod
    def cancel_body(self, reason: Reason) -> bool:
        """Cancel the body; False if there is nothing to cancel."""

    def _hold_cancel(self) -> None:
        """The body is closing a scope around its own: hold its cancel back until that call has returned."""
        self.cancel_holds += 1

    def _release_cancel(self, *, deliver: bool) -> None:
        """That `close()` returns: a cancel that was held back arrives at the next await, if `deliver`."""
        self.cancel_holds -= 1
        if deliver and self._core.closed and self._core.reason is not None:
            self.interrupt(self._core.reason)

    @abstractmethod
    def may_leave(self) -> bool:
        """False if the event loop has ended. Raises, before it changes anything, in the wrong task."""

    @abstractmethod
    async def leave(self, error: BaseException | None) -> BaseException | None:
        """Stop the scope and wait until it has settled or expired, even if the caller is cancelled meanwhile.

        Returns the cancellation that did not come from the scope, for the caller to raise.
        """

    def in_body(self) -> bool:
        """Whether the body may still be using what was opened in it."""
        return self.generator is None and not self.leaving

    def begin_to_leave(self, error: BaseException | None) -> None:
        """Stop the children because of `error`; without one they have ended, and the nested scopes remain."""
        core = self._core
        self.leaving = True
        if error is not None:
            core.stop(self.reason_of(error), body=False)
        elif not core.closed:
            if core.nested:
                core.stop(Reason("parent", f"scope {core.label!r} ended"), body=False)
            else:
                core.settle()
        if core.closed:
            core.progress()  # the body no longer uses the nested scopes: they can be stopped

    def let_go(self) -> None:  # noqa: B027 - most hold nothing that outlives them
        """The block was exited: drop the references to the task that was in it."""

    def restore_context(self) -> None:
        """Make the current node what it was outside the block."""
        # Not `ContextVar.reset`: the exit may run in another context than the entry (an async fixture), and
        # a token of the first is an error there.
        if self.generator is not None:
            self.generator = None
        elif current_node.get() is self._core:
            current_node.set(self._core.opener)

    def reason_of(self, error: BaseException) -> Reason:
        """Why the body ended, by what it raised: a cancel has the reason of the code that cancelled."""
        if isinstance(error, Exception):
            return Reason("error", f"the body raised {error!r}", error)
        above = self._core._above()
        inherited = above.reason if above is not None else None
        if inherited is not None:
            return inherited
        if getattr(error, "source", None) == "deadline":  # trio says where a cancel came from
            return Reason("timeout", "a deadline around the scope passed")
        return Reason("cancelled", str(error))
