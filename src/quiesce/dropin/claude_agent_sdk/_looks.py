"""Looks at the processes of a CLI that may exit by itself, and leave its children behind.

- **A process whose parent has exited** can be found only if it was seen before. What a CLI starts, it starts a
  moment after it has sent a message. So a look follows each message, and one does for several.
- **If the CLI has exited**, and a child of it holds its output, the SDK waits for the end of that, which never
  comes. So while somebody waits there is a look each second, and then the child is stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

AFTER_MESSAGE, EACH = 0.25, 1.0  # seconds


class Looks:
    """Calls `look` soon after each message, and each second as long as `is_waited_for`."""

    def __init__(self, look: Callable[[], None], is_waited_for: Callable[[], bool]) -> None:
        self._look = look
        self._is_waited_for = is_waited_for
        self._timer: asyncio.TimerHandle | None = None
        self._is_soon = self._has_ended = False

    def look_soon(self) -> None:
        """A message has come, or a turn begins."""
        if not self._is_soon:
            self._is_soon = True
            self._set(AFTER_MESSAGE)

    def look_now(self) -> None:
        """The CLI may exit at any moment, or has."""
        self._is_soon = False
        self._look()
        if self._is_waited_for():
            self._set(EACH)

    def end(self) -> None:
        """Look no more."""
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._has_ended:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.look_now)
