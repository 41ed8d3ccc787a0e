"""What one run showed."""

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
    """Something that is not as it should be after a run. `kind` is one of `KINDS`."""

    kind: str
    what: str
    made_at: Chain | tuple[Place, ...] = ()  # innermost first
    stuck_at: Chain = ()  # outermost first
    detail: str = ""
    fault: str = ""  # the interpreter's, if it is one; then it says which
    doubt: str = ""  # why it may not be so: it was not seen with more patience


@dataclass(slots=True)
class Run:
    outcome: Outcome
    error: str = ""
    refused: str = ""  # what it wanted of the outside world
    error_at: Chain = ()
    steps: int = 0
    fired: tuple[tuple[str, int, Chain], ...] = ()  # lane, step, where it stood
    moments: list[Moment] = field(default_factory=list)
    lanes: list[TaskRecord] = field(
        default_factory=list
    )  # of the program, in the order in which they were made
    items: int = 0
    seen: list[Sighting] = field(default_factory=list)
    passed_over: str = ""  # what of the outside was not waited for any longer, and for how long it was silent
    ended_at: int = 0  # the step at which the root was over; `steps` goes on until nothing more could happen

    @property
    def clean(self) -> bool:
        return not self.seen


# What can be seen, worst first, and what it means to somebody who reads it for the first time.
KINDS: dict[str, str] = {
    "hang": "it does not end",
    "crash": "the event loop itself broke down",
    "leaked": "a task that nobody ever ends",
    "destroyed": "a pending task that the collector destroyed",
    "process": "a child process still running",
    "thread": "a thread still running",
    "descriptor": "a file, pipe or socket left open",
    "swallowed": "a cancellation that did not arrive",
    "replaced": "a cancellation that came out as another error",
    "bystander": "somebody else was cancelled",
    "check": "the scenario's own check failed",
    "again": "it does not run as before afterwards",
    "close": "closing it failed",
    "late": "a task that ended by itself, after the root had",
    "outlived": "a task still cleaning up when the root was over",
    "generator": "an async generator that nobody closed",
    "unawaited": "a coroutine that was never awaited",
    "unretrieved": "an exception that nobody looked at",
    "callback": "a callback of the event loop failed",
    "unraisable": "an error where Python could not raise it",
    "unclosed": "an object dropped without being closed",
    "reported": "an error that the program gave to the event loop's exception handler",
    "count": "the task's count of cancellations is wrong",
}
