"""What is kept of an output of any length: its beginning and its end, and how much was left out between them.

Any thread may add to it while another one reads. It takes room for a few times what it keeps, however much comes, and in however small pieces.
"""

from __future__ import annotations

import threading

KEPT = 16_000  # characters of the beginning, and as many of the end


class TruncatedOutput:
    """The beginning and the end of a text that comes in pieces."""

    __slots__ = ("_dropped", "_head", "_lock", "_most", "_room", "_tail", "_tail_size")

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._room = most  # characters that the beginning still has room for
        self._head: list[str] = []
        self._tail: list[str] = []
        self._tail_size = 0
        self._dropped = 0
        self._lock = threading.Lock()

    def add(self, text: str) -> None:
        """More of it."""
        with self._lock:
            if self._room:
                self._head.append(text[: self._room])
                text, self._room = text[self._room :], max(self._room - len(text), 0)
            if text:
                self._tail.append(text)
                self._tail_size += len(text)
                if self._tail_size > 2 * self._most:  # not for every piece, which would copy all of it
                    self._cut()

    def _cut(self) -> None:
        end = "".join(self._tail)[-self._most :]
        self._dropped += self._tail_size - len(end)
        self._tail, self._tail_size = [end], len(end)

    def __str__(self) -> str:
        with self._lock:
            if self._tail_size > self._most:
                self._cut()
            head, tail, dropped = "".join(self._head), "".join(self._tail), self._dropped
        return f"{head}\n[... {dropped} characters left out ...]\n{tail}" if dropped else head + tail
