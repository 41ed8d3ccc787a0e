"""What the kernel needs of an event loop, and which one is running.

Everything above this line is written once. A backend is one object an event loop (asyncio) or a run
(trio); it starts children, delivers cancels, waits, keeps time and is poked from other threads.
"""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from contextvars import Context
from math import inf
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from . import _watchdog

if TYPE_CHECKING:
    from ._child import Handle
    from ._core import OnChildError, Policy, ScopeCore
    from ._grace import Grace
    from ._host import Host
    from ._scope import Scope
    from ._token import CancelToken

# What `Scope` was made with, in the order of its parameters.
Options: TypeAlias = (
    "tuple[str | None, Policy, OnChildError | None, Grace | None, CancelToken | None, Scope | None]"
)


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


class Backend(ABC):
    """One event loop, as the kernel sees it.

    It keeps the list of stops under way and one alarm for the earliest rung among them. The alarm is not taken
    back when that stop is over: most stops are over in a moment, and setting a timer for each would
    cost more than all the rest of it.
    """

    name: str
    core_type: type[ScopeCore]
    host_type: Callable[[ScopeCore, FrameType], Host]
    root: ScopeCore | None = None

    def __init__(self) -> None:
        self.thread = get_ident()
        self.stopping: dict[ScopeCore, None] = {}
        self._alarm: Timer | None = None
        self._alarm_at = inf
        _watchdog.attend(self)

    def climb_later(self, core: ScopeCore, when: float) -> None:
        """A stop is under way and has its next rung at `when`."""
        self.stopping[core] = None
        if when < self._alarm_at:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm_at = when
            self._alarm = self.call_at(when, self._ring)
        if _watchdog.asleep:
            _watchdog.wake_up()

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, inf
        for core in list(self.stopping):
            core.ring()

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

    def is_adopted_and_cancelled(self) -> bool:
        """Whether the task at hand is somebody else's that a containment has cancelled."""
        return False

    @abstractmethod
    def make_waiter(self) -> FreshWaiter:
        """A fresh wait for the task at hand."""

    @abstractmethod
    async def wait_through(self, ready: Callable[[], bool], waiters: list[Waiter]) -> BaseException | None:
        """Wait until `ready()`, however often the caller is cancelled meanwhile.

        Returns the caller's own cancellation, if there was one, for the caller to raise when it is done.
        """

    async def reraise(self, cancelled: BaseException | None) -> None:
        """Raise the caller's own cancellation that `wait_through` kept: the very same exception."""
        if cancelled is not None:
            raise cancelled

    def make_core(self, **options: Any) -> ScopeCore:
        """A `ScopeCore` on this backend."""
        return self.core_type(self, **options)

    @abstractmethod
    def make_handle(self, core: ScopeCore, label: object, site: Any) -> Handle:
        """A handle for a child to come."""

    @abstractmethod
    def start(
        self, handle: Handle, fn: Callable[..., Any], args: tuple[Any, ...], context: Context | None = None
    ) -> None:
        """Start the child's task, in `context` if there is one, else in a copy of the caller's."""

    def open_block(self, options: Options, parent: ScopeCore | None, entered_by: FrameType) -> ScopeCore:
        """The scope of an `async with` block that `entered_by` enters, hosted by the task at hand."""
        name, on_error, on_child_error, grace, token, _ = options
        site = entered_by.f_code, entered_by.f_lasti
        core = self.core_type(self, name, site, on_error, on_child_error, grace, parent, token)
        core.host = self.host_type(core, entered_by)
        return core

    def make_host(self, core: ScopeCore) -> Host:
        """The task at hand as the one that runs the `async with` body entered by our caller's caller."""
        return self.host_type(core, sys._getframe(2))

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


def current_backend() -> Backend:
    """The backend of the event loop that runs the caller; an error if there is none."""
    loop = _get_running_loop()
    # A trio run in guest mode lives inside an asyncio loop: there, a callback without a task.
    if "trio" in _modules and (loop is None or _current_task(loop) is None):
        from . import _trio

        found = _trio.running_backend()
        if found is not None:
            return found
    if loop is not None:
        try:
            known: Backend = loop._quiesce  # type: ignore[attr-defined]
        except AttributeError:
            from . import _asyncio

            known = _asyncio.backend_of(loop)
        return known
    raise RuntimeError(
        "quiesce needs a running event loop here: call this from inside "
        "quiesce.run, asyncio.run, anyio.run or trio.run"
    )
