"""When a call is tried again, and after how long.

Invariants
- Only what failed before its first event is tried again: after that, somebody has seen a part of the answer.
- The wait grows twofold, with a part left to chance, so that many who were refused together do not come back together. What the
  provider asks for is done, unless that is longer than anybody would wait: then its error is raised at once, and says so.
- A wait that would outlast the call's deadline is not begun.
"""

from __future__ import annotations

import email.utils
import random
import time
from collections.abc import Mapping

from quiesce.models.words import ModelError

MAX_RETRIES = 2
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 8.0
LONGEST_ASKED_FOR = 60.0


class Retries:
    """How often, of one call."""

    def __init__(self, max_retries: int | None) -> None:
        self._left = MAX_RETRIES if max_retries is None else max_retries
        self._next = FIRST_PAUSE

    def pause(self, error: ModelError, time_left: float) -> float | None:
        """Seconds to wait before the next try; None if there is to be none."""
        if self._left <= 0 or not error.retryable:
            return None
        asked = error.retry_after
        if asked is not None and asked > LONGEST_ASKED_FOR:
            return None
        grown, self._next = self._next, min(2 * self._next, LONGEST_PAUSE)
        chance = random.random()
        # Never earlier than asked for; a little later, as everybody else was told the same.
        seconds = asked + 0.1 * grown * chance if asked is not None else grown * (1 - 0.25 * chance)
        if seconds >= time_left:
            return None
        self._left -= 1
        return seconds


def retry_after(headers: Mapping[str, str]) -> float | None:
    """How many seconds a response asks its client to wait."""
    try:
        return max(0.0, float(headers["retry-after-ms"]) / 1000)
    except (KeyError, ValueError):
        pass
    said = headers.get("retry-after")
    if said is None:
        return None
    try:
        return max(0.0, float(said))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(said).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
