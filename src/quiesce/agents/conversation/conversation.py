"""Conversations: one history, run after run, that anybody may stop at any moment from anywhere.

Invariants
- One run at a time. It is registered by the call of `arun()` or `run()` itself, so a stop that comes right after that call is not lost.
- When a run is over, however that came: what it started has ended or is named in `report`, the history is one that every provider takes,
  and all of it is in the log before anybody is told.
- `interrupt` is nobody's cancellation: the `arun()` that it stops returns. A cancel of its caller is raised there, after the same settlement.
- What the user says while a run is on waits for the next turn of the model; it is never put between a call and its result.
- Nothing here waits for anything while it holds the lock, and `interrupt` and `pause` never wait at all.

How a run goes is in `run`, what is written down in `event_writer`, how a log is taken up again in `restore`.
"""

from __future__ import annotations

import math
import uuid
import weakref
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from quiesce import Grace, Reason, StopReport, shielded
from quiesce import run as run_program
from quiesce.agents.agent import (
    Callbacks,
    ConversationBusy,
    RunContextWrapper,
    UserError,
    check_function,
    refuse,
)
from quiesce.agents.run import Engine, Stopping, runs_inside, state_lock, wait_again, wait_again_sync
from quiesce.agents.store import ApprovalDecided, Event, StatusChanged, StoreError
from quiesce.kernel.inner import as_reason, check_grace, check_no_loop_runs
from quiesce.models import Item

from .event_writer import LogJournal, RunJournal
from .history import messages_of, queued_events
from .run import ConversationExecution, OnEvent, Run, Ticket, being_announced
from .state import ConversationState, Status, clean_report

if TYPE_CHECKING:
    pass

_INTERRUPTED = Reason("user")
_CLOSED = Reason("user", "the conversation was closed")
_REJECTED = "User rejected the action"
_GIVEN_UP = "Not started: nobody has approved this call, and nobody is asked any more."


