"""JSON of others, which may be nested more deeply than anything can read.

Every reader of JSON is recursive, and gives up with a `RecursionError`, which no code expects of bad input. Here it is bad input like any other: a
`msgspec.DecodeError`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec


def decoder_of(kind: Any = Any, **options: Any) -> Callable[[bytes | str | msgspec.Raw], Any]:
    """A function that decodes JSON to a type."""
    decode = msgspec.json.Decoder(kind, **options).decode

    def decode_bounded(data: bytes | str | msgspec.Raw) -> Any:
        try:
            return decode(data)
        except RecursionError:
            raise _too_deep() from None

    return decode_bounded


decode_json = decoder_of()
"""Plain values of JSON."""


def load_json(text: str | bytes) -> Any:
    """Plain values of JSON by the standard library, which also takes halves of characters."""
    try:
        return json.loads(text)
    except RecursionError:
        raise _too_deep() from None


def is_deep(value: Any, most: int = 100) -> bool:
    """Whether plain values are nested more than so many levels deep."""
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
