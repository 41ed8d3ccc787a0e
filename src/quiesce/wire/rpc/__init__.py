"""The JSON-RPC peer: our calls, the peer's requests and notifications, and how all of them settle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .calls import Late
    from .handlers import Notification, Request, params_as
    from .peer import Peer, PeerStatistics, connection_of
    from .requests import Incoming, current_request
    from .sender import Tap

offer()
