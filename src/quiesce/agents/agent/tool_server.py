"""A server whose tools an agent may use: what a run needs of an `MCPServerStdio` or an `MCPServerStreamableHttp`."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .tool import FunctionTool


class ToolServer(Protocol):
    """Connected by the first run that uses it, and closed with the last one."""

    name: str

    def use(self) -> AbstractAsyncContextManager[Any]:
        """Keep it connected while the block runs."""
        ...

    async def list_tools(self) -> list[FunctionTool]:
        """The tools that it offers now."""
        ...
