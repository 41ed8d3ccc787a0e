"""Whether a failed call is retried, and after which pause.

Invariants
- A call is retried only if it failed before its first event: after that, the consumer has seen a part of the answer.
- The pause doubles each time and is partly random, so that clients that were refused together do not come back
  together. If the provider asks for a pause, that one applies, unless it is longer than `LONGEST_ASKED_FOR`: then the
  error is raised at once, and says how long to wait.
- A pause that would outlast the call's deadline is not begun.
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
    """The retries of one call; `max_retries` is `MAX_RETRIES` unless given."""

    def __init__(self, max_retries: int | None) -> None:
        self._remaining = MAX_RETRIES if max_retries is None else max_retries
        self._next_pause = FIRST_PAUSE

    def pause(self, error: ModelError, time_left: float) -> float | None:
        """Return the seconds to wait before the next attempt; None if there is to be none."""
        if self._remaining <= 0 or not error.retryable:
            return None
        requested = error.retry_after
        if requested is not None and requested > LONGEST_ASKED_FOR:
            return None
        backoff, self._next_pause = self._next_pause, min(2 * self._next_pause, LONGEST_PAUSE)
        jitter = random.random()
        # Never earlier than requested, but a little later: other clients were given the same number.
        seconds = (
            requested + 0.1 * backoff * jitter if requested is not None else backoff * (1 - 0.25 * jitter)
        )
        if seconds >= time_left:
            return None
        self._remaining -= 1
        return seconds


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds a response asks its client to wait; None if it does not say."""
    try:
        return max(0.0, float(headers["retry-after-ms"]) / 1000)
    except (KeyError, ValueError):
        pass
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    # The header may also hold an HTTP date.
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
