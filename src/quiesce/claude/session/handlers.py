"""Handlers of the CLI's requests: hooks, permissions, and tools in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quiesce import current_token
from quiesce.claude.tools import McpAnswers, error_answer
from quiesce.claude.words import CanUseTool, HookCallback, hook_answer, permission_answer, permission_context
from quiesce.wire.inner import METHOD_NOT_FOUND

from .control import Handler

# JSON-RPC has no answer to a notification, but the CLI's control request needs one.
_NOTIFICATION_ANSWER: dict[str, Any] = {"jsonrpc": "2.0", "result": {}}


def handlers_for(
    callbacks: Mapping[str, HookCallback],
    can_use_tool: CanUseTool | None,
    servers: Mapping[str, McpAnswers],
) -> dict[str, Handler]:
    """Return the handlers of the CLI's requests, by subtype."""

    async def hook_callback(request: dict[str, Any]) -> dict[str, Any]:
        callback = callbacks.get(str(request.get("callback_id")))
        if callback is None:
            raise ValueError(f"there is no hook {request.get('callback_id')!r}")
        hook_input: Any = request.get("input")
        output = await callback(hook_input, request.get("tool_use_id"), {"signal": current_token()})
        return hook_answer(output)

    async def ask_for_permission(request: dict[str, Any]) -> dict[str, Any]:
        if can_use_tool is None:
            raise ValueError("no can_use_tool was given")
        tool_name, tool_input = request.get("tool_name"), request.get("input") or {}
        if not isinstance(tool_input, dict) or not isinstance(tool_name, str):
            raise TypeError("a permission request must have a tool_name, and an input that is an object")
        context = permission_context(request, current_token())
        return permission_answer(await can_use_tool(tool_name, tool_input, context), tool_input)

    async def mcp_message(request: dict[str, Any]) -> dict[str, Any] | None:
        name, message = str(request.get("server_name")), request.get("message") or {}
        server = servers.get(name)
        if server is None:
            reason = f"there is no server {name!r} in this program"
            return {"mcp_response": error_answer(message.get("id"), METHOD_NOT_FOUND, reason)}
        answer = await server.handle(message)
        if answer is None and "id" in message:
            return None  # a request that was cancelled
        return {"mcp_response": answer or _NOTIFICATION_ANSWER}

    return {"hook_callback": hook_callback, "can_use_tool": ask_for_permission, "mcp_message": mcp_message}
