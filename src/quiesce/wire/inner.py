"""What the packages above may use of `quiesce.wire`, in addition to its public names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .base import (
        INTERNAL_ERROR,
        INVALID_PARAMS,
        INVALID_REQUEST,
        METHOD_NOT_FOUND,
        PARSE_ERROR,
        REQUEST_CANCELLED,
        Lines,
        WebSocketFraming,
    )
    from .links import SHORTEST_TOKEN, ChannelLink, Client, Link, as_transport
    from .rpc import Incoming, Late, Tap, connection_of, current_request
    from .transports import WebSocketTransport, move_stdout

offer()
