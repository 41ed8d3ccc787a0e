"""Audio formats: their names, and how many bytes a millisecond has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

RealtimeAudioFormat: TypeAlias = "str | Mapping[str, Any]"
"""The name of a format, or the format as in the protocol: `{"type": "audio/pcm", "rate": 24000}`.

The names are `"pcm16"` (24 kHz, two bytes per sample), `"g711_ulaw"` and `"g711_alaw"` (8 kHz, one byte).
"""

_PCM = {"type": "audio/pcm", "rate": 24000}
_NAMES: dict[str, dict[str, Any]] = {
    "pcm16": _PCM,
    "pcm": _PCM,
    "audio/pcm": _PCM,
    "g711_ulaw": {"type": "audio/pcmu"},
    "pcmu": {"type": "audio/pcmu"},
    "audio/pcmu": {"type": "audio/pcmu"},
    "g711_alaw": {"type": "audio/pcma"},
    "pcma": {"type": "audio/pcma"},
    "audio/pcma": {"type": "audio/pcma"},
}


def wire_format(given: Any) -> dict[str, Any]:
    """Return a format as in the protocol."""
    if isinstance(given, str):
        found = _NAMES.get(given.lower())
        if found is None:
            raise ValueError(
                f"{given!r} is not an audio format: use pcm16 (24 kHz, two bytes per sample), g711_ulaw or g711_alaw"
            )
        return dict(found)
    if isinstance(given, Mapping) and isinstance(given.get("type"), str):
        known = _NAMES.get(given["type"].lower(), {})
        form = {**known, **given, "type": known.get("type", given["type"])}
        rate = form.get("rate")
        if rate is not None and not (type(rate) in (int, float) and 1 <= rate <= 10_000_000):
            raise ValueError(
                f"{given!r} is not an audio format: its rate must be a number from 1 to 10,000,000"
            )
        return form
    kind = getattr(given, "type", None)  # the official client's own types
    if isinstance(kind, str):
        return wire_format(kind)
    raise ValueError(f"{given!r} is not an audio format: give a name such as 'pcm16', or {_PCM!r}")


def bytes_per_millisecond(given: Any) -> float:
    """Return how many bytes a millisecond has in this format."""
    form = wire_format(given)
    if form["type"] == "audio/pcm":
        return float(form.get("rate") or 24000) * 2 / 1000
    return 8.0
