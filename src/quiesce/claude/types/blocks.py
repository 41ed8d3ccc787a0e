"""What the content of a message is made of."""

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
    """Something said."""

    text: str


@dataclass
class ThinkingBlock:
    """Something thought, with the signature that the API wants back with it."""

    thinking: str
    signature: str


@dataclass
class ToolUseBlock:
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


@dataclass
class ToolResultBlock:
    """What a call of a tool gave."""

    tool_use_id: str
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None


@dataclass
class ServerToolUseBlock:
    """A call of a tool that the API runs itself: nobody here answers it. `name` says which."""

    id: str
    name: ServerToolName
    input: dict[str, Any]


@dataclass
class ServerToolResultBlock:
    """What a tool of the API gave, as the API says it; `content["type"]` tells results apart."""

    tool_use_id: str
    content: dict[str, Any]


ContentBlock: TypeAlias = (
    TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock | ServerToolUseBlock | ServerToolResultBlock
)
