"""What scopes need from an event loop, in addition to `kernel.base.event_loop`.

This is the line between code that is written once, for all event loops, and the room `loops`, which has the
rest for asyncio and for trio. There is one backend per event loop (asyncio) or run (trio). It starts children
and keeps the list of stops that are under way.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable
from contextvars import Context
from math import inf
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from quiesce.kernel.base import EventLoop, Timer, current_event_loop, site_of

from . import blocked_loop

if TYPE_CHECKING:
    from quiesce.kernel.base import CancelToken, Grace, Site

    from .block import BlockTask
    from .child import Handle
    from .lifecycle import Policy, ScopeCore
    from .scope import Scope


class Backend(EventLoop):
    """One event loop, as scopes see it.

    It keeps the list of stops that are under way, and one alarm for the earliest rung among them. The alarm
    is not cancelled when that stop has settled: most stops take a moment, and to set and cancel a timer for
    each would cost more than the rest of the stop.
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
        blocked_loop.watch(self)

    def climb_later(self, core: ScopeCore, when: float) -> None:
        """Call `core.ring()` at `when`, or earlier: its stop is under way, and that is when a rung is due."""
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
        """Whether the running task was started by a library, and cancelled by a `contain()` block."""
        return False

    def make_core(
        self,
        *,
        name: str | None = None,
        site: Site | None = None,
        on_error: Policy = "stop",
        grace: Grace | None = None,
        parent: ScopeCore | None = None,
        token_above: CancelToken | None = None,
        shielded: bool = False,
    ) -> ScopeCore:
        """A new scope in this event loop, without a `Scope` that users hold."""
        return self.core_type(self, name, site, on_error, None, grace, parent, token_above, shielded)

    @abstractmethod
    def make_handle(self, core: ScopeCore, label: object, site: Any) -> Handle:
        """A handle for a child that is not started yet."""

    @abstractmethod
    def start(
        self, handle: Handle, fn: Callable[..., Any], args: tuple[Any, ...], context: Context | None = None
    ) -> None:
        """Start the task of the child, in `context` or else in a copy of the caller's context."""

    def open_block(self, scope: Scope, parent: ScopeCore | None, entered_by: FrameType) -> ScopeCore:
        """Make the core of `scope`, whose block the running task enters in the frame `entered_by`."""
        core = self.core_type(
            self,
            scope._name,
            site_of(entered_by),
            scope._on_error,
            scope._on_child_error,
            scope._grace,
            parent,
            scope._outer_token,
        )
        core.enter_block(self.host_type(core, entered_by))
        return core

    def make_host(self, core: ScopeCore) -> BlockTask:
        """The running task, as the one that runs the body of an `async with`."""
        # Two frames up: our caller is an `__aenter__`, and its caller enters the block.
        return self.host_type(core, sys._getframe(2))


current_backend = cast(Callable[[], Backend], current_event_loop)
"""The backend of the event loop that runs the caller; an error if there is none."""
