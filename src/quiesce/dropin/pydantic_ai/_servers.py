"""MCP servers that are connected and disconnected by an owner task, and end with their processes."""

from __future__ import annotations

from functools import wraps
from typing import Any

from pydantic_ai.mcp import MCPToolset as _MCPToolset
from pydantic_ai.mcp import load_mcp_toolsets as _load_mcp_toolsets
from pydantic_ai.tools import AgentDepsT
from pydantic_ai.toolsets import AbstractToolset

from quiesce.dropin.handing import replaces

from ._entered import Entered


@replaces(_MCPToolset)
class MCPToolset(_MCPToolset[AgentDepsT], Entered):
    """A server that any task may enter and exit; a process of it ends, with its whole tree, at the last exit."""

    _theirs = _MCPToolset
    __aenter__ = Entered.__aenter__
    __aexit__ = Entered.__aexit__


@replaces(_load_mcp_toolsets)
@wraps(_load_mcp_toolsets)
def load_mcp_toolsets(*args: Any, **kwargs: Any) -> list[AbstractToolset[Any]]:
    def take(toolset: AbstractToolset[Any]) -> None:
        if type(toolset) is _MCPToolset:
            made: Any = toolset
            made.__class__ = MCPToolset

    toolsets = _load_mcp_toolsets(*args, **kwargs)
    for toolset in toolsets:
        toolset.apply(take)
    return toolsets
