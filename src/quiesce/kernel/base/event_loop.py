"""What the kernel needs from an event loop: a clock, timers, waits, a way in from other threads.

There is one object per event loop (asyncio) or run (trio); `current_event_loop` finds the one that runs the
caller. This is the lower half of `kernel.scope.backend`, which adds what scopes need: tokens and wait queues
know nothing of scopes.
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
    """A scheduled call that can be cancelled."""

    def cancel(self) -> object: ...


class Waiter(Protocol):
    """One wait of one task: woken at most once, from the loop's own thread."""

    def wake(self) -> None: ...

    def __await__(self) -> Generator[Any, None, None]: ...

    async def wait(self) -> None: ...


class FreshWaiter(Waiter, Protocol):
    """A waiter as `make_waiter` returns it. `signal` is what to await, without a coroutine in between."""

    @property
    def signal(self) -> Awaitable[None]: ...


class EventLoop(ABC):
    """One event loop, as code without a scope sees it."""

    @abstractmethod
    def now(self) -> float:
        """The time by the loop's clock, in seconds."""

    @abstractmethod
    def call_at(self, when: float, fn: Callable[[], object]) -> Timer:
        """Run `fn()` in the loop's thread at `when` on the loop's clock."""

    @abstractmethod
    def run_from_anywhere(self, fn: Callable[[], object]) -> None:
        """Run `fn()` in the loop's thread: at once if called from there, else soon; not if it has ended."""

    @abstractmethod
    def is_running(self) -> bool:
        """Whether some thread is running this loop. Callable from any thread."""

    @abstractmethod
    def is_current(self) -> bool:
        """Whether the calling code runs in this loop."""

    @abstractmethod
    def current_task(self) -> object:
        """The running task, or None in a plain callback."""

    @abstractmethod
    def make_waiter(self) -> FreshWaiter:
        """A new waiter for the running task."""

    @abstractmethod
    async def wait_through(self, ready: Callable[[], bool], queue: WaitQueue) -> BaseException | None:
        """Wait in `queue` until `ready()` is true, even if the caller is cancelled meanwhile.

        Returns the caller's own cancellation, if there was one: raise it when your clean-up is done.
        """

    async def checkpoint_if_cancelled(self) -> None:  # noqa: B027 - on asyncio there is nothing to do
        """Raise the cancellation that is pending for the caller, if any, on trio.

        Trio runs a task up to its first checkpoint even if it was cancelled before it started. asyncio raises
        the cancellation by itself, at the next await.
        """

    async def reraise(self, cancelled: BaseException | None) -> None:
        """Raise the cancellation that `wait_through` has returned: the same exception object."""
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
        """Wake all tasks that wait for `fd`, because it is about to be closed."""


_get_running_loop: Callable[[], asyncio.AbstractEventLoop | None] = asyncio._get_running_loop
_current_task = asyncio.current_task
_modules = sys.modules


def _running_on_trio() -> EventLoop | None:
    """The trio run that runs the caller, if any."""
    # Replaces itself at the first call, because every new scope calls it. The import cannot stand at the top:
    # it would point upward, and would load trio in programs that do not use it.
    global _running_on_trio
    _running_on_trio = from_above("quiesce.kernel.loops.trio_loop", "running_backend")
    return _running_on_trio()


def current_event_loop() -> EventLoop:
    """The event loop that runs the caller; a `RuntimeError` if there is none."""
    loop = _get_running_loop()
    # In guest mode, trio runs inside callbacks of an asyncio loop. So with trio imported, a running asyncio
    # loop without a current task may be either; with a current task it is asyncio.
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
