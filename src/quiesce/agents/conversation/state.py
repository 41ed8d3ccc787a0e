"""What a conversation is, for those who look at it: its parts, and what they say.

Everything here may be asked from any thread, at any moment.
"""

from __future__ import annotations

import inspect
import os
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from quiesce import CancelToken, Grace, Leftover, Reason, StopReport
from quiesce.agents.agent import (
    Agent,
    ConversationClosed,
    RunConfig,
    RunHooks,
    check_each,
    check_max_turns,
    check_run_config,
    check_run_hooks,
    is_async,
)
from quiesce.agents.run import (
    DEFAULT_MAX_TURNS,
    children_left,
    is_dead,
    is_gone,
    leftovers_of,
    not_kept,
    state_lock,
)
from quiesce.agents.store import Event, MemoryStore, Store, check_id
from quiesce.kernel.inner import check_grace
from quiesce.models import Item, ToolCall, Usage

from .event_writer import EventCallback, LogJournal, RunJournal
from .history import History
from .restore import agent_after, restore

if TYPE_CHECKING:
    from quiesce import Scope
    from quiesce.agents.run import Engine

    from .run import Run

Status: TypeAlias = Literal[
    "idle", "running", "paused", "waiting_for_approval", "finished", "error", "closed"
]

_DEFAULT_CONFIG = RunConfig()


