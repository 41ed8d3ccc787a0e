"""The record of one run: how it ended and what was found wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from .schedule import Moment
from .source_places import Chain, Place
from .task_records import TaskRecord

# How the root ended. "endless": too many steps; "hung": nothing could run any more; "blocked": too much real time.
Outcome: TypeAlias = Literal["returned", "raised", "cancelled", "hung", "endless", "blocked"]


@dataclass(frozen=True, slots=True)
class Sighting:
    """Something that was wrong during or after a run. `kind` is one of `KINDS`."""

    kind: str
    what: str
    #: Innermost frame first.
    made_at: Chain | tuple[Place, ...] = ()
    #: Outermost frame first.
    stuck_at: Chain = ()
    detail: str = ""
    #: The known fault of the interpreter that caused it; "" if the program did.
    fault: str = ""
    #: Why it may be wrong: the sighting did not come back with more patience.
    doubt: str = ""


@dataclass(slots=True)
class Run:
    """One finished run."""

    outcome: Outcome
    error: str = ""
    #: The I/O that the closed world refused; "" if the run asked for none.
    refused: str = ""
    error_at: Chain = ()
    #: Steps taken until nothing more could happen.
    steps: int = 0
    #: The stops that were made: the lane, the step, and where the lane was suspended.
    fired: tuple[tuple[str, int, Chain], ...] = ()
    moments: list[Moment] = field(default_factory=list)
    #: The program's own tasks, in the order of their creation.
    lanes: list[TaskRecord] = field(default_factory=list)
    items: int = 0
    sightings: list[Sighting] = field(default_factory=list)
    #: The thread, process or connection that the clock jumped over, and how long it had been silent.
    passed_over: str = ""
    #: The step at which the root ended.
    ended_at: int = 0

    @property
    def clean(self) -> bool:
        return not self.sightings


# The kinds of sighting, worst first, each with an explanation for first-time readers. The order is the order of the
# report.
KINDS: dict[str, str] = {
    "hang": "it never ends",
    "crash": "the event loop itself broke down",
    "leaked": "a task that never ends",
    "destroyed": "a pending task that the garbage collector destroyed",
    "process": "a child process still running",
    "thread": "a thread still running",
    "descriptor": "a file, pipe or socket left open",
    "swallowed": "a cancellation that did not arrive",
    "replaced": "a cancellation that came out as another error",
    "bystander": "an unrelated task was cancelled",
    "check": "the scenario's own check failed",
    "again": "it no longer runs as before",
    "close": "closing it failed",
    "late": "a task that ended by itself, but after the root",
    "outlived": "a task still cleaning up when the root had ended",
    "generator": "an async generator that was not closed",
    "unawaited": "a coroutine that was never awaited",
    "unretrieved": "an exception that was never retrieved",
    "callback": "an event loop callback failed",
    "unraisable": "an error that Python could not raise",
    "unclosed": "an object dropped without being closed",
    "reported": "an error that the program passed to the event loop's exception handler",
    "count": "the task's cancellation count is wrong",
}
