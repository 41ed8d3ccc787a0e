"""Watching what goes over a connection."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import msgspec

from quiesce._safe.printed import logger
from quiesce.wire.inner import Tap


class StreamDirection(str, Enum):  # noqa: UP042 - as users of agent-client-protocol know it
    """Which way a message went."""

    INCOMING = "incoming"
    OUTGOING = "outgoing"


@dataclass(frozen=True)
class StreamEvent:
    """One message that was sent or received, as plain JSON."""

    direction: StreamDirection
    message: Any


Observer = Callable[[StreamEvent], object]

_DIRECTIONS = {"in": StreamDirection.INCOMING, "out": StreamDirection.OUTGOING}


def tap_for(observers: Iterable[Observer] | None) -> Tap | None:
    """What tells these observers of every message; None if there are none."""
    watching = list(observers or ())
    if not watching:
        return None
    for observer in watching:
        if inspect.iscoroutinefunction(observer) or not callable(observer):
            raise TypeError(
                f"an observer is a plain function of a StreamEvent, called at once for each message, not {observer!r}: "
                "let it put what it sees into a queue, and await elsewhere"
            )

    def tap(direction: Literal["in", "out"], frame: bytes) -> None:
        try:
            message = msgspec.json.decode(frame)
        except (ValueError, RecursionError):
            return  # no message
        event = StreamEvent(_DIRECTIONS[direction], message)
        for observer in watching:
            try:
                observer(event)
            except Exception:
                logger.exception("an observer of a connection failed")

    return tap
