"""A lane: one task, thread or process, and when it began, was told to stop, and ended.

What runs keeps its own lane, so that a lane tells what really happened to the code in it. It may be written from any thread, and read from any other.
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
    """Seconds since it was made. When it is stopped, no lane changes any more."""

    def __init__(self) -> None:
        self._zero = time.monotonic()
        self.is_stopped = False

    def __call__(self) -> float:
        return time.monotonic() - self._zero


class Lane:
    """One thing that runs, from `with` to the end of it."""

    def __init__(self, kind: Kind, name: str, clock: Clock, *, innocent: bool = False) -> None:
        self.kind: Kind = kind
        self.name = name
        self.innocent = innocent  # nobody means to stop it
        self.started: float | None = None
        self.told: float | None = None
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
        """It knows now that it should end; only the first time counts."""
        if self.told is None and not self._clock.is_stopped:
            self.told = self._clock()

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
            self.end("cancelled" if self.told is not None else "finished")
        elif isinstance(error, asyncio.CancelledError):
            self.told_to_stop()
            self.end("cancelled")
        elif isinstance(error, GeneratorExit):  # the collector has taken the task apart
            self.end("destroyed")
        else:
            self.end("failed")
