"""A lane: one task, thread or process, and when it started, was told to stop, and ended.

The code that runs records its own lane, so that a lane shows what really happened to it. Any thread may write to a
lane, and any other may read it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from types import TracebackType
from typing import Literal, Self, TypeAlias

Kind: TypeAlias = Literal["task", "thread", "process"]
End: TypeAlias = Literal["finished", "failed", "cancelled", "destroyed"]


class Clock:
    """Counts the seconds since it was made. After it is stopped, lanes no longer change."""

    def __init__(self) -> None:
        self._zero = time.monotonic()
        self.is_stopped = False

    def __call__(self) -> float:
        return time.monotonic() - self._zero


class Lane:
    """Records one thing that runs, from the start of a `with` block to its end."""

    def __init__(self, kind: Kind, name: str, clock: Clock, *, innocent: bool = False) -> None:
        self.kind: Kind = kind
        self.name = name
        #: No stop is meant for it. If it is cancelled, it was harmed.
        self.innocent = innocent
        self.started: float | None = None
        #: When the code noticed that it should stop.
        self.stop_seen: float | None = None
        self.ended: float | None = None
        self.how: End | None = None
        self.thread: int | None = None
        self.process: int | None = None
        self._clock = clock

    @property
    def is_running(self) -> bool:
        return self.started is not None and self.ended is None

    def start(self) -> None:
        self.started = self._clock()
        if self.kind == "thread":
            self.thread = threading.get_ident()

    def told_to_stop(self) -> None:
        """Record that the code knows that it should stop; only the first call counts."""
        if self.stop_seen is None and not self._clock.is_stopped:
            self.stop_seen = self._clock()

    def end(self, how: End) -> None:
        if self.ended is None and not self._clock.is_stopped:
            self.ended, self.how = self._clock(), how

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.end("cancelled" if self.stop_seen is not None else "finished")
        elif isinstance(error, asyncio.CancelledError):
            self.told_to_stop()
            self.end("cancelled")
        elif isinstance(error, GeneratorExit):  # the task was garbage-collected while it was waiting
            self.end("destroyed")
        else:
            self.end("failed")
