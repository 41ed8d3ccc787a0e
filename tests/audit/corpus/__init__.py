"""Small scenarios that leak, each with a clean twin: what the audit has to find, and what it must not."""

from __future__ import annotations

from . import cancellation, hangs, nurseries, objects, outside, pools, streams, tasks
from .entry import ALL, Entry, Finds, innermost, marked, position

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
