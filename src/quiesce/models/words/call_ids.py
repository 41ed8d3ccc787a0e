"""Ids of tool calls that a provider accepts.

A transcript may have been begun with another provider, whose ids are longer or hold other characters. Within one request every id is
replaced by one that is allowed, always the same, and no two become one.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection

_NOT_ALLOWED = re.compile(r"[^a-zA-Z0-9_-]")


class CallIds:
    """The ids of one request, at most `longest` characters each."""

    def __init__(self, longest: int = 64) -> None:
        self._longest = longest
        self._known: dict[str, str] = {}
        self._taken: set[str] = set()

    def __call__(self, call_id: str) -> str:
        """The id to send for this one."""
        known = self._known.get(call_id)
        if known is None:
            plain = _NOT_ALLOWED.sub("_", call_id)[: self._longest] or "call"
            known, number = plain, 1
            while known in self._taken:
                number += 1
                ending = f"_{number}"
                known = plain[: self._longest - len(ending)] + ending
            self._known[call_id] = known
            self._taken.add(known)
        return known


def fresh_call_id(said: str | None, taken: Collection[str]) -> str:
    """The id that a server gave, or a new one where it gave none or has given it before."""
    return said if said and said not in taken else f"call_{uuid.uuid4().hex[:24]}"
