"""How long to wait between two looks at something whose end is not reported to us."""

from __future__ import annotations

_FIRST = 0.001  # seconds
_LONGEST_IN_STOP, _LONGEST = 0.02, 0.25


class LookInterval:
    """A pause that grows: the first looks come soon, and one in vain is followed by a longer pause."""

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds = _FIRST

    def restart(self) -> None:
        """Look soon again: something has just been done that may end it."""
        self._seconds = _FIRST

    def next(self, *, in_stop: bool) -> float:
        """The seconds until the next look; it stays short while a stop waits for the end (`in_stop`)."""
        seconds = self._seconds
        self._seconds = min(seconds * 2, _LONGEST_IN_STOP if in_stop else _LONGEST)
        return seconds
