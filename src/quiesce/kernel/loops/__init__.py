"""What scopes need from an event loop, for asyncio and for trio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from . import asyncio_loop, trio_loop
    from .anyio_shields import outermost_shield, when_left
    from .asyncio_block import AsyncioBlockTask
    from .asyncio_child import AsyncioHandle, OwnedTask, run_child
    from .asyncio_loop import AsyncioBackend

offer()
