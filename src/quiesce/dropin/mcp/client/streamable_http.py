"""`mcp.client.streamable_http`, with transports that any task may close."""

from __future__ import annotations

from quiesce.dropin.handing import hand_through

hand_through(__name__, "mcp.client.streamable_http")

from quiesce.dropin.mcp._transports import streamable_http_client as streamable_http_client

try:
    from quiesce.dropin.mcp._transports import streamablehttp_client as streamablehttp_client
except ImportError:  # mcp 2.x
    pass
from mcp.client.streamable_http import *  # type: ignore[assignment, unused-ignore]
from quiesce.dropin.mcp._transports import streamable_http_client as streamable_http_client

try:
    from quiesce.dropin.mcp._transports import streamablehttp_client as streamablehttp_client
except ImportError:  # mcp 2.x
    pass
