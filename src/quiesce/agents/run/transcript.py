"""The items of one run, kept so that it can be stopped at any moment.

The invariant: whatever stops the run, after `settle` every tool call has exactly one result next to it. Until then only the calls of the
last turn can lack theirs: results are put in together, in the order of the calls, when the last of them is there.

What waits for a guardrail is in `new`, for the model that said it to go on from, and in no record: `take_unsaved` and `kept` leave it out. That is
the whole first answer until the input guardrails have passed (`unchecked`), and the text of an agent with output guardrails until
these have (`held`). A tool call is recorded before it runs, so the text that was said before it comes to the record later than the call and its
result: `take_late` says where it belongs. What was stopped before its verdict is taken out again by `withdraw`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from quiesce.kernel.inner import AdoptedProcess, leads_to
from quiesce.models import AssistantMessage, Item, ToolCall, ToolResult

if TYPE_CHECKING:
    from quiesce import Handle, Reason
    from quiesce.agents.agent import ToolContext
    from quiesce.kernel.inner import Child

UNKNOWN = "The program ended while this tool ran: nobody knows whether it has finished. It was not repeated."
WITHHELD = "Finished. What it returned is withheld: the output guardrails of the run have not passed it."


class CallRecord:
    """One tool call of the current turn, and how far it has come."""

    __slots__ = ("approved", "call", "context", "handle", "result", "started_at")

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.result: ToolResult | None = None
        self.started_at: float | None = None
        self.context: ToolContext[Any] | None = None
        self.handle: Handle | None = None  # of the task that makes the call
        self.approved: bool | None = None  # None: nobody was asked, or nobody has answered yet

    def start(self, context: ToolContext[Any]) -> None:
        """Its tool is about to be called."""
        self.context = context
        self.started_at = time.monotonic()

    @property
    def elapsed(self) -> float | None:
        return None if self.started_at is None else round(time.monotonic() - self.started_at, 3)

    def finish(self, output: str, outcome: Any = "finished") -> ToolResult:
        """It has a result, from now on and for good."""
        if self.result is None:
            self.result = ToolResult(self.call.call_id, output, outcome, self.elapsed)
        return self.result

    def settle(self, why: str, left: Sequence[Child] = ()) -> ToolResult:
        """It was stopped: say how far it had come, as the report does that names those who are `left`."""
        if self.result is not None:
            return self.result
        context = self.context
        if context is not None and context.waits_for_thread:
            self.started_at = None  # it was about to be called, and never was
        if self.started_at is None:
            return self.finish(f"Not started: {why}.", "not_started")
        so_far = context.output_so_far if context is not None else ""
        handle = self.handle
        at_work = context is not None and context.at_work
        if at_work or (handle is not None and any(_is_of(child, handle) for child in left)):
            text = f"Told to stop after {self.elapsed:.3f} s ({why}), but it has not ended: it may still be running."
            outcome = "still_running"
        else:
            text = f"Interrupted after {self.elapsed:.3f} s ({why}). It may have partially executed."
            outcome = "interrupted"
        return self.finish(f"{text}\nOutput so far:\n{so_far}" if so_far else text, outcome)


def _is_of(child: Child, call: Handle) -> bool:
    """Whether it is the call's task, or something that this has started."""
    if isinstance(child, AdoptedProcess):  # of a call of this turn; if several were stopped, of any of them
        around = child._core.parent
        return around is call._core or leads_to(around, call)
    return leads_to(child, call)


