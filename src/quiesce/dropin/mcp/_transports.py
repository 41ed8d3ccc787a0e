"""The transports of clients: what the SDK's functions return is entered and exited by an owner task."""

from __future__ import annotations

from mcp.client.sse import sse_client as _sse_client
from mcp.client.stdio import stdio_client as _stdio_client
from mcp.client.streamable_http import streamable_http_client as _streamable_http_client

from quiesce.dropin.owned import owned

stdio_client = owned(_stdio_client)
sse_client = owned(_sse_client)
streamable_http_client = owned(_streamable_http_client)
try:
    from mcp.client.streamable_http import streamablehttp_client as _streamablehttp_client
except ImportError:  # an old name, which 2.x does not have
    pass
else:
    streamablehttp_client = owned(_streamablehttp_client)
