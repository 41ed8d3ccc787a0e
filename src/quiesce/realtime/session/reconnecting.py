"""How a session gets its connection back.

Invariants
- A session that was stopped is not brought back. The task that connects is a child of the session's own scope, is cancelled with the first sign of a stop, and
  has ended before the model is closed for good.
- Bounded in tries, and in seconds without a connection. A connection that has lasted for a while refills both.
- From the loss to the return nothing reaches the model but what this task sends: the settings, the conversation so far, then what waits in the `Outbox`.
- A tool is not stopped by a lost connection, and never called again. One that is at work when the model is back has "unknown" for its output until it ends.
- What was being said is settled when the connection is lost, before anybody is told: audio that is not complete is cut, responses have ended.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

import anyio

from quiesce import shielded
from quiesce._safe.printed import logger
from quiesce.kernel.inner import caller_site, when_ended
from quiesce.models import Usage
from quiesce.models.inner import FIRST_PAUSE, LONGEST_PAUSE
from quiesce.realtime.words import (
    RealtimeAudioEnd,
    RealtimeConnectionLost,
    RealtimeModelAudioInterruptedEvent,
    RealtimeModelSendHistory,
    RealtimeModelSendInterrupt,
    RealtimeModelSendRawMessage,
    RealtimeModelSendUserInput,
    RealtimeModelTurnEndedEvent,
    RealtimeReconnected,
    RealtimeReconnecting,
)
from quiesce.wire import ConnectionEnded

from .lost_connections import may_come_back
from .outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce import Handle
    from quiesce.realtime.words import RealtimeItem, RealtimeModelSendEvent, RealtimeReconnect

    from .session_task import SessionTask


class Reconnecting:
    """What a session does about a lost connection, as its `RealtimeReconnect` says."""

    _has_fault: anyio.Event  # of each try

    def __init__(self, life: SessionTask, policy: RealtimeReconnect) -> None:
        self.outbox = Outbox(policy.held)
        self._life = life
        self._policy = policy
        self._lost_at: float | None = None  # None: it is connected
        self._losses = 0
        self._handle: Handle | None = None  # of the task that connects
        self._fault: Exception | None = None  # what a connection was lost by before it was of use
        # What was spent since a connection has lasted, and when there was one again.
        self._tries = 0
        self._seconds = 0.0
        self._back_at: float | None = None

    def is_away(self) -> bool:
        """Whether nothing can be sent: it is lost, or about to be told so."""
        return self._lost_at is not None or self._life.is_cut_off

    def _is_stopped(self) -> bool:
        return self._life.closing or self._life.core.token.cancelled

    # What the model is told

    async def tell(self, event: RealtimeModelSendEvent) -> None:
        """Tell the model; keep it if there is no connection."""
        if self.is_away():
            self.outbox.keep(event)
            if isinstance(event, RealtimeModelSendInterrupt):
                self._hush(event.response_id)
            return
        losses, was_asked = self._losses, self.outbox.sending(event)
        try:
            await self._life.tell_at_once(event)
        except Exception as error:
            is_lost = isinstance(error, ConnectionEnded) and (self.is_away() or self._losses != losses)
            if not is_lost:
                self.outbox.not_sent(event, was_asked)
                raise
            # A message is one of those that were not confirmed, and are sent again.
            if not isinstance(event, RealtimeModelSendUserInput):
                await self.tell(event)

    def _hush(self, response_id: str | None) -> None:
        """Somebody says stop while what came before the loss is still played."""
        life = self._life
        tracker = life.tracker
        try:
            state = tracker.get_state()
            item_id = state["current_item_id"]
            playing = None if item_id is None else (item_id, state["current_item_content_index"] or 0)
            for place in life.audible.from_now_on(playing, response_id):
                life.interrupted(RealtimeModelAudioInterruptedEvent(*place))
            if response_id is None:
                tracker.on_interrupted()
        except Exception as error:  # the account may be the user's own code
            life.failed(error)

    # The loss

    def lost(self, error: Exception | None) -> bool:
        """The connection is lost, or was ended in order, without an error. True if it may come back, and is seen to; else the session ends."""
        life = self._life
        if self._lost_at is not None:  # again, before it was of use: that try has failed
            self._fault = RuntimeError("the model has ended the session") if error is None else error
            self._has_fault.set()
            life.is_deaf = True
            return True
        if error is None or not life.connected or self._is_stopped() or not may_come_back(error):
            return False
        now = life.backend.now()
        if self._back_at is None or now - self._back_at >= self._policy.within:
            self._tries, self._seconds = 0, 0.0
        self._lost_at = now
        self._losses += 1
        life.connected = False
        life.is_deaf = True
        if not life.calls.responses().isdisjoint(life.responses_on()):
            self.outbox.answer_ended()  # it has called tools: when they end, the model is asked to go on
        self.outbox.lost()
        self._handle = handle = life.core.spawn(self._run, (error,), "reconnect", caller_site())
        # A stop may give its owner time to cooperate: this is how.
        let_go = life.core.token.on_cancel(lambda: life.backend.run_from_anywhere(handle.cancel))
        when_ended(handle, partial(self._ended, error, let_go))
        self._settle(error)
        return True

    def _settle(self, error: Exception) -> None:
        """Nothing more comes of what was being said."""
        life = self._life
        cut, on = life.audible.cut_off(), life.responses_on()
        changed = life.history.cut_off(life.calls.at_work())
        life.add(RealtimeConnectionLost(error, life.info))
        for place in cut:
            life.add(RealtimeAudioEnd(*place, life.info, is_cut=True))
        if changed:
            life.history_changed()
        for response_id in on:
            life.context.usage.add(Usage(requests=1, unreported=1))
            life.turn_ended(RealtimeModelTurnEndedEvent(response_id, "incomplete"))

    # The way back, in a task of its own

    async def _run(self, lost: Exception) -> None:
        """Until it is back, or there is nothing left to try."""
        life, policy, error = self._life, self._policy, lost
        await self._close()
        while (pause := self._next_pause(error)) is not None:
            self._tries += 1
            await anyio.sleep(pause)
            if self._is_stopped():  # a stop is a cancel, which somebody else's error may have come before
                return
            life.add(RealtimeReconnecting(self._tries, policy.tries, error, life.info))
            try:
                with anyio.move_on_after(self._seconds_left()):
                    await self._connect()
                    if not self._is_stopped():
                        self._back()
                    return
                error = TimeoutError(f"it took longer than {policy.within:g} s in all")
            except Exception as failure:
                error = await self._why(failure)
            await self._close()
        if not self._is_stopped():
            self._give_up(lost, error)

    async def _why(self, failure: Exception) -> Exception:
        """What a try has failed with. If the connection was lost meanwhile, that is told a moment later, and says more than what could not be sent."""
        if self._life.is_cut_off:
            with anyio.move_on_after(self._seconds_left()):
                await self._has_fault.wait()
        return self._fault or failure

    async def _close(self) -> None:
        life = self._life
        try:
            await shielded(life.model.close)
        except Exception as error:
            logger.exception("a realtime model could not close a lost connection")
            life.closing_errors.append(("closing a lost connection", error))

    def _next_pause(self, error: Exception) -> float | None:
        """Seconds until the next try, which grow, with a part left to chance: many may have lost the same server. None if there is to be none."""
        if self._is_stopped() or self._tries >= self._policy.tries or not may_come_back(error):
            return None
        grown = min(FIRST_PAUSE * 2 ** min(self._tries, 10), LONGEST_PAUSE)
        pause = grown * (1 - 0.5 * random.random())
        return pause if pause < self._seconds_left() else None

    def _seconds_left(self) -> float:
        return self._policy.within - self._seconds - self._seconds_away()

    def _seconds_away(self) -> float:
        return self._life.backend.now() - self._lost_at if self._lost_at is not None else 0.0

    async def _connect(self) -> None:
        """Connect, and tell the model what it has to know."""
        life, model, outbox = self._life, self._life.model, self.outbox
        self._fault, self._has_fault = None, anyio.Event()
        life.is_deaf = life.is_cut_off = False
        outbox.lost()  # what an earlier try has sent
        conversation = self._conversation()
        outbox.begin()
        await life.connect_again()
        if conversation and not self._is_stopped():
            await model.send_event(RealtimeModelSendHistory(conversation))
        if outbox.is_answer_owed and not self._is_stopped():
            await model.send_event(RealtimeModelSendRawMessage({"type": "response.create"}))
        while not self._is_stopped() and (event := outbox.take()) is not None:
            await self._pass_on(event)
        if self._fault is not None:
            raise self._fault

    async def _pass_on(self, event: RealtimeModelSendEvent) -> None:
        """What has waited. Whoever sent it does not hear any more that the model refuses it: that is an event."""
        was_asked = self.outbox.sending(event)
        try:
            await self._life.model.send_event(event)
        except Exception as error:
            if isinstance(error, OSError):
                raise
            self.outbox.not_sent(event, was_asked)
            self._life.failed(error)

    def _conversation(self) -> list[RealtimeItem]:
        """All of it, but what a guardrail has said no to. The calls that are at work have an output: that it is unknown."""
        life = self._life
        unknown = [life.history.unknown(each, text) for each, text in life.calls.at_work().items()]
        if any(unknown):
            life.history_changed()
        return [item for item in life.history.items if item.item_id not in life.blocked]

    def _back(self) -> None:
        life, seconds = self._life, self._seconds_away()
        self._seconds += seconds
        self._lost_at, self._back_at = None, life.backend.now()
        life.connected = True
        life.buffer.bound()
        unknown = life.history.unknown_calls()
        dropped, self.outbox.audio_dropped = self.outbox.audio_dropped, 0
        life.add(RealtimeReconnected(self._tries, seconds, unknown, dropped, life.info))

    def _give_up(self, lost: Exception, error: Exception) -> None:
        why = "" if may_come_back(error) else ", which is not tried again"
        tried = f"{self._tries} of {self._policy.tries} tries, {self._seconds + self._seconds_away():.1f} s without a connection"
        unsent = f". Not sent: {messages} messages" if (messages := self.outbox.messages) else ""
        gone = ConnectionEnded(f"{lost}; and it did not come back ({tried}): {error}{why}{unsent}")
        gone.__cause__ = error
        self._life.end(gone)

    def _ended(self, lost: Exception, let_go: Callable[[], None]) -> None:
        let_go()
        if self._lost_at is not None and not self._is_stopped():
            self._give_up(lost, ConnectionEnded("somebody else has cancelled the task that connects"))

    async def wait_until_ended(self) -> None:
        """For the owner of the session, which has stopped it; not if that waits for the owner: it has closed the session itself."""
        handle = self._handle
        if handle is not None and handle not in self._life.core.closers:
            await handle.wait()
