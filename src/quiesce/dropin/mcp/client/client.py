"""`mcp.client.client` of mcp 2.x, with clients that any task may close."""

from __future__ import annotations

from quiesce.dropin.handing import hand_through

hand_through(__name__, "mcp.client.client")

from quiesce.dropin.mcp._clients import Client as Client
from mcp.client.client import *  # type: ignore[assignment, unused-ignore]
from quiesce.dropin.mcp._clients import Client as Client
