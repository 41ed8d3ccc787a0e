"""The blocks in the content of a message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

ServerToolName: TypeAlias = Literal[
    "advisor",
    "web_search",
    "web_fetch",
    "code_execution",
    "bash_code_execution",
    "text_editor_code_execution",
    "tool_search_tool_regex",
    "tool_search_tool_bm25",
]


@dataclass
class TextBlock:
    """Text."""

    text: str


@dataclass
class ThinkingBlock:
    """Thinking, with the signature that the API wants back."""

    thinking: str
    signature: str


@dataclass
class ToolUseBlock:
    """A tool call."""

    id: str
    name: str
    input: dict[str, Any]


@dataclass
class ToolResultBlock:
    """The result of a tool call."""

    tool_use_id: str
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None


@dataclass
class ServerToolUseBlock:
    """A call of a tool that the API runs itself, so that there is nothing to answer."""

    id: str
    name: ServerToolName
    input: dict[str, Any]


@dataclass
class ServerToolResultBlock:
    """The result of a tool of the API, unchanged; `content["type"]` tells the kinds apart."""

    tool_use_id: str
    content: dict[str, Any]


ContentBlock: TypeAlias = (
    TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock | ServerToolUseBlock | ServerToolResultBlock
)
