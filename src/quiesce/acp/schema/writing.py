"""Converts messages with unknown fields or kinds into plain JSON values, slowly.

The result is what msgspec writes by itself, plus the extra fields. An extra field never overwrites a field
that has a value.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .message import Message, UnknownVariant


def plain(value: Any) -> Any:
    """Return the JSON value of a message, or of a list or dict that contains messages."""
    if isinstance(value, Message):
        return _plain_message(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value


_fields: dict[type[Message], list[tuple[str, str, Any, Any]]] = {}


def _fields_of(kind: type[Message]) -> list[tuple[str, str, Any, Any]]:
    """Return the attribute, wire name, default and default factory of each field that is written."""
    if (found := _fields.get(kind)) is None:
        found = _fields[kind] = [
            (info.name, info.encode_name, info.default, info.default_factory)
            for info in msgspec.structs.fields(kind)
            if not info.encode_name.startswith("(")
        ]
    return found


def _plain_message(message: Message) -> dict[str, Any]:
    kind = type(message)
    config = kind.__struct_config__
    written: dict[str, Any] = {}
    if isinstance(message, UnknownVariant):
        written[config.tag_field or ""] = getattr(message, _tag_attribute(kind))
    elif config.tag is not None:
        written[config.tag_field or ""] = config.tag
    for name, wire_name, default, factory in _fields_of(kind):
        value = getattr(message, name)
        # The same fields that msgspec omits by `omit_defaults`: unchanged defaults, and empty lists and
        # dicts.
        if value is default or (factory in (list, dict) and type(value) is factory and not value):
            continue
        written[wire_name] = plain(value)
    for wire_name, value in message.extra_fields.items():
        if wire_name not in written:
            written[wire_name] = plain(value)
    return written


def _tag_attribute(kind: type[Message]) -> str:
    wire_name = f"({kind.__struct_config__.tag_field})"
    return kind.__struct_fields__[kind.__struct_encode_fields__.index(wire_name)]
