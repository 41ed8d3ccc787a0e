"""The requests of a run to its models: what they answered, and what they cost.

An answer is an async generator of a model's own. However it ends, it is closed in the task that ran it, and
nothing of it is left when `ask` has ended. Until then, all that it has said so far is in the transcript.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import Any

import anyio

from quiesce import TokenCancelled
from quiesce.agents.agent import move_on_after
from quiesce.kernel.inner import stop_asked_for
from quiesce.models import (
    AssistantMessage,
    Item,
    ItemDone,
    Model,
    ModelBehaviorError,
    ModelEvent,
    ModelRefusalError,
    ModelRequest,
    Reasoning,
    ResponseDone,
    TextDelta,
    Tokens,
    ToolCall,
    Usage,
)
from quiesce.models.inner import took_too_long

from .events import ItemEventName, RawResponseEvent, RunItemStreamEvent, StreamEvent
from .transcript import Transcript

_MOST_YIELDS = 100  # of a clean-up that never stops yielding, one must be the last
_NEWS: dict[type[Any], ItemEventName] = {
    AssistantMessage: "message_output_created",
    Reasoning: "reasoning_item_created",
    ToolCall: "tool_called",
}


class ModelRequests:
    """The answers so far, and what they cost."""

    __slots__ = ("_open_request", "answers", "usage")

    def __init__(self, usage: Usage) -> None:
        self.usage = usage
        #: The end of each answer, and what the answer has added to the transcript.
        self.answers: list[tuple[ResponseDone, list[Item]]] = []
        self._open_request: Usage | None = None  # what is known of the cost of the request under way

    async def ask(
        self,
        model: Model,
        request: ModelRequest,
        transcript: Transcript,
        emit: Callable[[StreamEvent], Awaitable[None]] | None,
    ) -> ResponseDone:
        """Let the model answer, and put what it says into the transcript as it comes."""
        check_not_stopped()
        self._open_request = Usage(requests=1, unreported=1)
        done: ResponseDone | None = None
        answer, add_text = model.stream(request), transcript.add_text
        begin = len(transcript.new)
        try:
            async with _deadline(request.settings.timeout, model.name):
                async for event in answer:
                    if transcript.is_settled:
                        check_not_stopped()
                    if isinstance(event, TextDelta):
                        add_text(event.text)
                    elif isinstance(event, ItemDone):
                        transcript.add(event.item)
                    elif isinstance(event, Tokens):
                        self._open_request = event.usage
                    elif isinstance(event, ResponseDone):
                        done = event
                    if emit is not None:
                        await _emit(emit, event)
        except BaseException as cause:
            # A generator without a frame has ended by itself, with what it raised.
            if getattr(answer, "ag_frame", answer) is not None:
                await _close(answer, cause, model.name)
            raise
        if transcript.is_settled:
            check_not_stopped()
        if done is None:
            raise ModelBehaviorError(
                f"model {model.name!r} ended its answer without ResponseDone: the stream was cut",
                model=model.name,
            )
        transcript.complete_text()  # of a model that never said that its message is complete
        self._open_request = None
        self.usage.add(done.usage)
        self.answers.append((done, transcript.new[begin:]))
        if done.finish == "refusal":
            quoted = (
                transcript.last_text()
                if transcript.may_be_quoted
                else "in words that no guardrail has passed"
            )
            raise ModelRefusalError(f"model {model.name!r} declines: {quoted}", model=model.name)
        return done

    def count_interrupted(self) -> None:
        """Add what is known of the cost of a request that was stopped."""
        if self._open_request is not None:
            self.usage.add(self._open_request)
            self._open_request = None


def check_not_stopped() -> None:
    """Raise if the work at hand was told to stop: other code may have swallowed the cancel itself."""
    reason = stop_asked_for()
    if reason is not None:
        raise TokenCancelled(reason)


async def _emit(emit: Callable[[StreamEvent], Awaitable[None]], event: ModelEvent) -> None:
    if type(event) is ItemDone:
        news = _NEWS.get(type(event.item))
        if news is not None:
            await emit(RunItemStreamEvent(news, event.item))
    else:
        await emit(RawResponseEvent(event))


async def _close(answer: Any, cause: BaseException, model: str) -> None:
    """Let an answer clean up, though this task is being cancelled; `cause` is raised afterwards.

    One that yields while it is being closed is asked for more until it ends. Otherwise the rest of its
    clean-up would run whenever the garbage collector finds it.
    """
    with anyio.CancelScope(shield=True):
        try:
            await answer.aclose()
        except RuntimeError as error:
            if "ignored GeneratorExit" not in str(error):
                raise
            cause.add_note(f"model {model!r} yields while its answer is being closed: that is not used")
            with suppress(StopAsyncIteration, GeneratorExit):
                for _ in range(_MOST_YIELDS):
                    await answer.__anext__()


_NO_DEADLINE: AbstractAsyncContextManager[None] = nullcontext()


def _deadline(seconds: float | None, model: str) -> AbstractAsyncContextManager[None]:
    return _NO_DEADLINE if seconds is None else _deadline_in(seconds, model)


@asynccontextmanager
async def _deadline_in(seconds: float, model: str) -> AsyncIterator[None]:
    """Raise `ModelTimeoutError` if the block takes longer."""
    async with move_on_after(seconds) as deadline:
        yield
    if deadline.passed:
        raise took_too_long(model, seconds)
