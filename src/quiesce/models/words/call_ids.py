"""Ids of tool calls, rewritten so that a provider accepts them.

A transcript may come from another provider whose ids are longer or contain other characters. Within one request, each
id is always replaced by the same allowed id, and two different ids are never replaced by the same one.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection

_NOT_ALLOWED = re.compile(r"[^a-zA-Z0-9_-]")


class CallIds:
    """Maps the ids of one request to ids of at most `longest` characters."""

    def __init__(self, longest: int = 64) -> None:
        self._longest = longest
        self._sent_ids: dict[str, str] = {}
        self._taken: set[str] = set()

    def __call__(self, call_id: str) -> str:
        """Return the id to send in place of `call_id`."""
        sent_id = self._sent_ids.get(call_id)
        if sent_id is None:
            allowed = _NOT_ALLOWED.sub("_", call_id)[: self._longest] or "call"
            sent_id, number = allowed, 1
            # Two ids can become equal when characters are replaced or the rest is cut off: number the later ones.
            while sent_id in self._taken:
                number += 1
                suffix = f"_{number}"
                sent_id = allowed[: self._longest - len(suffix)] + suffix
            self._sent_ids[call_id] = sent_id
            self._taken.add(sent_id)
        return sent_id


def fresh_call_id(received: str | None, taken: Collection[str]) -> str:
    """Return the id that the server sent, or a new one if it sent none or sent one that is already taken."""
    return received if received and received not in taken else f"call_{uuid.uuid4().hex[:24]}"
