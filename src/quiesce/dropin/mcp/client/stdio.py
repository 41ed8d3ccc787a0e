"""`mcp.client.stdio`, with a transport that any task may close."""

from __future__ import annotations

from quiesce.dropin.handing import hand_through

hand_through(__name__, "mcp.client.stdio")

from quiesce.dropin.mcp._transports import stdio_client as stdio_client
from mcp.client.stdio import *  # type: ignore[assignment, unused-ignore]
from quiesce.dropin.mcp._transports import stdio_client as stdio_client
