"""One run of a conversation, from the call of `arun()` until its end is settled.

It is registered by that call, begins when `arun()` is first awaited, and is over when the conversation has
taken its results. One that is stopped or dropped before it has begun is over at once.

It can be stopped from any thread as soon as it is registered. Both sides do their part under `state_lock`: a
stop notes its reason and looks for the scope; the run publishes its scope and looks for a reason. So exactly
one of them cancels the scope. Twice would be wrong too: a second cancel halves the grace.

The end, in this order, whatever caused it: everything is drained, the transcript is complete and saved, hooks
are called, the conversation has its new status, callbacks are called, those who wait for the stop get its
report, `arun()` returns. Cancelling the caller does not interrupt it.
"""

from __future__ import annotations

import inspect
import uuid
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import ContextVar
from copy import copy
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from quiesce import CancelToken, Reason, StopReport, TokenCancelled
from quiesce.agents.run import AgentRun, Stopping, state_lock, stop_scope, token_or_reason
from quiesce.agents.store import (
    ApprovalRequested,
    ItemAdded,
    RunEnded,
    RunStarted,
    Snapshot,
    StatusChanged,
    StoreFenced,
    ToolStarted,
    UsageAdded,
)
from quiesce.kernel.inner import runs_inside
from quiesce.models import Item, Note, ToolCall, ToolResult

from .event_writer import EventWriter

if TYPE_CHECKING:
    from quiesce import Grace, Scope
    from quiesce.agents.run import CallRecord, Engine, StreamEvent, Transcript
    from quiesce.agents.store import Event

OnEvent: TypeAlias = "Callable[[StreamEvent], Awaitable[None]]"
Status: TypeAlias = Literal[
    "idle", "running", "paused", "waiting_for_approval", "finished", "error", "taken_over", "closed"
]

#: A snapshot is written at the end of a run once that many events have come since the last one.
EVENTS_PER_SNAPSHOT = 256
TAKEN_OVER = Reason("takeover", "another one runs this conversation now")

_NOTES = {
    "user": "The user has interrupted this on purpose.",
    "timeout": "This was stopped because its time ran out.",
    "disconnect": "This was stopped because the client disconnected.",
    "shutdown": "This was stopped because the program is shutting down.",
}
_MAY_BE_PARTIAL = "Tools that were stopped may have partially executed."
_INCOMPLETE = ("interrupted", "still_running")

# Set in the task that calls the hooks, and so in whatever these start.
_ending_run: ContextVar[ConversationRun | None] = ContextVar("ending_run", default=None)


