"""Ways to a CLI: the child process, anything of `quiesce.wire`, and transports that were written for claude-agent-sdk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

from quiesce.wire._channel_link import ChannelLink
from quiesce.wire._child_process import ChildProcess
from quiesce.wire._framing import Lines
from quiesce.wire._transport import Transport as WireTransport

from ._command import command_of, environment_of
from ._find_cli import find_cli

if TYPE_CHECKING:
    from quiesce.kernel._grace import Grace
    from quiesce.kernel._scope import Scope
    from quiesce.wire._limits import Limits
    from quiesce.wire._link import Link

    from ._options import ClaudeAgentOptions


class Transport(ABC):
    """A way to a CLI of your own, with the methods that claude-agent-sdk asks of one.

    Those of `quiesce.wire` (`memory_pair()`, `connect_tcp(...)`, ...) can be passed as they are.
    """

    @abstractmethod
    async def connect(self) -> None:
        """Connect."""

    @abstractmethod
    async def write(self, data: str) -> None:
        """Send one or more lines."""

    @abstractmethod
    def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        """What comes in, as JSON objects."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect, in bounded time."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it is connected."""

    @abstractmethod
    async def end_input(self) -> None:
        """Nothing more will be sent."""


class _Foreign(WireTransport):
    """A `Transport` as the wire knows one."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.name = type(transport).__name__

    async def open(self, limits: Limits, scope: Scope) -> Link:
        await self._transport.connect()
        return ChannelLink(_ForeignChannel(self._transport), Lines(limits.frame), scope, name=self.name)


class _ForeignChannel:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._messages: AsyncIterator[dict[str, Any]] | None = None

    async def receive(self) -> bytes:
        if self._messages is None:
            self._messages = aiter(self._transport.read_messages())
        try:
            return msgspec.json.encode(await anext(self._messages)) + b"\n"
        except StopAsyncIteration:
            return b""

    async def send(self, data: bytes) -> None:
        await self._transport.write(data.decode())

    def abort(self) -> None:
        pass  # it has no way to be told without waiting

    async def aclose(self) -> None:
        aclose = getattr(self._messages, "aclose", None)
        try:
            if aclose is not None:
                await aclose()
        finally:
            await self._transport.close()


def transport_for(options: ClaudeAgentOptions, given: object, grace: Grace | None) -> WireTransport:
    """The way to the CLI: what was given, or a child process."""
    if isinstance(given, WireTransport):
        return given
    verbs = ("connect", "write", "read_messages", "close", "end_input")
    if all(callable(getattr(given, verb, None)) for verb in verbs):
        return _Foreign(given)  # type: ignore[arg-type]
    if given is not None:
        raise TypeError(f"transport must be a Transport, not {type(given).__name__}")
    return ChildProcess(
        command_of(options, find_cli(options)),
        env=environment_of(options),
        cwd=options.cwd,
        name="claude",
        on_stderr=_told_in_lines(options),
        grace=grace,
    )


def _told_in_lines(options: ClaudeAgentOptions) -> Any:
    """`options.stderr` wants lines; the process has pieces."""
    tell = options.stderr
    if tell is None:
        return None
    rest = b""

    def on_stderr(data: bytes) -> None:
        nonlocal rest
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.strip():
                tell(line.decode(errors="replace").rstrip())

    return on_stderr
