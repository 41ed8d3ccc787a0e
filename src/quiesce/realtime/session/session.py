"""A session as its users hold it.

`RealtimeSession` and the session itself (`SessionTask`) are two objects. The tasks of a session refer only to
the latter, so a `RealtimeSession` that was dropped without closing it is noticed.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from quiesce import ChildCancelled, NotHeld, Reason
from quiesce.agents import UserError
from quiesce.kernel.inner import Cancellable, SessionFace, add_failures, make_holding, users_site
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
    """The session has not been opened, or is closed."""


class RealtimeSession(SessionFace[SessionTask]):
    """A conversation with a model that speaks: send audio and text, and read the events.

    ```python
    async with await RealtimeRunner(agent).run() as session:
        await session.send_message("Hello!")
        async for event in session:
            if event.type == "audio":
                play(event.audio.data)
    ```

    Or `await session.enter()` … `report = await session.close()`. All methods may be called from any task.

    Tools and guardrails run while the conversation goes on, and belong to the session. When it closes,
    nothing new begins; they are cancelled, and awaited within the `Grace`; then the model is closed. When
    `close()` returns, all of them have ended, or are named in the report.

    The events must be read: when more of them wait than `RealtimeLimits` allows, nothing more is read from
    the model.
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
                "'reconnect' does not work with a call_id: the conversation of a joined call is not known here, "
                "and cannot be sent again"
            )
        self._task = SessionTask(model, agent, context, model_config or {}, run_config or {})
        grace = grace or (run_config or {}).get("grace")
        self._name = f"realtime session of {agent.name}"
        self._grace, self._owner, self._site = grace, scope, users_site()

    # Opening and closing

    async def enter(self) -> Self:
        """Connect to the model. If this fails or is cancelled, nothing is left running."""
        if self._holding is not None:
            raise UserError("this session was opened before: a session is used once, so make a new one")
        self._task.prepare()
        self._holding = holding = make_holding(
            self._task, self._name, self._site, grace=self._grace, scope=self._owner
        )
        try:
            holding.start()
            await holding.wait_until_entered()
        except NotHeld:
            if self._task.error is not None:
                raise self._task.error from None
            raise
        finally:
            # Readers that were waiting before it failed to open must not wait forever.
            if not holding.entered:
                self._task.buffer.end()
        return self

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """Close the session, wait until all of it has ended, and return a report.

        It may be called from any task, repeatedly, and while the session connects. It takes at most
        `deadline` seconds, or the `Grace` of the session. If you are cancelled meanwhile, the close
        continues, and your cancellation is raised after it; the report is then in `session.report`.
        """
        report = await Cancellable.close(self, deadline=deadline, grace=grace, reason=reason)
        self._held().take_failure()  # the report has it
        return self._with_background(report)

    async def __aenter__(self) -> Self:
        return await self.enter()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await super().__aexit__(kind, error, traceback)
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"closing the session also failed: {failure!r}")

    async def _close_block(self, reason: Reason) -> None:
        await super().close(reason=reason)  # raises what has broken the session

    def _how_to_open(self) -> Exception:
        return RealtimeSessionClosed(
            "this session is not open: use `async with session`, or `await session.enter()`"
        )

    def _open(self) -> SessionTask:
        core = self._open_core()
        if core.closed or self._task.closing:
            raise RealtimeSessionClosed(f"this session is closed ({core.reason}): open a new one")
        if not self._held().entered:
            raise RealtimeSessionClosed("this session is still connecting: wait for `enter()` first")
        return self._task

    # Sending

    async def send_message(self, message: RealtimeUserInput) -> None:
        """Send a text, or a message with several parts, and request an answer.

        While the session reconnects, the message waits.
        """
        await self._open().send_when_connected(RealtimeModelSendUserInput(message))

    async def send_audio(self, audio: bytes, *, commit: bool = False) -> None:
        """Send audio of the user, and wait while the server does not read.

        `commit` marks the end of what the user says, for servers that do not detect it. While the session
        reconnects, audio is dropped: the `reconnected` event says how much.
        """
        if not isinstance(audio, (bytes, bytearray, memoryview)):
            raise TypeError(f"audio must be bytes, not {type(audio).__name__}")
        await self._open().send_when_connected(RealtimeModelSendAudio(audio, commit))

    async def interrupt(self) -> None:
        """Stop the speech of the model. Tools go on.

        An answer that was requested and has not begun is cancelled when it begins, without being heard.
        Answers that wait for their turn are not requested any more. What you send afterwards is answered as
        usual.
        """
        task = self._open()
        task.guards.note_interrupt(None)
        # Forced: a server ends a response by itself only if the user speaks, which need not be so here.
        await task.send_when_connected(RealtimeModelSendInterrupt(force_response_cancel=True))

    async def update_agent(self, agent: RealtimeAgent[Any]) -> None:
        """Let another agent go on with this conversation."""
        if not isinstance(agent, RealtimeAgent):
            raise UserError(f"a realtime session needs a RealtimeAgent, not {type(agent).__name__}")
        try:
            await self._open().update_agent(agent)
        except ChildCancelled:
            self._open()  # raises if the session was closed; otherwise the cancel came from inside
            raise

    async def approve_tool_call(self, call_id: str, *, always: bool = False) -> None:
        """Approve a tool call that waits for it; `always`: and all later calls of this tool."""
        self._open().calls.decide(call_id, True, always, None)

    async def reject_tool_call(
        self, call_id: str, *, always: bool = False, rejection_message: str | None = None
    ) -> None:
        """Reject a tool call; the model gets `rejection_message`, or a standard text."""
        self._open().calls.decide(call_id, False, always, rejection_message)

    # Reading

    def __aiter__(self) -> Events:
        """Iterate over the events, from where the last reader stopped. Several readers share them."""
        self._held()
        return Events(self)

    # State

    @property
    def model(self) -> RealtimeModel:
        """The connection to the model."""
        return self._task.model

    @property
    def history(self) -> list[RealtimeItem]:
        """The conversation so far."""
        return list(self._task.history.items)

    @property
    def current_agent(self) -> RealtimeAgent[Any]:
        """The agent that is active."""
        active = getattr(self._task, "active_agent", None)
        return active.agent if active is not None else self._task.first_agent

    @property
    def report(self) -> StopReport | None:
        """The report of the last `close()`, or of exiting the block; None before."""
        report = super().report
        return self._with_background(report) if report is not None else None

    def _with_background(self, report: StopReport) -> StopReport:
        """Add the errors of tools and guardrails, also late ones, which are not failures of the session."""
        task = self._task
        if task.is_drained():
            task.note_background()
            report.notes = task.core.notes
        add_failures(report, [*task.background_errors, *task.closing_errors])
        return report

    def __repr__(self) -> str:
        state = "new" if self._holding is None else self._holding.core.state
        return f"<RealtimeSession of {self.current_agent.name!r} {state}>"


class Events:
    """The events of a session.

    An iterator, not a generator: if you break out of the loop, nothing has to be finalised, and the next
    reader continues from there.
    """

    __slots__ = ("_session",)

    def __init__(self, session: RealtimeSession) -> None:
        self._session = session  # keeps it alive while it is read

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RealtimeSessionEvent:
        task = self._session._task
        event = await task.buffer.take()
        if event is None:
            raise StopAsyncIteration
        # The user has this audio from now on, so from now on it counts as being played.
        if type(event) is RealtimeAudio and task.playback is not None:
            task.playback.on_taken(event.item_id, event.content_index, len(event.audio.data))
        return event

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close, and the session goes on."""
