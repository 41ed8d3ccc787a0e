"""Replays the history of a session to the client when the session is loaded."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from quiesce.acp import schema as s
from quiesce.acp.helpers import text_block
from quiesce.models import AssistantMessage, Item, Reasoning, ToolCall, ToolResult, UserMessage

from .content import blocks_of
from .tool_calls import call_fields, result_fields

if TYPE_CHECKING:
    from quiesce.agents import Agent


def replay(items: Sequence[Item], agent: Agent[Any]) -> Iterator[Any]:
    """Yield updates with the whole history for a client; each tool call once, together with its result."""
    # A queue per id, because some models use an id more than once.
    results: dict[str, deque[ToolResult]] = {}
    for item in items:
        if isinstance(item, ToolResult):
            results.setdefault(item.call_id, deque()).append(item)
    for item in items:
        message_id = uuid.uuid4().hex
        match item:
            case UserMessage(content=content):
                for block in blocks_of(content):
                    yield s.UserMessageChunk(content=block, message_id=message_id)
            case AssistantMessage(text=text) if text:
                yield s.AgentMessageChunk(content=text_block(text), message_id=message_id)
            case Reasoning(text=text) if text:
                yield s.AgentThoughtChunk(content=text_block(text), message_id=message_id)
            case ToolCall(call_id=call_id, name=name):
                fields = call_fields(item, agent)
                of_call = results.get(call_id)
                outcome = (
                    result_fields(of_call.popleft(), with_content=False) if of_call else {"status": "failed"}
                )
                yield s.ToolCallStart(name=name, **{**fields, **outcome})
