"""Builds requests for Anthropic's Messages API.

Invariants
- Roles alternate, and the first and last messages are the user's: where a transcript differs, a short message is
  inserted.
- Results of tools are the first blocks of the message after their calls, and no text is empty.
- Thinking is sent back unchanged, and is never the last block of a message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from quiesce._safe.nested import decode_json, is_deep
from quiesce.models.http import Endpoint
from quiesce.models.words import (
    AssistantMessage,
    CallIds,
    Image,
    Item,
    ModelRequest,
    ModelSettings,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    parts_of,
    turns_of,
)

PROVIDER = "anthropic"
BEGIN = "(The conversation begins.)"
GO_ON = "(Go on.)"
NOTHING = "(An empty message.)"
_DATA = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w=.+-]+)*;base64,(.*)", re.DOTALL)


def body(request: ModelRequest, endpoint: Endpoint, *, max_tokens: int) -> dict[str, Any]:
    """Return the JSON body of a request; `max_tokens` applies if the settings have none."""
    settings = request.settings
    payload: dict[str, Any] = {
        "model": endpoint.model,
        "max_tokens": settings.max_tokens if settings.max_tokens is not None else max_tokens,
        "messages": messages(request.items),
        "stream": True,
    }
    if request.instructions:
        payload["system"] = request.instructions
    if request.tools:
        payload["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
            for tool in request.tools
        ]
        choice = _choice(settings)
        if choice is not None:
            payload["tool_choice"] = choice
    output: dict[str, Any] = {}
    if request.output is not None:
        output["format"] = {"type": "json_schema", "schema": dict(request.output.schema)}
    if settings.reasoning_effort is not None:
        output["effort"] = settings.reasoning_effort
    optional = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "stop_sequences": list(settings.stop) if settings.stop is not None else None,
        "output_config": output or None,
    }
    payload.update((name, value) for name, value in optional.items() if value is not None)
    return payload


def _choice(settings: ModelSettings) -> dict[str, Any] | None:
    choice, parallel = settings.tool_choice, settings.parallel_tool_calls
    if choice is None and parallel is None:
        return None
    tool_choice: dict[str, Any]
    if choice in (None, "auto"):
        tool_choice = {"type": "auto"}
    elif choice == "required":
        tool_choice = {"type": "any"}
    elif choice == "none":
        return {"type": "none"}
    else:
        tool_choice = {"type": "tool", "name": choice}
    if parallel is not None:
        tool_choice["disable_parallel_tool_use"] = not parallel
    return tool_choice


def messages(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Return the conversation as alternating messages of user and assistant."""
    ids = CallIds()
    converted: list[dict[str, Any]] = []
    for side, group in turns_of(items, _is_ours):
        if side == "model":
            role, blocks = "assistant", [_block(item, ids) for item in group]
        elif side == "results":
            role, blocks = "user", [_block(item, ids) for item in group]
        else:
            role, blocks = "user", _content(group)
        # Results and the user's next message have the same role here. Two messages of one role in a row are merged,
        # which also puts the results first.
        if converted and converted[-1]["role"] == role:
            converted[-1]["content"] += blocks
        else:
            converted.append({"role": role, "content": blocks})
    if not converted or converted[0]["role"] != "user":
        converted.insert(0, _user_message(BEGIN))
    if converted[-1]["role"] != "user":
        converted.append(_user_message(GO_ON))
    return converted


def _user_message(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def _is_ours(reasoning: Reasoning) -> bool:
    return reasoning.provider == PROVIDER and reasoning.data is not None


def _content(items: list[Item]) -> list[dict[str, Any]]:
    blocks = [
        {"type": "text", "text": part.text} if isinstance(part, Text) else _image(part)
        for part in parts_of(items)
        if not isinstance(part, Text) or part.text.strip()
    ]
    return blocks or [{"type": "text", "text": NOTHING}]


def _image(image: Image) -> dict[str, Any]:
    inline = _DATA.fullmatch(image.url)
    if inline is None:
        return {"type": "image", "source": {"type": "url", "url": image.url}}
    return {"type": "image", "source": {"type": "base64", "media_type": inline[1], "data": inline[2]}}


def _block(item: Item, ids: CallIds) -> dict[str, Any]:
    if isinstance(item, AssistantMessage):
        return {"type": "text", "text": item.text.rstrip()}
    if isinstance(item, ToolCall):
        return {
            "type": "tool_use",
            "id": ids(item.call_id),
            "name": item.name,
            "input": _object(item.arguments),
        }
    if isinstance(item, ToolResult):
        return {
            "type": "tool_result",
            "tool_use_id": ids(item.call_id),
            **({"content": item.output} if item.output else {}),
            **({"is_error": True} if item.outcome != "finished" else {}),
        }
    assert isinstance(item, Reasoning)
    return dict(item.data or {})


def _object(arguments: str) -> dict[str, Any]:
    """Return the arguments as a JSON object, which this API requires even if the model wrote something else."""
    try:
        decoded = decode_json(arguments)
    except msgspec.DecodeError:
        decoded = None
    # Arguments can be nested so deeply that they can barely be read; the client would then fail to write them.
    return decoded if isinstance(decoded, dict) and not is_deep(decoded) else {"not_an_object": arguments}
