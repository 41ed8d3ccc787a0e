"""A parser for server-sent events, the format in which providers stream their answers.

Invariants
- Bytes go in as they arrive, in pieces of any size; complete events come out. Lines may end in CR, LF or both, even
  if a piece ends between the two.
- Lines that are not a field of an event are ignored, as the standard requires. Unlike the standard, the parser
  delivers an event that the end of the stream cuts off: some servers forget the empty line.
- The cost of copying is linear in the bytes received, however they are divided into pieces; one event may have at most
  `LONGEST` bytes.
"""

from __future__ import annotations

from typing import TypeAlias

ServerEvent: TypeAlias = tuple[str, str]
"""The `event` field of an event ("" if it has none), and its data."""

LONGEST = 64 * 1024 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventTooLong(ValueError):
    """An event of the stream is longer than `LONGEST` bytes."""


class EventStream:
    """Turns bytes into events."""

    def __init__(self) -> None:
        # The pieces of a line whose end has not arrived. They are joined only once, when the line is complete:
        # appending to one bytes object would copy it again for every piece.
        self._pieces: list[bytes] = []
        self._size = 0
        self._after_cr = False
        # What may be the first bytes of a byte order mark, which the standard allows at the beginning of a stream;
        # None when that is past.
        self._start: bytes | None = b""
        self._kind = ""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """Return the events that this piece completes."""
        if self._start is not None:
            piece = self._start + piece
            if len(piece) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(piece):
                self._start = piece
                return []
            self._start, piece = None, piece.removeprefix(_BYTE_ORDER_MARK)
        if self._after_cr and piece.startswith(b"\n"):
            # Only this one belongs to the CR: the next may come in a piece of its own, and is an empty line.
            self._after_cr, piece = False, piece[1:]
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
        return [event for line in lines if (event := self._read_line(line.rstrip(b"\r\n"))) is not None]

    def finish(self) -> list[ServerEvent]:
        """Return the events that the end of the stream completes."""
        line, self._pieces = b"".join(self._pieces), []
        found = [self._read_line(line)] if line else []
        found.append(self._read_line(b""))
        return [event for event in found if event is not None]

    def _read_line(self, line: bytes) -> ServerEvent | None:
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
