"""The same program on either library: `acp` (agent-client-protocol, of PyPI) or `quiesce.acp`.

The programs beside this file use what both have, under the same names. What only one of them has is here:

- plain data: pydantic models on one side, msgspec structs on the other;
- who stops a turn: with `acp` the author of the agent, with `quiesce.acp` the connection;
- child processes: `quiesce.Process` takes its whole tree with it, however our own process ends.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio

PUBLISHED, OURS = "acp", "quiesce.acp"


class Command:
    """A command that runs, with its stdout and stderr in one stream; gone when its block is left."""

    def __init__(
        self,
        read: Callable[[], Awaitable[bytes]],
        wait: Callable[[], Awaitable[int]],
        kill: Callable[[], object],
    ) -> None:
        self.read = read
        self.wait = wait
        self.kill = kill


class Library:
    """One of the two, by the name it is imported by."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ours = name == OURS
        self.acp: Any = importlib.import_module(name)
        self.schema: Any = importlib.import_module(f"{name}.schema")
        self.helpers: Any = importlib.import_module(f"{name}.helpers")

    def plain(self, value: Any) -> Any:
        """A message as it is on the wire."""
        if value is None:
            return None
        if self.ours:
            return self.acp.to_dict(value)
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)

    def message(self, kind: str, wire: Mapping[str, Any]) -> Any:
        """The message of this class that is so on the wire."""
        cls = getattr(self.schema, kind)
        return self.acp.from_dict(cls, dict(wire)) if self.ours else cls.model_validate(wire)

    def connection_options(self) -> dict[str, Any]:
        """`session/close` is stable in the schema, and in agent-client-protocol 0.12.1 behind this switch."""
        return {} if self.ours else {"use_unstable_protocol": True}

    def run(self, main: Callable[[], Awaitable[Any]], backend: str) -> None:
        if self.ours:
            import quiesce

            quiesce.run(main, backend="trio" if backend == "trio" else "asyncio")
        else:
            anyio.run(main, backend=backend)

    @contextlib.asynccontextmanager
    async def connected(self, client: Any, argv: Sequence[str]) -> AsyncIterator[tuple[Any, int | None]]:
        """A connection to an agent, with its pid: one that is started, or one that a `ws://` address is of."""
        options = self.connection_options()
        if not argv[0].startswith("ws://"):
            spawned = self.acp.spawn_agent_process(client, *argv, env=dict(os.environ), **options)
            async with spawned as (conn, process):
                yield conn, process.pid
            return
        create_websocket_stream = importlib.import_module("acp.ws.client").create_websocket_stream
        bearer = {"Authorization": f"Bearer {os.environ['QUIESCE_ACP_TOKEN']}"}
        stream = await create_websocket_stream(argv[0], headers=bearer)
        async with self.acp.connect_to_agent(client, stream, **options) as conn:
            yield conn, None
        await stream.close()

    def here(self) -> Any:
        if not self.ours:
            return None
        import quiesce

        return quiesce.current_scope()

    @contextlib.asynccontextmanager
    async def command(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None = None, owner: Any = None
    ) -> AsyncIterator[Command]:
        """Run a command while the block lasts. `owner` is what `here` returned where it may live at most as long."""
        if self.ours:
            import quiesce

            async with quiesce.Process(argv, env=env, cwd=cwd, stderr="stdout", scope=owner) as owned:
                yield Command(owned.read, owned.wait, lambda: owned.signal(signal.SIGKILL))
            return
        process = await anyio.open_process(
            list(argv),
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that a shell is killed with what it runs
        )

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        async with process:
            output = process.stdout
            assert output is not None

            async def read() -> bytes:
                try:
                    return await output.receive()
                except anyio.EndOfStream:
                    return b""

            try:
                yield Command(read, process.wait, kill)
            finally:
                kill()


def parse(description: str, *options: str) -> tuple[Library, Namespace, list[str]]:
    """The arguments of a program: which library, which backend, and those of its own."""
    parser = ArgumentParser(description=description)
    parser.add_argument("--library", choices=[PUBLISHED, OURS], required=True)
    parser.add_argument("--backend", choices=["asyncio", "trio"], default="asyncio")
    for option in options:
        parser.add_argument(option, required=True)
    parser.add_argument("rest", nargs="*")
    arguments = parser.parse_args()
    return Library(arguments.library), arguments, arguments.rest
