"""What clients send, held against the official client's own types, where that is installed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is wrong with an event, in the words of the API's errors."""

    message: str
    code: str
    param: str | None = None


class ClientEventCheck:
    """Looks at one event after the other. Without the official client it finds all of them right."""

    def __init__(self) -> None:
        self._types: dict[str, Any] = {}
        try:
            from openai.types.realtime.realtime_client_event import RealtimeClientEvent
        except ImportError:
            return
        for kind in get_args(get_args(RealtimeClientEvent)[0]):
            (name,) = get_args(kind.model_fields["type"].annotation)
            self._types[name] = kind

    def wrong_with(self, event: dict[str, Any]) -> Wrong | None:
        """What is wrong, if anything is."""
        kind = self._types.get(event["type"])
        if kind is None:  # unknown types are the session's own business
            return None
        from pydantic import ValidationError

        try:
            parsed = kind.model_validate(event)
        except ValidationError as error:
            first = error.errors()[0]
            # What a union has tried is part of the place, and no part of the event.
            place = [str(part) for part in first["loc"] if isinstance(part, int) or part.islower()]
            code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
            param = ".".join(place)
            return Wrong(f"{event['type']}: {param}: {first['msg']}", code, param)
        for unknown in _unknown_fields(parsed, ""):
            return Wrong(f"{event['type']}: unknown parameter {unknown!r}", "unknown_parameter", unknown)
        return None


def _unknown_fields(value: Any, place: str) -> Iterator[str]:
    """The official types allow what they do not know; the API does not."""
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
