"""MCP servers, whose tools an agent may use: the official client, held by an owner task (`quiesce.own`).

A server that you connect, with `connect()` or `async with`, stays connected until you close it. Otherwise the
first run that needs it connects it, and it is closed when the last run that uses it has ended. It may be used
from any task and closed from any other. One object may serve several event loops, also at once: each has a
session of its own, and `connected` and `close()` are about the current loop.

A call that is cancelled tells the server so, and the session goes on. If the server ends, every call fails at
once, with its exit status and the end of its stderr.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
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
from quiesce.kernel.inner import Backend, current_backend, is_cancel, root_scope

from .dialect import field, list_page, tell_cancelled, text_of
from .tasks import call_as_task, runs_as_task

if TYPE_CHECKING:
    from quiesce import Grace, StopReport
    from quiesce.agents.agent import ToolContext

ToolFilter: TypeAlias = Mapping[str, Any] | Callable[[str], bool]
"""Which tools of a server are used.

Either `{"allowed_tool_names": [...], "blocked_tool_names": [...]}`, or a function of a name.
"""

_EXIT_WITHIN = 1.0  # seconds from the end of a server's output to its exit
_TELL_WITHIN = 1.0  # seconds to tell a server that a call was cancelled


class MCPServerError(AgentsException):
    """An MCP server could not be reached, has ended, or has refused a request.

    The message holds no credentials of its address.
    """

    def __init__(self, message: str) -> None:
        super().__init__(without_secrets(message))


class MCPToolError(AgentsException):
    """A tool of an MCP server reports that it has failed; the message is the server's."""


class _LoopConnection:
    """The connection to a server in one event loop."""

    __slots__ = ("connecting", "held", "is_shared", "process", "tools", "users")

    def __init__(self) -> None:
        self.held: Held[Any] | None = None
        self.tools: list[FunctionTool] | None = None
        self.users = 0
        self.connecting = anyio.Lock()
        self.is_shared = False
        self.process: Process | None = None

    def has_exited(self) -> bool:
        """Whether the server was a process of ours, and has ended."""
        return self.process is not None and self.process.returncode is not None


