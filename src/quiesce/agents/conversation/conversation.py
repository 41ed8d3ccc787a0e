"""Conversations: one history, run after run, that can be stopped at any moment and from any thread.

Invariants
- One run at a time. The call of `arun()` or `run()` itself registers it, so a stop right after that call is
  not lost.
- When a run is over, however it ended: what it started has ended or is named in `report`, the history is
  valid for every provider, and all of it is in the log before anybody learns of the end (`_settle`).
- `interrupt` cancels nobody: the `arun()` that it stops returns. If the caller of `arun()` is cancelled, the
  run is settled in the same way, and then that cancellation is raised.
- A message that is sent during a run waits for the next turn of the model. It never gets between a call and
  its result.
- Nothing waits while it holds `state_lock`; `interrupt` and `pause` never wait at all.

How one run goes is in `run`, what a conversation knows between two runs in `history`, how events become
durable in `event_writer`, and how a conversation continues where its log ends in `restore`.
"""

from __future__ import annotations

import math
import os
import uuid
import weakref
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from quiesce import CancelToken, Grace, Leftover, Reason, StopReport, shielded
from quiesce import run as run_program
from quiesce.agents.agent import (
    Agent,
    ConversationBusy,
    ConversationClosed,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    UserError,
    check_function,
    check_max_turns,
    check_run_config,
    check_run_hooks,
    refuse,
)
from quiesce.agents.run import (
    DEFAULT_MAX_TURNS,
    Engine,
    RunSettings,
    Stopping,
    not_kept,
    span_of,
    state_lock,
    wait_again,
    wait_again_sync,
)
from quiesce.agents.store import (
    ApprovalDecided,
    Event,
    StatusChanged,
    Store,
    StoreError,
    check_id,
)
from quiesce.kernel.inner import (
    as_reason,
    check_grace,
    check_no_loop_runs,
    children_left,
    has_lost_its_loop,
    leftovers_in,
)
from quiesce.models import Item, ToolCall, Usage
from quiesce.models.inner import InputItem

from .event_writer import EventCallback, EventWriter
from .history import History, messages_of
from .restore import agent_after, restore
from .run import ConversationRun, OnEvent, Status, Unawaited

if TYPE_CHECKING:
    from quiesce import Scope

_DEFAULT_CONFIG = RunConfig()
_INTERRUPTED = Reason("user")
_CLOSED = Reason("user", "the conversation was closed")
_DROPPED = Reason("cancelled")
_REJECTED = "User rejected the action"
_GIVEN_UP = "Not started: this call was not approved, and no longer waits for approval."


