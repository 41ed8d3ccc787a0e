"""Ways to the other side: stdio, a child process, sockets, memory, streams, WebSockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .child_process import ChildProcess, ProcessExited
    from .memory import MemoryTransport, memory_pair
    from .sockets import check_port, check_unix, connect_tcp, connect_unix, prepare_tcp, resolve
    from .standard_streams import move_stdout, stdio
    from .streams import AnyioChannel, AnyioStream, AsyncioStreams, MessageTransport
    from .websocket import NO_LOG, WebSocketTransport, connect_websocket, plain_link, secure_link

offer()
