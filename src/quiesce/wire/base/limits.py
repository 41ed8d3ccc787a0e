"""Every bound of a connection, in one place."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a connection takes on.

    - `frame`: bytes of one message, either way. A longer one that comes in is answered with an error and skipped.
    - `concurrent`: requests of the peer that are worked on at the same time.
    - `waiting`: messages of the peer that wait for that. When there are so many, nothing more is read, so that the peer has to wait; except
      while one of our own handlers waits for an answer of the peer, which would otherwise never be read. Then requests are refused instead. (A cancel that stands behind so many is read when there is room.)
    - `backlog`: bytes of notifications that may wait in that case; a peer that sends more is disconnected.
    - `unsent`: bytes that are buffered for a peer that does not read. Whoever sends more waits. What cannot wait (answers of handlers that are
      being cancelled, pongs) goes on top; a peer that leaves more than `unsent + backlog` bytes unread is disconnected.
    - `unanswered`: requests of ours that the peer has not answered yet. Whoever asks more waits, except for our own handlers. Two peers that
      ask each other a lot at once need this to be less than what the other side takes on (`concurrent` and `waiting`).
    """

    frame: int = 32 * 1024 * 1024
    concurrent: int = 128
    waiting: int = 1024
    backlog: int = 64 * 1024 * 1024
    unsent: int = 1024 * 1024
    unanswered: int = 1024

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"Limits.{field.name} must be a whole number of at least 1, not {value!r}")
