"""One session's side of a server in this process: it answers the JSON-RPC messages that the CLI sends it.

A call runs in a child of its own, under a scope that ends with the answer. So `notifications/cancelled` cancels exactly that call, once, and the
call then gives no answer, even if the tool makes a result of its cancellation; and whoever cancels the one that waits for the answer waits
until the tool has cleaned up.

What a tool does wrong is for the model to read: it is a result with `isError`, never an error of the protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from quiesce import Handle, Reason, Scope, current_token
from quiesce._safe.printed import logger

from .sdk_mcp import ToolServer

PROTOCOL_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")

INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603


class McpAnswers(Protocol):
    """What answers `mcp_message` requests for one server of one session."""

    async def handle(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to a request; None to a notification, to an answer, and to a request that was cancelled meanwhile."""
        ...

    async def close(self) -> None:
        """Cancel what is at work."""
        ...


def server_of(config: Any, *, scope: Scope | None = None) -> McpAnswers:
    """What answers for the server of a config whose `type` is `sdk`, for one session. `scope` owns what it starts."""
    name, instance = config["name"], config["instance"]
    if isinstance(instance, ToolServer):
        return InProcessServer(instance)
    if callable(getattr(instance, "run", None)) and hasattr(instance, "create_initialization_options"):
        from .official_server import OfficialServer

        return OfficialServer(name, instance, scope=scope)
    hint = (
        "; give its lowlevel server, which FastMCP keeps as `_mcp_server`"
        if "MCP" in type(instance).__name__
        else ""
    )
    raise TypeError(
        f"the instance of the MCP server {name!r} must come from create_sdk_mcp_server, or be a Server of the "
        f"package mcp, not {type(instance).__name__}{hint}"
    )


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
        """The answer to a request; None to a notification, to an answer, and to a call that was cancelled meanwhile."""
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
            return {"jsonrpc": "2.0", "id": id, "result": answer(params)}
        except KeyError as missing:
            return error_answer(id, INVALID_PARAMS, f"params of {method} must have {missing}")

    async def close(self) -> None:
        """Cancel the calls at work; who waits for them is told nothing, once they have cleaned up."""
        for call in list(self._calls.values()):
            call.cancel("the session is over")

    def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        asked = params["protocolVersion"]
        return {
            "protocolVersion": asked if asked in PROTOCOL_VERSIONS else PROTOCOL_VERSIONS[-1],
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
            return error_answer(
                id, INVALID_REQUEST, f"the id {id!r} is that of a call which is still at work"
            )
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
        asked = params.get("requestId")
        call = self._calls.get(asked) if isinstance(asked, int | str) else None
        if call is not None:  # else it is over already, or nobody's
            call.cancel(str(params.get("reason") or "the CLI gave it up"))

    async def _run(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        found = self._server.tools.get(name)
        if found is None:
            return tool_error(f"Tool '{name}' not found")
        try:
            complaint = found.complaint(arguments)
            if complaint is not None:
                return tool_error(complaint)
            return tool_result(name, await _awaited(name, found.handler, arguments))
        except Exception as error:
            given_up = current_token().cancelled  # then nobody reads the answer
            level = logging.ERROR if given_up else logging.DEBUG
            logger.log(level, "the tool %r failed", name, exc_info=True)
            return tool_error(str(error) or type(error).__name__)


class _Call:
    """A call at work."""

    __slots__ = ("cancelled", "handle")

    def __init__(self) -> None:
        self.handle: Handle | None = None
        self.cancelled = False

    def answer(self, id: Any) -> dict[str, Any] | None:  # noqa: A002
        if self.cancelled or self.handle is None:
            return None
        if self.handle.state != "finished":
            # Cancelled from inside: nobody has given it up, and the model waits.
            return {"jsonrpc": "2.0", "id": id, "result": tool_error("the tool was cancelled from inside")}
        return {"jsonrpc": "2.0", "id": id, "result": self.handle.result()}

    def cancel(self, why: str) -> None:
        self.cancelled = True
        if self.handle is not None:
            self.handle.cancel(Reason("user", why))


async def _awaited(name: str, handler: Callable[[Any], Awaitable[Any]], arguments: dict[str, Any]) -> Any:
    made = handler(arguments)
    if not hasattr(made, "__await__"):
        raise TypeError(f"the tool {name!r} must be an async function; calling it gave {type(made).__name__}")
    return await made


def tool_result(name: str, returned: Any) -> dict[str, Any]:
    """What a tool returned, as MCP says it."""
    if not isinstance(returned, dict):
        raise TypeError(f"the tool {name!r} must return a dict with 'content', not {type(returned).__name__}")
    blocks = [_block(name, item) for item in returned.get("content", [])]
    content = [block for block in blocks if block is not None]
    return {"content": content, "isError": bool(returned.get("is_error", False))}


def tool_error(message: str) -> dict[str, Any]:
    """A result that tells the model what went wrong."""
    return {"content": [{"type": "text", "text": message}], "isError": True}


def error_answer(id: Any, code: int, message: str, data: Any = None) -> dict[str, Any]:  # noqa: A002
    """An error of the protocol."""
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": id, "error": error}


def _block(name: str, item: Any) -> dict[str, Any] | None:
    """A block of content: text and images as they are, links and resources of text as text, which is what the CLI shows; None for the others."""
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
        said = [str(item[part]) for part in ("name", "uri", "description") if item.get(part)]
        return {"type": "text", "text": "\n".join(said) or "Resource link"}
    if kind == "resource" and "text" in (resource := item.get("resource") or {}):
        return {"type": "text", "text": _text(name, resource, "text")}
    logger.warning(
        "the tool %r returned content of the type %r, which the CLI cannot be given: it is left out",
        name,
        kind,
    )
    return None


def _text(name: str, item: dict[str, Any], field: str) -> str:
    value = item.get(field)
    if not isinstance(value, str):
        raise TypeError(
            f"{field!r} of the {item.get('type', 'resource')} that the tool {name!r} returned must be a str"
        )
    return value
