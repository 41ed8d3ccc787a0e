"""Which class answers for the MCP server of a configuration."""

from __future__ import annotations

from typing import Any

from .in_process_server import InProcessServer
from .mcp_answers import McpAnswers
from .sdk_mcp import ToolServer


def server_of(config: Any) -> McpAnswers:
    """Return one session's side of the server in a configuration whose `type` is `sdk`."""
    name, instance = config["name"], config["instance"]
    if isinstance(instance, ToolServer):
        return InProcessServer(instance)
    # By its methods, not by its class: to import `mcp` takes longer than to start a session without it.
    if callable(getattr(instance, "run", None)) and hasattr(instance, "create_initialization_options"):
        from .official_server import OfficialServer

        return OfficialServer(name, instance)
    hint = (
        "; give its lowlevel server, which FastMCP keeps as `_mcp_server`"
        if "MCP" in type(instance).__name__
        else ""
    )
    raise TypeError(
        f"the instance of the MCP server {name!r} must come from create_sdk_mcp_server, or be a Server of the "
        f"package mcp, not {type(instance).__name__}{hint}"
    )
