"""Malformed events, which a client has to survive."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from .faults import Malformed

NO_FRAME: Final = b"\x83\x00"  # the opcode 3 is reserved


def malformed_text(kind: Malformed, audio: dict[str, Any]) -> bytes:
    """Return the text of a message that is malformed in this way; `audio` is a valid event."""
    texts: dict[Malformed, bytes] = {
        "not_json": b"this is { no JSON",
        "not_object": b'["response.done"]',
        "no_type": b'{"event_id": "event_0"}',
        "wrong_types": msgspec.json.encode({**audio, "delta": 17, "item_id": [], "content_index": "first"}),
        "bad_base64": msgspec.json.encode({**audio, "delta": "%% no base64 %%"}),
        "unknown_type": b'{"type": "response.telepathy.delta", "event_id": "event_0", "delta": "?"}',
        "bad_utf8": b'{"type": "\xff\xfe"}',
    }
    return texts[kind]