class ConversationRun(AgentRun):
    """One run: which stops were requested, how far it has come, and how it ends."""

    __slots__ = (
        "__weakref__",
        "_early_token",
        "_may_fold",
        "_on_over",
        "_pausing",
        "_stopping",
        "_writer",
        "begun",
        "closed_inside",
        "coroutine",
        "has_engine",
        "heard",
        "heard_from",
        "is_over",
        "journal",
        "lost_its_loop",
        "on_event",
        "prepares",
        "report",
        "status",
    )

    always_announces = True

    def __init__(
        self,
        on_over: Callable[[ConversationRun], None],
        on_event: OnEvent | None = None,
        may_fold: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__()
        self._on_over = on_over
        # Whether the history waits for nothing, so that a snapshot can stand for it.
        self._may_fold = may_fold
        #: The requests of others to stop it that were heard, and after which event of the log it listens.
        self.heard: set[str] = set()
        self.heard_from = 0
        #: It takes its lease, and is registered until that is released again.
        self.prepares = False
        self.lost_its_loop = False
        self.on_event = on_event
        #: The coroutine of an `arun()`, which may never be awaited.
        self.coroutine: weakref.ref[Coroutine[Any, Any, Status]] | None = None
        self.begun = False
        self.has_engine = False
        self.is_over = False
        #: A tool or a hook of this run has called `close()`: finish closing when the run is over.
        self.closed_inside = False
        #: The status of the conversation when the run is over.
        self.status: Status = "paused"
        self.report: StopReport | None = None
        self._pausing = False
        self._stopping: Stopping | None = None
        # Handed out before there was a scope, whose token it then follows.
        self._early_token: CancelToken | None = None

    @property
    def was_dropped(self) -> bool:
        """Whether its coroutine was dropped or closed before it was awaited."""
        if self.begun or self.coroutine is None:
            return False
        coroutine = self.coroutine()
        return coroutine is None or inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED

    def end_before_begin(self, reason: Reason | None) -> None:
        """Note that it will never begin.

        Callers hold the lock, and call `cancel_early_token` when they do not.
        """
        self.is_over = True
        self.asked = reason

    def open_journal(
        self, writer: EventWriter, agent: str, transcript: Transcript, recorded: Sequence[ToolResult]
    ) -> LogJournal:
        """Return what its engine writes to. `recorded`: results of open calls that are in the log already."""
        self._writer = writer
        self.journal = LogJournal(self, writer, uuid.uuid4().hex, agent, transcript, recorded)
        return self.journal

    def prepare(self, engine: Engine) -> None:
        """Give it its engine."""
        with state_lock:
            self.engine = engine
            self.has_engine = True
            if self._pausing:
                engine.stop_after_turn()

    # Stops, from any thread

    def interrupt(self, reason: Reason, *, hurry: bool = True, grace: Grace | None = None) -> Stopping:
        """Stop it; if it is being stopped already, stop it faster (with `hurry`), or within `grace`."""
        with state_lock:
            if self.report is not None:  # it ended a moment ago
                return Stopping(self.report)
            if self._stopping is None:
                self._stopping = Stopping()
            stopping, scope = self._stopping, self.scope
            again = self.asked is not None
            if not again:
                self.asked = reason
        if scope is not None:
            stopping.happens_in(scope)
            if not again or hurry:
                stop_scope(scope, reason, again=again, grace=grace)
        return stopping

    def pause(self) -> None:
        """Let it end after its current turn."""
        with state_lock:
            self._pausing = True
            if self.has_engine:
                self.engine.stop_after_turn()

    @property
    def is_to_stop(self) -> bool:
        """Whether a stop or a pause came before it began."""
        return self.asked is not None or self._pausing

    def cancel_early_token(self, reason: Reason) -> None:
        """Cancel the token that was handed out before the run began, if there is one."""
        if self._early_token is not None:
            self._early_token.cancel(reason)

    @property
    def token(self) -> CancelToken:
        """The token of everything that it does: the same one from its registration on."""
        with state_lock:
            if self._early_token is None:
                if self.scope is not None:
                    return self.scope.token
                self._early_token = CancelToken()
            return self._early_token

    def last_token(self) -> CancelToken | Reason | None:
        """Return what to keep of the token: if nobody holds it, the reason is enough."""
        if self._early_token is not None or self.scope is None:
            return self._early_token or self.asked
        return token_or_reason(self.scope)

    # Who asks

    @property
    def contains_caller(self) -> bool:
        """Whether the caller is a part of this run, and so cannot wait for its end."""
        return self.scope is not None and runs_inside(self.scope)

    @property
    def is_calling_caller(self) -> bool:
        """Whether the caller is a hook that this run has called at its end, and now waits for."""
        return _ending_run.get() is self

    # The end

    def settled(self, report: StopReport) -> None:
        """Give the report to those who wait for the stop."""
        if self._stopping is not None:
            self._stopping.settle(report)

    def _publish(self, scope: Scope) -> None:
        with state_lock:
            self.scope = scope
            reason, early = self.asked, self._early_token
            if self._stopping is not None:
                self._stopping.happens_in(scope)
        if early is not None:
            token = scope.token
            token.on_cancel(lambda: early.cancel(token.reason))
        if reason is not None:
            scope.cancel(reason)

    async def _announce(self, failure: BaseException | None) -> None:
        if self.is_over:  # its event loop was closed under it, and the conversation has continued without it
            return
        if not self._writer.in_memory or self.engine.settings.hooks is not None:
            await super()._announce(failure)
            return
        # Nothing here waits, so the usual case, no store and no hooks, does not pay for a shield.
        try:
            with suppress(StoreFenced):
                self._writer.write_sync(self._last_events(), call_back=False)
            if self._writer.shared is not None:
                self._fold_sync()
        finally:
            self._note_takeover()
            self._writer.end_run_sync()
            self._on_over(self)

    async def _save_and_tell(self) -> None:
        _ending_run.set(self)
        # Each step is taken whatever becomes of those before it.
        try:
            try:
                with suppress(StoreFenced):
                    await self._writer.write(self._last_events(), call_back=False)
                await self._fold()
            finally:
                self._note_takeover()
                # Before anyone hears of the end: who hears of it may want to run the conversation.
                try:
                    await self._writer.end_run()
                finally:
                    await self._tell_hooks()
        finally:
            self._on_over(self)

    def _note_takeover(self) -> None:
        if self._writer.fenced:
            self.status = "taken_over"

    def _last_events(self) -> list[Event]:
        engine, reason, transcript = self.engine, self.reason, self.engine.transcript
        self.status = self._final_status()
        waits = bool(engine.approvals.pending)
        note = note_on(reason, transcript.new) if self.status == "paused" and not waits else None
        # A run that is stopped again and again before it adds anything says so once.
        if note is not None and (transcript.new or transcript.given)[-1:] != [note]:
            transcript.new.append(note)
        why = str(reason) if reason is not None else ""
        report = self._report_to_keep(self.scope.report) if self.scope is not None else None
        unasked = engine.approvals.unasked if waits else None
        return self.journal.last_events(self.status, why, unasked, report)

    def _report_to_keep(self, report: StopReport | None) -> dict[str, Any] | None:
        """Return what the log keeps of the report; None if that says no more than that the run has ended."""
        if report is None or (report.reason is None and report.clean and not report.notes):
            return None
        engine = self.engine
        guarded = engine.agent.output_guardrails or engine.settings.config.output_guardrails
        if not (self._blocked or guarded or engine.input_guardrail_results or engine.unchecked_input):
            return report.to_dict()
        # Errors and notes may quote what no guardrail has passed. That is not kept.
        reason = report.reason
        if reason is not None:
            reason = Reason(reason.kind, "" if reason.kind == "error" else reason.message)
        kept = StopReport(report.name, reason, report.elapsed, report.left, report.ended, (), report.unseen)
        return {**kept.to_dict(), "clean": report.clean}

    def _snapshot(self) -> Snapshot | None:
        """Return what all events so far add up to, if it is time for that, and nothing waits."""
        writer, transcript, engine = self._writer, self.engine.transcript, self.engine
        if writer.since_snapshot < EVENTS_PER_SNAPSHOT or writer.fenced or writer.has_unwritten:
            return None
        if engine.approvals.pending or transcript.awaits_output_guards or engine.unchecked_input:
            return None
        if self._may_fold is None or not self._may_fold():
            return None
        items = transcript.given + transcript.new
        kept = min(writer.in_snapshot, len(items))
        status = "idle" if self.status == "waiting_for_approval" else self.status
        return Snapshot(items=items[kept:], kept=kept, status=status, usage=copy(writer.usage))

    async def _fold(self) -> None:
        if (snapshot := self._snapshot()) is not None:
            await self._writer.fold(snapshot)

    def _fold_sync(self) -> None:
        if (snapshot := self._snapshot()) is not None:
            self._writer.fold_sync(snapshot)

    def _final_status(self) -> Status:
        engine, reason = self.engine, self.reason
        if reason is not None and reason.kind == "takeover":
            return "taken_over"
        if reason is not None and reason.kind == "error":
            return "error"
        # A stop that came after the final answer has stopped nothing.
        if reason is not None and not engine.is_complete:
            return "paused"
        if engine.approvals.pending:
            return "waiting_for_approval"
        return "finished" if engine.is_complete else "paused"


class Unawaited:
    """Held by the coroutine of a run alone: calls `on_drop` if that is dropped before it was awaited.

    Otherwise the run would stay registered, and block its conversation forever.
    """

    # Not the callback of a weak reference: if the conversation is collected in one cycle with the coroutine,
    # that would not be called, and holders of the run's token would wait forever.

    __slots__ = ("_on_drop", "_run")

    def __init__(self, run: ConversationRun, on_drop: Callable[[ConversationRun], None]) -> None:
        self._run = run
        self._on_drop = on_drop

    def __del__(self) -> None:
        if not self._run.begun:
            self._on_drop(self._run)


class LogJournal:
    """The journal of one run of a conversation: turns what the engine does into events.

    It refuses everything when the run is over, so that work which ignores its cancel adds nothing to a
    settled history.
    """

    __slots__ = ("_earlier_calls", "_recorded", "_run", "_transcript", "_writer", "is_over", "run_id")

    def __init__(
        self,
        run: ConversationRun,
        writer: EventWriter,
        run_id: str,
        agent: str,
        transcript: Transcript,
        recorded: Sequence[ToolResult],
    ) -> None:
        self._run = weakref.ref(run)
        self._writer = writer
        self._transcript = transcript
        #: Results that an earlier run has written: other calls of their block waited for approval, and still
        #: may.
        self._recorded = recorded
        #: Calls that an earlier run has requested approval for.
        self._earlier_calls = list(transcript.calls)
        self.run_id = run_id
        self.is_over = False
        writer.defer([RunStarted(run_id=run_id, agent=agent, turns=writer.turns)])

    def take_events(self) -> list[Event]:
        """Return the events for everything in the transcript that has none yet."""
        return self._events_of(self._transcript.take_unsaved(), self._transcript.take_late())

    def last_events(
        self,
        status: str,
        reason: str,
        waiting: Sequence[CallRecord] | None,
        report: dict[str, Any] | None = None,
    ) -> list[Event]:
        """Return the events that end the run.

        `waiting`: calls to request approval for; None if no call waits. `report`: what its stop did.
        """
        events = self.take_events()
        if waiting is not None:
            # The block stays open, so its results are not in the transcript yet. A restart must know of them
            # all the same.
            results: list[Item] = [one.result for one in self._transcript.calls if one.result is not None]
            events += self._events_of(results)
            new = (one for one in waiting if one not in self._earlier_calls)
            events += [ApprovalRequested(call_id=one.call.call_id) for one in new]
        how = "interrupted" if status == "paused" and reason else status
        events.append(RunEnded(run_id=self.run_id, status=how, reason=reason, report=report))
        events.append(StatusChanged(status=status, reason=reason))
        return events

    def _events_of(self, items: Sequence[Item], late: Sequence[tuple[Item, int]] = ()) -> list[Event]:
        ids, recorded, run_id = self._writer.message_ids, self._recorded, self.run_id
        events: list[Event] = [
            ItemAdded(item=item, run_id=run_id, message_id=ids.pop(id(item), "") if ids else "")
            for item in items
            if not any(item is one for one in recorded)
        ]
        events += [ItemAdded(item=item, run_id=run_id, back=back) for item, back in late]
        spent = self._writer.take_spent()
        if spent is not None:
            events.append(UsageAdded(usage=spent, run_id=run_id))
        return events

    # For the engine

    async def load(self) -> list[Item]:
        """Return nothing: the conversation has put its history into the transcript."""
        return []

    async def add(self, items: list[Item], late: Sequence[tuple[Item, int]] = ()) -> None:
        """Write these items, or without any whatever else of the run is not in the log yet."""
        await self._write(self._events_of(items or self._transcript.take_unsaved(), late))

    async def tool_starting(self, call: ToolCall) -> None:
        """Write that the outcome of `call` is unknown until it has a result."""
        await self._write([ToolStarted(call_id=call.call_id, name=call.name)])

    async def approval_requested(self, call: ToolCall) -> None:
        """Write that `call` waits for a decision."""
        await self._write([ApprovalRequested(call_id=call.call_id)])

    async def _write(self, events: Sequence[Event]) -> None:
        if self.is_over:
            raise RuntimeError(f"run {self.run_id} was stopped and settled, but something in it ignored that")
        with suppress(StoreFenced):
            await self._writer.write(events)
            if not self._writer.fenced:
                return
        # The run ends as if it had been told to stop: it is not an error, and there is nothing to save.
        if (run := self._run()) is not None:
            run.interrupt(TAKEN_OVER, hurry=False)
        raise TokenCancelled(TAKEN_OVER)


def note_on(reason: Reason | None, items: Sequence[Item]) -> Note | None:
    """Return what the model reads about a stop after `items`; None for a pause, which interrupts nothing."""
    if reason is None or reason.kind == "error":
        return None
    text = _NOTES.get(reason.kind, "This was stopped before it was finished.")
    if reason.kind == "user" and reason.message:
        text = f"{text[:-1]}: {reason.message}."
    # The results of the last calls are at the end; earlier turns have nothing to do with this stop.
    interrupted = any(isinstance(item, ToolResult) and item.outcome in _INCOMPLETE for item in items[-8:])
    return Note(f"{text} {_MAY_BE_PARTIAL}" if interrupted else text)
