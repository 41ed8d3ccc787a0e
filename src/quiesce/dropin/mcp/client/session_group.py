"""`mcp.client.session_group`, with groups that any task may close."""

from __future__ import annotations

from quiesce.dropin.handing import hand_through

hand_through(__name__, "mcp.client.session_group")

from quiesce.dropin.mcp._groups import ClientSessionGroup as ClientSessionGroup
from mcp.client.session_group import *  # type: ignore[assignment, unused-ignore]
from quiesce.dropin.mcp._groups import ClientSessionGroup as ClientSessionGroup
