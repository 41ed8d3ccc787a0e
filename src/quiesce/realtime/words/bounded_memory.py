"""Memory of a bounded size: a session may last for hours, and what it remembers must not grow with it."""

from __future__ import annotations

from typing import Any


class RecentSet(dict[Any, None]):
    """A set of the last `MOST` values that were added."""

    MOST = 1024

    def add(self, value: Any) -> None:
        self[value] = None
        forget_oldest(self, self.MOST)

    def discard(self, value: Any) -> None:
        self.pop(value, None)


def forget_oldest(remembered: dict[Any, Any], most: int) -> None:
    """Remove the oldest entries until there are at most `most`."""
    while len(remembered) > most:
        del remembered[next(iter(remembered))]