class Transcript:
    """What a run began with, and what it has added."""

    __slots__ = (
        "_late",
        "_shown",
        "calls",
        "given",
        "guarded",
        "held",
        "input_passed",
        "new",
        "partial",
        "saved",
        "unchecked",
    )

    def __init__(self, given: list[Item]) -> None:
        self.given = given
        self.new: list[Item] = []
        self.calls: list[CallRecord] = []  # of the last turn, as long as they have no results in `new`
        self._shown: tuple[list[Item], int] | None = None  # in place of the first so many items
        self.saved = 0  # how many of `new` were given to `take_unsaved`
        self.partial: list[str] = []  # text of the model that is not an item yet
        self.input_passed = True  # False: input guardrails beside the first answer have not spoken yet
        self.guarded = False  # output guardrails are to look at what is said now
        self.unchecked: list[Item] = []  # items that wait for the input guardrails
        self.held: list[Item] = []  # items that wait for the output guardrails, perhaps since an earlier run
        self._late: list[Item] = []  # passed, behind others that were recorded before

    @property
    def items(self) -> list[Item]:
        """What the model gets next: all of it, unless a handoff has shown it less."""
        if self._shown is not None:
            items, since = self._shown
            return items + self.new[since:]
        return self.given + self.new

    def show(self, items: list[Item]) -> None:
        """From here on the model sees these in place of all that came before."""
        self._shown = items, len(self.new)

    def add(self, item: Item) -> None:
        """A finished item of the model's answer."""
        if not self.input_passed or (self.guarded and not isinstance(item, ToolCall)):
            item = copy(item)  # an object of its own: it is known by its identity
            (self.held if self.input_passed else self.unchecked).append(item)
        if isinstance(item, ToolCall):
            self.calls.append(CallRecord(item))
        elif self.calls:
            # Text after a call: results must stand next to the calls, so it goes before them.
            # A turn is saved when the model's answer is complete, so these calls have not been.
            self.new.insert(len(self.new) - len(self.calls), item)
            return
        self.new.append(item)

    def close_turn(self) -> list[ToolResult]:
        """Every call has its result: put those next to them."""
        results = [record.result for record in self.calls if record.result is not None]
        assert len(results) == len(self.calls)
        self.new += results
        self.calls = []
        return results

    def settle(
        self, reason: Reason | None, keep: Sequence[CallRecord] = (), left: Sequence[Child] = ()
    ) -> None:
        """The run was stopped: complete what it began, but for the calls to `keep`, which wait for somebody's approval.

        `left` is who of the run is still there.
        """
        if self.partial:
            text, self.partial = "".join(self.partial), []
            self.add(AssistantMessage(text, interrupted=True))
        if self.calls:
            why = describe(reason)
            for record in self.calls:
                if record not in keep:
                    record.settle(why, left)
            if not keep:
                results = self.close_turn()
                if self.unchecked:
                    self.unchecked += results

    # The record

    def kept(self, items: list[Item]) -> list[Item]:
        """Those of these items that wait for no guardrail."""
        if not self.unchecked and not self.held:
            return items
        waiting = self._waiting()
        return [item for item in items if id(item) not in waiting]

    def _waiting(self) -> set[int]:
        return {id(item) for item in [*self.unchecked, *self.held]}

    def take_unsaved(self) -> list[Item]:
        """What was added since the last time; what is inserted later stands behind that."""
        items = self.new[self.saved :]
        self.saved = len(self.new)
        return self.kept(items)

    def take_late(self) -> list[tuple[Item, int]]:
        """What has passed its guardrails only after items behind it were recorded, each with how many of those there are.

        To be recorded in this order, after `take_unsaved`.
        """
        if not self._late:
            return []
        late, self._late = {id(item) for item in self._late}, []
        placed: list[tuple[Item, int]] = []
        behind = 0
        for item in reversed(self.kept(self.given + self.new[: self.saved])):
            if id(item) in late:
                placed.insert(0, (item, behind))
            else:
                behind += 1
        return placed

    def pass_input(self) -> None:
        """The input guardrails have found nothing."""
        said = self.unchecked
        if self.guarded:
            self.held += [item for item in said if not isinstance(item, ToolCall)]
        self._passed([item for item in said if not self.guarded or isinstance(item, ToolCall)])
        self.unchecked = []
        self.input_passed = True

    def hold(self, result: ToolResult) -> None:
        """What this tool has returned is the final output: the guardrails of that are to look at it first."""
        self.held.append(result)

    def pass_output(self) -> None:
        """The output guardrails, if there are any, have found nothing."""
        self._passed(self.held)
        self.held = []

    def _passed(self, items: Sequence[Item]) -> None:
        unsaved = {id(item) for item in self.new[self.saved :]}
        self._late += [item for item in items if id(item) not in unsaved]

    def withdraw(self) -> list[Item]:
        """The run was stopped: what waits for a guardrail will never pass it. Takes that out, and returns it.

        A call stays next to a result: what a tool has returned is replaced.
        """
        waiting = self._waiting()
        if not waiting:
            return []
        blocked = [item for item in self.given + self.new if id(item) in waiting]
        instead: dict[int, Item] = {
            id(item): replace(item, output=WITHHELD) for item in self.held if isinstance(item, ToolResult)
        }

        def rest(items: list[Item]) -> list[Item]:
            waits_for_nothing = (item for item in items if id(item) not in waiting or id(item) in instead)
            return [instead.get(id(item), item) for item in waits_for_nothing]

        self._late += [instead[id(item)] for item in self.new[: self.saved] if id(item) in instead]
        self.saved = len(rest(self.new[: self.saved]))
        if self._shown is not None:
            items, since = self._shown
            self._shown = rest(items), len(rest(self.new[:since]))
        self.given, self.new = rest(self.given), rest(self.new)
        self.unchecked, self.held = [], []
        return blocked


def describe(reason: Reason | None) -> str:
    """Why it was stopped, for the model to read."""
    if reason is None:
        return "the run ended"
    if reason.kind == "error":
        return "something else in the run failed"
    return {
        "user": "stopped by the user",
        "timeout": "the time was over",
        "disconnect": "the client has gone",
        "shutdown": "the program is ending",
        "parent": "the run ended",
        "cancelled": "the run was cancelled",
    }.get(reason.kind, "stopped")
