"""What the kernel needs of an event loop: a clock, timers, waits, and a way in from other threads; and which one is running.

There is one object per event loop (asyncio) or run (trio). What scopes need besides is in `kernel.scope.backend`, which this is the
lower half of: tokens and reasons know no scopes.
"""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol

from quiesce._lazy import from_above

if TYPE_CHECKING:
    from .wait_queue import WaitQueue


class Timer(Protocol):
    """Something scheduled that can be taken back."""

    def cancel(self) -> object: ...


class Waiter(Protocol):
    """One wait of one task: woken at most once, from the loop's own thread."""

    def wake(self) -> None: ...

    def __await__(self) -> Generator[Any, None, None]: ...

    async def wait(self) -> None: ...


class FreshWaiter(Waiter, Protocol):
    """One that `make_waiter` has made."""

    @property
    def signal(self) -> Awaitable[None]: ...  # what to await, without a detour


class EventLoop(ABC):
    """One event loop, as code without a scope sees it."""

    @abstractmethod
    def now(self) -> float:
        """The loop's clock."""

    @abstractmethod
    def call_at(self, when: float, fn: Callable[[], object]) -> Timer:
        """Run `fn()` in the loop's thread at `when` on the loop's clock."""

    @abstractmethod
    def run_from_anywhere(self, fn: Callable[[], object]) -> None:
        """Run `fn()` in the loop's thread: at once if this is it, else soon. A dead loop is ignored."""

    @abstractmethod
    def is_running(self) -> bool:
        """Whether there is a thread that runs this loop. From any thread."""

    @abstractmethod
    def is_current(self) -> bool:
        """Whether the calling code runs in this loop."""

    @abstractmethod
    def current_task(self) -> object:
        """The task at hand, or None in a plain callback."""

    @abstractmethod
    def make_waiter(self) -> FreshWaiter:
        """A fresh wait for the task at hand."""

    @abstractmethod
    async def wait_through(self, ready: Callable[[], bool], queue: WaitQueue) -> BaseException | None:
        """Wait in `queue` until `ready()`, however often the caller is cancelled meanwhile.

        Returns the caller's own cancellation, if there was one, for the caller to raise when it is done.
        """

    async def checkpoint_if_cancelled(self) -> None:  # noqa: B027 - asyncio delivers a cancel by itself, at the next await
        """On trio, raise the cancellation that is pending for the caller. Trio runs a task up to its first checkpoint, cancelled or not."""

    async def reraise(self, cancelled: BaseException | None) -> None:
        """Raise the caller's own cancellation that `wait_through` kept: the very same exception."""
        if cancelled is not None:
            raise cancelled

    @abstractmethod
    async def wait_readable(self, fd: int) -> None:
        """Wait until a read from `fd` would not block."""

    @abstractmethod
    async def wait_writable(self, fd: int) -> None:
        """Wait until a write to `fd` would not block."""

    @abstractmethod
    def stop_waiting_for(self, fd: int) -> None:
        """`fd` is about to be closed: let whoever waits for it look again."""


_get_running_loop: Callable[[], asyncio.AbstractEventLoop | None] = asyncio._get_running_loop
_current_task = asyncio.current_task
_modules = sys.modules


def _running_on_trio() -> EventLoop | None:
    """The trio run that runs the caller. Replaces itself when it is first used: this is asked for with every scope."""
    global _running_on_trio
    _running_on_trio = from_above("quiesce.kernel.loops.trio_loop", "running_backend")
    return _running_on_trio()


def current_event_loop() -> EventLoop:
    """The event loop that runs the caller; an error if there is none."""
    loop = _get_running_loop()
    # A trio run in guest mode lives inside an asyncio loop: there, a callback without a task.
    if "trio" in _modules and (loop is None or _current_task(loop) is None):
        found = _running_on_trio()
        if found is not None:
            return found
    if loop is not None:
        try:
            known: EventLoop = loop._quiesce  # type: ignore[attr-defined]
        except AttributeError:
            known = from_above("quiesce.kernel.loops.asyncio_loop", "backend_of")(loop)
        return known
    raise RuntimeError(
        "quiesce needs a running event loop here: call this from inside "
        "quiesce.run, asyncio.run, anyio.run or trio.run"
    )
