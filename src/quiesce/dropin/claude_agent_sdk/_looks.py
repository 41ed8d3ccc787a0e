"""Looks at the processes of a CLI that may exit by itself, and leave its children behind.

- **A process whose parent has exited** can be found only if it was seen before. What a CLI starts, it starts a
  moment after it has sent a message. So a look follows each message, and one does for several.
- **If the CLI has exited in the middle of a turn**, and a child of it holds its output, the SDK waits for the end
  of that, which never comes. So during a turn there is a look each second, and then the child is stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

AFTER_MESSAGE, IN_TURN = 0.25, 1.0  # seconds


class Looks:
    """Calls `look` soon after each message, and during a turn each second, until it has ended."""

    def __init__(self, look: Callable[[], None], is_in_turn: Callable[[], bool]) -> None:
        self._look = look
        self._is_in_turn = is_in_turn
        self._timer: asyncio.TimerHandle | None = None
        self._is_soon = False

    def look_soon(self) -> None:
        """A message has come, or a turn begins."""
        if not self._is_soon:
            self._is_soon = True
            self._set(AFTER_MESSAGE)

    def look_now(self) -> None:
        """The CLI may exit at any moment, or has."""
        self._is_soon = False
        self._look()
        self.end()
        if self._is_in_turn():
            self._set(IN_TURN)

    def end(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, seconds: float) -> None:
        self.end()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.look_now)
