"""A transcript as turns, which is how every provider wants it: the user's, the model's, and the results of tools.

Adjacent turns of one side are one. What cannot be sent is left out: items of a newer version, messages without a word, and
reasoning that its own provider would not take back.
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


def turns_of(items: Sequence[Item], wants: Callable[[Reasoning], bool]) -> list[Turn]:
    """The turns of a transcript. `wants` says which reasoning is this provider's own."""
    turns: list[Turn] = []
    for item in _sendable(items, wants):
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


def _sendable(items: Sequence[Item], wants: Callable[[Reasoning], bool]) -> list[Item]:
    kept: list[Item] = []
    following: Item | None = None
    for item in reversed(items):
        if isinstance(item, UnknownItem):
            continue
        if isinstance(item, AssistantMessage) and not item.text.strip():
            continue
        if isinstance(item, Reasoning) and not (wants(item) and _is_whole(following)):
            continue
        kept.append(item)
        following = item
    kept.reverse()
    return kept


def _is_whole(following: Item | None) -> bool:
    """Whether reasoning led to this. Providers refuse reasoning that led to nothing, or to half a message."""
    if isinstance(following, AssistantMessage):
        return not following.interrupted
    return isinstance(following, (Reasoning, ToolCall))


def parts_of(items: Iterable[Item]) -> list[Text | Image]:
    """Everything in a user's turn, without empty texts. What was apart stays apart by an empty line."""
    parts: list[Text | Image] = []
    for item in items:
        content = (
            item.content if isinstance(item, UserMessage) else item.text if isinstance(item, Note) else ""
        )
        fresh = True
        for piece in [Text(content)] if isinstance(content, str) else content:
            last = parts[-1] if parts else None
            if isinstance(piece, Text) and not piece.text:
                continue
            if isinstance(piece, Text) and isinstance(last, Text):
                parts[-1] = Text(last.text + ("\n\n" if fresh else "") + piece.text)
            else:
                parts.append(piece)
            fresh = False
    return parts


def said_in(items: Iterable[Item]) -> str:
    """What the model said in its turn."""
    return "\n\n".join(item.text for item in items if isinstance(item, AssistantMessage))
