"""The official clients that a model makes for itself.

A client's connections belong to one event loop, and somebody has to close them.

Invariants
- There is a client an event loop, made when it is first needed. One model can serve several loops, one after the other or at once.
- While somebody holds the model open (`async with model`), connections are kept between calls; whoever leaves last closes them.
- While nobody does, every call closes its own: nothing is left between calls, and nobody has to remember to close.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from quiesce import shielded
from quiesce.kernel.inner import Backend, current_backend

CLOSED_WITHIN = 5.0


class _OfALoop:
    __slots__ = ("holders", "kept", "passing")

    def __init__(self) -> None:
        self.holders = 0
        self.kept: Any = None  # keeps connections, and is to be closed
        self.passing: Any = None  # has none between calls


class OwnClients:
    """Clients made by `make(keeps_connections)`. Those on an HTTP client of the user's are not ours to close."""

    def __init__(self, make: Callable[[bool], Any], closes: bool) -> None:
        self._make = make
        self._closes = closes
        self._loops: WeakKeyDictionary[Backend, _OfALoop] = WeakKeyDictionary()
        self._lock = threading.Lock()  # loops may run in several threads

    def current(self) -> Any:
        """The client for a call that begins now."""
        mine = self._mine()
        if mine.holders:
            if mine.kept is None:
                mine.kept = self._make(True)
            return mine.kept
        if mine.passing is None:
            mine.passing = self._make(False)
        return mine.passing

    def hold(self) -> None:
        """From now on, keep connections."""
        self._mine().holders += 1

    async def release(self) -> None:
        """One holder less; the last one closes them."""
        mine = self._mine()
        mine.holders -= 1
        if not mine.holders:
            await self._close(mine)

    async def close(self) -> None:
        """Close what is kept in this event loop."""
        await self._close(self._mine())

    def _mine(self) -> _OfALoop:
        backend = current_backend()
        with self._lock:
            mine = self._loops.get(backend)
            if mine is None:
                mine = self._loops[backend] = _OfALoop()
            return mine

    async def _close(self, mine: _OfALoop) -> None:
        kept, mine.kept = mine.kept, None
        if kept is not None and self._closes:
            await shielded(kept.close, within=CLOSED_WITHIN)
