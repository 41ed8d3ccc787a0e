"""Where one message ends and the next begins, without any I/O.

A framing turns bytes into frames and frames into bytes. `None` among the frames stands for one that was longer than the limit: it was not
kept, and reading goes on after it.
"""

from __future__ import annotations

from typing import Protocol


class Framing(Protocol):
    """How frames are laid out in a stream of bytes."""

    def feed(self, data: bytes) -> list[bytes | None]:
        """The frames that are complete with this."""
        ...

    def finish(self) -> list[bytes | None]:
        """The stream is at its end: the frames that are complete with that."""
        ...

    def pack(self, frames: list[bytes]) -> bytes:
        """These, to be sent."""
        ...

    def replies(self) -> bytes:
        """What the framing itself has to say by now, to the other side's framing."""
        ...

    def farewell(self) -> bytes:
        """The last thing to say."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the other side's framing has said that it is over."""
        ...

    @property
    def error(self) -> BaseException | None:
        """What was wrong with that end; None if it was in order."""
        ...


class Lines:
    r"""One message a line.

    The end of a line is `\n`; a `\r` before it, and blank lines, are JSON's own whitespace. The last line need not have an end.
    """

    __slots__ = ("_limit", "_pieces", "_size", "_skipping")

    ended = False
    error: BaseException | None = None

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []  # of a line that is not complete yet
        self._size = 0
        self._skipping = False  # inside a line that is too long

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines that are complete with this."""
        lines: list[bytes | None] = data.split(b"\n")  # type: ignore[assignment]
        rest = lines.pop()
        if not (rest or self._pieces or self._skipping) and len(data) <= self._limit:
            return lines  # most often: whole lines
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
        """The last line, if it had no end."""
        rest = b"".join(self._pieces)
        self._pieces, self._size, self._skipping = [], 0, False
        return [rest] if rest else []

    def pack(self, frames: list[bytes]) -> bytes:
        """Each with its line end."""
        if len(frames) == 1:
            return frames[0] + b"\n"
        frames.append(b"")
        return b"\n".join(frames)

    def replies(self) -> bytes:
        """Lines have nothing to say."""
        return b""

    def farewell(self) -> bytes:
        """Nor at the end."""
        return b""
