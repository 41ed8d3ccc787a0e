"""The events of a model as plain data, and back.

An event is an object with its `type` and its fields; an item in it is as `encode_item` writes it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final, get_args

import msgspec

from .items import UnknownItem, convert_item
from .model import ItemDone, ModelEvent

_KINDS: Final[dict[str, Any]] = {kind.type: kind for kind in get_args(ModelEvent)}
_FIELDS: Final = {name: tuple(field.name for field in fields(kind)) for name, kind in _KINDS.items()}


def model_event_data(event: ModelEvent) -> dict[str, object]:
    """Return an event as an object that msgspec can encode; TypeError if it is not an event of `quiesce.models`."""
    name = getattr(event, "type", None)
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None or not isinstance(event, kind):
        raise TypeError(
            f"{type(event).__name__} is not an event of a model, so it cannot be sent: "
            f"a model yields {', '.join(kind.__name__ for kind in _KINDS.values())}"
        )
    data: dict[str, object] = {"type": name}
    for field in _FIELDS[event.type]:
        value = getattr(event, field)
        data[field] = value.data if isinstance(value, UnknownItem) else value
    return data


def model_event_of(data: Any) -> ModelEvent | None:
    """Return the event that `data` holds as plain values; None if it is of a kind that this version does not know.

    Raises ValueError if it is not an event.
    """
    name = data.get("type") if isinstance(data, dict) else None
    if not isinstance(name, str):
        raise ValueError("an event of a model is an object whose member 'type' is a string")
    if (kind := _KINDS.get(name)) is None:
        return None
    if kind is ItemDone:
        if "item" not in data:
            raise ValueError(f"an event of the type {name!r} has an 'item'")
        return ItemDone(convert_item(data["item"]))
    event: ModelEvent = msgspec.convert(data, kind)
    return event
