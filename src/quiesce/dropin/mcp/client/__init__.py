"""`mcp.client`, with sessions and clients that any task may close; empty in mcp 1.x."""

from __future__ import annotations

from quiesce.dropin.handing import hand_through

hand_through(__name__, "mcp.client")

try:
    from quiesce.dropin.mcp._clients import Client as Client
    from quiesce.dropin.mcp._sessions import ClientSession as ClientSession
    from mcp.client import *  # type: ignore[assignment, unused-ignore]
    from quiesce.dropin.mcp._clients import Client as Client
    from quiesce.dropin.mcp._sessions import ClientSession as ClientSession
except ImportError:  # mcp 1.x has no clients
    pass
