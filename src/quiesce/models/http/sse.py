"""Server-sent events, as providers stream their answers.

Invariants
- Bytes go in as they come, in pieces of any size; whole events come out. Lines may end in CR, LF or both, also when a piece ends
  between the two.
- What is no field of an event is passed over, as the standard says. An event that the end of the stream cuts off is given all the
  same: some servers forget the empty line.
- Copying is linear in what was sent, however the pieces fall; one event may have `LONGEST` bytes.
"""

from __future__ import annotations

from typing import TypeAlias

ServerEvent: TypeAlias = tuple[str, str]
"""The kind of an event, "" if it was not said, and its data."""

LONGEST = 64 * 1024 * 1024


class EventTooLong(ValueError):
    """A server sends one event without end."""


class EventStream:
    """Makes events of bytes."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of a line without its end
        self._size = 0
        self._after_cr = False
        self._at_start = True
        self._kind = ""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """The events that this piece completes."""
        if self._at_start and piece:
            self._at_start = False
            piece = piece.removeprefix(b"\xef\xbb\xbf")
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        if not piece:
            return []
        self._after_cr = piece.endswith(b"\r")
        self._size += len(piece)
        if self._size > LONGEST:
            raise EventTooLong(f"one event of the stream is longer than {LONGEST // 1024 // 1024} MiB")
        if b"\n" not in piece and b"\r" not in piece:
            self._pieces.append(piece)
            return []
        lines = b"".join([*self._pieces, piece]).splitlines(keepends=True)
        self._pieces = [lines.pop()] if not lines[-1].endswith((b"\n", b"\r")) else []
        return [event for line in lines if (event := self._take(line.rstrip(b"\r\n"))) is not None]

    def finish(self) -> list[ServerEvent]:
        """What the end of the stream completes."""
        line, self._pieces = b"".join(self._pieces), []
        found = [self._take(line)] if line else []
        found.append(self._take(b""))
        return [event for event in found if event is not None]

    def _take(self, line: bytes) -> ServerEvent | None:
        if not line:
            event = (self._kind, "\n".join(self._data)) if self._data else None
            self._kind, self._data, self._size = "", [], 0
            return event
        field, _, value = line.decode(errors="replace").partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._kind = value
        return None