class MCPServer:
    """The base of `MCPServerStdio` and `MCPServerStreamableHttp`."""

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
        self._loops: WeakKeyDictionary[Backend, _LoopConnection] = WeakKeyDictionary()
        self._lock = threading.Lock()  # loops may run in several threads

    def _connection(self) -> _LoopConnection:
        """The connection in the current event loop."""
        backend = current_backend()
        with self._lock:
            connection = self._loops.get(backend)
            if connection is None:
                connection = self._loops[backend] = _LoopConnection()
            return connection

    # Connecting

    @property
    def connected(self) -> bool:
        """Whether there is a session in the current event loop; outside of any, whether there is one in any
        loop.

        The session may have failed since.
        """
        try:
            backend = current_backend()
        except RuntimeError:  # not in an event loop
            with self._lock:
                return any(one.held is not None for one in self._loops.values())
        with self._lock:
            connection = self._loops.get(backend)
        return connection is not None and connection.held is not None

    async def connect(self, *, scope: Scope | None = None) -> None:
        """Start or reach the server, and initialize the session. `scope` owns it, the current scope unless
        given.
        """
        if self.connected:
            raise UserError(
                f"MCP server {self.name!r} is connected already: close it first, or use it as it is"
            )
        opening = own(self._session(), scope=scope, name=f"MCP server {self.name}", grace=self.grace)
        try:
            held = await opening.open()
        except Exception as error:
            raise self._error("cannot be connected", _first_of(error)) from error
        connection = self._connection()
        before, connection.held, connection.tools, connection.is_shared = connection.held, held, None, False
        if before is not None:  # another task has connected it meanwhile
            await before.close()

    async def close(self) -> StopReport | None:
        """End the session, and the server if it is our own process; returns None if it was not connected.

        It may be called from any task, and more than once.
        """
        connection = self._connection()
        held, connection.held, connection.tools = connection.held, None, None
        return await held.close() if held is not None else None

    async def cleanup(self) -> StopReport | None:
        """The same as `close()`, under the name that other libraries have for it."""
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
        """Keep it connected while the block runs. Blocks share the connection, and the last one closes it."""
        connection = self._connection()
        # Counted before it is connected: another run that ends meanwhile must not take itself for the last
        # one.
        connection.users += 1
        try:
            async with connection.connecting:
                if connection.held is None:
                    # Not owned by this run: the first run that needs it may end before the last one.
                    await self.connect(scope=root_scope())
                    connection.is_shared = True
            yield self
        finally:
            connection.users -= 1
            if connection.users == 0 and connection.is_shared:
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
        raise NotImplementedError  # a process, or an address

    # Using

    async def list_tools(self) -> list[FunctionTool]:
        """Its tools, as an agent takes them."""
        connection = self._connection()
        if connection.tools is not None and self.cache_tools_list:
            return connection.tools
        session = self._open_session()
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
        wanted = [tool for tool in listed if self._is_wanted(tool.name)]
        connection.tools = _function_tools(self, session, wanted)
        return connection.tools

    async def call_tool(
        self,
        tool_name: str,
        arguments: dict[str, Any] | None,
        progress: Callable[[str], None] | None = None,
        *,
        as_task: bool = False,
    ) -> Any:
        """Call a tool; returns its text, or raises `MCPToolError` if the server reports that it has failed.

        `progress` is called with the messages that the server sends meanwhile. `as_task`: the server runs the call as
        a task, which a stop cancels there with `tasks/cancel`.
        """
        session = self._open_session()

        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            if message and progress is not None:
                progress(f"{message}\n")

        if as_task:
            call = call_as_task(
                session, self.name, tool_name, arguments or {}, progress, self._connection().has_exited
            )
            result = await self._answer(call)
        else:
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
        number = getattr(session, "_request_id", None)  # 1.x: the id of the next request
        try:
            return await self._answer(method(*args, **kwargs))
        except BaseException as error:
            # Version 2 of the client tells the server itself that a request was cancelled; version 1 does
            # not.
            if isinstance(number, int) and is_cancel(error):
                await shielded(tell_cancelled, session, number, within=_TELL_WITHIN)
            raise

    async def _answer(self, asked: Awaitable[Any]) -> Any:
        try:
            return await asked
        except Exception as error:
            if _says_closed(error):
                await self._wait_for_exit()
            raise self._error("has not answered", error) from error

    def _open_session(self) -> Any:
        held = self._connection().held
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

    async def _wait_for_exit(self) -> None:
        """The connection was closed: wait a moment for what may explain it."""

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

    - `params`: `command`, and optionally `args`, `env` (in addition to the few variables that the protocol
      passes on) and `cwd`.
    - `client_session_timeout_seconds` bounds a call of a tool; `connect_timeout` bounds connecting, and
      listing the tools.
    - `cache_tools_list`: ask for the list of tools once per connection. `tool_filter`: which of them to use.
    - `needs_approval`: as for a `function_tool`, for all of them.
    - `use_structured_content`: give the model the data of a result, if it has some, instead of its text.
    - `grace` holds the deadlines of its stop. `on_stderr` is called with every piece that the server writes
      to stderr.
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

        self._connection().process = process = server_process(
            self.params, self.name, self._on_stderr, self.grace
        )
        return stdio_streams(process)

    async def _wait_for_exit(self) -> None:
        process = self._connection().process
        if process is not None and process.returncode is None:
            with anyio.move_on_after(_EXIT_WITHIN):
                await process.wait()

    def _error(self, what: str, error: BaseException) -> MCPServerError:
        process = self._connection().process
        if process is None or process.returncode is None or isinstance(error, TimeoutError):
            return super()._error(what, error)
        stderr = process.stderr_tail.decode(errors="replace")
        return MCPServerError(
            f"MCP server {self.name!r} has ended: it {how_it_ended(process.returncode, stderr)}"
        )


class MCPServerStreamableHttp(MCPServer):
    """An MCP server that is reached over HTTP.

    `params`: `url`, and optionally `headers`, `timeout` and `sse_read_timeout` in seconds, `auth`,
    `terminate_on_close`, `httpx_client_factory`. The rest is as for `MCPServerStdio`.
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
    """Whether the connection has ended, as opposed to a request that was refused."""
    if isinstance(error, (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream)):
        return True
    from mcp.types import CONNECTION_CLOSED

    return bool(getattr(getattr(error, "error", error), "code", None) == CONNECTION_CLOSED)


def _first_of(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


# Its tools


def _function_tools(server: MCPServer, session: Any, listed: list[Any]) -> list[FunctionTool]:
    made: dict[str, FunctionTool] = {}
    for tool in listed:
        # Names that differ only in characters which providers do not accept become one name: number them.
        stem = name = re.sub(r"[^a-zA-Z0-9_-]", "_", tool.name)[:64] or "tool"
        number = 1
        while name in made:
            number += 1
            name = f"{stem[: 63 - len(str(number))]}_{number}"
        made[name] = _function_tool(server, tool, name, runs_as_task(session, tool))
    return list(made.values())


_decode_arguments = decoder_of(dict[str, Any])


def _function_tool(server: MCPServer, tool: Any, name: str, as_task: bool) -> FunctionTool:
    its_name: str = tool.name

    async def invoke(context: ToolContext[Any], arguments: str) -> Any:
        try:
            given = _decode_arguments(arguments or "{}")
        except ValueError as error:
            raise InvalidToolArguments(f"tool {name!r} takes a JSON object: {error}") from error
        if as_task:
            return await server.call_tool(its_name, given, context.progress, as_task=True)
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
