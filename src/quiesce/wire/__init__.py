"""Two programs that talk: frames, the ways they travel, and a JSON-RPC peer that settles.

`Peer` is one side of a connection on which both sides may ask and tell. When it closes, every handler has answered, every call has an end,
and nothing is left of it.
"""

from __future__ import annotations

from quiesce._extras import require

require("msgspec", "agents", "quiesce.wire")

from ._channel_link import Channel  # noqa: E402
from ._descriptors import SocketTransport  # noqa: E402
from ._errors import ConnectionEnded, FrameTooLong, RequestCancelled, RpcError  # noqa: E402
from ._handlers import Notification, Request, params_as  # noqa: E402
from ._limits import Limits  # noqa: E402
from ._memory import MemoryTransport, memory_pair  # noqa: E402
from ._peer import Peer, PeerStatistics  # noqa: E402
from ._transport import ChannelTransport, Transport  # noqa: E402

__all__ = [
    "Channel",
    "ChannelTransport",
    "ConnectionEnded",
    "FrameTooLong",
    "Limits",
    "MemoryTransport",
    "Notification",
    "Peer",
    "PeerStatistics",
    "Request",
    "RequestCancelled",
    "RpcError",
    "SocketTransport",
    "Transport",
    "memory_pair",
    "params_as",
]
