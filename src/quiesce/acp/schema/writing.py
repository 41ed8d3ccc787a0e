"""Messages into plain JSON values, slowly: for messages of which some part has fields or a kind that its class does not know.

What is written is what msgspec writes by itself, and the extra fields besides. A field that has a value is not overwritten by an extra one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .message import Message, UnknownVariant


def plain(value: Any) -> Any:
    """The JSON value of a message, or of a list or dict that has messages in it."""
    if isinstance(value, Message):
        return _plain_message(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value


_fields: dict[type[Message], list[tuple[str, str, Any, Any]]] = {}


def _fields_of(kind: type[Message]) -> list[tuple[str, str, Any, Any]]:
    """Attribute, wire name, default and factory of what is written of a class."""
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
