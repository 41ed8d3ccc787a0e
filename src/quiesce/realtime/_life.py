"""One session, from its connection to its end.

Invariants
- It is opened and ended by one owner task (`own`), whoever asks for that, and however: `close()`, the end of a block, the end of the owner's scope, a
  lost connection, the end of the program. There is one way out, `_leave`: nothing of the model is heard any more, and nothing new begins; the tools
  and guardrails that are at work are cancelled, and awaited; then the model is closed, and with it the socket.
- What comes from the model is dealt with by plain functions, in the order in which it came. Only tools and guardrails are tasks, children of `work`.
- A tool or guardrail that fails is an event. Nothing that they do ends the session.
- What is kept for the tools and guardrails is forgotten when all of them have ended, not before.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakValueDictionary

from anyio.lowlevel import checkpoint

from quiesce._safe.printed import logger
from quiesce.agents._context import RunContextWrapper
from quiesce.agents._errors import UserError
from quiesce.kernel._backend import current_backend
from quiesce.kernel._reason import Reason
from quiesce.kernel._scope import Scope, current_core
from quiesce.kernel._shielded import shielded
from quiesce.wire._draining import drained

from ._config import RealtimeLimits
from ._event_buffer import EventBuffer
from ._events import (
    RealtimeAgentEndEvent,
    RealtimeAgentStartEvent,
    RealtimeAudio,
    RealtimeAudioEnd,
    RealtimeAudioInterrupted,
    RealtimeError,
    RealtimeEventInfo,
    RealtimeHistoryAdded,
    RealtimeHistoryUpdated,
    RealtimeInputAudioTimeoutTriggered,
    RealtimeRawModelEvent,
)
from ._history import History
from ._model import RealtimeModelListener
from ._model_inputs import RealtimeModelSendSessionUpdate
from ._output_guards import OutputGuards
from ._playback import AssumedPlayback
from ._remembered import Recent, forget_oldest
from ._settings import Casting
from ._tool_calls import ToolCalls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from quiesce.kernel._backend import Backend
    from quiesce.kernel._child import Handle
    from quiesce.kernel._core import ScopeCore

    from . import _model_events as told
    from ._agent import RealtimeAgent
    from ._config import RealtimeModelConfig, RealtimeRunConfig
    from ._events import RealtimeSessionEvent
    from ._model import RealtimeModel
    from ._model_inputs import RealtimeModelSendEvent
    from ._settings import Cast
    from ._tool_calls import Call


_NAMED = 8  # tools and guardrails in a report

# Which session each model serves. One that finds its model in use must not close it for the other.
_served: WeakValueDictionary[int, Life] = WeakValueDictionary()

# What a model tells in the task of whoever tells it something, and who may be the one that is to read it: that waits for nobody.
_AT_ONCE = frozenset(("audio_interrupted", "item_updated"))


class Life(RealtimeModelListener):
    """What the tasks of a session share; users hold a `RealtimeSession`."""

    backend: Backend
    core: ScopeCore
    work: Scope
    casting: Casting
    cast: Cast
    buffer: EventBuffer

    def __init__(
        self,
        model: RealtimeModel,
        agent: RealtimeAgent[Any],
        context: Any,
        model_config: RealtimeModelConfig,
        run_config: RealtimeRunConfig,
    ) -> None:
        self.model = model
        self.context = RunContextWrapper(context)
        self.info = RealtimeEventInfo(self.context)
        self.limits = run_config.get("limits") or RealtimeLimits()
        self.history = History()
        self._is_leaving = False
        self._connected = False
        self._is_cut_off = False  # the connection has ended, of which not all may have been told
        self._tellers: set[object] = set()  # tasks that tell the model something now
        self.error: Exception | None = None  # that ended the model
        self.background_errors: list[
            tuple[str, BaseException]
        ] = []  # of tools and guardrails, known at the end
        self.closing_errors: list[tuple[str, BaseException]] = []  # that nobody else would see
        self._noted: list[str] = []  # of tools and guardrails
        self.playback: AssumedPlayback | None = None  # unless the user keeps an account
        self._agent = agent
        self._casts: dict[str | None, Cast] = {}  # of the responses that are on, as they began
        self._cut = Recent()  # interrupted, of which a piece may be on its way to us
        self._model_config = model_config
        self._run_config = run_config
        self._waits_for_tools = not run_config.get("async_tool_calls", True)
        self._servers = AsyncExitStack()
        debounce = run_config.get("guardrails_settings", {}).get("debounce_text_length", 100)
        self.calls = ToolCalls(self)
        self.guards = OutputGuards(self, run_config.get("output_guardrails", ()), debounce)

    def prepare(self) -> None:
        """Somebody may read before there is anything to be read."""
        self.backend = current_backend()
        self.buffer = EventBuffer(self.backend, self.limits)

    # The whole life, in the owner task

    async def __aenter__(self) -> Self:
        if _served.setdefault(id(self.model), self) is not self:
            raise UserError(
                "this model serves another session, and it serves one at a time: close that first"
            )
        try:
            self.core = current_core(self.backend)
            self.work = await Scope.open(
                "background work", on_error="report", on_child_error=self._work_failed
            )
            if self.core.closed:
                await checkpoint()  # stopped before it began: here is the cancel
            await self._connect()
        except BaseException:
            await self._leave()
            raise
        return self

    async def _connect(self) -> None:
        given = self._model_config
        initial = given.get("initial_model_settings")
        # A prompt says what to do, like instructions, which the next agent has of its own.
        lasting = {name: value for name, value in (initial or {}).items() if name != "prompt"}
        base = {**self._run_config.get("model_settings", {}), **lasting}
        self.casting = Casting(self.context, base, self._servers, lambda: self.closing)  # type: ignore[arg-type]
        self.cast = await self.casting.cast(self._agent, initial)
        options: RealtimeModelConfig = {"limits": self.limits, **given}
        options["initial_model_settings"] = self.cast.settings
        if "playback_tracker" not in given:
            self.playback = options["playback_tracker"] = AssumedPlayback(self.backend.now)
        self.add(RealtimeHistoryUpdated([], self.info))
        self.model.add_listener(self)
        await self.model.connect(options)
        self._connected = True

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._leave()

    @property
    def closing(self) -> bool:
        """Whether a stop was asked for: nothing new begins from that moment, though the owner task leaves a step later."""
        return self._is_leaving or (hasattr(self, "core") and self.core.closed)

    async def _leave(self) -> None:
        self._is_leaving = True
        self.buffer.end()
        try:
            self.model.remove_listener(self)
        except Exception as error:  # of a model of one's own: it is closed all the same
            logger.exception("a realtime model could not remove its listener")
            self.closing_errors.append(("removing the listener", error))
        if not hasattr(self, "work"):  # stopped before it began
            _served.pop(id(self.model), None)
            return
        self.work.cancel(self.core.reason or Reason("parent", "its owner ended"))
        grace = self.core.grace
        seconds = grace.cancel
        try:
            try:
                await drained(self.work)
            except BaseException:  # the time to clean up is over: what is left stays in `work`, and is named
                seconds = grace.terminate + grace.kill
                raise
            finally:
                self.note_background()
                self.calls.clear()
                self.guards.clear()
                await self._end("the model", self.model.close, seconds)
        finally:
            _served.pop(id(self.model), None)
            await self._end("the MCP servers", self._servers.aclose, seconds)

    async def _end(self, name: str, close: Callable[[], Awaitable[object]], seconds: float) -> None:
        try:
            await shielded(close, within=seconds)
        except BaseException as error:
            if isinstance(error.__cause__, Exception) and not isinstance(error, Exception):
                # A cancel goes first, and what went wrong would be seen by nobody.
                self.closing_errors.append((f"closing {name}", error.__cause__))
            raise

    def note_background(self) -> None:
        """The report tells of the tools and guardrails too that were at work, as far as they have ended by now."""
        report = self.work._opened().report()
        self.background_errors = list(report._failures)
        others = [note for note in self.core.notes if note not in self._noted]
        self._noted = list(report.notes)
        # Once each: a tool in a thread is a task and a thread of the same name.
        outcomes = list(dict.fromkeys(str(outcome) for outcome in report.outcomes))
        if outcomes:
            shown = ", ".join(outcomes[:_NAMED]) + (
                f" and {len(outcomes) - _NAMED} more" if outcomes[_NAMED:] else ""
            )
            self._noted.append(f"at work: {shown}")
        self.core.notes = [*others, *self._noted]

    def is_drained(self) -> bool:
        """Whether all tools and guardrails have ended, and none can begin."""
        return hasattr(self, "work") and self.work._opened().is_settled()

    # What the user asks for

    async def update_agent(self, agent: RealtimeAgent[Any]) -> None:
        """Background work, whoever asks for it: MCP servers may have to be connected for it, and must not outlive the session."""
        scope = await Scope.open(
            "update_agent", on_error="report", on_child_error=_told_elsewhere, scope=self.work
        )
        handle = scope.spawn(self._cast_and_take_over, agent, name="update_agent")
        try:
            await handle.wait()
        finally:
            await scope.close()
        handle.result()

    async def _cast_and_take_over(self, agent: RealtimeAgent[Any]) -> None:
        await self.take_over(await self.casting.cast(agent))

    async def take_over(self, cast: Cast) -> None:
        """Another agent speaks from now on, unless the model cannot be told so."""
        before, self.cast = self.cast, cast
        try:
            await self.send(RealtimeModelSendSessionUpdate(cast.settings))
        except Exception:
            if self.cast is cast:
                self.cast = before
            raise

    # What comes from the model

    async def on_event(self, event: told.RealtimeModelEvent) -> None:
        """Take it in; wait if there is more than anybody reads."""
        if self.closing or (event.type == "audio" and self._is_unwanted(event)):
            return
        self.add(RealtimeRawModelEvent(event, self.info))
        take_in = _TAKE_IN.get(event.type)
        call: Call | None = None
        if take_in is not None:
            try:
                call = take_in(self, event)
            except Exception as error:  # of a guardrail's name, say: whoever reads must not wait in vain for what comes behind
                logger.exception("%s could not be dealt with", event.type)
                self.failed(error)
        if call is not None and self._waits_for_tools:
            await call.parked.wait()
        if call is not None:
            await self.calls.wait_for_fewer()
        if event.type not in _AT_ONCE and self.buffer.is_full and self._connected and not self._is_telling():
            await self.buffer.wait_for_room()

    def on_connection_ended(self) -> None:
        """The end is told behind what had come: neither a tool nor whoever reads may hold that up."""
        self._is_cut_off = True
        self.calls.let_go()
        self.buffer.let_in()

    def _is_telling(self) -> bool:
        """Whether this task tells the model something: it may be the one that is to read what we are told meanwhile."""
        return current_task(self.backend) in self._tellers

    def add(self, event: RealtimeSessionEvent) -> None:
        """Tell whoever reads."""
        self.buffer.add(event)

    async def send(self, event: RealtimeModelSendEvent) -> None:
        """Tell the model, for a tool or guardrail. One that goes on after the end must not speak in the next session of the model."""
        if not self.closing:
            await self.tell_model(event)

    async def tell_model(self, event: RealtimeModelSendEvent) -> None:
        """Tell the model. What follows from it at once, it tells us meanwhile, in this task, which may be the one that is to read it."""
        task = current_task(self.backend)
        if task in self._tellers:
            await self.model.send_event(event)
            return
        self._tellers.add(task)
        try:
            await self.model.send_event(event)
        finally:
            self._tellers.discard(task)

    def failed(self, error: BaseException) -> None:
        """Something of the background has failed: that is an event."""
        self.add(RealtimeError(error, self.info))

    def _work_failed(self, handle: Handle, error: BaseException) -> None:
        if self.closing:
            logger.debug("%s failed while its session was closed", handle.name, exc_info=error)
        else:
            self.failed(error)

    def tool_answered(self, call_id: str, output: str) -> None:
        """A call has its output."""
        if self.history.answered(call_id, output):
            self._history_changed()

    def _history_changed(self) -> None:
        self.add(RealtimeHistoryUpdated(list(self.history.items), self.info))

    def _is_unwanted(self, event: told.RealtimeModelAudioEvent) -> bool:
        """Whether it was interrupted, or a guardrail has said no to it."""
        return (event.item_id, event.content_index) in self._cut or self.guards.has_tripped(event.response_id)

    def _audio(self, event: told.RealtimeModelAudioEvent) -> None:
        self.add(RealtimeAudio(event, event.item_id, event.content_index, self.info))

    def _audio_done(self, event: told.RealtimeModelAudioDoneEvent) -> None:
        self.add(RealtimeAudioEnd(event.item_id, event.content_index, self.info))

    def _audio_interrupted(self, event: told.RealtimeModelAudioInterruptedEvent) -> None:
        place = (event.item_id, event.content_index)
        self._cut.add(place)
        self.buffer.drop_audio(lambda audio: (audio.item_id, audio.content_index) == place)
        if self.playback is not None:
            self.playback.on_cut(*place)
        self.guards.hushed(event.item_id)
        self.add(RealtimeAudioInterrupted(event.item_id, event.content_index, self.info))

    def _called(self, event: told.RealtimeModelToolCallEvent) -> Call | None:
        if self._is_cut_off:
            return None  # nobody would hear what it returns
        return self.calls.came(event)

    def _said(
        self, event: told.RealtimeModelTranscriptDeltaEvent | told.RealtimeModelOutputTextDeltaEvent
    ) -> None:
        self.history.said(event.item_id, event.delta, is_written=event.type == "output_text_delta")
        self.guards.heard(event.response_id, event.item_id, event.delta)

    def _heard(self, event: told.RealtimeModelInputAudioTranscriptionCompletedEvent) -> None:
        if self.history.heard(event.item_id, event.transcript):
            self._history_changed()

    def _silence(self, event: told.RealtimeModelInputAudioTimeoutTriggeredEvent) -> None:
        self.add(RealtimeInputAudioTimeoutTriggered(self.info))

    def _item(self, event: told.RealtimeModelItemUpdatedEvent) -> None:
        if self.history.put(event.item):
            self.add(RealtimeHistoryAdded(event.item, self.info))
        else:
            self._history_changed()

    def _item_deleted(self, event: told.RealtimeModelItemDeletedEvent) -> None:
        if self.history.delete(event.item_id):
            self._history_changed()

    def _turn_started(self, event: told.RealtimeModelTurnStartedEvent) -> None:
        self.guards.began(event.response_id)
        self._casts[event.response_id] = self.cast
        forget_oldest(self._casts, Recent.MOST)
        self.add(RealtimeAgentStartEvent(self.cast.agent, self.info))

    def _turn_ended(self, event: told.RealtimeModelTurnEndedEvent) -> None:
        self.guards.ended(event.response_id)
        self._cut.clear()
        cast = self._casts.pop(event.response_id, self.cast)
        self.add(RealtimeAgentEndEvent(cast.agent, self.info))

    def cast_of(self, response_id: str | None) -> Cast:
        """Whose response it is, and which tools it was offered: a handoff in the middle of it does not change that."""
        return self._casts.get(response_id, self.cast)

    def _usage(self, event: told.RealtimeModelUsageEvent) -> None:
        self.context.usage.add(event.usage)

    def _error(self, event: told.RealtimeModelErrorEvent) -> None:
        self.add(RealtimeError(event.error, self.info))

    def _exception(self, event: told.RealtimeModelExceptionEvent) -> None:
        self.add(RealtimeError(event.exception, self.info))
        self._lost(event.exception)

    def _end_of_stream(self, event: told.RealtimeModelEndOfStreamEvent) -> None:
        self._lost(None)

    def _lost(self, error: Exception | None) -> None:
        """The model is gone, and the session ends with it."""
        self.error = self.error or error
        self.buffer.end(error)
        why = f": {error}" if error is not None else ""
        self.core.stop(Reason("disconnect", f"the model has ended the session{why}", error))


def current_task(backend: Backend) -> object:
    """Who runs now."""
    if backend.name == "trio":
        import trio

        return trio.lowlevel.current_task()
    return asyncio.current_task()


def _told_elsewhere(handle: Handle, error: BaseException) -> None:
    """`handle.result()` raises it."""


_TAKE_IN: dict[str, Callable[[Life, Any], Any]] = {
    "audio": Life._audio,
    "audio_done": Life._audio_done,
    "audio_interrupted": Life._audio_interrupted,
    "function_call": Life._called,
    "transcript_delta": Life._said,
    "output_text_delta": Life._said,
    "input_audio_transcription_completed": Life._heard,
    "input_audio_timeout_triggered": Life._silence,
    "item_updated": Life._item,
    "item_deleted": Life._item_deleted,
    "turn_started": Life._turn_started,
    "turn_ended": Life._turn_ended,
    "usage": Life._usage,
    "error": Life._error,
    "exception": Life._exception,
    "end_of_stream": Life._end_of_stream,
}
