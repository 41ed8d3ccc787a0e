"""One session, from its connection to its end.

Invariants
- One owner task (`own`) opens and closes the session, whichever way that is requested: `close()`, the end of
  a block, the end of the owner's scope, a lost connection, the end of the program. There is one way out,
  `_close`: the session stops listening to the model, and starts nothing new; it cancels the running tools and
  guardrails, and waits for them; then it closes the model, and with it the socket.
- Tools and guardrails are tasks, children of `work`. Everything else is done at once: see `model_listener`.
- A tool or guardrail that fails becomes an event. Nothing that they do ends the session.
- The state of tools and guardrails is kept until all of them have ended.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self, cast
from weakref import WeakValueDictionary

from anyio.lowlevel import checkpoint

from quiesce import Reason, Scope, shielded
from quiesce._safe.printed import logger
from quiesce.agents import UserError
from quiesce.kernel.inner import core_of, current_backend, failures_of, wait_settled
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
    from quiesce.realtime.words import (
        RealtimeAgent,
        RealtimeModel,
        RealtimeModelConfig,
        RealtimeModelSendEvent,
        RealtimeRunConfig,
        RealtimeSessionModelSettings,
    )

    from .active_agent import ActiveAgent


_NAMED = 8  # how many tools and guardrails a report lists

# The session of each model, by the id of the model. A session whose model is in use must not close it for the
# other.
_served: WeakValueDictionary[int, SessionTask] = WeakValueDictionary()


class SessionTask(ModelListener):
    """The session itself; users hold a `RealtimeSession`."""

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
        self.first_agent = agent
        self.error: Exception | None = None  # that ended the connection
        self.background_errors: list[tuple[str, BaseException]] = []  # of tools and guardrails, after the end
        self._is_closing = False
        self._senders: set[object] = set()  # tasks that are sending to the model
        self._notes: list[str] = []  # about tools and guardrails, in the report
        self._model_config = model_config
        self._run_config = run_config
        self._servers = AsyncExitStack()
        debounce = run_config.get("guardrails_settings", {}).get("debounce_text_length", 100)
        self.calls = ToolCalls(self)
        if (policy := run_config.get("reconnect")) is not None:
            self.reconnecting = Reconnecting(self, self.calls, policy)
        self.guards = OutputGuards(self, run_config.get("output_guardrails", ()), debounce)

    def prepare(self) -> None:
        """Make the buffer, before the owner task starts: readers may come first."""
        self.backend = current_backend()
        self.buffer = EventBuffer(self.limits)

    # Opening and closing, in the owner task

    async def __aenter__(self) -> Self:
        if _served.setdefault(id(self.model), self) is not self:
            raise UserError("this model serves another session, and can serve only one: close that first")
        try:
            self.core = core_of()
            self.work = await Scope.open(
                "background work", on_error="report", on_child_error=self._work_failed
            )
            if self.core.closed:
                await checkpoint()  # stopped before it began: this raises the cancel
            await self._connect()
        except BaseException:
            await self._close()
            raise
        return self

    async def _connect(self) -> None:
        initial = self._model_config.get("initial_model_settings")
        # Not the prompt: like instructions, it belongs to one agent, and the next one has its own.
        lasting = {name: value for name, value in (initial or {}).items() if name != "prompt"}
        base = {**self._run_config.get("model_settings", {}), **lasting}
        settings = cast("RealtimeSessionModelSettings", base)
        self.activation = AgentActivation(self.context, settings, self._servers, lambda: self.closing)
        self.active_agent = await self.activation.activate(self.first_agent, initial)
        tracker = self._model_config.get("playback_tracker")
        if tracker is None:
            tracker = self.playback = AssumedPlayback(self.backend.now)
        self.tracker = tracker
        self.add(RealtimeHistoryUpdated([], self.info))
        # Before connecting: the first events may arrive while `connect` is still running.
        self.model.add_listener(self)
        await self.connect_model()
        self.connected = True

    async def connect_model(self) -> None:
        """Connect the model, with the settings of the active agent."""
        options: RealtimeModelConfig = {"limits": self.limits, **self._model_config}
        options["initial_model_settings"] = self.active_agent.settings
        options["playback_tracker"] = self.tracker
        await self.model.connect(options)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    @property
    def closing(self) -> bool:
        """Whether a stop was requested: nothing new begins, even before the owner task acts."""
        return self._is_closing or (hasattr(self, "core") and self.core.closed)

    async def _close(self) -> None:
        self._is_closing = True
        # Readers get what is in the buffer, and then the end. They need not wait for the tools.
        self.buffer.end()
        try:
            self.model.remove_listener(self)
        except Exception as error:  # of the user's own model, which has to be closed in any case
            logger.exception("a realtime model could not remove its listener")
            self.closing_errors.append(("removing the listener", error))
        if not hasattr(self, "work"):  # opening failed before anything was started
            _served.pop(id(self.model), None)
            return
        self.work.cancel(self.core.reason or Reason("parent", "its owner ended"))
        grace = self.core.grace
        seconds = grace.cancel
        try:
            try:
                await wait_settled(core_of(self.work))
                if self.reconnecting is not None:
                    await self.reconnecting.wait_until_ended()
            except BaseException:
                # The grace is over. What is left over stays in `work`, and the report names it.
                seconds = grace.terminate + grace.kill
                raise
            finally:
                # Everything in `work` has ended by now, or is left over.
                self.note_background()
                self.calls.clear()
                self.guards.clear()
                await self._close_part("the model", self.model.close, seconds)
        finally:
            _served.pop(id(self.model), None)
            # Last, because tools of these servers may have been running until now.
            await self._close_part("the MCP servers", self._servers.aclose, seconds)

    async def _close_part(self, name: str, close: Callable[[], Awaitable[object]], seconds: float) -> None:
        try:
            await shielded(close, within=seconds)
        except BaseException as error:
            if isinstance(error.__cause__, Exception) and not isinstance(error, Exception):
                # A cancel is raised, with the failure as its cause, where it would not be seen.
                self.closing_errors.append((f"closing {name}", error.__cause__))
            raise

    def note_background(self) -> None:
        """Add what is known about the tools and guardrails so far to the report."""
        report = core_of(self.work).report()
        self.background_errors = list(failures_of(report))
        before, self._notes = self._notes, list(report.notes)
        # Each name once: a tool in a thread is a task and a thread of the same name.
        outcomes = list(dict.fromkeys(str(outcome) for outcome in report.outcomes))
        if outcomes:
            more = f" and {len(outcomes) - _NAMED} more" if outcomes[_NAMED:] else ""
            self._notes.append(f"at work: {', '.join(outcomes[:_NAMED])}{more}")
        self.core.add_notes(self._notes, instead_of=before)

    def is_drained(self) -> bool:
        """Return whether all tools and guardrails have ended, and none can begin."""
        return hasattr(self, "work") and core_of(self.work).is_settled()

    # The agent

    async def update_agent(self, agent: RealtimeAgent[Any]) -> None:
        """Make another agent the active one.

        This is done in a child of `work`, not in the caller's task: MCP servers may be connected for it, and
        the session has to stop that when it closes.
        """
        scope = await Scope.open("update_agent", on_error="report", on_child_error=_ignore, scope=self.work)
        handle = scope.spawn(self._activate, agent, name="update_agent")
        try:
            await handle.wait()
        finally:
            # A caller that is cancelled takes the activation with it.
            await scope.close()
        handle.result()

    async def _activate(self, agent: RealtimeAgent[Any]) -> None:
        await self.switch_to(await self.activation.activate(agent))

    async def switch_to(self, agent: ActiveAgent) -> None:
        """Make another agent the active one, unless the model refuses its settings."""
        before, self.active_agent = self.active_agent, agent
        try:
            await self.send(RealtimeModelSendSessionUpdate(agent.settings))
        except Exception:
            if self.active_agent is agent:  # another switch may have followed
                self.active_agent = before
            raise

    # Sending

    def is_sending(self) -> bool:
        """Return whether this task is sending to the model: it may be the one that reads the events."""
        return self.backend.current_task() in self._senders

    async def send(self, event: RealtimeModelSendEvent) -> None:
        """Send to the model, for a tool or guardrail; do nothing if the session is closing.

        A tool may outlast the session, and must not send anything into the next session of the same model.
        """
        if not self.closing:
            await self.send_when_connected(event)

    async def send_when_connected(self, event: RealtimeModelSendEvent) -> None:
        """Send to the model, as soon as there is a connection."""
        if self.reconnecting is not None:
            await self.reconnecting.send(event)
        else:
            await self.send_now(event)

    async def send_now(self, event: RealtimeModelSendEvent) -> None:
        """Send to the model.

        It emits the immediate consequences in this task. If this task is also the reader of the events, it
        cannot make room for them: so it is noted as a sender (`is_sending`), for which the buffer may exceed
        its limits.
        """
        task = self.backend.current_task()
        if task in self._senders:
            await self.model.send_event(event)
            return
        self._senders.add(task)
        try:
            await self.model.send_event(event)
        finally:
            self._senders.discard(task)

    # Failures

    def _work_failed(self, handle: Handle, error: BaseException) -> None:
        if self.closing:
            logger.debug("%s failed while its session was closed", handle.name, exc_info=error)
        else:
            self.failed(error)

    def connection_lost(self, error: Exception | None, *, in_order: bool = False) -> None:
        """Reconnect, or end the session; `in_order`: the model announced the end."""
        if self.reconnecting is None or not self.reconnecting.connection_lost(error):
            self.end(None if in_order else error)

    def end(self, error: Exception | None) -> None:
        """End the session, because there is no connection any more."""
        if error is not None:
            self.failed(error)
        self.error = error if self.error is None else self.error
        self.buffer.end(error)
        why = f": {error}" if error is not None else ""
        self.core.stop(Reason("disconnect", f"the model has ended the session{why}", error))


def _ignore(handle: Handle, error: BaseException) -> None:
    """Do nothing: `handle.result()` raises the error."""
