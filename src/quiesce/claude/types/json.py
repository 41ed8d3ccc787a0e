"""JSON as the CLI reads and writes it.

Text may have half of a surrogate pair: node writes one where it has cut an emoji, Python makes one of a file name that is no UTF-8. msgspec, which is
quick, refuses it either way; then it is the work of `json`, which does not.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

_decode = msgspec.json.Decoder().decode


def decode(data: bytes) -> Any:
    """What this says; ValueError or RecursionError if that is nothing."""
    try:
        return _decode(data)
    except msgspec.DecodeError:
        return json.loads(data)


def encode(message: Any) -> bytes:
    """This as one line."""
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:
        return json.dumps(message).encode()
