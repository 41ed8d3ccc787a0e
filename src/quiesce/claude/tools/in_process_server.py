"""One session's side of a server of `@tool` functions: it answers the JSON-RPC messages that the CLI sends.

Each call runs in a child of its own, under a scope that ends with the answer. So `notifications/cancelled`
cancels exactly that call, once. A cancelled call gives no answer, even if the tool catches the cancellation
and returns a result. A task that is cancelled while it waits for the answer waits until the tool has cleaned
up.

Mistakes of a tool are for the model to read: they become a result with `isError`, never a protocol error.

Why this is not the lowlevel `Server` of the package mcp, which `official_server` can run: that gives the same
answers (the messages of `tests/claude/tool_table.py` were compared, with mcp 2.3), but it runs handlers in a
task group of anyio. There a cancelled handler is cancelled again at each await, on asyncio too, so its
clean-up is interrupted, and the caller gets control back before the clean-up has run. In mcp 1.x a cancelled
handler that returns anyway makes the whole server fail. Every session with a tool would also import pydantic
and starlette, 0.3 s of CPU time. And mcp would replace only `handle` and `_initialize`: the calls and the
conversion of results would stay, in two versions, for mcp 1.x and 2.x.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from quiesce import Handle, Reason, Scope, current_token
from quiesce._safe.printed import logger
from quiesce.wire.inner import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND

from .mcp_answers import error_answer
from .sdk_mcp import ToolServer

PROTOCOL_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")


class InProcessServer:
    """A server of tools that `create_sdk_mcp_server` made."""

    def __init__(self, server: ToolServer) -> None:
        self._server = server
        self._calls: dict[Any, _Call] = {}
        self._methods: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "initialize": self._initialize,
            "ping": lambda params: {},
            "tools/list": lambda params: {"tools": self._server.listed},
        }

    async def handle(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Answer a request; return None for a notification, an answer, or a cancelled request."""
        method, id = message.get("method"), message.get("id")  # noqa: A001
        if id is None or method is None:
            if method == "notifications/cancelled":
                self._cancel(message.get("params"))
            return None
        params = message.get("params", {})
        if not isinstance(params, dict):
            return error_answer(id, INVALID_PARAMS, f"params of {method} must be an object")
        if method == "tools/call":
            return await self._call(id, params)
        answer = self._methods.get(method)
        if answer is None:
            return error_answer(id, METHOD_NOT_FOUND, "Method not found", method)
        try:
            return _result(id, answer(params))
        except KeyError as missing:
            return error_answer(id, INVALID_PARAMS, f"params of {method} must have {missing}")

    async def close(self) -> None:
        """Cancel the running calls. The tasks that wait for them get None, once the tools have cleaned up."""
        for call in list(self._calls.values()):
            call.cancel("the session is closed")

    def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        version = params["protocolVersion"]
        return {
            "protocolVersion": version if version in PROTOCOL_VERSIONS else PROTOCOL_VERSIONS[-1],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": self._server.name, "version": self._server.version},
        }

    async def _call(self, id: Any, params: dict[str, Any]) -> dict[str, Any] | None:  # noqa: A002
        name, arguments = params.get("name"), params.get("arguments")
        arguments = {} if arguments is None else arguments
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return error_answer(
                id, INVALID_PARAMS, "params of tools/call must have a name, and arguments that are an object"
            )
        if id in self._calls:
            return error_answer(id, INVALID_REQUEST, f"a call with the id {id!r} is still running")
        call = self._calls[id] = _Call()
        try:
            async with Scope(f"tool {name}") as scope:
                call.handle = scope.spawn(self._run, name, arguments)
                await call.handle.wait()
            return call.answer(id)
        finally:
            del self._calls[id]

    def _cancel(self, params: Any) -> None:
        if not isinstance(params, dict):
            return
        id = params.get("requestId")  # noqa: A001
        call = self._calls.get(id) if isinstance(id, int | str) else None
        if call is not None:  # otherwise it has ended, or there never was one
            call.cancel(str(params.get("reason") or "the CLI cancelled the call"))

    async def _run(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        found = self._server.tools.get(name)
        if found is None:
            return tool_error(f"Tool '{name}' not found")
        try:
            complaint = found.complaint(arguments)
            if complaint is not None:
                return tool_error(complaint)
            return tool_result(name, await _await_handler(name, found.handler, arguments))
        except Exception as error:
            # The model reads the error of a call that it waits for. A cancelled call has no answer, so the
            # log is the only place where a clean-up that failed can be seen.
            level = logging.ERROR if current_token().cancelled else logging.DEBUG
            logger.log(level, "the tool %r failed", name, exc_info=True)
            return tool_error(str(error) or type(error).__name__)


class _Call:
    """A running call."""

    __slots__ = ("cancelled", "handle")

    def __init__(self) -> None:
        self.handle: Handle | None = None
        self.cancelled = False

    def answer(self, id: Any) -> dict[str, Any] | None:  # noqa: A002
        if self.cancelled or self.handle is None:
            return None
        if self.handle.state != "finished":
            # Code in the tool cancelled its own task. The CLI did not, so the model waits for an answer.
            return _result(id, tool_error("the tool was cancelled from inside"))
        return _result(id, self.handle.result())

    def cancel(self, why: str) -> None:
        # A flag of our own: the handle has a reason after a cancel from inside, too.
        self.cancelled = True
        if self.handle is not None:
            self.handle.cancel(Reason("user", why))


async def _await_handler(
    name: str, handler: Callable[[Any], Awaitable[Any]], arguments: dict[str, Any]
) -> Any:
    awaitable = handler(arguments)
    if not hasattr(awaitable, "__await__"):
        kind = type(awaitable).__name__
        raise TypeError(f"the tool {name!r} must be an async function; calling it gave {kind}")
    return await awaitable


def tool_result(name: str, returned: Any) -> dict[str, Any]:
    """Return what a tool returned as an MCP result."""
    if not isinstance(returned, dict):
        raise TypeError(f"the tool {name!r} must return a dict with 'content', not {type(returned).__name__}")
    blocks = [_block(name, item) for item in returned.get("content", [])]
    content = [block for block in blocks if block is not None]
    return {"content": content, "isError": bool(returned.get("is_error", False))}


def tool_error(message: str) -> dict[str, Any]:
    """Return a result that tells the model what went wrong."""
    return {"content": [{"type": "text", "text": message}], "isError": True}


def _result(id: Any, result: dict[str, Any]) -> dict[str, Any]:  # noqa: A002
    return {"jsonrpc": "2.0", "id": id, "result": result}


def _block(name: str, item: Any) -> dict[str, Any] | None:
    """Return a block of content as the CLI shows it; None for a kind that it cannot show.

    Text and images stay as they are; links and resources of text become text.
    """
    if not isinstance(item, dict):
        raise TypeError(
            f"the content of the tool {name!r} must be a list of dicts, not of {type(item).__name__}"
        )
    kind = item.get("type")
    if kind == "text":
        return {"type": "text", "text": _text(name, item, "text")}
    if kind == "image":
        return {"type": "image", "data": _text(name, item, "data"), "mimeType": _text(name, item, "mimeType")}
    if kind == "resource_link":
        lines = [str(item[part]) for part in ("name", "uri", "description") if item.get(part)]
        return {"type": "text", "text": "\n".join(lines) or "Resource link"}
    if kind == "resource" and "text" in (resource := item.get("resource") or {}):
        return {"type": "text", "text": _text(name, resource, "text")}
    logger.warning(
        "the tool %r returned content of the type %r, which the CLI cannot show: left out", name, kind
    )
    return None


def _text(name: str, item: dict[str, Any], field: str) -> str:
    value = item.get(field)
    if not isinstance(value, str):
        raise TypeError(
            f"{field!r} of the {item.get('type', 'resource')} that the tool {name!r} returned must be a str"
        )
    return value
