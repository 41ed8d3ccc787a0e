"""Pieces of runs for tests: code that parks, a model that takes its time, and what must hold of every history."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from quiesce.agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    MemorySession,
    OutputGuardrail,
    RunResultStreaming,
    StreamEvent,
)
from quiesce.models import (
    AssistantMessage,
    Item,
    ItemDone,
    ModelEvent,
    ModelRequest,
    ResponseDone,
    TextDelta,
    ToolCall,
    ToolResult,
    Usage,
)
from quiesce.testing import ScriptedModel
from tests.agents.transcript_rules import problems
from tests.kernel.temperaments import forever, tidy_up

CLEAN_UP = 0.05  # seconds
MIDDLE = CLEAN_UP / 5  # a second stop comes in the middle of the clean-up


class Parked:
    """Somebody's code that waits for ever. When it is stopped it has 50 ms to clean up, and must not be cut in that."""

    patience = MIDDLE  # after which somebody who waits for the stop may give up, and finds it still going on

    def __init__(self) -> None:
        self.begun = 0
        self.tidied = 0
        self.reached = anyio.Event()

    async def park(self, *_: object) -> Any:
        """Say that it is there, and wait."""
        self.begun += 1
        self.reached.set()
        try:
            await forever()
        finally:
            await tidy_up(CLEAN_UP)
            self.tidied += 1

    def assert_tidy(self) -> None:
        """It was there, and every clean-up came to its end."""
        assert self.begun, "nobody came to where the run was to be stopped"
        assert self.tidied == self.begun, f"{self.begun - self.tidied} clean-ups were cut short"


class SlowModel:
    """Answers with `text`, piece by piece, each after a while; tells what became of its streams."""

    name = "slow"

    def __init__(self, text: str = "well", *, pause: float = 1.0, error: Exception | None = None) -> None:
        self._pieces = text.split(" ")
        self._pause = pause
        self._error = error
        self.started = 0
        self.finished = 0
        self.closed = 0  # streams whose clean-up came to its end
        self.begun = anyio.Event()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self.started += 1
        self.begun.set()
        try:
            for piece in self._pieces:
                await anyio.sleep(self._pause)
                yield TextDelta(piece)
            if self._error is not None:
                raise self._error
            yield ItemDone(AssistantMessage("".join(self._pieces)))
            self.finished += 1
            yield ResponseDone(Usage(requests=1, input_tokens=3, output_tokens=len(self._pieces)))
        finally:
            await tidy_up(CLEAN_UP)
            self.closed += 1

    @property
    def cut(self) -> int:
        """How many answers were stopped before they were complete, and are closed."""
        return self.closed - self.finished


@asynccontextmanager
async def time_limit_once(
    holds: Callable[[], object], *, after: float = 0.0
) -> AsyncIterator[anyio.CancelScope]:
    """A time limit that runs out so long after this holds: no machine is too slow to come there first."""

    async def look() -> None:
        while not holds():
            await anyio.sleep(0.002)
        limit.deadline = anyio.current_time() + after

    with anyio.CancelScope() as limit:
        async with anyio.create_task_group() as group:
            group.start_soon(look)
            yield limit
            group.cancel_scope.cancel()


def passes(*_: object) -> GuardrailFunctionOutput:
    """What a guardrail says that has nothing against it."""
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)


def trips(info: object = None) -> GuardrailFunctionOutput:
    """What a guardrail says that has."""
    return GuardrailFunctionOutput(output_info=info, tripwire_triggered=True)


def says(
    verdict: GuardrailFunctionOutput | BaseException, after: float = 0.0
) -> Callable[..., Awaitable[GuardrailFunctionOutput]]:
    """A guardrail function that takes a while, and then returns or raises that."""

    async def says_it(*_: object) -> GuardrailFunctionOutput:
        if after:
            await anyio.sleep(after)
        if isinstance(verdict, BaseException):
            raise verdict
        return verdict

    return says_it


def guarded_input(
    verdict: GuardrailFunctionOutput | BaseException, after: float = 0.0, *, beside: bool = True
) -> InputGuardrail:
    """An input guardrail that says so."""
    return InputGuardrail(says(verdict, after), name="guard", run_in_parallel=beside)


def guarded_output(verdict: GuardrailFunctionOutput | BaseException, after: float = 0.0) -> OutputGuardrail:
    """An output guardrail that says so."""
    return OutputGuardrail(says(verdict, after), name="guard")


def scripted(*turns: Any, **options: Any) -> Agent[Any]:
    """An agent whose model says these turns."""
    return Agent(name=options.pop("name", "assistant"), model=ScriptedModel(turns), **options)


def requests_of(agent: Agent[Any]) -> list[ModelRequest]:
    """What the model of a `scripted` agent was asked."""
    assert isinstance(agent.model, ScriptedModel)
    return agent.model.requests


async def all_events(result: RunResultStreaming) -> list[StreamEvent]:
    """Consume a streamed run to its end."""
    async with result:
        return [event async for event in result.stream_events()]


@asynccontextmanager
async def consumed(result: RunResultStreaming) -> AsyncGenerator[anyio.Event, None]:
    """Somebody asks for event after event beside the block, and comes to the end of the events: that is the event given."""
    ended = anyio.Event()

    async def consume() -> None:
        async for _ in result.stream_events():
            pass
        ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        async with result:
            yield ended
    assert ended.is_set()


def assert_valid(items: Sequence[Item]) -> None:
    """Every tool call has exactly one result, in the order of the calls, right behind the block they stand in."""
    waiting: list[str] = []
    in_calls = True
    for number, item in enumerate(items):
        if isinstance(item, ToolCall):
            assert in_calls or not waiting, f"item {number}: a call between results: {items}"
            waiting.append(item.call_id)
            in_calls = True
        elif isinstance(item, ToolResult):
            in_calls = False
            expected = waiting.pop(0) if waiting else None
            assert item.call_id == expected, f"item {number}: not a result's place: {items}"
        else:
            assert not waiting, f"item {number}: {waiting} have no results: {items}"
            in_calls = False
    assert not waiting, f"{waiting} have no results: {items}"
    assert problems(items, "items") == []


def results_in(items: Iterable[Item]) -> list[ToolResult]:
    """The tool results among them."""
    return [item for item in items if isinstance(item, ToolResult)]


def outcomes(items: Iterable[Item]) -> list[str]:
    """How the tool calls among them ended."""
    return [result.outcome for result in results_in(items)]


async def session_with(*items: Item) -> MemorySession:
    """A session in which that was said before."""
    session = MemorySession("s")
    if items:
        await session.add_items(list(items))
    return session
