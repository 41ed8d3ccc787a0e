"""What is remembered only for a while: a session may last for hours, and what is known of it must not grow with it."""

from __future__ import annotations

from typing import Any


def forget_oldest(remembered: dict[Any, Any], most: int) -> None:
    """Keep the last ones, `most` of them, in the order in which they were put in."""
    while len(remembered) > most:
        del remembered[next(iter(remembered))]
