"""All limits of a connection, in one place."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a connection accepts.

    - `frame`: bytes of one message, in either direction. A longer one that comes in is answered with an error
      and skipped.
    - `concurrent`: requests of the peer that are handled at the same time.
    - `waiting`: messages of the peer that wait to be handled. When there are so many, nothing more is read,
      so that the peer has to wait. The exception is when one of our own handlers waits for an answer of the
      peer, which would otherwise never be read; then requests are refused instead. (A cancel that stands
      behind so many is read when there is room.)
    - `backlog`: bytes of messages that may wait in that case; a peer that sends more is disconnected.
    - `unsent`: bytes that are buffered for a peer that does not read. Sending more waits. Messages that
      cannot wait (answers of handlers that are being cancelled, pongs) are buffered in addition; a peer that
      leaves more than `unsent + backlog` bytes unread is disconnected.
    - `unanswered`: requests of ours that the peer has not answered yet. Sending more waits, except in our own
      handlers. Two peers that send each other many requests at once need this to be less than what the other
      side accepts (`concurrent` and `waiting`).
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
