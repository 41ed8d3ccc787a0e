"""A model that answers as a test says: for runs without a provider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel


def call(name: str, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(name, arguments, tool_call_id=f"call_{name}")


def say(text: str) -> TextPart:
    return TextPart(text)


class Scripted(FunctionModel):
    """Answers with one turn after the other; `first` is awaited at the beginning of each answer.

    Streamed, a text comes word by word, and `then` is awaited after the first.
    """

    def __init__(
        self,
        *turns: Sequence[TextPart | ToolCallPart],
        first: Callable[[], Awaitable[object]] | None = None,
        then: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        super().__init__(self._answer, stream_function=self._stream)
        self.turns = list(turns)
        self.first = first
        self.then = then
        self.calls = self.cancelled = self.closed = 0

    async def _next(self, wait: Callable[[], Awaitable[object]] | None) -> Sequence[TextPart | ToolCallPart]:
        try:
            if wait is not None:
                await wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.turns[min(self.calls, len(self.turns)) - 1]

    async def _answer(self, messages: Any, info: Any) -> ModelResponse:
        self.calls += 1
        return ModelResponse(list(await self._next(self.first)))

    async def _stream(self, messages: Any, info: Any) -> AsyncIterator[Any]:
        self.calls += 1
        try:
            for number, part in enumerate(await self._next(self.first)):
                if isinstance(part, ToolCallPart):
                    delta = DeltaToolCall(
                        name=part.tool_name, json_args=part.args_as_json_str(), tool_call_id=part.tool_call_id
                    )
                    yield {number: delta}
                    continue
                word, *rest = part.content.split(" ")
                yield word
                await self._next(self.then)
                for word in rest:
                    yield f" {word}"
        finally:
            self.closed += 1
