"""The two sides of a connection, and the functions that make them."""

from __future__ import annotations

from functools import update_wrapper
from types import FunctionType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from acp import core, stdio_streams

from quiesce import Grace, Reason, StopReport
from quiesce.dropin.handing import replaces
from quiesce.dropin.signatures import with_arguments_of

from ._connection import Connection

T = TypeVar("T")


def _on_our_connection(theirs: T) -> T:
    """A copy of a function of the SDK, in which the name `Connection` is ours."""
    function: Any = theirs
    names = {**function.__globals__, "Connection": Connection}
    ours = FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    ours.__kwdefaults__ = function.__kwdefaults__
    return cast(T, update_wrapper(ours, function))


class _Side:
    """Comes before a side of the SDK."""

    _conn: Connection

    @property
    def report(self) -> StopReport | None:
        """What the end of the connection has stopped, and what is left; None as long as it is open."""
        return self._conn.report

    async def close(
        self, *, deadline: float | None = None, grace: Grace | None = None, reason: Reason | str | None = None
    ) -> StopReport:
        """Stop what runs in it, answer the peer's requests, wait until all of it has ended, and report.

        From any task, any number of times. Bounded by `deadline` seconds, or its `Grace`. If you are cancelled
        meanwhile, the stop goes on, and your cancellation is raised after it; the report is then in `report`.
        A handler that closes its own connection is not waited for: it is cancelled at its next `await`.
        """
        return await self._conn.close(deadline=deadline, grace=grace, reason=reason)

    async def __aenter__(self) -> Self:
        return self


@replaces(core.AgentSideConnection)
class AgentSideConnection(_Side, core.AgentSideConnection):  # type: ignore[misc, unused-ignore]  # it is final
    """An agent's connection to its client, which has ended when it is closed."""

    if not TYPE_CHECKING:
        __init__ = _on_our_connection(core.AgentSideConnection.__init__)


@replaces(core.ClientSideConnection)
class ClientSideConnection(_Side, core.ClientSideConnection):  # type: ignore[misc, unused-ignore]  # it is final
    """A client's connection to an agent, which has ended when it is closed."""

    if not TYPE_CHECKING:
        __init__ = _on_our_connection(core.ClientSideConnection.__init__)


@replaces(core.connect_to_agent)
@with_arguments_of(core.connect_to_agent)
def connect_to_agent(client: Any, *args: Any, **kwargs: Any) -> ClientSideConnection:
    return ClientSideConnection(client, *args, **kwargs)


@replaces(core.run_agent)
@with_arguments_of(core.run_agent)
async def run_agent(
    agent: Any,
    input_stream: Any = None,
    output_stream: Any = None,
    *,
    stdio_buffer_limit_bytes: int = core.DEFAULT_STDIO_BUFFER_LIMIT_BYTES,
    **kwargs: Any,
) -> None:
    if input_stream is None and output_stream is None:
        output_stream, input_stream = await stdio_streams(limit=stdio_buffer_limit_bytes)
    connection = AgentSideConnection(agent, input_stream, output_stream, listening=False, **kwargs)
    try:
        await connection.listen()
    finally:
        await connection.close()
