"""Connections between two programs: transports, framing, and a JSON-RPC peer that always settles.

`Peer` is one side of a connection on which both sides may send requests and notifications. When it is closed,
every handler has answered, every request has ended, and nothing is left over. Transports are loaded on first
use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._extras import require
from quiesce._lazy import offer

require("msgspec", "agents", "quiesce.wire")

if TYPE_CHECKING:
    from .base import ConnectionEnded as ConnectionEnded
    from .base import FrameTooLong as FrameTooLong
    from .base import Limits as Limits
    from .base import RequestCancelled as RequestCancelled
    from .base import RpcError as RpcError
    from .links import Channel as Channel
    from .links import ChannelTransport as ChannelTransport
    from .links import SocketTransport as SocketTransport
    from .links import Transport as Transport
    from .rpc import Notification as Notification
    from .rpc import Peer as Peer
    from .rpc import PeerStatistics as PeerStatistics
    from .rpc import Request as Request
    from .rpc import params_as as params_as
    from .servers import Server as Server
    from .servers import serve_tcp as serve_tcp
    from .servers import serve_unix as serve_unix
    from .servers import serve_websocket as serve_websocket
    from .transports import AnyioStream as AnyioStream
    from .transports import AsyncioStreams as AsyncioStreams
    from .transports import ChildProcess as ChildProcess
    from .transports import MemoryTransport as MemoryTransport
    from .transports import MessageTransport as MessageTransport
    from .transports import ProcessExited as ProcessExited
    from .transports import connect_tcp as connect_tcp
    from .transports import connect_unix as connect_unix
    from .transports import connect_websocket as connect_websocket
    from .transports import memory_pair as memory_pair
    from .transports import stdio as stdio

offer()
