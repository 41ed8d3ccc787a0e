"""A transcript as turns, the form that every provider expects: the user's, the model's, and the results of tools.

Adjacent turns of the same side are merged. Items that cannot be sent are left out: items of a newer version, messages
without text, and reasoning that its own provider would not accept back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias

from .items import (
    AssistantMessage,
    Image,
    Item,
    Note,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    UnknownItem,
    UserMessage,
)

Side: TypeAlias = Literal["user", "model", "results"]
Turn: TypeAlias = tuple[Side, list[Item]]


def turns_of(items: Sequence[Item], accepts: Callable[[Reasoning], bool]) -> list[Turn]:
    """Return the turns of a transcript. `accepts` decides whether this provider takes a piece of reasoning back."""
    turns: list[Turn] = []
    for item in _sendable(items, accepts):
        side: Side
        if isinstance(item, (UserMessage, Note)):
            side = "user"
        else:
            side = "results" if isinstance(item, ToolResult) else "model"
        if turns and turns[-1][0] == side:
            turns[-1][1].append(item)
        else:
            turns.append((side, [item]))
    return turns


def _sendable(items: Sequence[Item], accepts: Callable[[Reasoning], bool]) -> list[Item]:
    kept: list[Item] = []
    following: Item | None = None
    # Backwards, because whether reasoning can be sent depends on the item that is sent after it.
    for item in reversed(items):
        if isinstance(item, UnknownItem):
            continue
        if isinstance(item, AssistantMessage) and not item.text.strip():
            continue
        if isinstance(item, Reasoning) and not (accepts(item) and _completes_reasoning(following)):
            continue
        kept.append(item)
        following = item
    kept.reverse()
    return kept


def _completes_reasoning(following: Item | None) -> bool:
    """Whether this item completes the reasoning before it.

    Providers reject reasoning that is followed by nothing, or by a message that was interrupted.
    """
    if isinstance(following, AssistantMessage):
        return not following.interrupted
    return isinstance(following, (Reasoning, ToolCall))


def parts_of(items: Iterable[Item]) -> list[Text | Image]:
    """Return the content of a user's turn without empty texts; a blank line separates the texts of different items."""
    parts: list[Text | Image] = []
    for item in items:
        content = (
            item.content if isinstance(item, UserMessage) else item.text if isinstance(item, Note) else ""
        )
        starts_item = True
        for piece in [Text(content)] if isinstance(content, str) else content:
            last = parts[-1] if parts else None
            if isinstance(piece, Text) and not piece.text:
                continue
            if isinstance(piece, Text) and isinstance(last, Text):
                parts[-1] = Text(last.text + ("\n\n" if starts_item else "") + piece.text)
            else:
                parts.append(piece)
            starts_item = False
    return parts


def said_in(items: Iterable[Item]) -> str:
    """Return the text of the model's messages in this turn, separated by blank lines."""
    return "\n\n".join(item.text for item in items if isinstance(item, AssistantMessage))
