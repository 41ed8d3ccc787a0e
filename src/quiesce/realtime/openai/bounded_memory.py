"""What is remembered only for a while: a session may last for hours, and what is known of it must not grow with it."""

from __future__ import annotations

from typing import Any


class RecentSet(dict[Any, None]):
    """The last of what was added, `MOST` of them; else a set."""

    MOST = 1024

    def add(self, value: Any) -> None:
        self[value] = None
        forget_oldest(self, self.MOST)

    def discard(self, value: Any) -> None:
        self.pop(value, None)


def forget_oldest(remembered: dict[Any, Any], most: int) -> None:
    """Keep the last ones, `most` of them, in the order in which they were put in."""
    while len(remembered) > most:
        del remembered[next(iter(remembered))]