class Conversation:
    """An agent with a history that continues, run after run, and can be stopped at any moment.

    ```python
    async with Conversation(agent, store="chat.db", conversation_id="support-7") as conversation:
        conversation.send_message("Find the bug.")
        await conversation.arun()
        print(conversation.final_output)
    ```

    - `store`: None (in memory), the path of a SQLite file, or a `Store`. An existing conversation is read at
      once: this blocks.
    - `context`, `hooks`, `run_config`, `max_turns`: for each of its runs, as in `Runner.run`. `grace`: the
      deadlines of a stop.
    - `callbacks`: functions that are called with each event (`ItemAdded`, `StatusChanged`, ..., see
      `quiesce.agents`) when it is durable, in the thread or loop where that happened. They must not block;
      what they raise is logged.

    Everything may be called from any thread. `interrupt()` stops now, `pause()` after the current step; run
    again to continue.
    """

    __slots__ = (
        "__weakref__",
        "_agent",
        "_closed",
        "_config",
        "_final_output",
        "_history",
        "_report",
        "_run",
        "_status",
        "_token",
        "_unsettled_scopes",
        "_writer_if_made",
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
            raise TypeError(f"a conversation needs an Agent, not {type(agent).__name__}")
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
        # Made on first use if it has no store of its own: most conversations of a server are idle, and it would
        # be half of what they take.
        self._writer_if_made: EventWriter | None = None
        if store is not None or callbacks:
            self._writer_if_made = EventWriter(store, self.id, callbacks)
        self._history = History()
        self._final_output: Any = None
        self._status: str = "idle"
        self._run: ConversationRun | None = None
        # Of the last run. Only the reason if nobody held its token: a token per conversation takes memory.
        self._token: CancelToken | Reason | None = None
        self._report: StopReport | None = None
        # Of runs whose stop has expired with something left over.
        self._unsettled_scopes: list[Scope] | None = None
        self._closed = False
        if store is not None and conversation_id is not None:
            restored = restore(self._writer.log.read_sync())
            self._history = restored.history
            self._status = restored.status
            self._agent = agent_after(agent, self._history.items)
            self._writer.restore(restored)

    def __repr__(self) -> str:
        return f"<Conversation {self.id!r} with {self._agent.name!r}, {self.status}>"

    # Looking

    @property
    def _writer(self) -> EventWriter:
        if self._writer_if_made is None:
            with state_lock:
                if self._writer_if_made is None:
                    self._writer_if_made = EventWriter(None, self.id, ())
        return self._writer_if_made

    @property
    def agent(self) -> Agent[Any]:
        """The agent whose turn it is."""
        run = self._run
        return run.engine.agent if run is not None and run.has_engine else self._agent

    @property
    def status(self) -> str:
        """What it does, or why its last run ended.

        `"idle"`, `"running"`, `"paused"`, `"waiting_for_approval"`, `"finished"`, `"error"` or `"closed"`.
        """
        if self._current_run() is not None:
            return "running"
        return "closed" if self._closed else self._status

    @property
    def items(self) -> list[Item]:
        """What was said and done so far, and at the end the messages that wait to be taken by a run.

        During a run, or while calls wait for approval, the last calls may lack results. Text that waits for a
        guardrail is left out.
        """
        with state_lock:
            run = self._run
            if run is None or not run.has_engine:
                items = self._history.recorded()
            else:
                transcript = run.engine.transcript
                items = transcript.kept(transcript.given + transcript.new)
            return items + self._history.queued()

    @property
    def final_output(self) -> Any:
        """The answer of the last run; None if it ended without one."""
        return self._final_output

    @property
    def cancel_token(self) -> CancelToken | None:
        """The token of the current run, else of the last one; None before the first.

        A tool has its own: `context.token`.
        """
        with state_lock:
            if self._run is not None:
                return self._run.token
            if isinstance(self._token, Reason):
                reason, self._token = self._token, CancelToken()
                self._token.cancel(reason)
            return self._token

    @property
    def report(self) -> StopReport | None:
        """What became of the tasks of the last run, and what is left over by now; None before the first."""
        with state_lock:
            report = self._report
            if report is None or not report.left:
                return report
            return replace(report, left=self._leftovers())

    @property
    def usage(self) -> Usage:
        """What all its runs have cost so far, including requests that were stopped."""
        return replace(self._writer.usage)

    @property
    def pending_approvals(self) -> list[ToolCall]:
        """The calls that wait for `approve` or `reject`."""
        with state_lock:
            return [record.call for record in self._history.undecided()] if self._run is None else []

    def events(self, after: int = 0) -> list[Event]:
        """Return all durable events, numbered, or those after number `after`.

        Reads the store: this blocks.
        """
        if self._writer.owns_store:
            self._check_open()
        return self._writer.read(after)

    # Messages

    def send_message(self, message: str | InputItem | Iterable[InputItem]) -> None:
        """Send a message to the agent. It is durable when this returns.

        The next `arun()` answers it, or the current one before its next turn. Calls that wait for approval
        are given up first: the user has said something else. With a store on disk this waits for the disk; in
        an event loop use `asend_message`.
        """
        messages, events = self._prepare_message(message)
        self._writer.write_sync(events, on_durable=partial(self._queue, messages))

    async def asend_message(self, message: str | InputItem | Iterable[InputItem]) -> None:
        """`send_message` for async code: it does not block the event loop.

        If you are cancelled meanwhile, the message was either sent or not: `items` shows which.
        """
        messages, events = self._prepare_message(message)
        await self._writer.write_message(events, partial(self._queue, messages))

    def _prepare_message(
        self, message: str | InputItem | Iterable[InputItem]
    ) -> tuple[list[tuple[str, Item]], list[Event]]:
        messages = messages_of(message)
        self._current_run()
        with state_lock:
            self._check_open()
            writer = self._writer
            if self._run is None:
                if self._history.calls:
                    writer.defer(self._history.give_up_calls())
                if self._status in ("finished", "error", "waiting_for_approval"):
                    self._status = "idle"
                    writer.defer([StatusChanged(status="idle")])
            return messages, writer.queued_events(messages)

    def _queue(self, messages: list[tuple[str, Item]]) -> None:
        with state_lock:
            self._history.queue(messages)

    def _take_queued(self) -> list[Item]:
        """Give the current run the messages that were sent since it last asked."""
        if self._history.inbox is None:  # by far the most frequent case, once per turn: no lock
            return []
        with state_lock:
            return self._history.take_queued()

    # Approval

    def approve(self, call_id: str | None = None) -> None:
        """Allow this call, or all that wait; the next run makes it. Durable when this returns."""
        self._decide(call_id, True, "")

    def reject(self, call_id: str | None = None, reason: str = _REJECTED) -> None:
        """Refuse this call, or all that wait; the model reads the reason. Durable when this returns."""
        self._decide(call_id, False, reason)

    def reject_pending_actions(self, reason: str = _REJECTED) -> None:
        """Reject every call that waits, if there is one."""
        if self.pending_approvals:
            self._decide(None, False, reason)

    async def agive_up_pending_actions(self, reason: str = _GIVEN_UP) -> None:
        """Stop waiting for approvals: `reason` becomes the result of every call that waits.

        Durable when this returns.

        The model reads it in the next run. To decide instead, `reject` and run.
        """
        with state_lock:
            self._check_idle()
            if not self._history.calls:
                return
            self._status = "paused"
            changed = StatusChanged(status="paused", reason=reason)
            self._writer.defer([*self._history.give_up_calls(reason), changed])
        await self._writer.write([])

    def _decide(self, call_id: str | None, approved: bool, message: str) -> None:
        if not (call_id is None or isinstance(call_id, str)):
            refuse("what is approved or rejected", "the id of a call", call_id, "write call.call_id")
        with state_lock:
            self._check_idle()
            chosen = self._history.choose(call_id)
        decisions = [ApprovalDecided(call_id=one, approved=approved, message=message) for one in chosen]
        self._writer.write_sync(decisions)
        with state_lock:
            self._history.decide(decisions)

    def _check_idle(self) -> None:
        self._check_open()
        if self._run is not None:
            raise ConversationBusy(
                f"conversation {self.id!r} is running: none of its calls wait for approval"
            )

    # Running

    def arun(self, *, on_event: OnEvent | None = None) -> Coroutine[Any, Any, Status]:
        """Run until there is a final answer, something to approve, or a stop; await it. Returns the status.

        `on_event` is an async function that is called with what `Runner.run_streamed` would stream, as it
        happens: pieces of text, tool calls, their results. The run waits for it, and fails if it fails. It is
        not called with what a stop has interrupted: `items` has that when this returns.

        Raises what a guardrail, a tool or the model has raised, as itself. `interrupt()` and `pause()` make
        it return. If you are cancelled while you wait, the run is stopped and settled in the same way, and
        then your cancellation is raised. The run counts from this call, not only from its first step. A
        second one at the same time is refused: `ConversationBusy`.
        """
        check_function("on_event", on_event)
        run = self._register(on_event)
        coroutine = self._arun(run, Unawaited(run, self._drop))
        run.coroutine = weakref.ref(coroutine)
        return coroutine

    def run(self, *, backend: Literal["asyncio", "trio"] = "asyncio") -> Status:
        """`arun` for programs that are not async: in an event loop of its own, in this thread.

        `interrupt()` it from another thread. In the main thread Ctrl-C stops it as it stops `quiesce.run`.
        """
        try:
            check_no_loop_runs()
        except RuntimeError:
            raise RuntimeError(
                "run() starts an event loop of its own, and this thread has one already: await arun() instead"
            ) from None
        run = self._register()
        try:
            return run_program(self._arun, run, None, backend=backend, grace=self._config.grace)
        finally:
            self._drop(run)

    def _register(self, on_event: OnEvent | None = None) -> ConversationRun:
        self._current_run()
        with state_lock:
            self._check_open()
            if self._run is not None:
                raise ConversationBusy(
                    f"conversation {self.id!r} is running already, and does one run at a time: "
                    "wait for that one, or stop it with `await conversation.interrupt()`"
                )
            if not self._history.items and not self._history.inbox:
                raise UserError("there is nothing to answer yet: send_message(...) first")
            self._run = run = ConversationRun(self._settle, on_event)
            return run

    async def _arun(self, run: ConversationRun, unawaited: Unawaited | None) -> Status:
        has_work = False
        try:
            with state_lock:
                stopped_early = run.is_over
                has_work = not stopped_early and self._begin(run)
        finally:
            # A signal handler may have stopped it in this very moment, and somebody wait for that.
            if not has_work:
                run.settled(replace(_empty_report(f"run of {self._agent.name}"), reason=run.asked))
        del unawaited
        if stopped_early:
            if not self._closed:
                await self._writer.write([])
            return run.status
        if not has_work:
            return cast(Status, self.status)
        try:
            with span_of(self._config):
                await run.run()
        except StoreError:
            self._writer.failure_was_raised = True
            raise
        finally:
            # It could not even begin, or its event loop was closed and it had no place to wait any more.
            if not run.is_over:
                self._settle(run)
            if run.closed_inside:
                await shielded(self.close)
        return run.status

    def _begin(self, run: ConversationRun) -> bool:
        """Give `run` its engine; False if there is nothing to do, and the run is over.

        Callers hold the lock.
        """
        # First of all: a signal handler may interrupt this very thread, and must find a run that has begun.
        run.begun = True
        try:
            if not self._history.has_work(self._status, can_ask=self._config.approve is not None):
                run.is_over = True
                self._run = None
                return False
            transcript = self._history.begin_transcript()
            recorded = self._history.recorded_results()
            settings = RunSettings(
                RunContextWrapper(self.context, self._writer.usage),
                self._config,
                self.hooks,
                self.max_turns,
                journal=run.open_journal(self._writer, self._agent.name, transcript, recorded),
                emit=run.on_event,
                take_messages=self._take_queued,
                keeps_approvals=True,
            )
            engine = Engine(
                self._agent,
                settings,
                transcript,
                to_check=self._history.to_check(transcript),
                decisions=self._history.decisions,
            )
            self._final_output = None
            run.prepare(engine)
        except BaseException:
            run.is_over = True
            self._run = None
            raise
        return True

    def _settle(self, run: ConversationRun) -> None:
        """Take the results of a run that has ended, and let everybody know. What could be saved is saved.

        The order is a promise: status and history first, then the callbacks, then those who wait for the
        stop.
        """
        engine, scope = run.engine, run.scope
        report = scope.report if scope is not None else None
        # Without a report, its event loop was closed under it: there was no place left to wait, nor to settle
        # anything.
        loop_was_closed = scope is not None and report is None
        if report is None:
            left = leftovers_in(scope) if scope is not None else []
            report = replace(_empty_report(f"run of {engine.agent.name}"), reason=run.asked, left=left)
        with state_lock:
            if run.is_over:
                return
            run.is_over = True
            transcript = engine.transcript
            if scope is not None and (transcript.calls or transcript.partial):
                transcript.settle(run.asked, engine.approvals.pending, children_left(scope))
            if loop_was_closed and (note := not_kept(transcript.withdraw())) is not None:
                report.notes = [*report.notes, note]
            if unwritten := run.journal.take_events():
                self._writer.defer(unwritten)
            run.journal.is_over = True
            self._history.take_from(engine)
            self._agent = engine.agent
            self._final_output = engine.final_output
            # A message that came after the last turn has no answer yet.
            self._status = "idle" if run.status == "finished" and self._history.inbox else run.status
            self._token = run.last_token()
            self._report = run.report = report
            if scope is not None and report.left:
                earlier = (one for one in self._unsettled_scopes or () if children_left(one))
                self._unsettled_scopes = [*earlier, scope]
            self._run = None
        self._writer.call_callbacks()
        run.settled(report)

    def _current_run(self) -> ConversationRun | None:
        """Return the run that is registered; end one that can never end by itself.

        That is one whose coroutine was closed before it was awaited, or whose event loop was closed under it.
        This calls callbacks, so it must not be called while holding the lock.
        """
        run = self._run
        if run is not None and run.was_dropped:
            self._drop(run)
        elif run is not None and run.scope is not None and has_lost_its_loop(run.scope):
            run.asked = run.asked or Reason("shutdown", "its event loop was closed")
            self._settle(run)
        return self._run

    def _drop(self, run: ConversationRun) -> None:
        """Unregister a run that has not begun, and never will: its coroutine was dropped or closed."""
        with state_lock:
            if run.is_over or run.begun:
                return
            run.end_before_begin(_DROPPED)
            if self._run is run:
                self._run = None
                self._token = run.last_token()
        run.cancel_early_token(_DROPPED)

    # Stopping

    def pause(self) -> None:
        """Let the run end after its current step: when the model's answer and its tools are complete.

        Never waits.
        """
        with state_lock:
            run = self._run
            if run is None:
                return
            if not run.begun:
                self._stop_before_begin(run, None)
        if run.begun:
            run.pause()
        else:
            self._write_early_stop()

    def interrupt(self, reason: Reason | str | None = None, *, grace: Grace | None = None) -> Stopping:
        """Stop the run now, from any thread; never waits.

        Await what it returns, or `.wait()` for it in a thread.

        The model's answer is cut off, tools and sub-agents are stopped, and `arun()` returns. Calling it
        again makes the stop faster: it halves the remaining time for clean-up, or shortens it to `grace`.
        Without a run there is nothing to stop, and what it returns is done.
        """
        check_grace(grace)
        return self._stop(as_reason(reason, _INTERRUPTED), hurry=True, grace=grace)

    def _stop(self, why: Reason, *, hurry: bool, grace: Grace | None = None) -> Stopping:
        self._current_run()
        with state_lock:
            run = self._run
            if run is None:
                return Stopping(replace(_empty_report(self._agent.name), left=self._leftovers()))
            if run.is_calling_caller and run.scope is not None and run.scope.report is not None:
                return Stopping(run.scope.report)
            if not run.begun:
                self._stop_before_begin(run, why)
        if run.begun:
            return run.interrupt(why, hurry=hurry, grace=grace)
        run.cancel_early_token(why)
        self._write_early_stop()
        return Stopping(replace(_empty_report(f"run of {self._agent.name}"), reason=why))

    def _stop_before_begin(self, run: ConversationRun, reason: Reason | None) -> None:
        run.end_before_begin(reason)
        self._run = None
        self._status = "paused"
        self._token = run.last_token()
        self._writer.defer([StatusChanged(status="paused", reason=str(reason or ""))])

    def _write_early_stop(self) -> None:
        # A stop never waits. On disk it is written when `arun()` is awaited, or with the next write.
        with suppress(Exception):  # it stays deferred: a stop never fails
            if self._writer.in_memory:
                self._writer.write_in_memory([])

    # Closing

    async def close(self) -> StopReport:
        """Stop the run if there is one, wait for everything that is left over, release the store, and report.

        May be called again. Afterwards the conversation refuses messages and runs. If you are cancelled
        meanwhile, that is raised when it is closed.
        """
        return await self._close(wait_for_leftovers=True)

    async def _close(self, *, wait_for_leftovers: bool) -> StopReport:
        """`wait_for_leftovers`: once more, for what the stops of earlier runs have left over."""
        self._closed = True
        run = self._run
        # A tool or a hook of the run cannot wait for the end of the run: `_arun` finishes the closing.
        if run is not None and run.scope is not None and (run.is_calling_caller or run.contains_caller):
            run.closed_inside = True
            if run.is_calling_caller:
                return run.scope.report or _empty_report(run.scope.name)
            return await run.scope.close(reason=_CLOSED)
        report, cancelled = await self._stop(_CLOSED, hurry=False).wait_through()
        if cancelled is None:
            return await self._release(report, wait_for_leftovers)
        try:
            await shielded(self._release, report, wait_for_leftovers, within=math.inf)
            raise cancelled
        finally:
            del cancelled  # its traceback leads back to this frame

    async def _release(self, report: StopReport, wait_for_leftovers: bool) -> StopReport:
        grace = self._config.grace
        within = grace.total if grace is not None else None
        try:
            for scope in list(self._unsettled_scopes or ()) if wait_for_leftovers else ():
                await wait_again(scope, _CLOSED)
        finally:
            await self._writer.close(within)
        return self._final_report(report)

    def close_sync(self) -> StopReport:
        """`close` for plain threads: it blocks."""
        run = self._run
        if run is not None and (run.contains_caller or run.is_calling_caller):
            raise RuntimeError(
                f"a tool or a hook of conversation {self.id!r} cannot wait for its end: "
                "call interrupt() in it, and close() elsewhere"
            )
        self._closed = True
        report = self._stop(_CLOSED, hurry=False).wait()
        assert report is not None
        for scope in list(self._unsettled_scopes or ()):
            wait_again_sync(scope)
        self._writer.close_sync()
        return self._final_report(report)

    def _final_report(self, report: StopReport) -> StopReport:
        left = self._leftovers()
        if not left:
            self._unsettled_scopes = None
        return replace(report, left=left) if left or report.left else report

    def _leftovers(self) -> list[Leftover]:
        return [left for scope in self._unsettled_scopes or () for left in leftovers_in(scope)]

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close_sync()

    def _check_open(self) -> None:
        if self._closed:
            raise ConversationClosed(
                f"conversation {self.id!r} was closed: open it again with Conversation(...)"
            )


# For the packages above, through `agents.inner`


def has_queued_messages(conversation: Conversation) -> bool:
    """Return whether a message waits that no run has taken yet."""
    return bool(conversation._history.inbox)


async def close_ignoring_leftovers(conversation: Conversation) -> StopReport:
    """Close a conversation without waiting again for what its earlier runs have left over."""
    return await conversation._close(wait_for_leftovers=False)


def _empty_report(name: str) -> StopReport:
    """Return the report of a stop that found nothing to do."""
    return StopReport(name, None, 0.0, (), 0)
