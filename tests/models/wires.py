"""What the three APIs send for an answer: text, tool calls, thoughts and what it cost, as bytes on the wire.

An `Api` is one of them: how its model is made, where it is asked, and its words for things.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from quiesce.models import AnthropicModel, OpenAIModel


def sse(data: object, kind: str | None = None) -> bytes:
    """One event."""
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {kind}\n" if kind else "").encode() + f"data: {text}\n\n".encode()


# Chat Completions -----------------------------------------------------------------------------------------------


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return sse({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": choices, **more})


CHAT_USAGE = {
    "prompt_tokens": 12,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


def chat_text(*pieces: str, finish: str = "stop") -> list[bytes]:
    return [
        chunk({"role": "assistant", "content": ""}),
        *[chunk({"content": piece}) for piece in pieces],
        chunk({}, finish),
        chunk(usage=CHAT_USAGE),
        sse("[DONE]"),
    ]


# Responses ------------------------------------------------------------------------------------------------------


def event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, kind)


RESPONSES_USAGE = {
    "input_tokens": 12,
    "output_tokens": 5,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens_details": {"reasoning_tokens": 2},
}


def responses_text(*pieces: str) -> list[bytes]:
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
    done = {**item, "content": [{"type": "output_text", "text": "".join(pieces)}]}
    return [
        event("response.created", response={"id": "resp_1", "status": "in_progress"}),
        event("response.output_item.added", output_index=0, item=item),
        *[event("response.output_text.delta", output_index=0, item_id="msg_1", delta=p) for p in pieces],
        event("response.output_item.done", output_index=0, item=done),
        event("response.completed", response={"id": "resp_1", "output": [done], "usage": RESPONSES_USAGE}),
    ]


# Anthropic ------------------------------------------------------------------------------------------------------


def message_start() -> bytes:
    usage = {
        "input_tokens": 6,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 2,
        "output_tokens": 1,
    }
    return event("message_start", message={"id": "msg_1", "role": "assistant", "content": [], "usage": usage})


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[bytes]:
    return [
        event("content_block_start", index=index, content_block=start),
        *[event("content_block_delta", index=index, delta=delta) for delta in deltas],
        event("content_block_stop", index=index),
    ]


def message_end(reason: str = "end_turn") -> list[bytes]:
    return [
        event("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 5}),
        event("message_stop"),
    ]


def anthropic_text(*pieces: str) -> list[bytes]:
    deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
    return [message_start(), event("ping"), *block(0, {"type": "text", "text": ""}, *deltas), *message_end()]


# All of them ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Api:
    """One of the three."""

    name: str
    path: str
    text: Callable[..., list[bytes]]
    make: Callable[..., OpenAIModel | AnthropicModel]
    prefix: str

    def model(self, url: str, **options: Any) -> OpenAIModel | AnthropicModel:
        return self.make("small", base_url=url + self.prefix, api_key="secret", **options)


def _responses(model: str, **options: Any) -> OpenAIModel:
    return OpenAIModel(model, api="responses", **options)


CHAT = Api("chat", "/v1/chat/completions", chat_text, OpenAIModel, "/v1")
RESPONSES = Api("responses", "/v1/responses", responses_text, _responses, "/v1")
ANTHROPIC = Api("anthropic", "/v1/messages", anthropic_text, AnthropicModel, "")
APIS: Sequence[Api] = (CHAT, RESPONSES, ANTHROPIC)
