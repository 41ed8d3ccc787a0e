"""A model that answers as a test says, tools and sessions: for runs without a provider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from agents import Model, ModelResponse, RunConfig, Usage
from agents.realtime import RealtimeModel
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

UNTRACED = RunConfig(tracing_disabled=True)


def say(text: str) -> Any:
    content = ResponseOutputText(text=text, type="output_text", annotations=[])
    return ResponseOutputMessage(
        id="m", type="message", role="assistant", status="completed", content=[content]
    )


def call(name: str, arguments: str = "{}") -> Any:
    return ResponseFunctionToolCall(
        id=f"fc_{name}", call_id=f"call_{name}", name=name, arguments=arguments, type="function_call"
    )


Turn = Sequence[Any]


class Scripted(Model):
    """Answers with one turn after the other; `first` is awaited at the beginning of each answer."""

    def __init__(
        self, *turns: Turn, first: Callable[[], Awaitable[object]] | None = None, words: Sequence[str] = ()
    ) -> None:
        self.turns = list(turns)
        self.first = first
        self.words = words  # of a streamed answer, before its end
        self.calls = self.cancelled = 0

    async def _next(self) -> list[Any]:
        self.calls += 1
        try:
            if self.first is not None:
                await self.first()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return list(self.turns[min(self.calls, len(self.turns)) - 1])

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        return ModelResponse(output=await self._next(), usage=Usage(), response_id=None)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        for number, word in enumerate(self.words):
            yield ResponseTextDeltaEvent(
                type="response.output_text.delta",
                content_index=0,
                output_index=0,
                item_id="m",
                delta=word,
                logprobs=[],
                sequence_number=number,
            )
        response = Response(
            id="r",
            created_at=0,
            model="made up",
            object="response",
            output=await self._next(),
            parallel_tool_calls=True,
            tool_choice="auto",
            tools=[],
        )
        yield ResponseCompletedEvent(
            type="response.completed", response=response, sequence_number=len(self.words)
        )


class Voice(RealtimeModel):
    """A realtime model whose events come from a task of its own, as those of a web socket do."""

    def __init__(self, *events: Any) -> None:
        self.events = events
        self.listeners: list[Any] = []
        self.sent: list[Any] = []
        self.is_closed = False
        self._reader: asyncio.Task[None] | None = None

    async def connect(self, options: Any) -> None:
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        for event in self.events:
            for listener in [*self.listeners]:
                await listener.on_event(event)
        await asyncio.sleep(3600)

    def add_listener(self, listener: Any) -> None:
        self.listeners.append(listener)

    def remove_listener(self, listener: Any) -> None:
        if listener in self.listeners:
            self.listeners.remove(listener)

    async def send_event(self, event: Any) -> None:
        self.sent.append(event)

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])
        self.is_closed = True
