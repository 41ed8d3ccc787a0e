"""Functions that import next to nothing: a process that calls one starts fast."""

from __future__ import annotations


def undecorated(n: int) -> int:
    return n + 1
