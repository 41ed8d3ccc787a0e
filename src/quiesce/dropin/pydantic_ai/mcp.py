"""`pydantic_ai.mcp`, with servers that any task may enter and exit, and whose processes end."""

from __future__ import annotations

from quiesce.dropin.handing import hand_through

hand_through(__name__, "pydantic_ai.mcp")

from ._servers import MCPToolset as MCPToolset
from ._servers import load_mcp_toolsets as load_mcp_toolsets
from pydantic_ai.mcp import *  # type: ignore[assignment, unused-ignore]
from ._servers import MCPToolset as MCPToolset
from ._servers import load_mcp_toolsets as load_mcp_toolsets
