"""`agents.mcp`, with servers that any task may connect and clean up, in any order."""

from __future__ import annotations

from quiesce.dropin.handing import hand_through

hand_through(__name__, "agents.mcp")

from ._servers import MCPServerSse as MCPServerSse
from ._servers import MCPServerStdio as MCPServerStdio
from ._servers import MCPServerStreamableHttp as MCPServerStreamableHttp
from agents.mcp import *  # type: ignore[assignment, unused-ignore]
from ._servers import MCPServerSse as MCPServerSse
from ._servers import MCPServerStdio as MCPServerStdio
from ._servers import MCPServerStreamableHttp as MCPServerStreamableHttp
