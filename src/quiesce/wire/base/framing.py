"""Where one message ends and the next begins, without any I/O.

A framing turns bytes into frames and frames into bytes. `None` among the frames stands for one that was
longer than the limit: it was not kept, and reading continues after it.
"""

from __future__ import annotations

from typing import Protocol


class Framing(Protocol):
    """How frames are laid out in a stream of bytes."""

    def feed(self, data: bytes) -> list[bytes | None]:
        """Take bytes that came; return the frames that are complete now."""
        ...

    def finish(self) -> list[bytes | None]:
        """Take note of the end of the stream; return the frames that are complete now."""
        ...

    def pack(self, frames: list[bytes]) -> bytes:
        """Return the bytes of these frames."""
        ...

    def replies(self) -> bytes:
        """Return what the framing itself has to send now, to the framing of the other side."""
        ...

    def farewell(self) -> bytes:
        """Return the last bytes to send."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the framing of the other side has ended the stream."""
        ...

    @property
    def error(self) -> BaseException | None:
        """What was wrong with that end; None if nothing was."""
        ...


class Lines:
    r"""One message per line.

    A line ends with `\n`. JSON allows a `\r` before it, and blank lines, as whitespace. The last line need
    not end.
    """

    __slots__ = ("_limit", "_pieces", "_size", "_skipping")

    ended = False
    error: BaseException | None = None

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Of a line that is not complete yet, and their size. A list, because appending to bytes would copy
        # them each time.
        self._pieces: list[bytes] = []
        self._size = 0
        # Whether a line is being skipped because it is too long.
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """Take bytes that came; return the lines that are complete now."""
        lines: list[bytes | None] = data.split(b"\n")  # type: ignore[assignment]
        rest = lines.pop()
        if not (rest or self._pieces or self._skipping) and len(data) <= self._limit:
            return lines  # the usual case: whole lines
        # No line can be longer than all bytes at hand, so most of the time none has to be measured.
        longest = self._size + len(data)
        if lines:
            if self._skipping:
                self._skipping = False
                del lines[0]
            elif self._pieces:
                self._pieces.append(lines[0])  # type: ignore[arg-type]
                lines[0] = b"".join(self._pieces)
            if self._pieces:
                self._pieces = []
            self._size = 0
            if longest > self._limit:
                lines = [line if len(line) <= self._limit else None for line in lines]  # type: ignore[arg-type]
        if rest and not self._skipping:
            self._pieces.append(rest)
            self._size += len(rest)
            if self._size > self._limit:
                self._skipping = True
                self._pieces, self._size = [], 0
                lines.append(None)
        return lines

    def finish(self) -> list[bytes | None]:
        """Return the last line, if it did not end."""
        rest = b"".join(self._pieces)
        self._pieces, self._size, self._skipping = [], 0, False
        return [rest] if rest else []

    def pack(self, frames: list[bytes]) -> bytes:
        """Return these frames as lines."""
        if len(frames) == 1:
            return frames[0] + b"\n"
        frames.append(b"")
        return b"\n".join(frames)

    def replies(self) -> bytes:
        """Return nothing: lines need no replies."""
        return b""

    def farewell(self) -> bytes:
        """Return nothing: lines need no farewell."""
        return b""
