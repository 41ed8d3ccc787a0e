"""What scopes need of an event loop, besides what `kernel.base.event_loop` has.

Everything above this line is written once. A backend is one object per event loop (asyncio) or run (trio); it starts children and
keeps the list of stops under way.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable
from contextvars import Context
from math import inf
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from quiesce.kernel.base import EventLoop, Timer, current_event_loop

from . import blocked_loop

if TYPE_CHECKING:
    from quiesce.kernel.base import CancelToken, Grace

    from .block import BlockTask
    from .child import Handle
    from .lifecycle import OnChildError, Policy, ScopeCore
    from .scope import Scope

# What `Scope` was made with, in the order of its parameters.
Options: TypeAlias = (
    "tuple[str | None, Policy, OnChildError | None, Grace | None, CancelToken | None, Scope | None]"
)


class Backend(EventLoop):
    """One event loop, as scopes see it.

    It keeps the list of stops under way and one alarm for the earliest rung among them. The alarm is not taken
    back when that stop is over: most stops are over in a moment, and setting a timer for each would
    cost more than all the rest of it.
    """

    name: str
    core_type: type[ScopeCore]
    host_type: Callable[[ScopeCore, FrameType], BlockTask]
    root: ScopeCore | None = None

    def __init__(self) -> None:
        self.thread = get_ident()
        self.stopping: dict[ScopeCore, None] = {}
        self._alarm: Timer | None = None
        self._alarm_at = inf
        blocked_loop.attend(self)

    def climb_later(self, core: ScopeCore, when: float) -> None:
        """A stop is under way and has its next rung at `when`."""
        self.stopping[core] = None
        if when < self._alarm_at:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm_at = when
            self._alarm = self.call_at(when, self._ring)
        if blocked_loop.asleep:
            blocked_loop.wake_up()

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, inf
        for core in list(self.stopping):
            core.ring()

    def is_adopted_and_cancelled(self) -> bool:
        """Whether the task at hand is somebody else's that a containment has cancelled."""
        return False

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

    def make_host(self, core: ScopeCore) -> BlockTask:
        """The task at hand as the one that runs the `async with` body entered by our caller's caller."""
        return self.host_type(core, sys._getframe(2))


current_backend = cast(Callable[[], Backend], current_event_loop)
"""The backend of the event loop that runs the caller; an error if there is none."""
