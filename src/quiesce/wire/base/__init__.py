"""What all connections share: errors, limits, and framing (where one message ends and the next begins)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .errors import (
        INTERNAL_ERROR,
        INVALID_PARAMS,
        INVALID_REQUEST,
        METHOD_NOT_FOUND,
        PARSE_ERROR,
        REQUEST_CANCELLED,
        ConnectionEnded,
        FrameTooLong,
        RequestCancelled,
        RpcError,
        error_of,
    )
    from .framing import Framing, Lines
    from .limits import Limits
    from .websocket_framing import WebSocketFraming, limit_messages

offer()