class Conversation(ConversationState):
    """An agent with a history that goes on, run after run, and can be stopped at any moment.

    ```python
    async with Conversation(agent, store="chat.db", conversation_id="support-7") as conversation:
        conversation.send_message("Find the bug.")
        await conversation.arun()
        print(conversation.final_output)
    ```

    - `store`: None (in memory), the path of a SQLite file, or a `Store`. A conversation that exists there is read at once: this blocks.
    - `context`, `hooks`, `run_config`, `max_turns`: for each of its runs, as in `Runner.run`. `grace`: the deadlines of a stop.
    - `callbacks`: functions of an event (`quiesce.agents` has them: `ItemAdded`, `StatusChanged`, ...), called when the event is durable,
      in the thread or loop where that happened. They must not block; what they raise is logged.

    Everything may be called from any thread. `interrupt()` stops now, `pause()` after the current step; run again to go on.
    """

    __slots__ = ()

    # Saying

    def send_message(self, message: str | Item | Iterable[Item]) -> None:
        """Say something; durable when this returns, and answered by the next `arun()`, or by the one that is on before its next turn.

        Calls that wait for approval are given up first: the user has said something else. With a store on disk this waits for the
        disk; in an event loop use `asend_message`.
        """
        journal, said, events = self._to_say(message)
        journal.write_sync(events, then=partial(self._said, said))

    async def asend_message(self, message: str | Item | Iterable[Item]) -> None:
        """`send_message` for async code: it does not block the event loop. If you are cancelled meanwhile, it was said or not;
        `items` shows which."""
        journal, said, events = self._to_say(message)
        await journal.write_message(events, partial(self._said, said))

    def _said(self, said: list[tuple[str, Item]]) -> None:
        with state_lock:
            self._history.put(said)

    def _to_say(
        self, message: str | Item | Iterable[Item]
    ) -> tuple[LogJournal, list[tuple[str, Item]], list[Event]]:
        said = messages_of(message)
        self._running()
        with state_lock:
            self._check_open()
            journal = self._record()
            if self._run is None:
                if self._history.calls:
                    journal.owe(self._history.give_up_calls())
                if self._status in ("finished", "error", "waiting_for_approval"):
                    self._status = "idle"
                    journal.owe([StatusChanged(status="idle")])
            return journal, said, queued_events(journal, said)

    # Approval

    def approve(self, call_id: str | None = None) -> None:
        """Let this call be made, or all that wait; the next run makes it. Durable when this returns."""
        self._decide(call_id, True, "")

    def reject(self, call_id: str | None = None, reason: str = _REJECTED) -> None:
        """Do not let this call be made, or none that waits; the model is told why. Durable when this returns."""
        self._decide(call_id, False, reason)

    def reject_pending_actions(self, reason: str = _REJECTED) -> None:
        """Reject every call that waits, if any does."""
        if self.pending_approvals:
            self._decide(None, False, reason)

    async def agive_up_pending_actions(self, reason: str = _GIVEN_UP) -> None:
        """Wait for no approval any more: every call that waits gets `reason` as its result, and nobody is asked again. Durable when
        this returns. The model hears of it in the next run; to decide instead, `reject` and run."""
        with state_lock:
            self._check_open()
            if self._run is not None:
                raise ConversationBusy(f"conversation {self.id!r} runs: nothing in it waits for approval")
            if not self._history.calls:
                return
            journal = self._record()
            journal.owe(self._history.give_up_calls(reason))
            self._status = "paused"
            journal.owe([StatusChanged(status="paused", reason=reason)])
        await journal.write([])

    def _decide(self, call_id: str | None, approved: bool, message: str) -> None:
        if not (call_id is None or isinstance(call_id, str)):
            refuse("what is approved or rejected", "the id of a call", call_id, "write call.call_id")
        with state_lock:
            self._check_open()
            if self._run is not None:
                raise ConversationBusy(f"conversation {self.id!r} runs: nothing in it waits for approval")
            chosen = self._history.chosen(call_id)
            journal = self._record()
        decided = [ApprovalDecided(call_id=one, approved=approved, message=message) for one in chosen]
        journal.write_sync(decided)
        with state_lock:
            self._history.decide(decided)

    # Running

    def arun(self, *, on_event: OnEvent | None = None) -> Coroutine[Any, Any, Status]:
        """Run until there is a final answer, something to approve, or a stop; await it. Returns the status.

        `on_event` is an async function that is given what `Runner.run_streamed` would stream, as it happens: pieces of text, tool calls, their
        results. The run waits for it, and fails if it fails. What a stop has cut is not told: `items` has it when this returns.

        Raises what a guardrail, a tool or the model has raised, as itself. `interrupt()` and `pause()` make it return. If you are
        cancelled while you wait, the run is stopped and settled in the same way, and then your cancellation is raised.
        The run is on from this call, not only from its first step. A second one at the same time is refused: `ConversationBusy`.
        """
        check_function("on_event", on_event)
        run = self._register()
        run.on_event = on_event
        coroutine = self._go(run, Ticket(self, run))
        run.coroutine = weakref.ref(coroutine)
        return coroutine

    def run(self, *, backend: Literal["asyncio", "trio"] = "asyncio") -> Status:
        """`arun` for programs that are not async: in an event loop of its own, in this thread. `interrupt()` it from another one.

        In the main thread Ctrl-C stops it as it stops `quiesce.run`.
        """
        try:
            check_no_loop_runs()
        except RuntimeError:
            raise RuntimeError(
                "run() starts an event loop of its own, and there is one in this thread already: await arun() instead"
            ) from None
        run = self._register()
        return run_program(self._go, run, Ticket(self, run), backend=backend, grace=self._config.grace)

    def _register(self) -> Run:
        self._running()
        with state_lock:
            self._check_open()
            if self._run is not None:
                raise ConversationBusy(
                    f"conversation {self.id!r} runs already, and does one run at a time: wait for that one, "
                    "or stop it with `await conversation.interrupt()`"
                )
            if not self._history.items and not self._history.inbox:
                raise UserError("there is nothing to answer yet: send_message(...) first")
            self._run = run = Run()
            return run

    async def _go(self, run: Run, ticket: Ticket) -> Status:
        with state_lock:
            revoked = run.over  # stopped before its first step
            run.begun = not revoked
            execution = self._prepare(run) if not revoked else None
        if revoked:
            if self._journal is not None and not self._closed:
                await self._journal.write([])
            return cast(Status, run.status)
        if execution is None:
            return cast(Status, self.status)
        try:
            await execution.run()
        except StoreError:
            self._record().failure_is_told = True
            raise
        finally:
            if not run.over:  # nothing was begun, or there is no place to wait any more
                self._settled(run, execution.engine, execution.scope)
            if run.closed_inside:
                await shielded(self.close)
            del ticket
        return cast(Status, run.status)

    def _prepare(self, run: Run) -> ConversationExecution | None:
        """The engine for a run, in which nothing has begun yet; None if there is nothing to do."""
        try:
            if not self._history.has_work(self._status, asks=self._config.approve is not None):
                run.over = True
                self._run = None
                return None
            journal = self._record()
            engine = Engine(
                self._agent,
                [],
                context=RunContextWrapper(self.context, journal.usage),
                config=self._config,
                callbacks=Callbacks(self.hooks),
                max_turns=self.max_turns,
            )
            engine.emit = run.on_event
            engine.inbox = self._take_messages
            engine.keeps_approvals = True
            written = self._history.give_to(engine)
            engine.journal = record = RunJournal(
                journal, uuid.uuid4().hex, self._agent.name, engine.transcript, written
            )
        except BaseException:
            run.over = True
            self._run = None
            raise
        self._final_output = None
        run.drive(engine)
        return ConversationExecution(self, engine, run, journal, record)

    def _take_messages(self) -> list[Item]:
        """What was said since the last time, for the run."""
        if self._history.inbox is None:
            return []
        with state_lock:
            return self._history.take()

    # Stopping

    def pause(self) -> None:
        """Let the run end after its current step: when the model's answer and its tools are complete. Never waits."""
        with state_lock:
            run = self._run
            if run is None:
                return
            begun = run.begun
            if not begun:
                self._revoke(run, None)
        if begun:
            run.pause()
        else:
            self._tell_revoked()

    def interrupt(self, reason: Reason | str | None = None, *, grace: Grace | None = None) -> Stopping:
        """Stop the run now, from any thread; never waits. Await what it returns, or `.wait()` for it in a thread.

        What the model is saying is cut, tools are stopped, sub-agents too; `arun()` returns. Asking again makes it faster: it halves the
        time that is left to clean-up, or shortens it to `grace`. Without a run there is nothing to stop, and what it returns is done.
        """
        check_grace(grace)
        return self._stop(as_reason(reason, _INTERRUPTED), hurry=True, grace=grace)

    def _stop(self, why: Reason, *, hurry: bool, grace: Grace | None = None) -> Stopping:
        self._running()
        with state_lock:
            run = self._run
            if run is None:
                return Stopping(replace(clean_report(self._agent.name), left=self._leftovers()))
            if being_announced.get() is run and run.scope is not None and run.scope.report is not None:
                return Stopping(run.scope.report)
            if run.begun:
                begun = run
            else:
                begun = None
                self._revoke(run, why)
        if begun is not None:
            return begun.interrupt(why, hurry=hurry, grace=grace)
        if run.early_token is not None:
            run.early_token.cancel(why)
        self._tell_revoked()
        return Stopping(replace(clean_report(f"run of {self._agent.name}"), reason=why))

    def _revoke(self, run: Run, reason: Reason | None) -> None:
        """Stop a run that has not begun: it never will."""
        run.over = True
        run.reason = reason
        self._run = None
        self._status = "paused"
        self._token = run.last_token()
        self._record().owe([StatusChanged(status="paused", reason=str(reason or ""))])

    def _tell_revoked(self) -> None:
        """Write that down if it can be done at once; else it is when `arun()` is awaited, or with the next write."""
        if self._journal is not None and self._journal.writes_at_once:
            with suppress(Exception):  # then it stays owed: a stop never fails
                self._journal.write_at_once([])

    # Closing

    async def close(self) -> StopReport:
        """Stop the run if there is one, wait for all that is left, let go of the store, and report. May be called again.

        Afterwards it takes nothing any more. If you are cancelled meanwhile, that is raised when it is closed.
        """
        return await self._close(waits_again=True)

    async def _close(self, *, waits_again: bool) -> StopReport:
        """`waits_again`: also for what stops of earlier runs have left over, which has had its grace then."""
        self._closed = True
        run = self._run
        if run is not None and run.scope is not None and being_announced.get() is run:
            run.closed_inside = True  # one of its hooks: the rest is done when that has returned
            return run.scope.report or clean_report(run.scope.name)
        if run is not None and run.scope is not None and runs_inside(run.scope):
            run.closed_inside = True  # it cannot wait for itself: the rest is done when the run is over
            return await run.scope.close(reason=_CLOSED)
        report, cancelled = await self._stop(_CLOSED, hurry=False).wait_through()
        if cancelled is None:
            return await self._let_go(report, waits_again)
        try:
            await shielded(self._let_go, report, waits_again, within=math.inf)
            raise cancelled
        finally:
            del cancelled

    async def _let_go(self, report: StopReport, waits_again: bool) -> StopReport:
        grace = self._config.grace
        within = grace.total if grace is not None else None
        try:
            for scope in list(self._left or ()) if waits_again else ():
                await wait_again(scope, _CLOSED)
        finally:
            if self._journal is not None:
                await self._journal.close(within)
            if self._owns_store and self._store is not None:
                await shielded(self._store.close, within=within)
        return self._final(report)

    def close_sync(self) -> StopReport:
        """`close` for plain threads: it blocks."""
        run = self._run
        if (
            run is not None
            and run.scope is not None
            and (runs_inside(run.scope) or being_announced.get() is run)
        ):
            raise RuntimeError(
                f"a tool or a hook of conversation {self.id!r} cannot wait for its end: call interrupt() in it, and close() elsewhere"
            )
        self._closed = True
        report = self._stop(_CLOSED, hurry=False).wait()
        assert report is not None
        for scope in list(self._left or ()):
            wait_again_sync(scope)
        if self._journal is not None:
            self._journal.close_sync()
        if self._owns_store and self._store is not None:
            self._store.close_sync()
        return self._final(report)

    def _final(self, report: StopReport) -> StopReport:
        left = self._leftovers()
        if not left:
            self._left = None
        return replace(report, left=left) if left or report.left else report

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
