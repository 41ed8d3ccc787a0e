"""How a session restores a lost connection.

Invariants
- A session that was stopped is not reconnected. The task that connects is a child of the session's own scope,
  is cancelled at the first sign of a stop, and has ended before the model is closed for good.
- The number of tries is bounded, and so are the seconds without a connection. A connection that lasts for a
  while restores both in full.
- From the loss to the return, the model gets nothing but what this task sends: the settings, the conversation
  so far, then what waits in the `Outbox`.
- A lost connection does not stop a tool, and a tool is never called again. A call that is still running when
  the model is back has the output "unknown" until it ends.
- What the model was saying is settled when the connection is lost, before any reader learns of it: incomplete
  audio is cut, and responses have ended.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

import anyio

from quiesce import shielded
from quiesce._safe.printed import logger
from quiesce.kernel.inner import users_site, when_ended
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

    from .session_state import SessionState
    from .tool_calls import ToolCalls


class Reconnecting:
    """Restores the connection of a session, as its `RealtimeReconnect` says."""

    _has_fault: anyio.Event  # a new one for each try

    def __init__(self, session: SessionState, calls: ToolCalls, policy: RealtimeReconnect) -> None:
        self.outbox = Outbox(policy.held)
        self._session = session
        self._calls = calls
        self._policy = policy
        self._lost_at: float | None = None  # None while it is connected
        self._losses = 0
        self._handle: Handle | None = None  # of the task that connects
        self._fault: Exception | None = None  # why a new connection was lost before it could be used
        # What was used up since a connection last lasted, and when the last one was made.
        self._tries = 0
        self._seconds = 0.0
        self._back_at: float | None = None

    def is_disconnected(self) -> bool:
        """Return whether nothing can be sent, also if the event about that has not been handled yet."""
        return self._lost_at is not None or self._session.connection_ended

    def _is_stopped(self) -> bool:
        return self._session.closing or self._session.core.token.cancelled

    # Sending

    async def send(self, event: RealtimeModelSendEvent) -> None:
        """Send to the model, or keep it while there is no connection."""
        if self.is_disconnected():
            self.outbox.keep(event)
            if isinstance(event, RealtimeModelSendInterrupt):
                self._interrupt_playback(event.response_id)
            return
        losses, was_requested = self._losses, self.outbox.note_sending(event)
        try:
            await self._session.send_now(event)
        except Exception as error:
            is_lost = isinstance(error, ConnectionEnded) and (
                self.is_disconnected() or self._losses != losses
            )
            if not is_lost:
                self.outbox.note_refused(event, was_requested)
                raise
            # A message of the user is among the unconfirmed ones, and is sent again from there.
            if not isinstance(event, RealtimeModelSendUserInput):
                await self.send(event)

    def _interrupt_playback(self, response_id: str | None) -> None:
        """Interrupt audio that arrived before the loss and is still being played."""
        session = self._session
        tracker = session.tracker
        try:
            state = tracker.get_state()
            item_id = state["current_item_id"]
            playing = None if item_id is None else (item_id, state["current_item_content_index"] or 0)
            for place in session.received_audio.still_to_play(playing, response_id):
                session.interrupted(RealtimeModelAudioInterruptedEvent(*place))
            if response_id is None:
                tracker.on_interrupted()
        except Exception as error:  # the tracker may be the user's own code
            session.failed(error)

    # The loss

    def connection_lost(self, error: Exception | None) -> bool:
        """Begin to restore the connection. Return False if the session has to end instead.

        Without an error the model ended the connection in order, and it is not restored.
        """
        session = self._session
        if self._lost_at is not None:  # a new connection was lost before it could be used: the try has failed
            self._fault = RuntimeError("the model has ended the session") if error is None else error
            self._has_fault.set()
            session.ignores_model = True
            return True
        if error is None or not session.connected or self._is_stopped() or not may_come_back(error):
            return False
        now = session.backend.now()
        if self._back_at is None or now - self._back_at >= self._policy.within:
            self._tries, self._seconds = 0, 0.0
        self._lost_at = now
        self._losses += 1
        session.connected = False
        session.ignores_model = True
        if not self._calls.responses().isdisjoint(session.active_responses()):
            # The response has called tools. Their outputs will make the model go on, so no answer is due for
            # it.
            self.outbox.response_ended()
        self.outbox.connection_lost()
        self._handle = handle = session.core.spawn(self._run, (error,), "reconnect", users_site())
        # A stop first cancels the token, and the scope's children only after the time to cooperate. To
        # reconnect during that time would be wrong, so the task is cancelled at once.
        remove_callback = session.core.token.on_cancel(
            lambda: session.backend.run_from_anywhere(handle.cancel)
        )
        when_ended(handle, partial(self._ended, error, remove_callback))
        self._settle(error)
        return True

    def _settle(self, error: Exception) -> None:
        """End what the model was saying, in the history and for the readers."""
        session = self._session
        incomplete, responses = session.received_audio.take_incomplete(), session.active_responses()
        changed = session.history.end_incomplete(self._calls.running())
        session.add(RealtimeConnectionLost(error, session.info))
        for place in incomplete:
            session.add(RealtimeAudioEnd(*place, session.info, is_cut=True))
        if changed:
            session.history_changed()
        for response_id in responses:
            # The server has counted tokens for it, but cannot report them any more.
            session.context.usage.add(Usage(requests=1, unreported=1))
            session.turn_ended(RealtimeModelTurnEndedEvent(response_id, "incomplete"))

    # Connecting again, in a task of its own

    async def _run(self, lost: Exception) -> None:
        """Try to connect until that succeeds, or the tries or the seconds are used up."""
        session, policy, error = self._session, self._policy, lost
        # First of all: a model serves one connection, and the old one may still hold a socket.
        await self._close()
        while (pause := self._next_pause(error)) is not None:
            self._tries += 1
            await anyio.sleep(pause)
            # The cancel of a stop is raised by the sleep; but a model may have turned an earlier one into an
            # error.
            if self._is_stopped():
                return
            session.add(RealtimeReconnecting(self._tries, policy.tries, error, session.info))
            try:
                with anyio.move_on_after(self._seconds_left()):
                    await self._connect()
                    if not self._is_stopped():
                        self._connected()
                    return
                error = TimeoutError(f"it took longer than {policy.within:g} s in all")
            except Exception as failure:
                error = await self._reason_of(failure)
            await self._close()
        if not self._is_stopped():
            self._give_up(lost, error)

    async def _reason_of(self, failure: Exception) -> Exception:
        """Return why a try failed.

        If the new connection was lost, sending failed because of that. The event about the loss says more,
        and comes a moment later.
        """
        if self._session.connection_ended:
            with anyio.move_on_after(self._seconds_left()):
                await self._has_fault.wait()
        return self._fault or failure

    async def _close(self) -> None:
        session = self._session
        try:
            await shielded(session.model.close)
        except Exception as error:
            logger.exception("a realtime model could not close a lost connection")
            session.closing_errors.append(("closing a lost connection", error))

    def _next_pause(self, error: Exception) -> float | None:
        """Return the seconds until the next try; None if there is to be none.

        They grow, and are partly random: many clients may have lost the same server at the same moment.
        """
        if self._is_stopped() or self._tries >= self._policy.tries or not may_come_back(error):
            return None
        grown = min(FIRST_PAUSE * 2 ** min(self._tries, 10), LONGEST_PAUSE)
        pause = grown * (1 - 0.5 * random.random())
        return pause if pause < self._seconds_left() else None

    def _seconds_left(self) -> float:
        return self._policy.within - self._seconds - self._seconds_without()

    def _seconds_without(self) -> float:
        return self._session.backend.now() - self._lost_at if self._lost_at is not None else 0.0

    async def _connect(self) -> None:
        """Connect, and send the model all that it has to know."""
        session, model, outbox = self._session, self._session.model, self.outbox
        self._fault, self._has_fault = None, anyio.Event()
        session.ignores_model = session.connection_ended = False
        outbox.connection_lost()  # for the messages that an earlier try has sent
        conversation = self._conversation()
        outbox.begin_restoring()
        await session.connect_model()
        if conversation and not self._is_stopped():
            await model.send_event(RealtimeModelSendHistory(conversation))
        if outbox.is_answer_due and not self._is_stopped():
            await model.send_event(RealtimeModelSendRawMessage({"type": "response.create"}))
        while not self._is_stopped() and (event := outbox.take()) is not None:
            await self._send_kept(event)
        # Lost again while all this was sent: the model does not raise that, it is an event.
        if self._fault is not None:
            raise self._fault

    async def _send_kept(self, event: RealtimeModelSendEvent) -> None:
        """Send something that had to wait. Its sender has returned, so a refusal becomes an event."""
        was_requested = self.outbox.note_sending(event)
        try:
            await self._session.model.send_event(event)
        except Exception as error:
            # An OSError is the connection's, and means another try; all others are about this message.
            if isinstance(error, OSError):
                raise
            self.outbox.note_refused(event, was_requested)
            self._session.failed(error)

    def _conversation(self) -> list[RealtimeItem]:
        """Return the history without blocked items; running calls get a provisional output."""
        session = self._session
        running = self._calls.running().items()
        changed = [session.history.set_provisional_output(call_id, text) for call_id, text in running]
        if any(changed):
            session.history_changed()
        return [item for item in session.history.items if item.item_id not in session.blocked_items]

    def _connected(self) -> None:
        session, seconds = self._session, self._seconds_without()
        self._seconds += seconds
        self._lost_at, self._back_at = None, session.backend.now()
        session.connected = True
        session.buffer.restore_bound()
        unknown = session.history.unknown_calls()
        dropped, self.outbox.audio_dropped = self.outbox.audio_dropped, 0
        session.add(RealtimeReconnected(self._tries, seconds, unknown, dropped, session.info))

    def _give_up(self, lost: Exception, error: Exception) -> None:
        why = "" if may_come_back(error) else ", which is not tried again"
        seconds = self._seconds + self._seconds_without()
        tried = f"{self._tries} of {self._policy.tries} tries, {seconds:.1f} s without a connection"
        unsent = f". Not sent: {messages} messages" if (messages := self.outbox.messages) else ""
        end = ConnectionEnded(f"{lost}; and it did not come back ({tried}): {error}{why}{unsent}")
        end.__cause__ = error
        self._session.end(end)

    def _ended(self, lost: Exception, remove_callback: Callable[[], None]) -> None:
        remove_callback()
        if self._lost_at is not None and not self._is_stopped():
            self._give_up(lost, ConnectionEnded("the task that connects was cancelled from outside"))

    async def wait_until_ended(self) -> None:
        """Wait for the task that connects, as the owner of the session, which has stopped it."""
        handle = self._handle
        # If code in that task is itself closing the session, it waits for the owner: to wait for it would
        # deadlock.
        if handle is not None and handle not in self._session.core.closers:
            await handle.wait()
