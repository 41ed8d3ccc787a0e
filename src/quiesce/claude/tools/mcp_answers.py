"""What a session needs of a server in this process: both kinds of servers have it."""

from __future__ import annotations

from typing import Any, Protocol


class McpAnswers(Protocol):
    """Answers `mcp_message` requests for one server of one session."""

    async def handle(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Answer a request; return None for a notification, an answer, or a cancelled request."""
        ...

    async def close(self) -> None:
        """Cancel the requests that are being worked on."""
        ...


def error_answer(id: Any, code: int, message: str, data: Any = None) -> dict[str, Any]:  # noqa: A002
    """Return a JSON-RPC error."""
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": id, "error": error}
