"""What versions 1 and 2 of the official MCP client name or do differently, and the text of a result."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import anyio
import msgspec


def field(thing: Any, first: str, second: str) -> Any:
    """An attribute under the one of its two names that it has; None if it has neither."""
    return getattr(thing, first, None) if hasattr(thing, first) else getattr(thing, second, None)


async def list_page(session: Any, cursor: str | None) -> Any:
    """One page of the list of tools."""
    if cursor is None:
        return await session.list_tools()
    types: Any = import_module("mcp.types")
    return await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))


async def tell_cancelled(session: Any, number: int) -> None:
    """Tell the server that a request was cancelled.

    Version 1 of the client only stops waiting for the answer; version 2 does this itself.
    """
    types: Any = import_module("mcp.types")
    params = types.CancelledNotificationParams(requestId=number, reason="the caller was cancelled")
    notification = types.CancelledNotification(method="notifications/cancelled", params=params)
    try:
        await session.send_notification(types.ClientNotification(notification))
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass  # the server has disconnected, and need not be told


def text_of(result: Any, structured: bool) -> str:
    """The text of a result, or its data as JSON, if that is wanted or is all there is."""
    data = field(result, "structuredContent", "structured_content")
    if data is not None and (structured or not result.content):
        return msgspec.json.encode(data).decode()
    return "\n".join(_block_text(block) for block in result.content)


def _block_text(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    inner: Any = getattr(block, "resource", block)
    if isinstance(getattr(inner, "text", None), str):
        return str(inner.text)
    kind = field(inner, "mimeType", "mime_type")
    where = getattr(inner, "uri", None)
    return f"[{block.type}{f' {where}' if where else ''}{f', {kind}' if kind else ''}]"
