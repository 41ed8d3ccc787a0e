"""One run of a conversation, from the call of `arun()` to its settlement.

A run is registered when `arun()` is called, and can be stopped from then on. Whoever stops writes first why, then looks for the scope; the
run publishes its scope first, then looks for a reason: one of the two sees the other, from whichever threads.

The end, in this order, whatever ended it: everything is drained, the transcript is complete, it is saved, the hooks are told, the
conversation has its new status, callbacks are told, who waits for the stop is told, and then `arun()` returns. No cancel of the caller cuts it.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

from quiesce import CancelToken, Reason, StopReport
from quiesce.agents.run import Execution, Stopping, state_lock, stop_scope
from quiesce.agents.store import Event, RunEnded, StatusChanged
from quiesce.models import Item, Note, ToolResult

if TYPE_CHECKING:
    from quiesce import Grace, Scope
    from quiesce.agents.run import Engine, StreamEvent

    from .conversation import Conversation
    from .event_writer import LogJournal, RunJournal

OnEvent: TypeAlias = "Callable[[StreamEvent], Awaitable[None]]"

_TOLD = {
    "user": "The user has interrupted this on purpose.",
    "timeout": "This was stopped because its time was over.",
    "disconnect": "This was stopped because the client has gone.",
    "shutdown": "This was stopped because the program was ending.",
}
_MAY_BE_PARTIAL = "Tools that were stopped may have partially executed."
_CUT = ("interrupted", "still_running")

being_announced: ContextVar[Run | None] = ContextVar("being_announced", default=None)
"""The run whose end the caller, one of its hooks, is being told of: that run has ended, and waits for the hook."""


class Run:
    """One run: what was asked of it, and how far it is."""

    __slots__ = (
        "begun",
        "closed_inside",
        "coroutine",
        "early_token",
        "engine",
        "on_event",
        "over",
        "pausing",
        "reason",
        "report",
        "scope",
        "status",
        "stopping",
    )

    def __init__(self) -> None:
        self.begun = False  # its first step was taken
        self.over = False
        self.coroutine: weakref.ref[Coroutine[Any, Any, str]] | None = (
            None  # of an `arun()` that nobody has begun
        )
        self.pausing = False
        self.closed_inside = (
            False  # by one of its own tools: the conversation is to be closed when the run is over
        )
        self.reason: Reason | None = None  # why somebody has stopped it
        self.report: StopReport | None = None  # when it is over
        self.scope: Scope | None = None
        self.engine: Engine | None = None
        self.on_event: OnEvent | None = None
        self.stopping: Stopping | None = None
        self.early_token: CancelToken | None = None  # given out before there was a scope
        self.status = "paused"

    def interrupt(self, reason: Reason, *, hurry: bool = True, grace: Grace | None = None) -> Stopping:
        """Stop it, or with `hurry` stop it faster; `grace` says how fast."""
        with state_lock:
            if self.report is not None:  # it has ended in the very moment
                return Stopping(self.report)
            if self.stopping is None:
                self.stopping = Stopping()
            stopping = self.stopping
            again = self.reason is not None
            if not again:
                self.reason = reason
            scope = self.scope
        if scope is not None:
            stopping._backend = scope._opened().backend
            if not again or hurry:
                stop_scope(scope, reason, again=again, grace=grace)
        return stopping

    def pause(self) -> None:
        """Let it end after its current step."""
        with state_lock:
            self.pausing = True
            if self.engine is not None:
                self.engine.stop_after_turn = True

    def drive(self, engine: Engine) -> None:
        """From here on it has an engine."""
        with state_lock:
            self.engine = engine
            engine.stop_after_turn = self.pausing

    def opened(self, scope: Scope) -> None:
        """From here on it has a scope."""
        with state_lock:
            self.scope = scope
            reason, early = self.reason, self.early_token
            if self.stopping is not None:
                self.stopping._backend = scope._opened().backend
        if early is not None:
            mirror(scope.token, early)
        if reason is not None:
            scope.cancel(reason)

    @property
    def token(self) -> CancelToken:
        """The token of all that it does: the same from its registration on."""
        with state_lock:
            if self.early_token is not None:
                return self.early_token
            if self.scope is not None:
                return self.scope.token
            self.early_token = CancelToken()
            return self.early_token

    def last_token(self) -> CancelToken | Reason | None:
        """What to keep of the token of a run that is over: itself, or if nobody has asked for it, whether it was cancelled."""
        if self.early_token is not None:
            return self.early_token
        if self.scope is None:
            return self.reason
        core = self.scope._opened()
        return core._token or core.reason


def mirror(source: CancelToken, target: CancelToken) -> None:
    """Cancel `target` with `source`."""
    source.on_cancel(lambda: target.cancel(source.reason))


class Ticket:
    """Held by the coroutine of a run alone: when that is dropped without having run, the run is registered no longer."""

    __slots__ = ("_conversation", "_run")

    def __init__(self, conversation: Conversation, run: Run) -> None:
        self._conversation = conversation
        self._run = run

    def __del__(self) -> None:
        if not self._run.over:
            self._conversation._dropped(self._run)


class ConversationExecution(Execution):
    """An engine that runs for a conversation."""

    __slots__ = ("_conversation", "_journal", "_record", "_run")

    always_announces = True

    def __init__(
        self, conversation: Conversation, engine: Engine, run: Run, journal: LogJournal, record: RunJournal
    ) -> None:
        super().__init__(engine)
        self._conversation = conversation
        self._run = run
        self._journal = journal
        self._record = record

    def _opened(self, scope: Scope) -> None:
        self._run.opened(scope)

    async def _announce(self, failure: BaseException | None) -> None:
        if self._run.over:  # its event loop was closed under it, and the conversation has gone on
            return
        if not self._journal.writes_at_once or self.engine.callbacks.run is not None:
            await super()._announce(failure)
            return
        try:
            self._journal.write_at_once(self._last_events(), tell=False)
        finally:
            self._conversation._settled(self._run, self.engine, self.scope)

    async def _save_and_tell(self) -> None:
        being_announced.set(self._run)  # for the context of this task, and what hooks start in it, alone
        try:
            try:
                await self._journal.write(self._last_events(), tell=False)
            finally:  # whatever fails, the next one is told
                await self._tell_hooks()
        finally:
            self._conversation._settled(self._run, self.engine, self.scope)

    def _last_events(self) -> list[Event]:
        """What is left to write: the rest of the transcript, and how the run has ended."""
        engine, run, reason = self.engine, self._run, self.reason
        transcript = engine.transcript
        pending, run_id = bool(engine.pending_approvals), self._record.run_id
        run.status = self._status()
        if not pending and run.status == "paused" and (note := note_on(reason, transcript.new)) is not None:
            last = transcript.new or transcript.given
            if last[-1:] != [note]:
                transcript.new.append(note)
        events = self._record.events_of(transcript.take_unsaved(), transcript.take_late())
        if pending:  # beside calls that wait, those that have ended must not be forgotten
            events += self._record.events_of_waiting(engine.unasked)
        why = str(reason) if reason is not None else ""
        ended = "interrupted" if run.status == "paused" and reason is not None else run.status
        events.append(RunEnded(run_id=run_id, status=ended, reason=why))
        events.append(StatusChanged(status=run.status, reason=why))
        return events

    def _status(self) -> str:
        engine, reason = self.engine, self.reason
        if reason is not None and (reason.kind == "error" or not engine.is_complete):
            return "error" if reason.kind == "error" else "paused"
        if engine.pending_approvals:
            return "waiting_for_approval"
        return "finished" if engine.is_complete else "paused"


def note_on(reason: Reason | None, items: Sequence[Item]) -> Note | None:
    """What the model is told about a stop that has cut `items`; nothing about a pause, which cuts nothing."""
    if reason is None or reason.kind == "error":
        return None
    told = _TOLD.get(reason.kind, "This was stopped before its end.")
    if reason.kind == "user" and reason.message:
        told = f"{told[:-1]}: {reason.message}."
    cut = any(isinstance(item, ToolResult) and item.outcome in _CUT for item in items[-8:])
    return Note(f"{told} {_MAY_BE_PARTIAL}" if cut else told)
