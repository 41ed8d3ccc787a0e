"""Reading messages, which may be dicts or objects of an SDK, and copying them with changes.

Nothing here changes its arguments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def field(message: object, name: str) -> Any:
    """Return a field of a dict or an object; None if it has no such field."""
    if isinstance(message, Mapping):
        return message.get(name)
    return getattr(message, name, None)


def as_dict(message: object) -> dict[str, Any]:
    """Return a message as a new dict, not copied any deeper; unset fields of an object are left out."""
    if isinstance(message, Mapping):
        return dict(message)
    dump = getattr(message, "model_dump", None)
    if dump is None:
        return dict(vars(message))
    dumped: dict[str, Any] = dump(exclude_unset=True, by_alias=True)
    return dumped


def with_changes(message: object, **changes: Any) -> dict[str, Any]:
    """Return a copy with these fields changed; one that is None is removed."""
    copy = as_dict(message)
    for name, value in changes.items():
        if value is None:
            copy.pop(name, None)
        else:
            copy[name] = value
    return copy


def parts(content: object) -> list[Any]:
    """Return the parts of a content that is a list; none for any other."""
    return list(content) if isinstance(content, (list, tuple)) else []


def are_same(old: Sequence[Any], new: Sequence[Any]) -> bool:
    """Return whether these are the very same objects: then their message can stay as it is."""
    return len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True))


def text_in(content: object) -> str:
    """Return the text of a content or of a result, whatever its form."""
    if isinstance(content, str):
        return content
    texts = (field(part, "text") for part in parts(content))
    return "".join(text for text in texts if isinstance(text, str))


def is_empty(content: object) -> bool:
    """Return whether a message with this content says nothing at all."""
    if content is None or content == "":
        return True
    return isinstance(content, (list, tuple)) and all(
        field(part, "type") == "text" and not field(part, "text") for part in content
    )


def valid_arguments(arguments: object) -> tuple[str, bool]:
    """Return the arguments as the text of a JSON object, and whether cut-off ones had to be dropped."""
    if isinstance(arguments, Mapping):
        return json.dumps(dict(arguments), separators=(",", ":"), ensure_ascii=False), False
    # Some models write nothing at all for a tool without parameters: that is complete.
    if not isinstance(arguments, str) or not arguments.strip():
        return "{}", False
    try:
        whole = isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        whole = False
    return (arguments, False) if whole else ("{}", True)


def filled(text: object) -> bool:
    """Return whether this is a usable id or name."""
    return isinstance(text, str) and bool(text)
