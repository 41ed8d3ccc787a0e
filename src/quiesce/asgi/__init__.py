"""For web servers: a handler stops when its client disconnects, and everything stops when the server does.

`StopOnDisconnect` is pure ASGI middleware, `lifespan` opens a scope for the whole server, and `unless_disconnected`
stops one call in one endpoint. `sse_events` and `sse_record` make server-sent events. They work with anything that
speaks ASGI (FastAPI, Starlette, uvicorn, hypercorn), on asyncio and trio.
"""

from __future__ import annotations

from quiesce.asgi.connection import ClientGone
from quiesce.asgi.lifespan_scope import lifespan, server_scope
from quiesce.asgi.middleware import StopOnDisconnect
from quiesce.asgi.request import unless_disconnected
from quiesce.asgi.server_sent_events import sse_events, sse_record

__all__ = [
    "ClientGone",
    "StopOnDisconnect",
    "lifespan",
    "server_scope",
    "sse_events",
    "sse_record",
    "unless_disconnected",
]
