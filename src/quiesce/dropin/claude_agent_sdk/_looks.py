"""Looks at the processes of a CLI that may exit by itself, and leave its children behind.

A process whose parent has exited can be found only if it was seen before. What a CLI starts, it starts a
moment after it has sent a message. So a look follows each message, and one does for several.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LATER = 0.25  # seconds


class Looks:
    """Calls `look` soon after each message, until it has ended."""

    def __init__(self, look: Callable[[], None]) -> None:
        self.look = look
        self._timer: asyncio.TimerHandle | None = None

    def look_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LATER, self._look_now)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look_now(self) -> None:
        self._timer = None
        self.look()
