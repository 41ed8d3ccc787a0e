"""Builds requests for Chat Completions.

Many servers implement this API, and not all of them accept what OpenAI accepts. So turns alternate, optional fields
are sent only if they are set, and the parameter that only OpenAI's newer models require is sent to OpenAI alone.
"""

from __future__ import annotations

from typing import Any

from quiesce.models.http import Endpoint
from quiesce.models.words import (
    CallIds,
    Item,
    ModelRequest,
    ModelSettings,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    parts_of,
    said_in,
    turns_of,
)

PROVIDER = "openai-chat"
LONGEST_ID = 40


def body(request: ModelRequest, endpoint: Endpoint, *, include_usage: bool) -> dict[str, Any]:
    """Return the JSON body of a request."""
    payload: dict[str, Any] = {
        "model": endpoint.model,
        "messages": messages(request, endpoint),
        "stream": True,
    }
    if include_usage:
        payload["stream_options"] = {"include_usage": True}
    settings = request.settings
    if request.tools:
        payload["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                    **({"strict": True} if tool.strict else {}),
                },
            }
            for tool in request.tools
        ]
        if settings.tool_choice is not None:
            payload["tool_choice"] = _choice(settings.tool_choice)
        if settings.parallel_tool_calls is not None:
            payload["parallel_tool_calls"] = settings.parallel_tool_calls
    if request.output is not None:
        payload["response_format"] = {
            "type": "json_schema",
            "json_schema": {
                "name": request.output.name,
                "schema": dict(request.output.schema),
                "strict": request.output.strict,
            },
        }
    payload.update(_optional_fields(settings, endpoint))
    return payload


def _choice(choice: str) -> str | dict[str, Any]:
    if choice in ("auto", "required", "none"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def _optional_fields(settings: ModelSettings, endpoint: Endpoint) -> dict[str, Any]:
    # OpenAI's newer models reject the old name of the limit; other servers know only that one.
    limit = (
        "max_completion_tokens"
        if ".openai." in endpoint.url or "//api.openai.com" in endpoint.url
        else "max_tokens"
    )
    optional = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        limit: settings.max_tokens,
        "stop": list(settings.stop) if settings.stop is not None else None,
        "reasoning_effort": settings.reasoning_effort,
        "frequency_penalty": settings.frequency_penalty,
        "presence_penalty": settings.presence_penalty,
        "verbosity": settings.verbosity,
        "metadata": dict(settings.metadata) if settings.metadata is not None else None,
        "store": settings.store,
    }
    return {name: value for name, value in optional.items() if value is not None}


def messages(request: ModelRequest, endpoint: Endpoint) -> list[dict[str, Any]]:
    """Return the conversation, beginning with the instructions as a system message."""
    converted: list[dict[str, Any]] = []
    if request.instructions:
        converted.append({"role": "system", "content": request.instructions})
    ids = CallIds(LONGEST_ID)

    # Reasoning goes back only to the model that wrote it.
    def is_ours(reasoning: Reasoning) -> bool:
        data = reasoning.data or {}
        return reasoning.provider == PROVIDER and data.get("model") == endpoint.model

    for side, items in turns_of(request.items, is_ours):
        if side == "user":
            converted.append({"role": "user", "content": _content(items)})
        elif side == "model":
            converted.append(_assistant(items, ids))
        else:
            converted += [
                {"role": "tool", "tool_call_id": ids(item.call_id), "content": item.output}
                for item in items
                if isinstance(item, ToolResult)
            ]
    return converted


def _content(items: list[Item]) -> str | list[dict[str, Any]]:
    parts = parts_of(items)
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, Text)
        else {"type": "image_url", "image_url": {"url": part.url}}
        for part in parts
    ]


def _assistant(items: list[Item], ids: CallIds) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said_in(items) or None}
    calls = [
        {
            "id": ids(item.call_id),
            "type": "function",
            "function": {"name": item.name, "arguments": item.arguments},
        }
        for item in items
        if isinstance(item, ToolCall)
    ]
    if calls:
        message["tool_calls"] = calls
        # A model that reasons between tool calls wants that reasoning back, in the field in which it sent it.
        for item in items:
            if isinstance(item, Reasoning) and item.data:
                field = item.data["field"]
                message[field] = message.get(field, "") + item.text
    return message
