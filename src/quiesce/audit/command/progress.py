"""Progress of the sweep on standard error: a bar with rich, one line without it, a few lines without a terminal.

No meter starts a thread or a timer, which would change what is being audited. A meter is drawn when the sweep reports
the end of a run, ten times a second at most.
"""

from __future__ import annotations

import os
import time
from typing import Any, Protocol, TextIO

from quiesce._safe.printed import printed_line
from quiesce.audit.sweep import Progress

# Seconds between two drawings on a terminal.
_EVERY = 0.1
# Seconds between two lines without a terminal.
_LINE_EVERY = 10.0


class Meter(Protocol):
    """Shows one sweep after another: call `begin`, then `show` for each run, then `end`."""

    def begin(self, title: str) -> None: ...

    def show(self, progress: Progress) -> None: ...

    def end(self) -> None: ...


def make_meter(stream: TextIO, *, wanted: bool, color: bool) -> Meter:
    """The best meter that this stream can show."""
    if not wanted:
        return _Silent()
    if not stream.isatty():
        return _Lines(stream)
    try:
        import rich.progress  # noqa: F401 # pyright: ignore[reportUnusedImport]
    except ImportError:
        return _OneLine(stream)
    return _Bar(stream, color=color)


class _Silent:
    def begin(self, title: str) -> None:
        pass

    def show(self, progress: Progress) -> None:
        pass

    def end(self) -> None:
        pass


class _Paced:
    """The common base of the visible meters: when to draw, and how long the sweep will still take."""

    every = _EVERY

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._title = ""
        self._started = self._drawn = time.monotonic()

    def begin(self, title: str) -> None:
        self._title = printed_line(title)
        self._started = self._drawn = time.monotonic()

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._drawn >= self.every:
            self._drawn = now
            self.draw(progress)

    def draw(self, progress: Progress) -> None:
        """Draw the progress, no matter when it was drawn last."""
        raise NotImplementedError  # abstract: a terminal and a log draw it differently

    def describe(self, progress: Progress) -> str:
        """The progress in words: runs, strip, findings so far, and the time left."""
        total = max(progress.total, progress.done, 1)
        rate = (time.monotonic() - self._started) / max(progress.done, 1)
        return (
            f"{progress.done}/{total} {progress.strip}, {_findings(progress.findings)}, "
            f"{_seconds(rate * (total - progress.done))} left"
        )


class _Lines(_Paced):
    """Without a terminal: one line at the beginning, and one every ten seconds."""

    every = _LINE_EVERY

    def begin(self, title: str) -> None:
        super().begin(title)
        self._write(f"auditing {self._title}")

    def draw(self, progress: Progress) -> None:
        self._write(f"  {self.describe(progress)}")

    def end(self) -> None:
        pass

    def _write(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()


class _OneLine(_Paced):
    """On a terminal without rich: one line that is overwritten."""

    def draw(self, progress: Progress) -> None:
        text = f"{self._title}: {self.describe(progress)}"
        width = _width(self._stream) - 1
        self._stream.write(f"\r{text[:width]:<{width}}")
        self._stream.flush()

    def end(self) -> None:
        width = _width(self._stream) - 1
        self._stream.write(f"\r{'':<{width}}\r")
        self._stream.flush()


class _Bar(_Paced):
    """On a terminal with rich: a progress bar."""

    def __init__(self, stream: TextIO, *, color: bool) -> None:
        super().__init__(stream)
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        console = Console(file=stream, no_color=not color, width=_width(stream))

        def text(field: str, style: str, width: int) -> TextColumn:
            column = Column(no_wrap=True, overflow="ellipsis", width=width)
            return TextColumn(field, style=style, markup=False, table_column=column)

        self._rich: Any = RichProgress(
            text("{task.description}", "none", min(max(console.width - 58, 10), 50)),
            BarColumn(bar_width=8),
            text("{task.fields[count]}", "green", 9),
            text("{task.fields[strip]}", "dim", 18),
            text("{task.fields[findings]}", "none", 11),
            TimeRemainingColumn(compact=True),
            console=console,
            auto_refresh=False,  # rich would start a thread
            transient=True,
        )
        self._task: Any = None

    def begin(self, title: str) -> None:
        super().begin(title)
        self._rich.start()
        self._task = self._rich.add_task(self._title, total=None, count="", strip="", findings="")
        self._rich.refresh()

    def draw(self, progress: Progress) -> None:
        self._rich.update(
            self._task,
            completed=progress.done,
            total=max(progress.total, progress.done),
            count=f"{progress.done}/{max(progress.total, progress.done)}",
            strip=progress.strip,
            findings=_findings(progress.findings),
        )
        self._rich.refresh()

    def end(self) -> None:
        if self._task is not None:
            self._rich.remove_task(self._task)
            self._task = None
        self._rich.stop()


def _width(stream: TextIO) -> int:
    """The width of the terminal behind this stream."""
    # `shutil.get_terminal_size` would look at standard output, which is redirected while a scenario runs.
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _findings(count: int) -> str:
    return f"{count} finding{'s' * (count != 1)}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