class ConversationState:
    """The parts of a conversation."""

    __slots__ = (
        "__weakref__",
        "_agent",
        "_callbacks",
        "_closed",
        "_config",
        "_final_output",
        "_history",
        "_journal",
        "_left",
        "_owns_store",
        "_report",
        "_run",
        "_status",
        "_store",
        "_token",
        "context",
        "hooks",
        "id",
        "max_turns",
    )

    def __init__(
        self,
        agent: Agent[Any],
        *,
        store: Store | str | os.PathLike[str] | None = None,
        conversation_id: str | None = None,
        context: Any = None,
        hooks: RunHooks[Any] | None = None,
        run_config: RunConfig | None = None,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        callbacks: Sequence[EventCallback] = (),
        grace: Grace | None = None,
    ) -> None:
        if not isinstance(agent, Agent):
            raise TypeError(f"a conversation is one with an Agent, not {type(agent).__name__}")
        if conversation_id is not None:
            check_id(conversation_id)
        check_run_config(run_config, RunConfig)
        check_run_hooks(hooks)
        check_max_turns(max_turns)
        check_grace(grace)
        config = run_config or _DEFAULT_CONFIG
        self.id: str = conversation_id if conversation_id is not None else uuid.uuid4().hex
        self.context = context
        self.hooks = hooks
        self.max_turns = max_turns
        self._agent = agent
        self._config = replace(config, grace=grace) if grace is not None else config
        self._callbacks = tuple(
            check_each(
                "a conversation",
                "callbacks",
                callbacks,
                "a sync function of an event",
                _is_callback,
                _instead,
            )
        )
        self._owns_store = isinstance(store, (str, os.PathLike))  # one in memory needs no closing
        self._store: Store | None = _store_at(store)
        self._journal: LogJournal | None = None
        self._history = History()
        self._final_output: Any = None
        self._status: str = "idle"
        self._run: Run | None = None
        self._token: CancelToken | Reason | None = None
        self._report: StopReport | None = None
        self._left: list[Scope] | None = None  # scopes of runs that could not end all that they had
        self._closed = False
        if store is not None and conversation_id is not None:
            journal = self._record()
            restored = restore(journal.log.read_sync())
            self._history.take_up(restored)
            self._status = restored.status
            self._agent = agent_after(agent, restored.items)
            journal.take_up(restored)

    # Looking

    @property
    def agent(self) -> Agent[Any]:
        """The agent whose turn it is."""
        run = self._run
        return run.engine.agent if run is not None and run.engine is not None else self._agent

    @property
    def status(self) -> str:
        """`"idle"`, `"running"`, `"paused"`, `"waiting_for_approval"`, `"finished"`, `"error"` or `"closed"`."""
        if self._running() is not None:
            return "running"
        return "closed" if self._closed else self._status

    @property
    def items(self) -> list[Item]:
        """What was said and done so far, with what waits to be said at its end. While it runs, or waits for approval, the last calls may lack results.
        Text that waits for a guardrail is not among them."""
        with state_lock:
            run = self._run
            engine = run.engine if run is not None else None
            if engine is None:
                items = self._history.recorded()
            else:
                items = engine.transcript.kept(engine.transcript.given + engine.transcript.new)
            return items + self._history.queued()

    @property
    def final_output(self) -> Any:
        """The answer of the last run; None if that has not come to one."""
        return self._final_output

    @property
    def cancel_token(self) -> CancelToken | None:
        """The token of the run that is on, else of the last one; None before the first. A tool has its own: `context.token`."""
        with state_lock:
            if self._run is not None:
                return self._run.token
            if isinstance(self._token, Reason):
                reason, self._token = self._token, CancelToken()
                self._token.cancel(reason)
            return self._token

    @property
    def report(self) -> StopReport | None:
        """What became of the tasks of the last run, and what is left by now; None before the first."""
        with state_lock:
            report = self._report
            if report is None or not report.left:
                return report
            return replace(report, left=self._leftovers())

    @property
    def usage(self) -> Usage:
        """What all its runs have cost so far, including requests that were stopped."""
        return replace(self._journal.usage) if self._journal is not None else Usage()

    @property
    def pending_approvals(self) -> list[ToolCall]:
        """The calls that wait for `approve` or `reject`."""
        with state_lock:
            return [record.call for record in self._history.undecided()] if self._run is None else []

    def events(self, after: int = 0) -> list[Event]:
        """All that happened, numbered, as far as it is durable; or what came after the event with that number. Reads the store: blocks."""
        if self._owns_store:
            self._check_open()
        return self._journal.read(after) if self._journal is not None else []

    # Runs

    def _running(self) -> Run | None:
        """The run that is on. One that will never end by itself, since its event loop was closed under it, is ended here: this tells
        callbacks, and so is not for those who hold the lock."""
        run = self._run
        if run is not None and not run.begun and run.coroutine is not None:
            coroutine = run.coroutine()
            if coroutine is None or inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED:
                self._dropped(run)
                run = self._run
        if run is not None and run.engine is not None and run.scope is not None and is_dead(run.scope):
            run.reason = run.reason or Reason("shutdown", "its event loop was closed")
            self._settled(run, run.engine, run.scope)
            run = self._run
        return run

    def _dropped(self, run: Run) -> None:
        """The coroutine of a run was dropped before its first step."""
        with state_lock:
            if run.over or run.begun:
                return
            run.over = True
            if self._run is run:
                self._run = None
                self._token = run.early_token or Reason("cancelled")
        if run.early_token is not None:
            run.early_token.cancel(Reason("cancelled"))

    def _settled(self, run: Run, engine: Engine, scope: Scope | None) -> None:
        """A run is over, and all of it is saved that can be."""
        report = scope.report if scope is not None else None
        lost = scope is not None and report is None  # its event loop was closed: nobody had a place to wait
        if report is None:
            left = leftovers_of(scope) if scope is not None else []
            report = replace(clean_report(f"run of {engine.agent.name}"), reason=run.reason, left=left)
        transcript, journal = engine.transcript, self._journal
        assert journal is not None
        with state_lock:
            if run.over:
                return
            run.over = True
            assert isinstance(engine.journal, RunJournal)
            if scope is not None and (transcript.calls or transcript.partial):  # nobody had a place to wait
                transcript.settle(run.reason, engine.pending_approvals, children_left(scope))
            if lost and (note := not_kept(transcript.withdraw())) is not None:
                report.notes = [*report.notes, note]
            if unwritten := engine.journal.events_of(transcript.take_unsaved(), transcript.take_late()):
                journal.owe(unwritten)
            engine.journal.over = True
            self._history.take_from(engine)
            self._agent = engine.agent
            self._final_output = engine.final_output
            self._status = "idle" if run.status == "finished" and self._history.inbox else run.status
            self._token = run.last_token()
            self._report = run.report = report
            if scope is not None and report.left:
                self._left = [*(left for left in self._left or () if not is_gone(left)), scope]
            self._run = None
            stopping = run.stopping
        journal.tell_now()
        if stopping is not None:
            stopping.settle(report)

    def _leftovers(self) -> list[Leftover]:
        return [left for scope in self._left or () for left in leftovers_of(scope)]

    # The record

    def _check_open(self) -> None:
        if self._closed:
            raise ConversationClosed(
                f"conversation {self.id!r} was closed: open it again with Conversation(...)"
            )

    def _record(self) -> LogJournal:
        with state_lock:
            if self._journal is None:
                if self._store is None:
                    self._store = MemoryStore()
                self._journal = LogJournal(self._store, self._store.open(self.id), self._callbacks)
            return self._journal

    def __repr__(self) -> str:
        return f"<Conversation {self.id!r} with {self._agent.name!r}, {self.status}>"


def _is_callback(value: Any) -> bool:
    return callable(value) and not is_async(value)


def _instead(value: Any) -> str:
    return "nobody would await it; arun(on_event=...) takes an async one" if callable(value) else ""


def _store_at(store: Store | str | os.PathLike[str] | None) -> Store | None:
    if isinstance(store, (str, os.PathLike)):
        from quiesce.agents.store import SQLiteStore  # who keeps nothing in files need not import sqlite3

        return SQLiteStore(store)
    if store is not None and not isinstance(store, Store):
        raise TypeError(
            f"store is a path, a Store or None, not {type(store).__name__}: for example store='chat.db'"
        )
    return store


def clean_report(name: str) -> StopReport:
    """The report of a stop that found nothing to do."""
    return StopReport(name, None, 0.0, (), 0)
