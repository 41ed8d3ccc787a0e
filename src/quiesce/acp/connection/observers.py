"""Observers: functions that see every message on a connection."""

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
    """The direction of a message, from this side's point of view."""

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
    """Return a tap that passes every message to these observers; None if there are none."""
    watchers = list(observers or ())
    if not watchers:
        return None
    for observer in watchers:
        if inspect.iscoroutinefunction(observer) or not callable(observer):
            raise TypeError(
                "an observer must be a plain function of a StreamEvent, which is called at once for each message, "
                f"not {observer!r}: "
                "let it put what it sees into a queue, and await elsewhere"
            )

    def tap(direction: Literal["in", "out"], frame: bytes) -> None:
        try:
            message = msgspec.json.decode(frame)
        except (ValueError, RecursionError):
            # Not a message. The connection itself deals with that.
            return
        event = StreamEvent(_DIRECTIONS[direction], message)
        for observer in watchers:
            try:
                observer(event)
            except Exception:
                # An observer must not be able to break the connection.
                logger.exception("an observer of a connection failed")

    return tap
