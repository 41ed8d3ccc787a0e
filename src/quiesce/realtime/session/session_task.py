"""One session, from its connection to its end.

Invariants
- It is opened and ended by one owner task (`own`), whoever asks for that, and however: `close()`, the end of a block, the end of the owner's scope, a
  lost connection, the end of the program. There is one way out, `_leave`: nothing of the model is heard any more, and nothing new begins; the tools
  and guardrails that are at work are cancelled, and awaited; then the model is closed, and with it the socket.
- Tools and guardrails are tasks, children of `work`. What else there is to be done for what the model says is done at once: see `model_listener`.
- A tool or guardrail that fails is an event. Nothing that they do ends the session.
- What is kept for the tools and guardrails is forgotten when all of them have ended, not before.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakValueDictionary

from anyio.lowlevel import checkpoint

from quiesce import Reason, Scope, shielded
from quiesce._safe.printed import logger
from quiesce.agents import UserError
from quiesce.kernel.inner import current_backend, current_core, wait_settled
from quiesce.realtime.words import AssumedPlayback, RealtimeHistoryUpdated, RealtimeModelSendSessionUpdate

from .active_agent import AgentActivation
from .event_buffer import EventBuffer
from .model_listener import ModelListener
from .output_guards import OutputGuards
from .reconnecting import Reconnecting
from .tool_calls import ToolCalls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from quiesce import Handle
    from quiesce.kernel.inner import Backend, ScopeCore
    from quiesce.realtime.words import (
        RealtimeAgent,
        RealtimeModel,
        RealtimeModelConfig,
        RealtimeModelSendEvent,
        RealtimePlaybackTracker,
        RealtimeRunConfig,
    )

    from .active_agent import ActiveAgent


_NAMED = 8  # tools and guardrails in a report

# Which session each model serves. One that finds its model in use must not close it for the other.
_served: WeakValueDictionary[int, SessionTask] = WeakValueDictionary()


class SessionTask(ModelListener):
    """What the tasks of a session share; users hold a `RealtimeSession`."""

    backend: Backend
    core: ScopeCore
    work: Scope
    casting: AgentActivation
    tracker: RealtimePlaybackTracker  # the user's account of what was played, or that of the session

    def __init__(
        self,
        model: RealtimeModel,
        agent: RealtimeAgent[Any],
        context: Any,
        model_config: RealtimeModelConfig,
        run_config: RealtimeRunConfig,
    ) -> None:
        super().__init__(context, run_config)
        self.model = model
        self._is_leaving = False
        self._tellers: set[object] = set()  # tasks that tell the model something now
        self.error: Exception | None = None  # that ended the model
        self.background_errors: list[
            tuple[str, BaseException]
        ] = []  # of tools and guardrails, known at the end
        self.closing_errors: list[tuple[str, BaseException]] = []  # that nobody else would see
        self._noted: list[str] = []  # of tools and guardrails
        self._agent = agent
        self._model_config = model_config
        self._run_config = run_config
        self._servers = AsyncExitStack()
        debounce = run_config.get("guardrails_settings", {}).get("debounce_text_length", 100)
        if (policy := run_config.get("reconnect")) is not None:
            self.reconnecting = Reconnecting(self, policy)
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
        self.casting = AgentActivation(self.context, base, self._servers, lambda: self.closing)  # type: ignore[arg-type]
        self.cast = await self.casting.cast(self._agent, initial)
        tracker = given.get("playback_tracker")
        if tracker is None:
            tracker = self.playback = AssumedPlayback(self.backend.now)
        self.tracker = tracker
        self.add(RealtimeHistoryUpdated([], self.info))
        self.model.add_listener(self)
        await self.connect_again()
        self.connected = True

    async def connect_again(self) -> None:
        """Connect the model, as the agent that speaks now would have it."""
        options: RealtimeModelConfig = {"limits": self.limits, **self._model_config}
        options["initial_model_settings"] = self.cast.settings
        options["playback_tracker"] = self.tracker
        await self.model.connect(options)

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
                await wait_settled(self.work._opened())
                if self.reconnecting is not None:
                    await self.reconnecting.wait_until_ended()
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

    async def take_over(self, cast: ActiveAgent) -> None:
        """Another agent speaks from now on, unless the model cannot be told so."""
        before, self.cast = self.cast, cast
        try:
            await self.send(RealtimeModelSendSessionUpdate(cast.settings))
        except Exception:
            if self.cast is cast:
                self.cast = before
            raise

    def is_telling(self) -> bool:
        """Whether this task tells the model something: it may be the one that is to read what we are told meanwhile."""
        return self.backend.current_task() in self._tellers

    async def send(self, event: RealtimeModelSendEvent) -> None:
        """Tell the model, for a tool or guardrail. One that goes on after the end must not speak in the next session of the model."""
        if not self.closing:
            await self.tell_model(event)

    async def tell_model(self, event: RealtimeModelSendEvent) -> None:
        """Tell the model, as soon as it can be told."""
        if self.reconnecting is not None:
            await self.reconnecting.tell(event)
        else:
            await self.tell_at_once(event)

    async def tell_at_once(self, event: RealtimeModelSendEvent) -> None:
        """Tell the model. What follows from it at once, it tells us meanwhile, in this task, which may be the one that is to read it."""
        task = self.backend.current_task()
        if task in self._tellers:
            await self.model.send_event(event)
            return
        self._tellers.add(task)
        try:
            await self.model.send_event(event)
        finally:
            self._tellers.discard(task)

    def _work_failed(self, handle: Handle, error: BaseException) -> None:
        if self.closing:
            logger.debug("%s failed while its session was closed", handle.name, exc_info=error)
        else:
            self.failed(error)

    def lost(self, error: Exception | None, *, in_order: bool = False) -> None:
        """The model is gone, and the session ends with it, unless it gets it back."""
        if self.reconnecting is None or not self.reconnecting.lost(error):
            self.end(None if in_order else error)

    def end(self, error: Exception | None) -> None:
        """There is no model any more, perhaps because of an error: that is the end."""
        if error is not None:
            self.failed(error)
        self.error = error if self.error is None else self.error
        self.buffer.end(error)
        why = f": {error}" if error is not None else ""
        self.core.stop(Reason("disconnect", f"the model has ended the session{why}", error))


def _told_elsewhere(handle: Handle, error: BaseException) -> None:
    """`handle.result()` raises it."""
