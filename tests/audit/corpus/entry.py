"""What an entry of the corpus says: a leak, its cure, and what the audit must make of both.

Places are found by marks in the source, never by number: `# leak: NAME` stands on the line that makes the thing that is
left, `# stuck: NAME` where it stands for ever, `# stop: NAME` where the smallest example was stopped.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from quiesce.audit import Finding
from quiesce.audit.model.source_places import Place

ASYNCIO = ("asyncio", "asyncio-eager", "uvloop")
ALL = (*ASYNCIO, "trio")

# Why a world is left out.
NOT_TRIO_TASKS = "trio has no task without a nursery that waits for it"
NOT_TRIO_CANCEL = "trio has no cancel of a single task, and no count of them"
NOT_TRIO_CALLBACKS = "trio has no callbacks, futures or shutdown by cancelling all tasks"

TICK = 0.002  # seconds; virtual but for uvloop, where it is real
LONG = 0.1  # more than a busy machine takes between two steps


@dataclass(frozen=True)
class Finds:
    """One finding that must be there."""

    kind: str
    what: str  # the coroutine, thread, process... as a pattern
    by: str  # stop and phase of the smallest example: "cancel/early"; "baseline" if nobody has to stop it
    on_trio: str = (
        ""  # the same there, if it differs: a task that is cancelled unstarted runs up to its first await
    )
    leak: str = ""  # the mark on the line where it was made
    stuck: str = ""  # the mark on the line where it stands for ever
    stop: str = ""  # the mark on the line where the smallest example was stopped
    says: str = ""  # part of the detail
    only: tuple[str, ...] = ()  # all the strips that show it, where that is the point
    depth: int = 1
    severity: Literal["error", "warning"] = "error"

    def is_this(self, finding: Finding) -> bool:
        return finding.kind == self.kind and fnmatchcase(finding.what, self.what)


@dataclass(frozen=True)
class Entry:
    """A scenario that leaks and its clean twin: the same purpose, done right."""

    name: str
    leaky: Callable[[], Any]
    clean: Callable[[], Any]
    finds: tuple[Finds, ...]
    options: Mapping[str, Any] = field(default_factory=dict)  # of audit(), for both
    worlds: tuple[str, ...] = ALL
    left_out: str = ""  # why the other worlds are
    also: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (kind, what) that come with it: why
    tidy: Callable[[], None] = lambda: None  # take away what the audit could not: real processes and threads


def marked(function: Callable[[], Any], word: str, name: str) -> tuple[str, int]:
    """The file and line of a mark in the module of a scenario."""
    path = inspect.getsourcefile(inspect.unwrap(function))
    assert path is not None
    mark = f"# {word}: {name}"
    lines = [
        number
        for number, line in enumerate(Path(path).read_text().splitlines(), 1)
        if line.rstrip().endswith(mark)
    ]
    assert len(lines) == 1, f"{path} has {len(lines)} lines that end with {mark!r}"
    return path, lines[0]


def position(place: Place | None) -> tuple[str, int] | None:
    return None if place is None else (place.file, place.line)


def innermost(places: tuple[Place, ...]) -> Place | None:
    """Of a chain from outside in: the last place that is not a library's."""
    return next((place for place in reversed(places) if not place.in_library), None)
