"""Two programs that talk: frames, the ways they travel, and a JSON-RPC peer that settles.

`Peer` is one side of a connection on which both sides may ask and tell. When it closes, every handler has answered, every call has an end,
and nothing is left of it. The ways to the other side are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from quiesce._extras import require

require("msgspec", "agents", "quiesce.wire")

from ._errors import ConnectionEnded, FrameTooLong, RequestCancelled, RpcError  # noqa: E402
from ._handlers import Notification, Request, params_as  # noqa: E402
from ._limits import Limits  # noqa: E402
from ._peer import Peer, PeerStatistics  # noqa: E402
from ._transport import ChannelTransport, Transport  # noqa: E402

if TYPE_CHECKING:
    from ._channel_link import Channel as Channel
    from ._child_process import ChildProcess as ChildProcess
    from ._child_process import ProcessExited as ProcessExited
    from ._connect import connect_tcp as connect_tcp
    from ._connect import connect_unix as connect_unix
    from ._descriptors import SocketTransport as SocketTransport
    from ._memory import MemoryTransport as MemoryTransport
    from ._memory import memory_pair as memory_pair
    from ._serve import serve_tcp as serve_tcp
    from ._serve import serve_unix as serve_unix
    from ._server import Server as Server
    from ._stdio import stdio as stdio
    from ._streams import AnyioStream as AnyioStream
    from ._streams import AsyncioStreams as AsyncioStreams
    from ._streams import MessageTransport as MessageTransport
    from ._websocket import connect_websocket as connect_websocket
    from ._websocket_server import serve_websocket as serve_websocket

_HOME = {
    "AnyioStream": "_streams",
    "AsyncioStreams": "_streams",
    "Channel": "_channel_link",
    "ChildProcess": "_child_process",
    "MemoryTransport": "_memory",
    "MessageTransport": "_streams",
    "ProcessExited": "_child_process",
    "Server": "_server",
    "SocketTransport": "_descriptors",
    "connect_tcp": "_connect",
    "connect_unix": "_connect",
    "connect_websocket": "_websocket",
    "memory_pair": "_memory",
    "serve_tcp": "_serve",
    "serve_unix": "_serve",
    "serve_websocket": "_websocket_server",
    "stdio": "_stdio",
}

__all__ = [
    "AnyioStream",
    "AsyncioStreams",
    "Channel",
    "ChannelTransport",
    "ChildProcess",
    "ConnectionEnded",
    "FrameTooLong",
    "Limits",
    "MemoryTransport",
    "MessageTransport",
    "Notification",
    "Peer",
    "PeerStatistics",
    "ProcessExited",
    "Request",
    "RequestCancelled",
    "RpcError",
    "Server",
    "SocketTransport",
    "Transport",
    "connect_tcp",
    "connect_unix",
    "connect_websocket",
    "memory_pair",
    "params_as",
    "serve_tcp",
    "serve_unix",
    "serve_websocket",
    "stdio",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
