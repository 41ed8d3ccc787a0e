"""`mcp.client.session`, with sessions that any task may close."""

from __future__ import annotations

from quiesce.dropin.handing import hand_through

hand_through(__name__, "mcp.client.session")

from quiesce.dropin.mcp._sessions import ClientSession as ClientSession
from mcp.client.session import *  # type: ignore[assignment, unused-ignore]
from quiesce.dropin.mcp._sessions import ClientSession as ClientSession
