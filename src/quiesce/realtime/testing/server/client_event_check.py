"""Checks the events of clients against the types of the official client, if it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args


@dataclass(frozen=True, slots=True)
class InvalidEvent:
    """What is wrong with an event, as in an error of the API."""

    message: str
    code: str
    param: str | None = None


class ClientEventCheck:
    """Checks events. Without the official client it finds no fault in any."""

    def __init__(self) -> None:
        self._types: dict[str, Any] = {}
        try:
            from openai.types.realtime.realtime_client_event import RealtimeClientEvent
        except ImportError:
            return
        for kind in get_args(get_args(RealtimeClientEvent)[0]):
            (name,) = get_args(kind.model_fields["type"].annotation)
            self._types[name] = kind

    def fault_of(self, event: dict[str, Any]) -> InvalidEvent | None:
        """Return what is wrong with an event, or None."""
        kind = self._types.get(event["type"])
        if kind is None:  # the session refuses unknown types
            return None
        from pydantic import ValidationError

        try:
            parsed = kind.model_validate(event)
        except ValidationError as error:
            first = error.errors()[0]
            # pydantic puts the names of the tried union members into the place, too.
            place = [str(part) for part in first["loc"] if isinstance(part, int) or part.islower()]
            code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
            param = ".".join(place)
            return InvalidEvent(f"{event['type']}: {param}: {first['msg']}", code, param)
        for unknown in _unknown_fields(parsed, ""):
            return InvalidEvent(
                f"{event['type']}: unknown parameter {unknown!r}", "unknown_parameter", unknown
            )
        return None


def _unknown_fields(value: Any, place: str) -> Iterator[str]:
    """Yield unknown fields: the official types allow them, but the API does not."""
    if isinstance(value, list):
        for n, entry in enumerate(value):
            yield from _unknown_fields(entry, f"{place}[{n}]")
        return
    fields = getattr(type(value), "model_fields", None)
    if fields is None:
        return
    dot = f"{place}." if place else ""
    yield from (f"{dot}{name}" for name in value.model_extra or ())
    for name in fields:
        yield from _unknown_fields(getattr(value, name), f"{dot}{name}")
