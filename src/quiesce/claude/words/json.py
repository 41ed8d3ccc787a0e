"""JSON as the CLI reads and writes it.

Text may contain half of a surrogate pair: node writes one when it cuts an emoji in two, and Python makes one
of a file name that is not UTF-8. msgspec, which is fast, refuses such text; then `json` takes over, which
accepts it.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

_decode = msgspec.json.Decoder().decode


def decode(data: bytes) -> Any:
    """Decode JSON; ValueError or RecursionError if that cannot be done."""
    try:
        return _decode(data)
    except msgspec.DecodeError:
        return json.loads(data)


def encode(message: Any) -> bytes:
    """Encode as one line."""
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:
        return json.dumps(message).encode()
