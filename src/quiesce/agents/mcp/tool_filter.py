"""Which tools of a server are used, as a dict that is made by a function."""

from __future__ import annotations

from collections.abc import Sequence


def create_static_tool_filter(
    allowed_tool_names: Sequence[str] | None = None, blocked_tool_names: Sequence[str] | None = None
) -> dict[str, list[str]] | None:
    """A `tool_filter` for an MCP server: only the allowed ones, without the blocked ones; None if neither is given."""
    names = {"allowed_tool_names": allowed_tool_names, "blocked_tool_names": blocked_tool_names}
    return {name: list(tools) for name, tools in names.items() if tools is not None} or None
