"""Running an agent, and connecting to one.

The names and arguments are those that users of agent-client-protocol know. What is different is how it ends: see `AgentSideConnection`.
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

# What a child process needs to be found and to find its way; nobody's secrets.
_PASSED_ON: Final = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER")


async def run_agent(
    agent: Agent | Callable[[Client], Agent] | Any,
    input_stream: Any = None,
    output_stream: Any = None,
    *,
    use_unstable_protocol: bool = False,
    stdio_buffer_limit_bytes: int | None = None,
    **connection_options: Any,
) -> None:
    """Serve an agent until its client is gone: over stdin and stdout, unless other streams are given.

    ```python
    quiesce.run(lambda: run_agent(MyAgent()))
    ```

    It returns when the client closes the connection. If you are cancelled, or your time is over, the turns that are on are cancelled and
    answered, all is closed, and your cancellation goes on. Nothing is left in any case.

    While stdin and stdout belong to the protocol, what the program prints goes to stderr. `stdio_buffer_limit_bytes` is the longest message
    that is taken (`Limits.frame`); other options are those of `AgentSideConnection`.
    """
    if input_stream is None and output_stream is None:
        from quiesce.wire import stdio

        input_stream = stdio()
    if stdio_buffer_limit_bytes is not None:
        limits = connection_options.get("limits") or Limits()
        connection_options["limits"] = replace(limits, frame=stdio_buffer_limit_bytes)
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
    """A connection to an agent; use it with `async with`, or close it.

    ```python
    async with connect_to_agent(MyClient(), writer, reader) as agent:
        await agent.initialize(protocol_version=PROTOCOL_VERSION)
    ```

    `input_stream` is a `quiesce.wire` transport; or the `asyncio.StreamWriter` to the agent, with `output_stream` the `asyncio.StreamReader` from it.
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
    """Start an agent as a child process, and connect to it.

    ```python
    async with spawn_agent_process(MyClient(), "my-agent", "--stdio") as (agent, process):
        await agent.initialize(protocol_version=PROTOCOL_VERSION)
    # here the agent, and everything that it has started, is gone
    ```

    `env` is added to `default_environment()`; `transport_kwargs` are options of `quiesce.wire.ChildProcess`.
    """
    way = _child(command, args, env, cwd, transport_kwargs)
    async with ClientSideConnection(to_client, way, listening=False, **connection_options) as connection:
        yield connection, way.process


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
    """Start a client as a child process, and serve it an agent; as `spawn_agent_process`, the other way round."""
    way = _child(command, args, env, cwd, transport_kwargs)
    async with AgentSideConnection(to_agent, way, listening=False, **connection_options) as connection:
        yield connection, way.process


def default_environment() -> dict[str, str]:
    """The environment variables that a child process gets unless more are given."""
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}


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
