"""The official clients that a model makes for itself, one per event loop.

A client's connections belong to one event loop, and each of them must be closed by an owner.

Invariants
- There is one client per event loop, made when it is first needed. One model can serve several loops, one after the
  other or at the same time.
- While the model is open (`async with model`), connections are kept between calls; the last holder to exit closes them.
- While it is not, every call closes its own connection: nothing is left over between calls, and forgetting to close the
  model leaks nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from quiesce import shielded
from quiesce.kernel.inner import Backend, current_backend

CLOSED_WITHIN = 5.0


class _LoopClients:
    __slots__ = ("holders", "pooled", "unpooled")

    def __init__(self) -> None:
        self.holders = 0
        # Keeps connections between calls, and has to be closed.
        self.pooled: Any = None
        # Keeps no connections, so there is nothing to close.
        self.unpooled: Any = None


class OwnClients:
    """Clients made by `make(keeps_connections)`.

    `closes` is false if they use an HTTP client that belongs to the user, who then closes it.
    """

    def __init__(self, make: Callable[[bool], Any], closes: bool) -> None:
        self._make = make
        self._closes = closes
        self._loops: WeakKeyDictionary[Backend, _LoopClients] = WeakKeyDictionary()
        # Several event loops may use one model at the same time, each in a thread of its own.
        self._lock = threading.Lock()

    def current(self) -> Any:
        """Return the client for a call that begins now."""
        clients = self._of_this_loop()
        if clients.holders:
            if clients.pooled is None:
                clients.pooled = self._make(True)
            return clients.pooled
        if clients.unpooled is None:
            clients.unpooled = self._make(False)
        return clients.unpooled

    def hold(self) -> None:
        """Add a holder: while there is one, connections are kept between calls."""
        self._of_this_loop().holders += 1

    async def release(self) -> None:
        """Remove a holder; after the last one, close the connections."""
        clients = self._of_this_loop()
        clients.holders -= 1
        if not clients.holders:
            await self._close(clients)

    async def close(self) -> None:
        """Close the connections that are kept in this event loop."""
        await self._close(self._of_this_loop())

    def _of_this_loop(self) -> _LoopClients:
        backend = current_backend()
        with self._lock:
            clients = self._loops.get(backend)
            if clients is None:
                clients = self._loops[backend] = _LoopClients()
            return clients

    async def _close(self, clients: _LoopClients) -> None:
        # Taken out before the await, so that a call which begins meanwhile makes a new client.
        pooled, clients.pooled = clients.pooled, None
        if pooled is not None and self._closes:
            await shielded(pooled.close, within=CLOSED_WITHIN)
