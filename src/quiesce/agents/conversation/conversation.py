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
- In a store, others can open the same conversation. One of them at a time runs it: it holds the lease from before
  its first step until the end of the run is in the log. The others only look, and say something through the
  store. Whatever is decided here is decided on the state that the log had when the lease was taken.

How one run goes is in `run`, what a conversation knows between two runs in `history`, how events become
durable in `event_writer`, how a conversation continues where its log ends in `restore`, who runs it in
`shared_store`, and how a run elsewhere is stopped in `remote_stop`.
"""

from __future__ import annotations

import math
import os
import uuid
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
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
    Lease,
    MessageQueued,
    RunEnded,
    RunStarted,
    StatusChanged,
    StopRequested,
    Store,
    StoreError,
    StoreHeld,
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

from .event_feed import EventFeed
from .event_writer import EventCallback, EventWriter
from .history import History, messages_of
from .remote_stop import RemoteStop, grace_of
from .restore import LOST, Restored, agent_after, restore
from .run import TAKEN_OVER, ConversationRun, OnEvent, Status, Unawaited
from .shared_store import Look, SharedStore, off_the_loop

if TYPE_CHECKING:
    from quiesce import Scope

_DEFAULT_CONFIG = RunConfig()
_INTERRUPTED = Reason("user")
_CLOSED = Reason("user", "the conversation was closed")
_DROPPED = Reason("cancelled")
_REJECTED = "User rejected the action"
_NOTHING_SAID: list[Any] = []
_NO_RUNS: deque[str] = deque(maxlen=0)
_MOST_SAID = 1000  # more than that are not sent while a log is being read once
# What others may have changed without a new event: a process may have ended.
_MAY_CHANGE_UNSEEN = ("running", "taken_over")
_OWN_RUNS = 64
_ABANDON_SECONDS = 5.0  # for what a stop elsewhere is doing with the store at this moment
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
      once: this blocks. `await Conversation.open(...)` does not.
    - `context`, `hooks`, `run_config`, `max_turns`: for each of its runs, as in `Runner.run`. `grace`: the
      deadlines of a stop.
    - `callbacks`: functions that are called with each event (`ItemAdded`, `StatusChanged`, ..., see
      `quiesce.agents`) when it is durable, in the thread or loop where that happened. They must not block;
      what they raise is logged.

    Everything may be called from any thread. `interrupt()` stops now, `pause()` after the current step; run
    again to continue.

    Any number of processes may open a conversation in a store, and one of them at a time can run it. To the
    others its status is `"running"`; `arun()` raises `ConversationBusy`, and what they send, decide or interrupt
    goes to the one that runs it, through the store. `refresh()` and `aevents()` show what others have done.
    """

    __slots__ = (
        "__weakref__",
        "_agent",
        "_closed",
        "_config",
        "_feeds",
        "_final_output",
        "_history",
        "_history_seq",
        "_own_runs",
        "_remote_stops",
        "_report",
        "_run",
        "_said",
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
        self._set_up(
            agent, store, conversation_id, context, hooks, run_config, max_turns, callbacks, grace, None
        )
        shared = self._shared
        if shared is not None and conversation_id is not None:
            self._take(self._restored(shared.look_sync()))

    @classmethod
    async def open(
        cls,
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
        lease: Lease | None = None,
    ) -> Self:
        """`Conversation(...)` for async code: the event loop does not stand still, however long the history is.

        `lease`: the right to run it, if something else decides about that, such as an engine which hands out
        work. The conversation then takes none itself, and does not release this one.
        """
        self = cls.__new__(cls)
        self._set_up(
            agent, store, conversation_id, context, hooks, run_config, max_turns, callbacks, grace, lease
        )
        shared = self._shared
        if shared is not None and conversation_id is not None:
            try:
                await self._look(shared)
            except BaseException:
                await shielded(self._writer.close, None)
                raise
        return self

    def _set_up(
        self,
        agent: Agent[Any],
        store: Store | str | os.PathLike[str] | None,
        conversation_id: str | None,
        context: Any,
        hooks: RunHooks[Any] | None,
        run_config: RunConfig | None,
        max_turns: int | None,
        callbacks: Sequence[EventCallback],
        grace: Grace | None,
        lease: Lease | None,
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
            self._writer_if_made = EventWriter(store, self.id, callbacks, lease, self._hear)
        self._history = History()
        self._final_output: Any = None
        self._status: str = "idle"
        self._run: ConversationRun | None = None
        # Of the last run. Only the reason if nobody held its token: a token per conversation takes memory.
        self._token: CancelToken | Reason | None = None
        self._report: StopReport | None = None
        # Of runs whose stop has expired with something left over.
        self._unsettled_scopes: list[Scope] | None = None
        # Made for the first one.
        self._feeds: weakref.WeakSet[EventFeed] | None = None
        # Of a store that others write to: up to which event the history was taken from the log, and which messages
        # were sent here since, with the number of the last event of each.
        self._history_seq = -1
        self._own_runs: deque[str] = _NO_RUNS if self._shared is None else deque(maxlen=_OWN_RUNS)
        self._said: list[tuple[int, list[tuple[str, Item]]]] = _NOTHING_SAID
        self._remote_stops: list[RemoteStop] | None = None
        self._closed = False

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
    def _shared(self) -> SharedStore | None:
        """Its place in a store that others can open too; None if it is in the memory of this conversation alone."""
        return self._writer_if_made.shared if self._writer_if_made is not None else None

    @property
    def agent(self) -> Agent[Any]:
        """The agent whose turn it is."""
        run = self._run
        return run.engine.agent if run is not None and run.has_engine else self._agent

    @property
    def status(self) -> str:
        """What it does, or why its last run ended.

        `"idle"`, `"running"`, `"paused"`, `"waiting_for_approval"`, `"finished"`, `"error"`, `"taken_over"` (its
        run lost its lease: another process goes on with it) or `"closed"`. Of a conversation that is not being
        run here, it is what was found when the store was last looked at: see `refresh`.
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

    def aevents(self, after: int = 0) -> EventFeed:
        """Return the durable events after number `after`, and then new ones as they come, from any process.

        Iterate it with `async for`. It ends when the conversation is closed here.
        """
        self._check_open()
        shared = self._shared
        feed = EventFeed(shared.log if shared is not None else self._writer.log, after)
        with state_lock:
            if self._feeds is None:
                self._feeds = weakref.WeakSet()
            self._feeds.add(feed)
        return feed

    # What others do with it

    async def refresh(self) -> None:
        """Look in the store what others have done with the conversation since.

        Nothing happens while it is being run here, and in one that no one else can open.
        """
        self._check_open()
        shared = self._shared
        if shared is None or self._current_run() is not None or self._writer.has_unwritten:
            return
        if self._status in _MAY_CHANGE_UNSEEN or await shared.log.read(self._writer.last_seq):
            await self._look(shared)

    async def _look(self, shared: SharedStore) -> None:
        before = self._writer.last_seq
        look = await shared.look()
        restored = await off_the_loop(self._restored, look, len(look.found.items))
        has_missed = self._writer.calls_back and before < look.found.last_seq
        self._take(restored, await shared.log.read(before) if has_missed else [])

    def _look_sync(self, shared: SharedStore) -> None:
        before = self._writer.last_seq
        look = shared.look_sync()
        has_missed = self._writer.calls_back and before < look.found.last_seq
        self._take(self._restored(look), shared.log.read_sync(before) if has_missed else [])

    @staticmethod
    def _restored(look: Look, reason: Reason = LOST) -> Restored:
        return restore(look.found, is_run_elsewhere=look.is_run_elsewhere, reason=reason)

    def _take(self, restored: Restored, missed: Sequence[Event] = ()) -> None:
        """Continue where the log ended when it was looked at. `missed`: events of others, for the callbacks."""
        writer, last = self._writer, restored.found.last_seq
        with state_lock:
            if (self._run is not None and self._run.begun) or last < writer.last_seq:
                return  # it has begun meanwhile, or something newer is here: that knows better
            self._history = restored.history
            self._status = restored.status
            self._agent = agent_after(self._agent, restored.history.items)
            writer.restore(restored)
            # What was sent here while the log was being looked at stands behind what was found.
            self._history_seq = last
            later, self._said = [one for one in self._said if one[0] > last], []
            for seq, messages in later:
                self._queue(messages, seq)
                if seq - len(messages) == writer.last_seq:
                    writer.last_seq = seq
        writer.begin_callbacks(last)
        writer.call_back(missed)

    def _hear(self, events: Sequence[Event]) -> None:
        """Take what others have written while a run goes on here: in whichever thread the store has found it."""
        stops: list[StopRequested] = []
        is_taken_over = False
        with state_lock:
            run = self._run
            if run is None or not run.has_engine:
                return
            for event in events:
                if event.seq <= run.heard_from:  # of an earlier run, handed over late
                    continue
                match event:
                    case MessageQueued(message_id=message_id, item=item):
                        if message_id not in self._writer.known_messages:
                            self._writer.remember([(message_id, item)])
                            self._history.queue([(message_id, item)])
                    case ApprovalDecided(call_id=call_id, approved=approved, message=text):
                        run.engine.approvals.decisions.setdefault(call_id, (approved, text))
                    case StopRequested(request_id=request_id, run_id=run_id):
                        if run_id == run.journal.run_id and request_id not in run.heard:
                            run.heard.add(request_id)
                            stops.append(event)
                    case RunStarted(run_id=run_id):
                        is_taken_over = is_taken_over or run_id not in self._own_runs
                    case RunEnded(run_id=run_id, lost=True):
                        is_taken_over = is_taken_over or run_id == run.journal.run_id
                    case _:
                        pass
        if is_taken_over:
            self._writer.fenced = True
            run.interrupt(TAKEN_OVER, hurry=False)
        for stop in stops:
            if stop.pause:
                run.pause()
            else:
                run.interrupt(stop.reason, grace=grace_of(stop))

    @asynccontextmanager
    async def _alone(self, why: str) -> AsyncGenerator[None, None]:
        """Hold the lease for a block in which nothing runs; the state is that of the log."""
        self._current_run()
        with state_lock:
            self._check_open()
            if self._run is not None:
                raise ConversationBusy(f"conversation {self.id!r} is running: {why}")
            # So that no run begins meanwhile. A stop finds nothing to stop.
            self._run = place = ConversationRun(self._settle)
            place.prepares = True
        try:
            await self._take_lease()
            yield
        finally:
            await self._end_unbegun(place)
            place.settled(_empty_report(self._agent.name))

    async def _take_lease(self) -> None:
        """Take the right to run it, and catch up with what others have done. Raises `ConversationBusy`."""
        shared, writer = self._shared, self._writer
        if shared is None or (shared.lease is not None and writer.has_unwritten):
            return
        if shared.lease is not None:
            if await shared.log.read(writer.last_seq):
                await self._look(shared)
            return
        try:
            lease = await shared.take_lease()
        except StoreHeld as error:
            self._status = "running"
            raise ConversationBusy(
                f"conversation {self.id!r} is being run by {error.holder.owner or 'another runner'}: wait for the "
                "end of that run, or stop it with `await conversation.interrupt()`"
            ) from error
        await writer.resolve()
        # One that was found running elsewhere, and is not any more, may have been lost since.
        if lease.last_seq != writer.last_seq or self._status in _MAY_CHANGE_UNSEEN:
            await self._look(shared)

    async def _end_unbegun(self, run: ConversationRun) -> None:
        """Release the lease that was taken for a run that does not begin, and then let others run."""
        try:
            if self._shared is not None and self._shared.lease is not None:
                await shielded(partial(self._writer.end_run, has_begun=False))
        finally:
            with state_lock:
                run.end_before_begin(run.asked)
                if self._run is run:
                    self._run = None

    async def settle(self, reason: Reason | str | None = None) -> StopReport:
        """Write down how a run ended whose program did not come to its end, without running anything.

        Its calls that had started may have had an effect: they are left over in the report, and the model is
        told in the next run. With nothing to settle, the report says that too. Raises `ConversationBusy` if it is
        being run, here or elsewhere.
        """
        why = as_reason(reason, LOST)
        shared = self._shared
        if shared is None:
            return _empty_report(self._agent.name)
        async with self._alone("interrupt() it instead"):
            # A run of this conversation may have results that could not be saved: these are known.
            if self._writer.has_unwritten:
                await self._writer.write([])
            restored = restore((await shared.look()).found, reason=why)
            self._take(restored)
            await self._writer.write([])
        return restored.lost or _empty_report(self._agent.name)

    # Messages

    def send_message(
        self, message: str | InputItem | Iterable[InputItem], *, message_id: str | None = None
    ) -> None:
        """Send a message to the agent. It is durable when this returns.

        The next `arun()` answers it, or the current one before its next turn. Calls that wait for approval
        are given up first: the user has said something else. With a store on disk this waits for the disk; in
        an event loop use `asend_message`.

        With `message_id`, it is sent once, however often and from wherever you send it under this id.
        """
        messages, events = self._prepare_message(message, message_id)
        try:
            self._writer.say_sync(events, partial(self._queue, messages))
        except BaseException:
            self._writer.forget(messages)
            raise

    async def asend_message(
        self, message: str | InputItem | Iterable[InputItem], *, message_id: str | None = None
    ) -> None:
        """`send_message` for async code: it does not block the event loop.

        If you are cancelled meanwhile, the message was either sent or not: `items` shows which.
        """
        messages, events = self._prepare_message(message, message_id)
        try:
            await self._writer.say(events, partial(self._queue, messages))
        except BaseException:
            if not self._history.has_queued(messages):
                self._writer.forget(messages)
            raise

    def _prepare_message(
        self, message: str | InputItem | Iterable[InputItem], message_id: str | None
    ) -> tuple[list[tuple[str, Item]], list[MessageQueued]]:
        messages = messages_of(message, message_id)
        self._current_run()
        with state_lock:
            self._check_open()
            writer = self._writer
            if message_id is not None and writer.was_sent(messages):
                return [], []
            if self._shared is None:
                writer.defer(self._hear_message())
            writer.remember(messages, named=message_id is not None)
            return messages, [MessageQueued(message_id=one, item=item) for one, item in messages]

    def _hear_message(self) -> list[Event]:
        """Give up what waits for approval: the user has said something else. Returns what the log lacks then."""
        if self._run is not None or self._status == "running":
            return []
        events = self._history.give_up_calls() if self._history.calls else []
        if self._status in ("finished", "error", "waiting_for_approval"):
            self._status = "idle"
            events.append(StatusChanged(status="idle"))
        return events

    def _queue(self, messages: list[tuple[str, Item]], seq: int = 0) -> None:
        """Take messages that are durable; `seq` is the number of the last one."""
        with state_lock:
            writer = self._writer
            if self._shared is not None:
                if self._history_seq >= seq:  # the history was taken from a log that has them
                    found = {id(item) for _, item in self._history.inbox or ()}  # in memory, the same objects
                    for _, item in messages:
                        if id(item) not in found:
                            writer.message_ids.pop(id(item), None)
                    return
                self._said = [*self._said[-_MOST_SAID:], (seq, messages)]
                writer.remember(messages)
                writer.derive(self._hear_message())
            self._history.queue(messages)
            writer.turns = 0

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

    async def aapprove(self, call_id: str | None = None) -> None:
        """`approve` for async code: it does not block the event loop."""
        await self._adecide(call_id, True, "")

    async def areject(self, call_id: str | None = None, reason: str = _REJECTED) -> None:
        """`reject` for async code: it does not block the event loop."""
        await self._adecide(call_id, False, reason)

    def reject_pending_actions(self, reason: str = _REJECTED) -> None:
        """Reject every call that waits, if there is one."""
        if self.pending_approvals:
            self._decide(None, False, reason)

    async def agive_up_pending_actions(self, reason: str = _GIVEN_UP) -> None:
        """Stop waiting for approvals: `reason` becomes the result of every call that waits.

        Durable when this returns.

        The model reads it in the next run. To decide instead, `reject` and run.
        """
        async with self._alone("none of its calls wait for approval"):
            with state_lock:
                if not self._history.calls:
                    return
                self._status = "paused"
                changed = StatusChanged(status="paused", reason=reason)
                self._writer.defer([*self._history.give_up_calls(reason), changed])
            await self._writer.write([])

    def _decide(self, call_id: str | None, approved: bool, message: str) -> None:
        shared = self._shared
        if shared is not None and self._may_have_missed and shared.log.read_sync(self._writer.last_seq):
            self._look_sync(shared)
        decisions = self._decisions(call_id, approved, message)
        self._writer.say_sync(decisions, partial(self._decided, decisions))

    async def _adecide(self, call_id: str | None, approved: bool, message: str) -> None:
        shared = self._shared
        if shared is not None and self._may_have_missed and await shared.log.read(self._writer.last_seq):
            await self._look(shared)
        decisions = self._decisions(call_id, approved, message)
        await self._writer.say(decisions, partial(self._decided, decisions))

    @property
    def _may_have_missed(self) -> bool:
        shared = self._shared
        return (
            shared is not None and shared.lease is None and self._current_run() is None and not self._closed
        )

    def _decisions(self, call_id: str | None, approved: bool, message: str) -> list[ApprovalDecided]:
        if not (call_id is None or isinstance(call_id, str)):
            refuse("what is approved or rejected", "the id of a call", call_id, "write call.call_id")
        with state_lock:
            self._check_idle()
            chosen = self._history.choose(call_id)
        return [ApprovalDecided(call_id=one, approved=approved, message=message) for one in chosen]

    def _decided(self, decisions: Sequence[ApprovalDecided], seq: int = 0) -> None:
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
            # In a store, another one may have said something.
            if self._shared is None:
                self._check_has_input()
            self._run = run = ConversationRun(self._settle, on_event, self._waits_for_nothing)
            return run

    def _check_has_input(self) -> None:
        if not self._history.items and not self._history.inbox:
            raise UserError("there is nothing to answer yet: send_message(...) first")

    def _waits_for_nothing(self) -> bool:
        """Whether a snapshot may stand for the history."""
        with state_lock:
            return not self._history.inbox

    async def _arun(self, run: ConversationRun, unawaited: Unawaited | None) -> Status:
        has_work = False
        try:
            if self._shared is not None:
                await self._prepare(run)
            with state_lock:
                stopped_early = run.is_over
                has_work = not stopped_early and self._begin(run)
        except BaseException:
            self._drop(run)
            raise
        finally:
            try:
                if not has_work and run.prepares:
                    await self._end_unbegun(run)
            finally:
                # A signal handler may have stopped it in this very moment, and somebody wait for that.
                if not has_work:
                    run.settled(replace(_empty_report(f"run of {self._agent.name}"), reason=run.asked))
        del unawaited
        if stopped_early:
            if not self._closed and self._shared is None:
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
            # What could not be written at its end may be writable now. The lease stays for as long as it is not.
            shared = self._shared
            if (
                shared is not None
                and shared.lease is not None
                and self._run is None
                and not run.lost_its_loop
            ):
                with suppress(StoreError):
                    await shielded(self._writer.write_rest)
                await shielded(self._writer.end_run)
            if run.closed_inside:
                await shielded(self.close)
        return run.status

    async def _prepare(self, run: ConversationRun) -> None:
        """Take the lease for a run, and catch up. One that is stopped meanwhile does not begin."""
        with state_lock:
            was_stopped = run.is_over
            # From here on until the lease is released again, the run stays registered, so that no other one begins.
            run.prepares = not was_stopped
        if was_stopped:
            # Stopped before its first step: write that down, unless the log has gone on.
            if not self._closed:
                with suppress(StoreHeld):
                    await self._writer.write_rest()
                await shielded(partial(self._writer.end_run, has_begun=False))
            return
        await self._take_lease()
        with state_lock:
            if run.is_to_stop:
                self._status = "paused"
                self._token = run.last_token()
                self._writer.defer([StatusChanged(status="paused", reason=str(run.asked or ""))])
                run.end_before_begin(run.asked)
        if run.is_over:
            await self._writer.write([])
            return
        self._check_has_input()

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
            engine.turn, self._writer.turns = self._writer.turns, 0
            self._final_output = None
            run.prepare(engine)
            if self._shared is not None:
                self._own_runs.append(run.journal.run_id)
                run.heard_from = self._writer.last_seq
                self._writer.watch()
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
            if scope is None:
                self._writer.drop_start(run.journal.run_id)
            run.lost_its_loop = loop_was_closed
            if loop_was_closed and self._shared is not None:
                self._writer.defer(run.journal.last_events(run.status, str(run.asked or ""), None))
                self._writer.lose_loop()
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
            if run is not None and not run.begun and not run.prepares:
                self._stop_before_begin(run, None)
        if run is None:
            if self._shared is not None and not self._closed:
                self._stop_elsewhere(_INTERRUPTED, pause=True)
        elif run.begun or run.prepares:
            run.pause()
        else:
            self._write_early_stop()

    def _stop_elsewhere(self, reason: Reason, grace: Grace | None = None, *, pause: bool = False) -> Stopping:
        """Ask the one that runs it to stop, if there is one."""
        shared = self._shared
        assert shared is not None
        # Not a run that begins here only after this call: it was not meant.
        own, known = tuple(self._own_runs), self._own_runs
        stop = RemoteStop(
            shared.store,
            self.id,
            f"run of {self._agent.name}",
            reason,
            is_own=lambda run_id: run_id in known or run_id in own,
            within=self._config.grace.total if self._config.grace is not None else Grace().total,
            left=self._leftovers(),
            pause=pause,
            grace=grace,
        )
        with state_lock:
            self._remote_stops = [*(one for one in self._remote_stops or () if not one.ended), stop]
        return stop.start()

    def interrupt(self, reason: Reason | str | None = None, *, grace: Grace | None = None) -> Stopping:
        """Stop the run now, from any thread; never waits.

        Await what it returns, or `.wait()` for it in a thread.

        The model's answer is cut off, tools and sub-agents are stopped, and `arun()` returns. Calling it
        again makes the stop faster: it halves the remaining time for clean-up, or shortens it to `grace`.
        Without a run there is nothing to stop, and what it returns is done: at once, or in a store that others can
        open, as soon as that was asked.

        A run that goes on elsewhere, in another process on the same store, is stopped there; what this returns is
        done when the end of that run is in the log. If that process has ended, the run is settled: the report
        has the calls that may have had an effect as left over.
        """
        check_grace(grace)
        why = as_reason(reason, _INTERRUPTED)
        if self._current_run() is None and self._shared is not None and not self._closed:
            return self._stop_elsewhere(why, grace)
        return self._stop(why, hurry=True, grace=grace)

    def _stop(self, why: Reason, *, hurry: bool, grace: Grace | None = None) -> Stopping:
        self._current_run()
        with state_lock:
            run = self._run
            if run is None:
                return Stopping(replace(_empty_report(self._agent.name), left=self._leftovers()))
            if run.is_calling_caller and run.scope is not None and run.scope.report is not None:
                return Stopping(run.scope.report)
            if not run.begun and not run.prepares:
                self._stop_before_begin(run, why)
        if run.begun or run.prepares:
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
            if self._shared is None:
                self._writer.write_sync()

    # Closing

    async def close(self) -> StopReport:
        """Stop the run if there is one, wait for everything that is left over, release the store, and report.

        May be called again. Afterwards the conversation refuses messages and runs. If you are cancelled
        meanwhile, that is raised when it is closed.
        """
        return await self._close(wait_for_leftovers=True)

    async def _close(self, *, wait_for_leftovers: bool) -> StopReport:
        """`wait_for_leftovers`: once more, for what the stops of earlier runs have left over."""
        self._begin_closing()
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
            for stop in self._remote_stops or ():
                await shielded(_wait, stop.stopping, within=_ABANDON_SECONDS)
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
        self._begin_closing()
        report = self._stop(_CLOSED, hurry=False).wait()
        assert report is not None
        for stop in self._remote_stops or ():
            stop.wait_ended(_ABANDON_SECONDS)
        for scope in list(self._unsettled_scopes or ()):
            wait_again_sync(scope)
        self._writer.close_sync()
        return self._final_report(report)

    def _begin_closing(self) -> None:
        self._closed = True
        with state_lock:
            feeds, stops = list(self._feeds or ()), list(self._remote_stops or ())
        for feed in feeds:
            feed.close()
        for stop in stops:
            stop.abandon()

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


async def _wait(stopping: Stopping) -> None:
    await stopping


def _empty_report(name: str) -> StopReport:
    """Return the report of a stop that found nothing to do."""
    return StopReport(name, None, 0.0, (), 0)
