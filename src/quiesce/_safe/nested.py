"""JSON from untrusted sources, which may be nested too deeply for any parser.

JSON parsers are recursive, and fail with a `RecursionError`, which callers do not expect for bad input. Here,
deep nesting is bad input like any other, and raises a `msgspec.DecodeError`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec


def decoder_of(kind: Any = Any, **options: Any) -> Callable[[bytes | str | msgspec.Raw], Any]:
    """Make a function that decodes JSON to a type, and raises `msgspec.DecodeError` for any bad input."""
    decode = msgspec.json.Decoder(kind, **options).decode

    def decode_bounded(data: bytes | str | msgspec.Raw) -> Any:
        try:
            return decode(data)
        except RecursionError:
            raise _too_deep() from None

    return decode_bounded


decode_json = decoder_of()
"""Decodes JSON to plain values."""


def load_json(text: str | bytes) -> Any:
    """Decode JSON to plain values with the standard library, which also accepts lone surrogates."""
    try:
        return json.loads(text)
    except RecursionError:
        raise _too_deep() from None


def is_deep(value: Any, most: int = 100) -> bool:
    """Whether plain values are nested more than `most` levels deep."""
    # Level by level and not recursively: a recursive check would fail on just the values that it should find.
    level = [value]
    for _ in range(most):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def _too_deep() -> msgspec.DecodeError:
    return msgspec.DecodeError("JSON is malformed: it is nested too deeply")
