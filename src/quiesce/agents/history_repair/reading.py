"""Reading messages that are dicts or the SDKs' objects alike, and copying them with a change. Nothing here alters what it is given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def field(message: object, name: str) -> Any:
    """A field of a dict or of an object; None where there is none."""
    if isinstance(message, Mapping):
        return message.get(name)
    return getattr(message, name, None)


def as_dict(message: object) -> dict[str, Any]:
    """A message as a new dict, one level deep for dicts; what was never set on an object is left out."""
    if isinstance(message, Mapping):
        return dict(message)
    dump = getattr(message, "model_dump", None)
    if dump is None:
        return dict(vars(message))
    dumped: dict[str, Any] = dump(exclude_unset=True, by_alias=True)
    return dumped


def with_changes(message: object, **changes: Any) -> dict[str, Any]:
    """A copy in which these fields are others; one that is None is left out."""
    copy = as_dict(message)
    for name, value in changes.items():
        if value is None:
            copy.pop(name, None)
        else:
            copy[name] = value
    return copy


def parts(content: object) -> list[Any]:
    """The parts of a content that is a list, or none."""
    return list(content) if isinstance(content, (list, tuple)) else []


def text_in(content: object) -> str:
    """The text of a content or of a result, whatever its form."""
    if isinstance(content, str):
        return content
    texts = (field(part, "text") for part in parts(content))
    return "".join(text for text in texts if isinstance(text, str))


def is_empty(content: object) -> bool:
    """Whether a message with this content says nothing at all."""
    if content is None or content == "":
        return True
    return isinstance(content, (list, tuple)) and all(
        field(part, "type") == "text" and not field(part, "text") for part in content
    )


def valid_arguments(arguments: object) -> tuple[str, bool]:
    """The arguments as the text of a JSON object, and whether they had to be given up because they were cut off."""
    if isinstance(arguments, Mapping):
        return json.dumps(dict(arguments), separators=(",", ":"), ensure_ascii=False), False
    if not isinstance(arguments, str) or not arguments.strip():
        return "{}", False
    try:
        whole = isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        whole = False
    return (arguments, False) if whole else ("{}", True)


def filled(text: object) -> bool:
    """Whether this is an id or a name that can be used."""
    return isinstance(text, str) and bool(text)
