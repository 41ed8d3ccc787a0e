"""Groups of sessions, each with an owner task: the SDK holds them in the task that calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any

import mcp
from mcp.client import session_group

from quiesce import Grace, Reason, Scope, StopReport, own
from quiesce.kernel.inner import without_cancels
from quiesce.dropin.handing import replaces

from ._sessions import ClientSession
from ._transports import sse_client, stdio_client, streamable_http_client


@replaces(mcp.ClientSessionGroup)
class ClientSessionGroup(mcp.ClientSessionGroup):
    """Sessions with several servers, which any task may connect and disconnect, in any order."""

    _scope: Scope | None = None

    @property
    def report(self) -> StopReport | None:
        """What the end of the group has stopped, and what is left; None as long as it is open."""
        return self._scope.report if self._scope is not None else None

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """Disconnect from all servers, wait until everything of them has ended, and report. From any task."""
        return await (await self._opened()).close(deadline=deadline, grace=grace, reason=reason)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        try:
            await self.close(reason=Reason("parent", "its block ended"))  # all at once: the SDK has them wait
        finally:
            try:
                left: bool | None = await super().__aexit__(kind, error, traceback)
            except Exception as failure:
                if error is None or without_cancels(error) is not None:
                    raise
                error.__cause__, left = failure, False  # the body was cancelled, and stays so
        return left

    async def _opened(self) -> Scope:
        if self._scope is None:
            self._scope = await Scope.open("ClientSessionGroup", on_error="report")
        return self._scope

    async def _establish_session(self, server_params: Any, session_params: Any) -> tuple[Any, Any]:
        connection = _connected(server_params, session_params)
        held = await own(connection, name="session of a group", scope=await self._opened()).open()
        _, session = held.value
        # As the SDK does: the one is closed by `disconnect_from_server`, both at the end.
        self._session_exit_stacks[session] = stack = AsyncExitStack()
        stack.push_async_callback(held.close)
        await self._exit_stack.enter_async_context(stack)
        return held.value


@asynccontextmanager
async def _connected(server: Any, session_params: Any) -> AsyncIterator[tuple[Any, Any]]:
    async with AsyncExitStack() as stack:
        transport = await _transport(server, stack)
        read, write, *_ = await stack.enter_async_context(transport)
        session = await stack.enter_async_context(ClientSession(read, write, **vars(session_params)))
        answer: Any = await session.initialize()
        yield answer.serverInfo if hasattr(answer, "serverInfo") else answer.server_info, session


async def _transport(server: Any, stack: AsyncExitStack) -> Any:
    if isinstance(server, mcp.StdioServerParameters):
        return stdio_client(server)
    options = dict(server)
    if isinstance(server, session_group.SseServerParameters):
        return sse_client(**options)
    client = session_group.create_mcp_http_client(headers=options.pop("headers"))
    ordinary, reading = map(_seconds, (options.pop("timeout"), options.pop("sse_read_timeout")))
    client.timeout = ordinary, reading, ordinary, ordinary
    await stack.enter_async_context(client)
    return streamable_http_client(http_client=client, **options)


def _seconds(time: timedelta | float) -> float:
    """mcp 1.x has the one, 2.x the other."""
    return time.total_seconds() if isinstance(time, timedelta) else time
