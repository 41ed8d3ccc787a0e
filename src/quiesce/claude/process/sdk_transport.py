"""Transports that were written for claude-agent-sdk, adapted to `quiesce.wire`.

Invariants
- A transport may hold task groups and timeouts open from `connect` to `close`, and across the yields of
  `read_messages`. Only the task that entered those may exit them, so each of the two has one owner task.
- Once `connect` has begun, `close` follows, whatever happened; if it connected, `end_input` comes before.
- Both get a share of the `Grace`. A `close` that takes longer is cancelled, and the closer gets an error.
- `write` gets one message at a time, as from claude-agent-sdk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio

from quiesce import Held, Stream, own, stream
from quiesce._safe.printed import logger
from quiesce.claude.words import encode
from quiesce.kernel.inner import core_of
from quiesce.wire import Transport as WireTransport
from quiesce.wire.inner import ChannelLink, Lines

if TYPE_CHECKING:
    from quiesce import Scope
    from quiesce.wire import Limits
    from quiesce.wire.inner import Link

_END_INPUT_SHARE: Final = 1 / 3  # of `Grace.cancel`; the rest is for `close`


class Transport(ABC):
    """A transport of your own to a CLI, with the methods that claude-agent-sdk expects.

    The transports of `quiesce.wire` (`memory_pair()`, `connect_tcp(...)`, ...) can be passed instead.
    """

    @abstractmethod
    async def connect(self) -> None:
        """Connect."""

    @abstractmethod
    async def write(self, data: str) -> None:
        """Send one message: a line, with its line break."""

    @abstractmethod
    def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the messages of the CLI, as JSON objects."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect, in bounded time."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether it is connected."""

    @abstractmethod
    async def end_input(self) -> None:
        """Tell the CLI that nothing more will be sent."""


class SdkTransport(WireTransport):
    """A transport of the wire that uses one of claude-agent-sdk's kind."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.name = type(transport).__name__

    async def open(self, limits: Limits, scope: Scope) -> Link:
        """Connect it."""
        held = await own(_connection(self._transport), name=self.name, scope=scope).open()
        channel = _ForeignChannel(self._transport, held, scope)
        return ChannelLink(channel, Lines(limits.frame), scope, name=self.name)


@asynccontextmanager
async def _connection(transport: Transport) -> AsyncIterator[None]:
    """Connect, and close on exit.

    `connect` may enter a cancel scope that `close` exits, and such scopes have to be nested: so no scope of
    ours may begin between the two calls. The shield and the deadline of the one outside are set later
    instead.
    """
    seconds = core_of().grace.cancel
    to_end, to_close = seconds * _END_INPUT_SHARE, seconds * (1 - _END_INPUT_SHARE)
    with anyio.CancelScope() as clean_up:
        try:
            await transport.connect()
            try:
                yield
            except BaseException:
                # The owner was cancelled because its grace ran out. The input ends in any case.
                clean_up.shield = True
                raise
            finally:
                await _end_input(transport, to_end)
        finally:
            clean_up.shield = True
            clean_up.deadline = anyio.current_time() + to_close
            await transport.close()
    if clean_up.cancelled_caught:
        name = type(transport).__name__
        raise TimeoutError(f"close() of {name} was cancelled: it took longer than {to_close:g} s")


async def _end_input(transport: Transport, seconds: float) -> None:
    try:
        with anyio.move_on_after(seconds):
            await transport.end_input()
    except Exception as error:  # the connection may be broken already, and is closed next
        logger.debug("end_input() of %s failed: %r", type(transport).__name__, error)


class _ForeignChannel:
    def __init__(self, transport: Transport, held: Held[None], scope: Scope) -> None:
        self._transport = transport
        self._held = held
        self._scope = scope
        self._stream: Stream[dict[str, Any]] | None = None
        self._messages: AsyncIterator[dict[str, Any]] | None = None

    async def receive(self) -> bytes:
        if self._messages is None:
            # An owner task for the generator: it may hold cancel scopes across its yields.
            source = self._transport.read_messages()
            self._stream = stream(source, name="read_messages", scope=self._scope)
            self._messages = aiter(self._stream)
        try:
            return encode(await anext(self._messages)) + b"\n"
        except StopAsyncIteration:
            return b""

    async def send(self, data: bytes) -> None:
        # The link joins messages that had to wait; a transport of the SDK expects them one by one.
        for line in data.splitlines(keepends=True):
            await self._transport.write(line.decode())

    def abort(self) -> None:
        pass  # such a transport can only be closed with `await`

    async def aclose(self) -> None:
        try:
            # First the generator, which may be waiting inside the transport.
            if self._stream is not None:
                await self._stream.close()
        finally:
            await self._held.close()
