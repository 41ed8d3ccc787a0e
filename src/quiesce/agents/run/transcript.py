"""The items of one run, kept so that the run can be stopped at any moment.

The invariant: whatever stops the run, after `settle` every tool call has exactly one result next to it. Until
then only the calls of the last turn can lack theirs: results are put in together, in the order of the calls,
when the last of them is there.

What waits for a guardrail is in `new`, for the model that said it to go on from, but in no record:
`take_unsaved` and `kept` leave it out. That is the whole first answer until the input guardrails have passed,
and the text of an agent with output guardrails until these have. A tool call is recorded before it runs, so
the text that was said before it is recorded later than the call and its result: `take_late` says where it
belongs. What was stopped before its guardrails had passed it is taken out again by `withdraw`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from quiesce.kernel.inner import belongs_to
from quiesce.models import AssistantMessage, Item, ToolCall, ToolResult

if TYPE_CHECKING:
    from quiesce import Handle, Reason
    from quiesce.agents.agent import ToolContext
    from quiesce.kernel.inner import Child

WITHHELD = "Finished. What it returned is withheld: the output guardrails of the run have not passed it."


class CallRecord:
    """One tool call of the current turn, and how far it has come."""

    __slots__ = ("_task", "call", "context", "result", "started_at")

    def __init__(self, call: ToolCall, result: ToolResult | None = None) -> None:
        self.call = call
        self.result = result
        self.started_at: float | None = None
        self.context: ToolContext[Any] | None = None
        self._task: Handle | None = None

    def runs_in(self, task: Handle) -> None:
        """The call is made by this task."""
        self._task = task

    def start(self, context: ToolContext[Any]) -> None:
        """Its tool is about to be called."""
        self.context = context
        self.started_at = time.monotonic()

    def forget_start(self) -> None:
        """Its tool was about to be called, and never was: it waited for a thread until the end."""
        self.started_at = None

    @property
    def elapsed(self) -> float | None:
        return None if self.started_at is None else round(time.monotonic() - self.started_at, 3)

    def finish(self, output: str, outcome: Any = "finished") -> ToolResult:
        """Give it a result, and return that; the first one stays."""
        if self.result is None:
            self.result = ToolResult(self.call.call_id, output, outcome, self.elapsed)
        return self.result

    def settle(self, why: str, left: Sequence[Child] = ()) -> ToolResult:
        """Give a call that was stopped a result that says how far it came.

        `left` is what still runs of its run.
        """
        if self.result is not None:
            return self.result
        context = self.context
        if context is not None and context.waits_for_thread:
            self.forget_start()
        if self.started_at is None:
            return self.finish(f"Not started: {why}.", "not_started")
        so_far = context.output_so_far if context is not None else ""
        # The task of a call in a thread may have ended, and only the thread be left over. The report names
        # the task or the thread; the result must not say anything else.
        task = self._task
        at_work = context is not None and context.at_work
        if at_work or (task is not None and any(belongs_to(child, task) for child in left)):
            text = f"Told to stop after {self.elapsed:.3f} s ({why}), but it has not ended: it may still be running."
            outcome = "still_running"
        else:
            text = f"Interrupted after {self.elapsed:.3f} s ({why}). It may have partially executed."
            outcome = "interrupted"
        return self.finish(f"{text}\nOutput so far:\n{so_far}" if so_far else text, outcome)


class Transcript:
    """What a run began with (`given`), and what it has added (`new`)."""

    __slots__ = (
        "_late",
        "_shown",
        "awaits_input_guards",
        "awaits_output_guards",
        "calls",
        "given",
        "has_output_guards",
        "input_passed",
        "is_settled",
        "new",
        "partial",
        "saved",
    )

    def __init__(
        self,
        given: list[Item],
        new: Sequence[Item] = (),
        calls: Sequence[CallRecord] = (),
        awaits_output_guards: Sequence[Item] = (),
    ) -> None:
        self.given = given
        self.new: list[Item] = [*new]
        #: The calls of the last turn, as long as `new` has no results for them.
        self.calls: list[CallRecord] = [*calls]
        #: Text of the model that is not an item yet.
        self.partial: list[str] = []
        #: False while input guardrails run in parallel with the first answer.
        self.input_passed = True
        #: Output guardrails are to look at what the model says now.
        self.has_output_guards = False
        self.awaits_input_guards: list[Item] = []
        #: Some of them perhaps since an earlier run.
        self.awaits_output_guards: list[Item] = [*awaits_output_guards]
        #: How many items of `new` were given to `take_unsaved`.
        self.saved = 0
        # Items that passed their guardrails after items behind them were recorded.
        self._late: list[Item] = []
        # What the model sees instead of the items before a place in `new`.
        self._shown: tuple[list[Item], int] | None = None
        self.is_settled = False

    @property
    def items(self) -> list[Item]:
        """What the model gets next: all of it, unless a handoff shows it less."""
        if self._shown is not None:
            items, since = self._shown
            return items + self.new[since:]
        return self.given + self.new

    def parts(self, turn: int) -> tuple[list[Item], list[Item], list[Item]]:
        """The same in three parts; the last is what was added since there were `turn` new items."""
        history, since = (self.given, 0) if self._shown is None else self._shown
        return history, self.new[since:turn], self.new[max(since, turn) :]

    def show(self, items: list[Item]) -> None:
        """From here on the model sees these instead of everything that came before."""
        self._shown = items, len(self.new)

    def begin_after(self, earlier: list[Item]) -> None:
        """Put what was said before this run in front."""
        self.given = earlier + self.given

    def expect_input_guards(self) -> None:
        """Input guardrails run while the first answer comes: none of it is recorded before they pass."""
        self.input_passed = False

    def expect_output_guards(self, expected: bool) -> None:
        """Whether output guardrails will look at what the model says next."""
        self.has_output_guards = expected

    # Adding

    def hear(self, said: list[Item]) -> None:
        """The user has said more."""
        self.new += said

    def add_text(self, text: str) -> None:
        """A piece of text of the model's answer."""
        self.partial.append(text)

    def complete_text(self, *, interrupted: bool = False) -> None:
        """Make an item of the text so far, if there is any that the model itself has not completed."""
        if self.partial:
            self.add(AssistantMessage("".join(self.partial), interrupted=interrupted))

    def add(self, item: Item) -> None:
        """A finished item of the model's answer."""
        if self.partial and isinstance(item, AssistantMessage):
            self.partial = []
        if not self.input_passed or (self.has_output_guards and not isinstance(item, ToolCall)):
            item = copy(item)  # an object of its own, as it is recognised by its identity
            (self.awaits_output_guards if self.input_passed else self.awaits_input_guards).append(item)
        if isinstance(item, ToolCall):
            self.calls.append(CallRecord(item))
        elif self.calls:
            # Text after a call: results must stand next to the calls, so it goes before them.
            # A turn is saved when the model's answer is complete, so these calls have not been.
            self.new.insert(len(self.new) - len(self.calls), item)
            return
        self.new.append(item)

    def close_turn(self) -> list[ToolResult]:
        """Put the results of the calls next to them; each call has one by now."""
        results = [record.result for record in self.calls if record.result is not None]
        assert len(results) == len(self.calls)
        self.new += results
        self.calls = []
        return results

    def last_text(self) -> str:
        """What the model has said in this turn."""
        for item in reversed(self.new):
            if isinstance(item, AssistantMessage):
                return item.text
            if isinstance(item, ToolResult):
                break
        return ""

    @property
    def may_be_quoted(self) -> bool:
        """Whether an error may quote what the model says now.

        Errors are recorded too, and shown to the agent that uses this one as a tool, so they must not carry
        text past a guardrail.
        """
        return self.input_passed and not self.has_output_guards

    def settle(
        self, reason: Reason | None, keep: Sequence[CallRecord] = (), left: Sequence[Child] = ()
    ) -> None:
        """Complete what a stopped run began, except for the calls to `keep`, which wait for an approval.

        `left` is what still runs of the run.
        """
        self.is_settled = True
        self.complete_text(interrupted=True)
        if self.calls:
            why = describe(reason)
            for record in self.calls:
                if record not in keep:
                    record.settle(why, left)
            # While calls wait for an approval, the turn stays open: the results of the others wait in its
            # records.
            if not keep:
                results = self.close_turn()
                # If the calls wait for a guardrail, a record must not have their results alone.
                if self.awaits_input_guards:
                    self.awaits_input_guards += results

    def reopen(self) -> None:
        """Another run goes on with the calls that were kept."""
        self.is_settled = False

    # The record

    def kept(self, items: list[Item]) -> list[Item]:
        """Those of these items that wait for no guardrail."""
        if not self.awaits_input_guards and not self.awaits_output_guards:
            return items
        waiting = self._waiting()
        return [item for item in items if id(item) not in waiting]

    def _waiting(self) -> set[int]:
        return {id(item) for item in [*self.awaits_input_guards, *self.awaits_output_guards]}

    def take_unsaved(self) -> list[Item]:
        """What was added since the last time; what is inserted later stands behind that."""
        items = self.new[self.saved :]
        self.saved = len(self.new)
        return self.kept(items)

    def take_late(self) -> list[tuple[Item, int]]:
        """Items that passed their guardrails after items behind them were recorded, and how many those are.

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
        """The input guardrails have passed the input, and with it the first answer."""
        if said := self.awaits_input_guards:
            passed = said
            if self.has_output_guards:
                # Text still has the output guardrails before it. It is put into their list before it leaves
                # this one: a thread that reads the items of a conversation meanwhile must not see it.
                self.awaits_output_guards += [item for item in said if not isinstance(item, ToolCall)]
                passed = [item for item in said if isinstance(item, ToolCall)]
            self._note_late(passed)
            self.awaits_input_guards = []
        self.input_passed = True

    def hold(self, result: ToolResult) -> None:
        """Record this result, the final output, only when the output guardrails have passed it."""
        self.awaits_output_guards.append(result)

    def pass_output(self) -> None:
        """The output guardrails, if there are any, have passed what waited for them."""
        self._note_late(self.awaits_output_guards)
        self.awaits_output_guards = []

    def _note_late(self, items: Sequence[Item]) -> None:
        # Those that are not recorded yet come with the next `take_unsaved`, in their place.
        unsaved = {id(item) for item in self.new[self.saved :]}
        self._late += [item for item in items if id(item) not in unsaved]

    def withdraw(self) -> list[Item]:
        """Take out what waits for a guardrail, and return it: as the run was stopped, it will never pass.

        A call keeps a result next to it: what its tool returned is replaced.
        """
        waiting = self._waiting()
        if not waiting:
            return []
        blocked = [item for item in self.given + self.new if id(item) in waiting]
        instead: dict[int, Item] = {
            id(item): replace(item, output=WITHHELD)
            for item in self.awaits_output_guards
            if isinstance(item, ToolResult)
        }

        def rest(items: list[Item]) -> list[Item]:
            waits_for_nothing = (item for item in items if id(item) not in waiting or id(item) in instead)
            return [instead.get(id(item), item) for item in waits_for_nothing]

        # The calls of these results may be recorded already. Then the results have to follow them there.
        self._late += [instead[id(item)] for item in self.new[: self.saved] if id(item) in instead]
        self.saved = len(rest(self.new[: self.saved]))
        if self._shown is not None:
            items, since = self._shown
            self._shown = rest(items), len(rest(self.new[:since]))
        self.given, self.new = rest(self.given), rest(self.new)
        self.awaits_input_guards, self.awaits_output_guards = [], []
        return blocked


def describe(reason: Reason | None) -> str:
    """Why it was stopped, for the model to read."""
    if reason is None:
        return "the run ended"
    if reason.kind == "error":
        return "something else in the run failed"
    return {
        "user": "stopped by the user",
        "timeout": "the time ran out",
        "disconnect": "the client disconnected",
        "shutdown": "the program is shutting down",
        "parent": "the run ended",
        "takeover": "another process has taken the run over",
        "cancelled": "the run was cancelled",
    }.get(reason.kind, "stopped")
