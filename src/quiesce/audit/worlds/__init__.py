"""The worlds on asyncio and uvloop, and the limits that apply to every world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .asyncio_stops import RAISED, InjectedError
    from .asyncio_world import AsyncioWorld
    from .run_limits import GuardedWorld, Interrupted
    from .uvloop_world import UvloopWorld

offer()
