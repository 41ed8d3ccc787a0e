"""Small scenarios that leak, each with a clean twin: what the audit has to find, and what it must not."""

from __future__ import annotations

import warnings

from . import hangs, nurseries, objects, outside, pools, streams, tasks
from .entry import ALL, Entry, Finds, innermost, marked, position

with warnings.catch_warnings():
    # From 3.14 on Python warns of `return` in a finally, which people write nevertheless.
    warnings.filterwarnings("ignore", "'return' in a 'finally' block", SyntaxWarning)
    from . import cancellation

ENTRIES = [
    *tasks.ENTRIES,
    *cancellation.ENTRIES,
    *pools.ENTRIES,
    *streams.ENTRIES,
    *hangs.ENTRIES,
    *nurseries.ENTRIES,
    *objects.ENTRIES,
    *outside.ENTRIES,
]

__all__ = ["ALL", "ENTRIES", "Entry", "Finds", "innermost", "marked", "position"]
