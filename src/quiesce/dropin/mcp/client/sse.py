"""`mcp.client.sse`, with a transport that any task may close."""

from __future__ import annotations

from quiesce.dropin.handing import hand_through

hand_through(__name__, "mcp.client.sse")

from quiesce.dropin.mcp._transports import sse_client as sse_client
from mcp.client.sse import *  # type: ignore[assignment, unused-ignore]
from quiesce.dropin.mcp._transports import sse_client as sse_client
