"""Transports that were written for claude-agent-sdk, as the wire knows one.

Invariants
- Whoever wrote it may hold task groups and timeouts, from `connect` to `close`, and across the yields of `read_messages`: so each of the two is
  in the hands of one task of its own.
- `connect` that was begun is followed by `close`, whatever became of it, and `end_input` comes before that if it was connected.
- Both take their seconds from `Grace`. A `close` that is not done by then is cancelled, and an error of whoever closes.
- `write` gets one message at a time, as from claude-agent-sdk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio

from quiesce import Held, Stream, own, stream
from quiesce._safe.printed import logger
from quiesce.claude.types import encode
from quiesce.kernel.inner import current_backend, current_core
from quiesce.wire import Transport as WireTransport
from quiesce.wire.inner import ChannelLink, Lines

if TYPE_CHECKING:
    from quiesce import Scope
    from quiesce.wire import Limits
    from quiesce.wire.inner import Link

    from .transport import Transport


_END_SHARE: Final = 1 / 3  # of the time to clean up, for the end of its input; the rest is for `close`


class SdkTransport(WireTransport):
    """A transport of claude-agent-sdk's kind."""

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
    """From `connect` to `close`. Whatever it enters in the one it may leave in the other: there is no scope of ours in between."""
    seconds = current_core(current_backend()).grace.cancel
    to_end, to_close = seconds * _END_SHARE, seconds * (1 - _END_SHARE)
    with anyio.CancelScope() as clean_up:
        try:
            await transport.connect()
            try:
                yield
            except BaseException:
                clean_up.shield = True  # its time is over, and it is told all the same
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
    except Exception as error:  # it may be cut already, and is closed next
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
            source = self._transport.read_messages()
            self._stream = stream(source, name="read_messages", scope=self._scope)
            self._messages = aiter(self._stream)
        try:
            return encode(await anext(self._messages)) + b"\n"
        except StopAsyncIteration:
            return b""

    async def send(self, data: bytes) -> None:
        for line in data.splitlines(keepends=True):  # what waited comes as one: it is told message by message
            await self._transport.write(line.decode())

    def abort(self) -> None:
        pass  # it has no way to be told without waiting

    async def aclose(self) -> None:
        try:
            if self._stream is not None:
                await self._stream.close()
        finally:
            await self._held.close()
