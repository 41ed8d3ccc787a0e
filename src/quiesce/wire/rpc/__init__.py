"""The JSON-RPC peer: calls, requests, notifications, and how they settle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .calls import Late
    from .connection import Connection, Tap
    from .current_handler import current_work
    from .handlers import Notification, Request, params_as
    from .peer import Peer, PeerStatistics
    from .requests import Incoming

offer()
