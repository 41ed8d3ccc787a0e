"""A server with the Realtime protocol on the loopback interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .faults import Faults
    from .server import LocalRealtimeServer

offer()
