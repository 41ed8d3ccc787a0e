"""Builds requests for the Responses API.

Nothing is stored at the provider (`store=False`, unless `ModelSettings.extra` overrides it, or the answer is made in
the background): each request carries the
whole transcript. So a model's reasoning has to be requested in encrypted form, and is sent back with the rest.
"""

from __future__ import annotations

import re
from typing import Any

from quiesce.models.http import Endpoint, bad_parameter
from quiesce.models.words import (
    AssistantMessage,
    CallIds,
    Item,
    ModelRequest,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    parts_of,
    turns_of,
)

PROVIDER = "openai-responses"
_REASONING_MODELS = re.compile(r"^(o\d|gpt-[5-9]|codex|computer-use)")


def body(request: ModelRequest, endpoint: Endpoint, *, background: bool = False) -> dict[str, Any]:
    """Return the JSON body of a request; raise `ModelRequestError` for a setting that this API does not support."""
    settings = request.settings
    if settings.stop is not None:
        raise bad_parameter(
            endpoint,
            "the Responses API has no stop sequences: use api='chat', or leave out ModelSettings(stop=...)",
        )
    payload: dict[str, Any] = {
        "model": endpoint.model,
        "input": input_items(request),
        "stream": True,
        "store": False,
    }
    if background:
        payload |= {"background": True, "store": True}  # it has to be stored, to outlive its connection
    if request.instructions:
        payload["instructions"] = request.instructions
    # A model that does not reason rejects the request if its reasoning is asked for.
    if _REASONING_MODELS.match(endpoint.model) or settings.reasoning_effort is not None:
        payload["include"] = ["reasoning.encrypted_content"]
    if request.tools:
        payload["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
                "strict": tool.strict,
            }
            for tool in request.tools
        ]
        if settings.tool_choice is not None:
            payload["tool_choice"] = _choice(settings.tool_choice)
        if settings.parallel_tool_calls is not None:
            payload["parallel_tool_calls"] = settings.parallel_tool_calls
    text: dict[str, Any] = {}
    if request.output is not None:
        text["format"] = {
            "type": "json_schema",
            "name": request.output.name,
            "schema": dict(request.output.schema),
            "strict": request.output.strict,
        }
    if settings.verbosity is not None:
        text["verbosity"] = settings.verbosity
    reasoning = dict(settings.reasoning or {})
    if settings.reasoning_effort is not None:
        reasoning["effort"] = settings.reasoning_effort
    if settings.frequency_penalty is not None or settings.presence_penalty is not None:
        raise bad_parameter(
            endpoint,
            "the Responses API has no penalties: use api='chat', or leave out frequency_penalty and presence_penalty",
        )
    optional = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_output_tokens": settings.max_tokens,
        "reasoning": reasoning or None,
        "text": text or None,
        "metadata": dict(settings.metadata) if settings.metadata is not None else None,
        "store": settings.store,
    }
    payload.update((name, value) for name, value in optional.items() if value is not None)
    return payload


def _choice(choice: str) -> str | dict[str, Any]:
    return choice if choice in ("auto", "required", "none") else {"type": "function", "name": choice}


def input_items(request: ModelRequest) -> list[dict[str, Any]]:
    """Return the conversation as input items."""
    ids = CallIds()
    converted: list[dict[str, Any]] = []
    for side, items in turns_of(request.items, _is_ours):
        if side == "user":
            converted.append({"type": "message", "role": "user", "content": _content(items)})
        else:
            converted += [_item(item, ids) for item in items]
    return converted


def _is_ours(reasoning: Reasoning) -> bool:
    # Without its encrypted content, an item is only an id, and the provider has stored nothing under it.
    return (
        reasoning.provider == PROVIDER
        and reasoning.data is not None
        and bool(reasoning.data.get("encrypted_content"))
    )


def _content(items: list[Item]) -> list[dict[str, Any]]:
    parts = parts_of(items) or [Text("")]
    return [
        {"type": "input_text", "text": part.text}
        if isinstance(part, Text)
        else {"type": "input_image", "image_url": part.url, "detail": "auto"}
        for part in parts
    ]


def _item(item: Item, ids: CallIds) -> dict[str, Any]:
    if isinstance(item, AssistantMessage):
        return {"role": "assistant", "content": item.text}
    if isinstance(item, ToolCall):
        return {
            "type": "function_call",
            "call_id": ids(item.call_id),
            "name": item.name,
            "arguments": item.arguments,
        }
    if isinstance(item, ToolResult):
        return {"type": "function_call_output", "call_id": ids(item.call_id), "output": item.output}
    assert isinstance(item, Reasoning)
    # `status` belongs to an item in an answer, not to one in a request.
    return {key: value for key, value in (item.data or {}).items() if key != "status"}
