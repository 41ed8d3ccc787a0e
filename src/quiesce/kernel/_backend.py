"""What the kernel needs of an event loop, and which one is running.

Everything above this line is written once. A backend is one object an event loop (asyncio) or a run
(trio); it starts children, delivers cancels, waits, keeps time and is poked from other threads.
"""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ._child import Handle
    from ._core import ScopeCore
    from ._host import Host


class Timer(Protocol):
    """Something scheduled that can be taken back."""

    def cancel(self) -> object: ...


class Waiter(Protocol):
    """One wait of one task: woken at most once, from the loop's own thread."""

    def wake(self) -> None: ...

    async def wait(self) -> None: ...


class Backend(ABC):
    """One event loop, as the kernel sees it."""

    name: str
    root: ScopeCore | None = None

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
    def is_current(self) -> bool:
        """Whether the calling code runs in this loop."""

    @abstractmethod
    def current_task(self) -> object:
        """The task at hand, or None in a plain callback."""

    @abstractmethod
    def make_waiter(self) -> Waiter:
        """A fresh wait for the task at hand."""

    @abstractmethod
    async def wait_through(
        self, ready: Callable[[], bool], waiters: list[Waiter]
    ) -> BaseException | None:
        """Wait until `ready()`, however often the caller is cancelled meanwhile.

        Returns the caller's own cancellation, if there was one, to be raised by `reraise`.
        """

    @abstractmethod
    async def reraise(self, cancelled: BaseException | None) -> None:
        """Deliver the caller's own cancellation that `wait_through` kept."""

    @abstractmethod
    def make_handle(self, core: ScopeCore, label: object, site: Any) -> Handle:
        """A handle for a child to come."""

    @abstractmethod
    def start(self, handle: Handle, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Start the child's task."""

    @abstractmethod
    def make_host(self, core: ScopeCore) -> Host:
        """The task at hand as the one that runs an `async with` body."""

    @abstractmethod
    async def wait_readable(self, fd: int) -> None:
        """Wait until a read from `fd` would not block."""

    @abstractmethod
    async def wait_writable(self, fd: int) -> None:
        """Wait until a write to `fd` would not block."""


_get_running_loop: Callable[[], asyncio.AbstractEventLoop | None] = asyncio._get_running_loop


def current_backend() -> Backend:
    """The backend of the event loop that runs the caller; an error if there is none."""
    loop = _get_running_loop()
    trio = sys.modules.get("trio")
    # A trio run in guest mode lives inside an asyncio loop: there, a callback without a task.
    if trio is not None and (loop is None or asyncio.current_task(loop) is None):
        from . import _trio

        found = _trio.running_backend()
        if found is not None:
            return found
    if loop is not None:
        from . import _asyncio

        return _asyncio.backend_of(loop)
    raise RuntimeError(
        "quiesce needs a running event loop here: call this from inside "
        "quiesce.run, asyncio.run, anyio.run or trio.run"
    )
