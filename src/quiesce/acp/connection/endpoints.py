"""Functions that run an agent, and connect to one.

Names and arguments are those that users of agent-client-protocol know. The difference is in how a connection
ends: see `AgentSideConnection`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from quiesce.wire import ChildProcess, Limits

from .agent_side import AgentSideConnection
from .client_side import ClientSideConnection

if TYPE_CHECKING:
    from quiesce import Process
    from quiesce.acp.protocol import Agent, Client

# What a child process needs to start and to find its files, but no variable that may hold a secret.
_INHERITED: Final = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER")


async def run_agent(
    agent: Agent | Callable[[Client], Agent] | Any,
    input_stream: Any = None,
    output_stream: Any = None,
    *,
    use_unstable_protocol: bool = False,
    stdio_buffer_limit_bytes: int | None = None,
    **connection_options: Any,
) -> None:
    """Serve an agent until its client disconnects, over stdin and stdout unless other streams are given.

    ```python
    quiesce.run(lambda: run_agent(MyAgent()))
    ```

    It returns when the client closes the connection. If you are cancelled, or your deadline passes, the
    current turns are cancelled and answered, everything is closed, and your cancellation continues. Nothing
    is left over in any case.

    While stdin and stdout belong to the protocol, anything that the program prints goes to stderr.
    `stdio_buffer_limit_bytes` is the longest accepted message (`Limits.frame`); other options are those of
    `AgentSideConnection`.
    """
    if input_stream is None and output_stream is None:
        from quiesce.wire import stdio

        input_stream = stdio()
    if stdio_buffer_limit_bytes is not None:
        limits = connection_options.get("limits") or Limits()
        connection_options["limits"] = replace(limits, frame=stdio_buffer_limit_bytes)
    # Not listening yet: `listen` starts the connection, and raises if it cannot be opened.
    connection = AgentSideConnection(
        agent,
        input_stream,
        output_stream,
        listening=False,
        use_unstable_protocol=use_unstable_protocol,
        **connection_options,
    )
    await connection.listen()


def connect_to_agent(
    client: Client | Callable[[Agent], Client] | Any,
    input_stream: Any,
    output_stream: Any = None,
    *,
    use_unstable_protocol: bool = False,
    **connection_options: Any,
) -> ClientSideConnection:
    """Return a connection to an agent; use it with `async with`, or close it.

    ```python
    async with connect_to_agent(MyClient(), writer, reader) as agent:
        await agent.initialize(protocol_version=PROTOCOL_VERSION)
    ```

    `input_stream` is a `quiesce.wire` transport; or the `asyncio.StreamWriter` to the agent, with
    `output_stream` the `asyncio.StreamReader` from it.
    """
    return ClientSideConnection(
        client, input_stream, output_stream, use_unstable_protocol=use_unstable_protocol, **connection_options
    )


@asynccontextmanager
async def spawn_agent_process(
    to_client: Client | Callable[[Agent], Client] | Any,
    command: str,
    *args: str,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    transport_kwargs: Mapping[str, Any] | None = None,
    **connection_options: Any,
) -> AsyncIterator[tuple[ClientSideConnection, Process]]:
    """Start an agent as a child process and connect to it, in a context manager that stops both.

    ```python
    async with spawn_agent_process(MyClient(), "my-agent", "--stdio") as (agent, process):
        await agent.initialize(protocol_version=PROTOCOL_VERSION)
    # here the agent, and every process that it started, has exited
    ```

    `env` is added to `default_environment()`; `transport_kwargs` are options of `quiesce.wire.ChildProcess`.
    """
    transport = _child(command, args, env, cwd, transport_kwargs)
    async with ClientSideConnection(
        to_client, transport, listening=False, **connection_options
    ) as connection:
        yield connection, transport.process


@asynccontextmanager
async def spawn_client_process(
    to_agent: Agent | Callable[[Client], Agent] | Any,
    command: str,
    *args: str,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    transport_kwargs: Mapping[str, Any] | None = None,
    **connection_options: Any,
) -> AsyncIterator[tuple[AgentSideConnection, Process]]:
    """Start a client as a child process and serve it an agent; compare `spawn_agent_process`."""
    transport = _child(command, args, env, cwd, transport_kwargs)
    async with AgentSideConnection(to_agent, transport, listening=False, **connection_options) as connection:
        yield connection, transport.process


def default_environment() -> dict[str, str]:
    """Return the environment variables that a child process inherits by default."""
    return {name: os.environ[name] for name in _INHERITED if name in os.environ}


def _child(
    command: str,
    args: tuple[str, ...],
    env: Mapping[str, str] | None,
    cwd: str | Path | None,
    options: Mapping[str, Any] | None,
) -> ChildProcess:
    return ChildProcess(
        [command, *args], env={**default_environment(), **(env or {})}, cwd=cwd, **(options or {})
    )
