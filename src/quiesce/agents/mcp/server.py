"""MCP servers, whose tools an agent may use: on the official client, held by an owner task (`quiesce.own`).

A server is connected by whoever calls `connect()` or enters it, and then stays until it is closed; or by the first run that needs it, and then
until the last run that uses it has ended. It may be used from any task and closed from any other. One object may serve several event
loops, also at once: each has a session of its own, and `connected` and `close()` are about the loop that asks.

A call that is cancelled tells the server so, and the session goes on. If the server ends, every call fails at once, with how it ended and the
last of its stderr.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias
from weakref import WeakKeyDictionary

import anyio

from quiesce import Held, Process, Scope, own, shielded
from quiesce._extras import require
from quiesce._safe.nested import decoder_of
from quiesce._safe.secrets import without_secrets
from quiesce.agents.agent import (
    AgentsException,
    FunctionTool,
    InvalidToolArguments,
    NeedsApproval,
    UserError,
    how_it_ended,
)
from quiesce.kernel.inner import Backend, current_backend, face_of, is_cancel, root_core

from .dialect import field, list_page, tell_cancelled, text_of

if TYPE_CHECKING:
    from quiesce import Grace, StopReport
    from quiesce.agents.agent import ToolContext

ToolFilter: TypeAlias = Mapping[str, Any] | Callable[[str], bool]
"""Which tools of a server are used: `{"allowed_tool_names": [...], "blocked_tool_names": [...]}`, or a function of a name."""

_EXIT_WITHIN = 1.0  # seconds from the end of a server's output to its exit
_TELL_WITHIN = 1.0  # seconds to tell a server that a call was cancelled


class MCPServerError(AgentsException):
    """An MCP server could not be reached, has ended, or has refused a request. The message holds no credentials of its address."""

    def __init__(self, message: str) -> None:
        super().__init__(without_secrets(message))


class MCPToolError(AgentsException):
    """A tool of an MCP server says that it has failed; the message is what it says."""


class _OfALoop:
    """What a server is to one event loop."""

    __slots__ = ("connected_by_a_run", "connecting", "held", "process", "tools", "users")

    def __init__(self) -> None:
        self.held: Held[Any] | None = None
        self.tools: list[FunctionTool] | None = None
        self.users = 0
        self.connecting = anyio.Lock()
        self.connected_by_a_run = False
        self.process: Process | None = None


class MCPServer:
    """What the two kinds have in common: see `MCPServerStdio` and `MCPServerStreamableHttp`."""

    def __init__(
        self,
        params: Mapping[str, Any],
        *,
        name: str,
        needed: str,
        cache_tools_list: bool = False,
        client_session_timeout_seconds: float | None = None,
        connect_timeout: float = 30.0,
        tool_filter: ToolFilter | None = None,
        use_structured_content: bool = False,
        needs_approval: NeedsApproval = False,
        grace: Grace | None = None,
    ) -> None:
        if not isinstance(params, Mapping) or not isinstance(params.get(needed), str):
            raise UserError(
                f"{type(self).__name__} needs params with {needed!r}, such as {{{needed!r}: ...}}"
            )
        require("mcp", "mcp", type(self).__name__)
        self.params = dict(params)
        self.name = name
        self.cache_tools_list = cache_tools_list
        self.timeout = client_session_timeout_seconds
        self.connect_timeout = connect_timeout
        self.tool_filter = tool_filter
        self.use_structured_content = use_structured_content
        self.needs_approval = needs_approval
        self.grace = grace
        self._loops: WeakKeyDictionary[Backend, _OfALoop] = WeakKeyDictionary()
        self._lock = threading.Lock()  # loops may run in several threads

    def _mine(self) -> _OfALoop:
        """What it is to the event loop at hand."""
        backend = current_backend()
        with self._lock:
            mine = self._loops.get(backend)
            if mine is None:
                mine = self._loops[backend] = _OfALoop()
            return mine

    # Connecting

    @property
    def connected(self) -> bool:
        """Whether there is a session in this event loop, or outside of any, in one of them; it need not be in order."""
        try:
            backend = current_backend()
        except RuntimeError:  # outside of any
            with self._lock:
                return any(one.held is not None for one in self._loops.values())
        with self._lock:
            mine = self._loops.get(backend)
        return mine is not None and mine.held is not None

    async def connect(self, *, scope: Scope | None = None) -> None:
        """Start or reach the server and shake hands. `scope` is its owner, the current scope unless given."""
        if self.connected:
            raise UserError(
                f"MCP server {self.name!r} is connected already: close it first, or use it as it is"
            )
        opening = own(self._session(), scope=scope, name=f"MCP server {self.name}", grace=self.grace)
        try:
            held = await opening.open()
        except Exception as error:
            raise self._error("cannot be connected", _first_of(error)) from error
        mine = self._mine()
        before, mine.held, mine.tools, mine.connected_by_a_run = mine.held, held, None, False
        if before is not None:  # somebody else was faster
            await before.close()

    async def close(self) -> StopReport | None:
        """End the session, and the server if it is our process; None if it was not connected. From any task, also twice."""
        mine = self._mine()
        held, mine.held, mine.tools = mine.held, None, None
        return await held.close() if held is not None else None

    async def cleanup(self) -> StopReport | None:
        """The same, under the name it has elsewhere."""
        return await self.close()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Self]:
        """Connected for the length of a block. Who connects it this way shares it; the last one out closes it."""
        mine = self._mine()
        mine.users += 1
        try:
            async with mine.connecting:
                if mine.held is None:
                    # Of no run in particular: the first one to need it need not be the last.
                    await self.connect(scope=face_of(root_core(current_backend())))
                    mine.connected_by_a_run = True
            yield self
        finally:
            mine.users -= 1
            if mine.users == 0 and mine.connected_by_a_run:
                await self.close()

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Any]:
        from mcp import ClientSession

        async with self._streams() as (said, told), ClientSession(said, told) as session:
            with anyio.move_on_after(self.connect_timeout) as limit:
                await session.initialize()
            if limit.cancelled_caught:
                raise TimeoutError(f"no answer within {self.connect_timeout:g} s")
            yield session

    def _streams(self) -> AbstractAsyncContextManager[tuple[Any, Any]]:
        raise NotImplementedError  # abstract: a process, or an address

    # Using

    async def list_tools(self) -> list[FunctionTool]:
        """Its tools, as an agent takes them."""
        mine = self._mine()
        if mine.tools is not None and self.cache_tools_list:
            return mine.tools
        session = self._opened()
        listed: list[Any] = []
        cursor: str | None = None
        try:
            with anyio.fail_after(self.connect_timeout):
                while True:
                    page = await self._ask(session, list_page, session, cursor)
                    listed += page.tools
                    cursor = field(page, "nextCursor", "next_cursor")
                    if not cursor:
                        break
        except TimeoutError as error:
            late = TimeoutError(f"no list of tools within {self.connect_timeout:g} s")
            raise self._error("has not answered", late) from error
        mine.tools = _function_tools(self, [tool for tool in listed if self._is_wanted(tool.name)])
        return mine.tools

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None, progress: Callable[[str], None] | None = None
    ) -> Any:
        """Call a tool; returns what it says, or raises `MCPToolError` if it says that it has failed.

        `progress` is given what the server says on the way.
        """
        session = self._opened()

        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            if message and progress is not None:
                progress(f"{message}\n")

        result = await self._ask(
            session, session.call_tool, tool_name, arguments or {}, progress_callback=on_progress
        )
        text = text_of(result, self.use_structured_content)
        if field(result, "isError", "is_error"):
            raise MCPToolError(
                text or f"tool {tool_name!r} of MCP server {self.name!r} has failed, and does not say why"
            )
        return text

    async def _ask(self, session: Any, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        number = getattr(session, "_request_id", None)  # 1.x: what the next request will be called
        try:
            return await method(*args, **kwargs)
        except Exception as error:
            if _says_closed(error):
                await self._until_it_is_known_why()
            raise self._error("has not answered", error) from error
        except BaseException as error:
            if isinstance(number, int) and is_cancel(error):
                await shielded(tell_cancelled, session, number, within=_TELL_WITHIN)
            raise

    def _opened(self) -> Any:
        held = self._mine().held
        if held is None:
            raise UserError(
                f"MCP server {self.name!r} is not connected: `await server.connect()`, or `async with server:`"
            )
        return held.value

    def _is_wanted(self, name: str) -> bool:
        wanted = self.tool_filter
        if wanted is None:
            return True
        if callable(wanted):
            return bool(wanted(name))
        allowed, blocked = wanted.get("allowed_tool_names"), wanted.get("blocked_tool_names") or ()
        return (allowed is None or name in allowed) and name not in blocked

    async def _until_it_is_known_why(self) -> None:
        """The connection is closed: give what may explain it a moment to arrive."""

    def _error(self, what: str, error: BaseException) -> MCPServerError:
        said = str(error) or type(error).__name__
        return MCPServerError(f"MCP server {self.name!r} {what}: {said}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, {'connected' if self.connected else 'not connected'}>"


class MCPServerStdio(MCPServer):
    """An MCP server that runs as a child process.

    ```python
    async with MCPServerStdio({"command": "uvx", "args": ["mcp-server-git"]}) as server:
        agent = Agent(name="assistant", model=model, mcp_servers=[server])
    ```

    - `params`: `command`, and perhaps `args`, `env` (beside the few variables that the protocol passes on) and `cwd`.
    - `client_session_timeout_seconds` bounds a call of a tool; `connect_timeout` bounds connecting, and listing the tools.
    - `cache_tools_list`: ask for the list of tools once a connection. `tool_filter`: which of them to use.
    - `needs_approval`: as for a `function_tool`, for all of them.
    - `use_structured_content`: give the model the result's data, where there is some, instead of its text.
    - `grace` holds the deadlines of its end. `on_stderr` is called with every piece that the server writes to stderr.
    """

    def __init__(
        self,
        params: Mapping[str, Any],
        cache_tools_list: bool = False,
        name: str | None = None,
        client_session_timeout_seconds: float | None = None,
        tool_filter: ToolFilter | None = None,
        use_structured_content: bool = False,
        *,
        connect_timeout: float = 30.0,
        needs_approval: NeedsApproval = False,
        grace: Grace | None = None,
        on_stderr: Callable[[bytes], object] | None = None,
    ) -> None:
        super().__init__(
            params,
            name=name or os.path.basename(str(params.get("command") if isinstance(params, Mapping) else "")),
            needed="command",
            cache_tools_list=cache_tools_list,
            client_session_timeout_seconds=client_session_timeout_seconds,
            connect_timeout=connect_timeout,
            tool_filter=tool_filter,
            use_structured_content=use_structured_content,
            needs_approval=needs_approval,
            grace=grace,
        )
        self._on_stderr = on_stderr

    def _streams(self) -> AbstractAsyncContextManager[tuple[Any, Any]]:
        from .transport import server_process, stdio_streams

        self._mine().process = process = server_process(self.params, self.name, self._on_stderr, self.grace)
        return stdio_streams(process)

    async def _until_it_is_known_why(self) -> None:
        process = self._mine().process
        if process is not None and process.returncode is None:
            with anyio.move_on_after(_EXIT_WITHIN):
                await process.wait()

    def _error(self, what: str, error: BaseException) -> MCPServerError:
        process = self._mine().process
        if process is None or process.returncode is None or isinstance(error, TimeoutError):
            return super()._error(what, error)
        stderr = process.stderr_tail.decode(errors="replace")
        return MCPServerError(
            f"MCP server {self.name!r} has ended: it {how_it_ended(process.returncode, stderr)}"
        )


class MCPServerStreamableHttp(MCPServer):
    """An MCP server that is reached over HTTP.

    `params`: `url`, and perhaps `headers`, `timeout` and `sse_read_timeout` in seconds, `auth`, `terminate_on_close`,
    `httpx_client_factory`. The rest is as for `MCPServerStdio`.
    """

    def __init__(
        self,
        params: Mapping[str, Any],
        cache_tools_list: bool = False,
        name: str | None = None,
        client_session_timeout_seconds: float | None = None,
        tool_filter: ToolFilter | None = None,
        use_structured_content: bool = False,
        *,
        connect_timeout: float = 30.0,
        needs_approval: NeedsApproval = False,
        grace: Grace | None = None,
    ) -> None:
        super().__init__(
            params,
            name=name or without_secrets(str(params.get("url") if isinstance(params, Mapping) else "")),
            needed="url",
            cache_tools_list=cache_tools_list,
            client_session_timeout_seconds=client_session_timeout_seconds,
            connect_timeout=connect_timeout,
            tool_filter=tool_filter,
            use_structured_content=use_structured_content,
            needs_approval=needs_approval,
            grace=grace,
        )

    def _streams(self) -> AbstractAsyncContextManager[tuple[Any, Any]]:
        from .transport import http_streams

        return http_streams(self.params)


def _says_closed(error: Exception) -> bool:
    """Whether it is the connection that has ended, and not a request that was refused."""
    if isinstance(error, (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream)):
        return True
    from mcp.types import CONNECTION_CLOSED

    return bool(getattr(getattr(error, "error", error), "code", None) == CONNECTION_CLOSED)


def _first_of(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


# Its tools


def _function_tools(server: MCPServer, listed: list[Any]) -> list[FunctionTool]:
    made: dict[str, FunctionTool] = {}
    for tool in listed:
        stem = name = re.sub(r"[^a-zA-Z0-9_-]", "_", tool.name)[:64] or "tool"
        number = 1
        while name in made:
            number += 1
            name = f"{stem[: 63 - len(str(number))]}_{number}"
        made[name] = _function_tool(server, tool, name)
    return list(made.values())


_decode_arguments = decoder_of(dict[str, Any])


def _function_tool(server: MCPServer, tool: Any, name: str) -> FunctionTool:
    its_name: str = tool.name

    async def invoke(context: ToolContext[Any], arguments: str) -> Any:
        try:
            given = _decode_arguments(arguments or "{}")
        except ValueError as error:
            raise InvalidToolArguments(f"tool {name!r} takes a JSON object: {error}") from error
        return await server.call_tool(its_name, given, context.progress)

    schema: dict[str, Any] = {
        "properties": {},
        **(field(tool, "inputSchema", "input_schema") or {}),
        "type": "object",
    }
    hints = getattr(tool, "annotations", None)
    return FunctionTool(
        name=name,
        description=tool.description or "",
        parameters=schema,
        invoke=invoke,
        timeout=server.timeout,
        needs_approval=server.needs_approval,
        side_effects=not field(hints, "readOnlyHint", "read_only_hint"),
    )
