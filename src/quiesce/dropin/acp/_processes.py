"""Processes that speak the protocol over their pipes, and end with their trees.

`async with` on what these functions return is as with the SDK. Besides, `await spawn_agent_process(...).open()`
holds it, as `own` does: used from any task, and closed from any other.
"""

from __future__ import annotations

from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from acp import stdio, transports

from quiesce import own
from quiesce.dropin.handing import replaces
from quiesce.dropin.signatures import with_arguments_of

from ._connection import Connection
from ._sides import AgentSideConnection, ClientSideConnection

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

    from quiesce.kernel.inner import Owned

C = TypeVar("C", bound=Any)


@replaces(stdio.spawn_agent_process)
@with_arguments_of(stdio.spawn_agent_process)
def spawn_agent_process(
    to_client: Any, command: str, *args: str, **kwargs: Any
) -> Owned[tuple[ClientSideConnection, Process]]:
    return own(_connected(ClientSideConnection, to_client, command, *args, **kwargs), name=command)


@replaces(stdio.spawn_client_process)
@with_arguments_of(stdio.spawn_client_process)
def spawn_client_process(
    to_agent: Any, command: str, *args: str, **kwargs: Any
) -> Owned[tuple[AgentSideConnection, Process]]:
    return own(_connected(AgentSideConnection, to_agent, command, *args, **kwargs), name=command)


@replaces(stdio.spawn_stdio_connection)
@with_arguments_of(stdio.spawn_stdio_connection)
def spawn_stdio_connection(
    handler: Any, command: str, *args: str, observers: Any = None, **kwargs: Any
) -> Owned[tuple[Connection, Process]]:
    def connect(handler: Any, *streams: Any) -> Connection:
        return Connection(handler, *streams, observers=observers)

    env, cwd = kwargs.pop("env", None), kwargs.pop("cwd", None)
    connected = _connected(connect, handler, command, *args, env=env, cwd=cwd, transport_kwargs=kwargs)
    return own(connected, name=command)


@replaces(transports.spawn_stdio_transport)
@with_arguments_of(transports.spawn_stdio_transport)
def spawn_stdio_transport(
    command: str, *args: str, **kwargs: Any
) -> Owned[tuple[StreamReader, StreamWriter, Process]]:
    return own(transports.spawn_stdio_transport(command, *args, **kwargs), name=command)


@asynccontextmanager
async def _connected(
    connect: Callable[..., C],
    handler: Any,
    command: str,
    *args: str,
    env: Any = None,
    cwd: Any = None,
    transport_kwargs: Any = None,
    **kwargs: Any,
) -> AsyncIterator[tuple[C, Process]]:
    spawned = transports.spawn_stdio_transport(command, *args, env=env, cwd=cwd, **(transport_kwargs or {}))
    async with spawned as (reader, writer, process):
        connection = connect(handler, writer, reader, **kwargs)
        try:
            yield connection, process
        finally:
            await connection.close()
