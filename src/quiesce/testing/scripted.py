"""A model that answers from a script, and records the requests that it got."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import msgspec

from quiesce.models import (
    AssistantMessage,
    ItemDone,
    ModelEvent,
    ModelRequest,
    Reasoning,
    ResponseDone,
    TextDelta,
    ToolCall,
    Usage,
)


class ScriptExhausted(Exception):
    """The model got more requests than its script has turns."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete turn: pieces of text to stream, tool calls, and the usage that the provider reports."""

    pieces: Sequence[str] = ()
    calls: Sequence[ToolCall] = ()
    usage: Usage | None = None
    reasoning: str = ""
    finish: str | None = None


Turn: TypeAlias = (
    str
    | ToolCall
    | Answer
    | BaseException
    | Sequence["str | ToolCall"]
    | Callable[[ModelRequest], "Awaitable[Turn]"]
)


def call(name: str, call_id: str | None = None, /, **arguments: Any) -> ToolCall:
    """Return a tool call, for use as a turn of a script or a part of one; its id is generated unless you give one.

    ```python
    ScriptedModel([call("add", a=1, b=2), "It is 3."])
    ```
    """
    return ToolCall(call_id or "", name, msgspec.json.encode(arguments).decode())


@dataclass(slots=True)
class ScriptedModel:
    """A model that gives the turns of a script, one per request.

    A turn is a str, a `call`, a list of those, an exception to raise, an `Answer`, or an async function of the request
    that returns one of these. `requests` has all requests so far.

    ```python
    model = ScriptedModel([call("weather", city="Paris"), "It rains."])
    result = await Runner.run(Agent(name="assistant", model=model, tools=[weather]), "How is it in Paris?")
    assert model.requests[1].items[-1].output == "rain"
    ```
    """

    turns: Iterable[Turn] = ()
    name: str = "scripted"
    requests: list[ModelRequest] = field(default_factory=list)
    _script: list[Turn] = field(init=False, repr=False)
    _calls: int = field(init=False, default=0, repr=False)

    def __post_init__(self) -> None:
        self._script = [self.turns] if isinstance(self.turns, str) else list(self.turns)

    @property
    def remaining(self) -> int:
        """How many turns have not been used yet."""
        return max(0, len(self._script) - len(self.requests))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer the request with the next turn of the script."""
        turn_number = len(self.requests)
        self.requests.append(request)
        if turn_number >= len(self._script):
            raise ScriptExhausted(
                f"model {self.name!r} got {turn_number + 1} requests, but its script has "
                f"{len(self._script)} turns: add one, or find out why it was called again"
            )
        turn = self._script[turn_number]
        # An exception class is callable too, but is to be raised.
        while callable(turn) and not _is_an_error(turn):
            turn = await _turn_from(turn, request)
        if _is_an_error(turn):
            raise cast(BaseException, turn)
        if isinstance(turn, Answer):
            answer = turn
        elif isinstance(turn, (str, ToolCall)):
            answer = Answer([turn]) if isinstance(turn, str) else Answer(calls=[turn])
        else:
            parts = cast("Sequence[str | ToolCall]", turn)
            answer = Answer(
                [part for part in parts if isinstance(part, str)],
                [part for part in parts if isinstance(part, ToolCall)],
            )
        if answer.reasoning:
            yield ItemDone(Reasoning(answer.reasoning))
        if answer.pieces:
            for piece in answer.pieces:
                yield TextDelta(piece)
            yield ItemDone(AssistantMessage("".join(answer.pieces)))
        for tool_call in answer.calls:
            yield ItemDone(tool_call if tool_call.call_id else self._numbered(tool_call))
        usage = answer.usage or Usage(requests=1)
        yield ResponseDone(usage, answer.finish or ("tool_calls" if answer.calls else "stop"))

    def _numbered(self, tool_call: ToolCall) -> ToolCall:
        self._calls += 1
        return ToolCall(f"call_{self._calls}", tool_call.name, tool_call.arguments)


def _is_an_error(turn: object) -> bool:
    return isinstance(turn, BaseException) or (isinstance(turn, type) and issubclass(turn, BaseException))


async def _turn_from(function: Callable[[ModelRequest], Any], request: ModelRequest) -> Turn:
    result = function(request)
    if inspect.isawaitable(result):
        result = await result
    turn: Turn = result
    return turn
