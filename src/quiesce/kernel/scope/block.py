"""The task that runs the body of an `async with`.

A failing child stops the body too. On asyncio that is a `cancel()` of that one task, taken back at the exit;
on trio a cancel scope around the body. Both are wrong for a body that is not running: an async generator
that hands out values from inside `async with` leaves its consumer in the task, and the consumer
is innocent. So a body inside a plain async generator is stopped only while the generator itself runs.
(A generator under `contextlib.asynccontextmanager` is different: there, the code after its yield *is*
the body.)
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
    """The plain async generator in whose body `frame` enters an `async with`, if it is one."""
    while frame is not None and frame.f_code.co_filename == _CONTEXTLIB:  # AsyncExitStack
        frame = frame.f_back
    if frame is None or not frame.f_code.co_flags & CO_ASYNC_GENERATOR:
        return None
    driver = frame.f_back
    if driver is not None and driver.f_code.co_filename == _CONTEXTLIB:
        return None
    return frame


class BlockTask(ABC):
    """One task, while it is inside an `async with` of ours."""

    _core: ScopeCore
    # Few blocks ever need others than these, so they are the class's.
    generator: FrameType | None = None  # the async generator that the body is inside of
    requested: bool = False  # we have cancelled the body
    leaving: bool = False  # the body is over
    held: int = 0  # closes around the block that the body is in: its cancel waits for them

    def enter(self, core: ScopeCore, entered_by: FrameType) -> None:
        """The block of `core` is entered by `entered_by`; what its body opens belongs to it."""
        code = entered_by.f_code
        if code.co_flags & CO_ASYNC_GENERATOR or code.co_filename == _CONTEXTLIB:
            generator = generator_frame(entered_by)
            if generator is not None:
                self.generator = generator
                return
        current_node.set(core)

    @property
    def outer(self) -> Node | None:
        """What the body's context goes back to when the block is left."""
        return self._core.opener

    @abstractmethod
    def is_current(self) -> bool:
        """Whether the calling code runs in this task."""

    def interrupt(self, reason: Reason) -> None:
        """Stop the body, if it is running."""
        if not self.requested:
            self.requested = not self.held and self.cancel_body(reason)

    @abstractmethod
    def cancel_body(self, reason: Reason) -> bool:
        """Cancel the body; False if there is nothing to cancel."""

    def _hold(self) -> None:
        """The body closes a scope around its own: its cancel waits until that has returned."""
        self.held += 1

    def _release(self, *, deliver: bool) -> None:
        """The close is over: what was held back arrives at the body's next await."""
        self.held -= 1
        if deliver and self._core.closed and self._core.reason is not None:
            self.interrupt(self._core.reason)

    @abstractmethod
    def may_leave(self) -> bool:
        """False if the loop is gone; an error, before anything is changed, if this is the wrong task."""

    @abstractmethod
    async def leave(self, error: BaseException | None) -> BaseException | None:
        """The children are gone, or `error` came: end the scope, however often we are cancelled.

        Returns the cancellation that is not ours, for the caller to raise.
        """

    def in_body(self) -> bool:
        """Whether the body may still be using what was opened in it."""
        return self.generator is None and not self.leaving

    def begin_to_leave(self, error: BaseException | None) -> None:
        """Stop what is there: the children because of an error, else what they were given."""
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
            core.progress()  # what the body was using can go now

    def let_go(self) -> None:  # noqa: B027 - most hold nothing that outlives them
        """The block was left: hold nothing of who was in it."""

    def restore_context(self) -> None:
        """Take the scope out of the body's context again."""
        # Not a token: the exit may run in another context, where a reset would fail.
        if self.generator is not None:
            self.generator = None
        elif current_node.get() is self._core:
            current_node.set(self._core.opener)

    def reason_of(self, error: BaseException) -> Reason:
        """Why the body was left, by what it raised: a cancel has the reason of whoever sent it."""
        if isinstance(error, Exception):
            return Reason("error", f"the body raised {error!r}", error)
        above = self._core._above()
        inherited = above.reason if above is not None else None
        if inherited is not None:
            return inherited
        if getattr(error, "source", None) == "deadline":  # trio says where a cancel came from
            return Reason("timeout", "a deadline around the scope passed")
        return Reason("cancelled", str(error))
