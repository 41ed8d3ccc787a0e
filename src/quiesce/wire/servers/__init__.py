"""Servers: listeners, and a child task per connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce._lazy import offer

if TYPE_CHECKING:
    from .line_servers import serve_tcp, serve_unix
    from .server import Server
    from .websocket_server import serve_websocket

offer()
