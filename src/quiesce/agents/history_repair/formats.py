"""`repair(messages)`: a history that its provider accepts, whatever stopped the run that wrote it.

Invariants
- Every tool call has exactly one result, next to it. A missing one is made up from a fixed text, so that the
  same history always gives the same messages, and prompt caches keep working.
- `repair(repair(m)) == repair(m)`, and a valid history comes back equal, with the very same message objects.
- The input is not changed. Text of the user and of the assistant is kept; dropped are results without a call,
  calls without an id or a name, replays, empty messages, and thinking that leads to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, cast

from quiesce.models.inner import ITEM_TYPES

from .anthropic import repair_anthropic
from .chat import repair_chat
from .items import repair_items
from .pairs import MISSING
from .reading import field, parts
from .responses import repair_responses

Shape: TypeAlias = Literal["chat", "responses", "anthropic", "items"]

_REPAIRS: dict[str, Callable[[Sequence[Any], str], list[Any]]] = {
    "chat": repair_chat,
    "responses": repair_responses,
    "anthropic": repair_anthropic,
    "items": repair_items,
}
# What only one of the shapes has. Responses items that are not messages have no role. Anthropic's blocks are
# recognised by the end of their type, because of `server_tool_use`, `web_search_tool_result` and so on.
_CHAT_ROLES = frozenset({"tool", "function"})
_CHAT_FIELDS = ("tool_calls", "function_call")
_CHAT_PARTS = frozenset({"image_url", "input_audio", "file"})
_RESPONSES_PARTS = frozenset({"input_text", "output_text", "input_image", "input_file"})
_ANTHROPIC_PARTS = ("tool_use", "tool_result", "thinking", "image", "document")


def repair(
    messages: Sequence[Any],
    *,
    shape: Literal["auto"] | Shape = "auto",
    missing: str = MISSING,
) -> list[Any]:
    """Return the messages as a new list that the provider accepts: each tool call with one result next to it.

    For histories that a crash, a cancelled request or another program has left incomplete.

    - `shape`: `"chat"` (OpenAI Chat Completions and compatible servers), `"responses"` (OpenAI Responses),
      `"anthropic"`, or `"items"` (of `quiesce.models`); `"auto"` looks at the messages. These may be dicts or
      objects of the official clients.
    - `missing`: what the model reads in the place of a missing result.

    Repairing twice changes nothing more, a valid history comes back equal, and the input is not changed.

    ```python
    messages = repair([*messages, {"role": "user", "content": "go on"}])
    ```

    Raises TypeError for anything but a list of messages, and ValueError if `shape="auto"` finds two shapes in
    one list.
    """
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence):
        raise TypeError(
            f"repair takes a list of messages, not {type(messages).__name__}: "
            "wrap a single text as [{'role': 'user', 'content': text}]"
        )
    if not isinstance(missing, str) or not missing.strip():
        raise ValueError("the text for missing results says nothing: providers reject empty results")
    if shape == "auto":
        shape = shape_of(messages)
    if shape not in _REPAIRS:
        raise ValueError(f"there is no shape {shape!r}: use auto, {', '.join(_REPAIRS)}")
    if shape == "items":
        _refuse_other_than_items(messages)
    return _REPAIRS[shape](messages, missing)


def shape_of(messages: Sequence[Any]) -> Shape:
    """Return the shape of a history; `"chat"` for plain text, which all shapes share and all repair alike."""
    found: dict[Shape, int] = {}
    for number, message in enumerate(messages):
        for shape in _signs(message, number):
            found.setdefault(shape, number)
    if len(found) > 1:
        signs = " and ".join(f"{shape} (message {number})" for shape, number in found.items())
        raise ValueError(
            f"this history has messages of {signs}, and no provider accepts both: "
            "pass shape= if one of them is right, or convert the others first"
        )
    for shape in found:
        return shape
    return "chat"


def _signs(message: Any, number: int) -> set[Shape]:
    if isinstance(message, ITEM_TYPES):
        return {"items"}
    role, kind, content = (field(message, name) for name in ("role", "type", "content"))
    if not isinstance(role, str) and not isinstance(kind, str):
        raise TypeError(
            f"message {number} is not a message in any known provider format, but {type(message).__name__}: "
            "it has neither a role nor a type"
        )
    kinds = {field(part, "type") for part in parts(content)}
    signs: set[Shape] = set()
    if not isinstance(role, str) or kinds & _RESPONSES_PARTS:
        signs.add("responses")
    if (
        role in _CHAT_ROLES
        or any(field(message, name) is not None for name in _CHAT_FIELDS)
        or kinds & _CHAT_PARTS
    ):
        signs.add("chat")
    if any(str(kind).endswith(_ANTHROPIC_PARTS) for kind in kinds - _RESPONSES_PARTS):
        signs.add("anthropic")
    return signs


def _refuse_other_than_items(messages: Sequence[Any]) -> None:
    for number, message in enumerate(cast("Sequence[object]", messages)):
        if not isinstance(message, ITEM_TYPES):
            raise TypeError(
                f"message {number} is not an item of quiesce.models, but {type(message).__name__}"
            )
