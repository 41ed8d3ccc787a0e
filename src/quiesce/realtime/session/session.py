"""A session as its users hold it.

This face and the session proper (`SessionTask`) are two objects, so that a session which its users have dropped without closing is noticed: its
tasks refer to the session proper alone.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from quiesce import ChildCancelled, Held, NotHeld, Reason
from quiesce.agents import UserError
from quiesce.kernel.inner import Owned, as_reason, close_core, current_backend, reason_of_block, users_site
from quiesce.realtime.words import (
    RealtimeAgent,
    RealtimeAudio,
    RealtimeModelSendAudio,
    RealtimeModelSendInterrupt,
    RealtimeModelSendUserInput,
    check_run_config,
)

from .session_task import SessionTask

if TYPE_CHECKING:
    from quiesce import Grace, Scope, StopReport
    from quiesce.realtime.words import (
        RealtimeItem,
        RealtimeModel,
        RealtimeModelConfig,
        RealtimeRunConfig,
        RealtimeSessionEvent,
        RealtimeUserInput,
    )


class RealtimeSessionClosed(UserError):
    """The session has not been opened, or has ended."""


class RealtimeSession:
    """A conversation with a model that speaks: send audio and text, and read what happens.

    ```python
    async with await RealtimeRunner(agent).run() as session:
        await session.send_message("Hello!")
        async for event in session:
            if event.type == "audio":
                play(event.audio.data)
    ```

    Or `await session.enter()` … `report = await session.close()`. Everything may be used from any task.

    Tools and guardrails run beside the conversation and belong to the session: when it is closed, nothing new begins, they are cancelled and awaited
    within the `Grace`, and then the model is closed. When control is back all of them have ended, or are named in the report.

    Somebody must read the events: when more of them wait than `RealtimeLimits` allows, nothing more is read from the model.
    """

    def __init__(
        self,
        model: RealtimeModel,
        agent: RealtimeAgent[Any],
        context: Any = None,
        model_config: RealtimeModelConfig | None = None,
        run_config: RealtimeRunConfig | None = None,
        *,
        grace: Grace | None = None,
        scope: Scope | None = None,
    ) -> None:
        if not isinstance(agent, RealtimeAgent):
            raise UserError(f"a realtime session needs a RealtimeAgent, not {type(agent).__name__}")
        check_run_config(run_config or {})
        if (run_config or {}).get("reconnect") is not None and (model_config or {}).get(
            "call_id"
        ) is not None:
            raise UserError(
                "a call that was joined by its call_id has its conversation with the server: it is not sent again, so leave out 'reconnect'"
            )
        self._held: Held[SessionTask] | None = None
        self._life = SessionTask(model, agent, context, model_config or {}, run_config or {})
        grace = grace or (run_config or {}).get("grace")
        self._owned: Owned[SessionTask] = Owned(
            self._life, scope, f"realtime session of {agent.name}", grace, users_site()
        )

    # Opening and closing

    async def enter(self) -> Self:
        """Connect to the model. Raises what went wrong; if you are cancelled, nothing is left."""
        if self._held is not None:
            raise UserError("this session was opened before: it is used once, make a new one")
        self._life.prepare()
        keeper = self._owned._start(current_backend())
        self._held = Held(keeper)
        try:
            await keeper.wait_until_entered()
        except NotHeld:
            if self._life.error is not None:
                raise self._life.error from None
            if not keeper.entered:
                raise
            # One that was connected, and has ended since, is like one that ends a moment later.
        finally:
            if not keeper.entered:
                self._life.buffer.end()
        return self

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """End the session, wait until all of it has ended, and report; from any task, as often as you like, also while it connects.

        Bounded by `deadline` seconds, or its `Grace`. If you are cancelled meanwhile, it goes on and your cancellation is raised after it;
        the report is then in `session.report`.
        """
        held = self._opened()
        report = await close_core(held._keeper.core, deadline, grace, reason)
        held._keeper.take_failure()  # it is in the report
        return self._with_background(report)

    def cancel(self, reason: Reason | str | None = None) -> None:
        """Begin to end the session; from any thread, without waiting."""
        core = self._opened()._keeper.core
        why = as_reason(reason, Reason("user"))
        core.backend.run_from_anywhere(lambda: core.stop(why, hurry=core.closed))

    async def __aenter__(self) -> Self:
        return await self.enter()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        held = self._opened()
        if isinstance(error, GeneratorExit) and not held._keeper.core.backend.is_current():
            return  # the loop is gone, and the collector closes what it left
        why = reason_of_block(held._keeper.core, error)
        try:
            await held.close(reason=why)
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"closing the session also failed: {failure!r}")

    def _opened(self) -> Held[SessionTask]:
        if self._held is None:
            raise RealtimeSessionClosed(
                "this session is not open: use `async with session`, or `await session.enter()`"
            )
        return self._held

    def _open(self) -> SessionTask:
        core = self._opened()._keeper.core
        if core.closed or self._life.closing:
            raise RealtimeSessionClosed(f"this session is closed ({core.reason}): open a new one")
        if not self._opened()._keeper.entered:
            raise RealtimeSessionClosed("this session is still connecting: wait for `enter()` first")
        return self._life

    # Talking

    async def send_message(self, message: RealtimeUserInput) -> None:
        """Say something in writing, and ask for an answer: a text, or a message with several parts. While the session reconnects, it waits to be sent."""
        await self._open().tell_model(RealtimeModelSendUserInput(message))

    async def send_audio(self, audio: bytes, *, commit: bool = False) -> None:
        """Say something; `commit` if that was all and the server does not notice such things itself. Waits for a server that does not read.
        While the session reconnects, audio is dropped: the `reconnected` event says how much.
        """
        if not isinstance(audio, (bytes, bytearray, memoryview)):
            raise TypeError(f"audio is bytes, not {type(audio).__name__}")
        await self._open().tell_model(RealtimeModelSendAudio(audio, commit))

    async def interrupt(self) -> None:
        """Stop what the model is saying. Tools go on.

        An answer that was asked for and has not begun ends as soon as it begins, unheard; answers that wait for their turn are not asked for any more.
        What is wanted afterwards is answered as ever.
        """
        life = self._open()
        life.guards.hushed(None)
        # Nobody may be speaking: then no server would end the response by itself.
        await life.tell_model(RealtimeModelSendInterrupt(force_response_cancel=True))

    async def update_agent(self, agent: RealtimeAgent[Any]) -> None:
        """Another agent goes on with this conversation."""
        if not isinstance(agent, RealtimeAgent):
            raise UserError(f"a realtime session needs a RealtimeAgent, not {type(agent).__name__}")
        try:
            await self._open().update_agent(agent)
        except ChildCancelled:
            self._open()  # raises that it was closed meanwhile, unless the cancel came from inside
            raise

    async def approve_tool_call(self, call_id: str, *, always: bool = False) -> None:
        """Let a tool call be made that waits for approval; `always`: and all others of this tool, in this session."""
        self._open().calls.decide(call_id, True, always, None)

    async def reject_tool_call(
        self, call_id: str, *, always: bool = False, rejection_message: str | None = None
    ) -> None:
        """Do not let it be made; the model is told so, in these words if given."""
        self._open().calls.decide(call_id, False, always, rejection_message)

    # Listening

    def __aiter__(self) -> Events:
        """The events, from where whoever read last has left off. Each event is read once; several readers share them."""
        self._opened()
        return Events(self)

    # Looking

    @property
    def model(self) -> RealtimeModel:
        """What it is connected by."""
        return self._life.model

    @property
    def history(self) -> list[RealtimeItem]:
        """The conversation so far."""
        return list(self._life.history.items)

    @property
    def current_agent(self) -> RealtimeAgent[Any]:
        """Who speaks now."""
        cast = getattr(self._life, "cast", None)
        return cast.agent if cast is not None else self._life._agent

    @property
    def closed(self) -> bool:
        """Whether it has ended, or is about to."""
        return self._held is not None and self._held._keeper.core.closed

    @property
    def report(self) -> StopReport | None:
        """What the last `close()` or the end of the block reported; None before."""
        report = self._held.report if self._held is not None else None
        return self._with_background(report) if report is not None else None

    def _with_background(self, report: StopReport) -> StopReport:
        """What tools and guardrails have raised is no failure of the session, but belongs into its report; also if it came late."""
        life = self._life
        if life.is_drained():
            life.note_background()
            report.notes = life.core.notes
        known = {id(error) for error in report.errors}
        raised = [*life.background_errors, *life.closing_errors]
        report._failures = (*report._failures, *(each for each in raised if id(each[1]) not in known))
        return report

    def __repr__(self) -> str:
        state = "new" if self._held is None else self._held._keeper.core.state
        return f"<RealtimeSession of {self.current_agent.name!r} {state}>"


class Events:
    """An iterator, not a generator: breaking out of it leaves nothing to be finalised, and the next one goes on from there."""

    __slots__ = ("_session",)

    def __init__(self, session: RealtimeSession) -> None:
        self._session = session  # which is not dropped while somebody reads

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RealtimeSessionEvent:
        life = self._session._life
        event = await life.buffer.take()
        if event is None:
            raise StopAsyncIteration
        if type(event) is RealtimeAudio and life.playback is not None:
            life.playback.on_taken(event.item_id, event.content_index, len(event.audio.data))
        return event

    async def aclose(self) -> None:
        """Nothing is left of it; the session goes on."""
