"""What tests of sessions are made of: tools and guardrails that tell how far they are, and readers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from quiesce import Grace, Scope, shielded
from quiesce.agents import (
    FunctionTool,
    GuardrailFunctionOutput,
    OutputGuardrail,
    function_tool,
    output_guardrail,
)
from quiesce.realtime import RealtimeAgent, RealtimePlaybackTracker, RealtimeSession
from quiesce.realtime.openai.protocol import Protocol
from quiesce.realtime.testing import ScriptedRealtimeModel
from quiesce.realtime.words.model_inputs import (
    RealtimeModelSendInterrupt,
    RealtimeModelSendSessionUpdate,
    RealtimeModelSendToolOutput,
    RealtimeModelSendUserInput,
)

LONG = "This is a sentence which is long enough for whoever looks at it while it is still being said."
EAGER_GUARDS: dict[str, Any] = {"guardrails_settings": {"debounce_text_length": 10}}


class Part:
    """A tool or a guardrail: when it begins, when it is cancelled, and when its clean-up, which takes a while, has come to its end."""

    def __init__(self, name: str = "part", tidy: float = 0.1, error: Exception | None = None) -> None:
        self.name = name
        self.begun = anyio.Event()
        self.cleaning = self.clean = False
        self.calls = 0
        self._tidy = tidy
        self._error = error

    async def work(self) -> None:
        """Until it is cancelled."""
        self.calls += 1
        self.begun.set()
        try:
            await anyio.Event().wait()
        finally:
            self.cleaning = True
            try:
                await shielded(self._tidy_up)
            finally:
                if self._error is not None:
                    raise self._error

    async def _tidy_up(self) -> None:
        await anyio.sleep(self._tidy)
        self.clean = True

    @property
    def tool(self) -> FunctionTool:
        """It, as a tool that never returns."""

        async def work() -> str:
            await self.work()
            return "never"

        return function_tool(work, name_override=self.name)

    @property
    def guardrail(self) -> OutputGuardrail:
        """It, as a guardrail that never decides."""

        async def look(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
            await self.work()
            return GuardrailFunctionOutput(None, False)

        return output_guardrail(name=self.name)(look)


def agent(*tools: FunctionTool, **fields: Any) -> RealtimeAgent[Any]:
    """An agent with these tools."""
    return RealtimeAgent(fields.pop("name", "agent"), tools=list(tools), **fields)


def session_of(
    turns: Any = (),
    *tools: FunctionTool,
    config: dict[str, Any] | None = None,
    model: ScriptedRealtimeModel | None = None,
    grace: Grace | None = None,
    scope: Scope | None = None,
    model_config: Any = None,
    context: Any = None,
    **fields: Any,
) -> RealtimeSession:
    """A session with a scripted model; `session.model` is that."""
    return RealtimeSession(
        model or ScriptedRealtimeModel(turns),
        agent(*tools, **fields),
        context,
        model_config,
        config,  # type: ignore[arg-type]
        grace=grace,
        scope=scope,
    )


def scripted(session: RealtimeSession) -> ScriptedRealtimeModel:
    """The model of a session made here."""
    model = session.model
    assert isinstance(model, ScriptedRealtimeModel)
    return model


class StrictModel(ScriptedRealtimeModel):
    """Refuses what cannot be sent over a wire, as one that has a wire does."""

    async def send_event(self, event: Any) -> None:
        Protocol(RealtimePlaybackTracker()).send(event)
        await super().send_event(event)


class Reading:
    """What somebody has read so far, in a task of their own."""

    def __init__(self, session: RealtimeSession) -> None:
        self.session = session
        self.events: list[Any] = []
        self.ended = False
        self.error: BaseException | None = None
        self._changed = anyio.Event()

    async def read(self) -> None:
        try:
            async for event in self.session:
                self.events.append(event)
                self._tell()
        except Exception as error:
            self.error = error
        finally:
            self.ended = True
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, is_there: Callable[[], object]) -> None:
        """Wait until that holds, which is looked at after each event."""
        while not is_there():
            assert not self.ended, f"the events have ended: {self.kinds} {self.error!r}"
            await self._changed.wait()

    async def until_kind(self, kind: str, count: int = 1) -> Any:
        """Wait for the first event of this kind, or the second ...; give it."""
        await self.until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)[count - 1]

    async def until_end(self) -> None:
        while not self.ended:
            await self._changed.wait()

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.type == kind]

    @property
    def kinds(self) -> list[str]:
        """All of them but the raw ones."""
        return [event.type for event in self.events if event.type != "raw_model_event"]


@asynccontextmanager
async def reading(session: RealtimeSession) -> AsyncIterator[Reading]:
    """Somebody reads all events beside the block, to their end."""
    it = Reading(session)
    async with Scope("reader") as scope:
        scope.spawn(it.read)
        yield it
        await session.close()


@asynccontextmanager
async def talking(session: RealtimeSession, *messages: str) -> AsyncIterator[Reading]:
    """A session that is open and read, and told these messages."""
    async with session, reading(session) as it:
        for message in messages:
            await session.send_message(message)
        yield it


def outputs(session: RealtimeSession) -> list[str]:
    """What the model was told that tools have returned."""
    return [
        event.output for event in scripted(session).sent if isinstance(event, RealtimeModelSendToolOutput)
    ]


def inputs(session: RealtimeSession) -> list[Any]:
    """What the model was told that the user says."""
    return [
        event.user_input for event in scripted(session).sent if isinstance(event, RealtimeModelSendUserInput)
    ]


def interrupts(session: RealtimeSession) -> list[RealtimeModelSendInterrupt]:
    return [event for event in scripted(session).sent if isinstance(event, RealtimeModelSendInterrupt)]


def updates(session: RealtimeSession) -> list[Any]:
    """Settings that the model was told to change to."""
    return [
        event.session_settings
        for event in scripted(session).sent
        if isinstance(event, RealtimeModelSendSessionUpdate)
    ]


async def until(is_so: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until that holds, looking again and again."""
    with anyio.fail_after(seconds):
        while not is_so():
            await anyio.sleep(0.005)


async def all_of(events: Iterable[anyio.Event]) -> None:
    for event in events:
        await event.wait()


Do = Callable[[RealtimeSession], Awaitable[object]]
