"""The other side of a connection, byte by byte, and handlers of several kinds."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from quiesce.wire import MemoryTransport, Peer, SocketTransport, memory_pair
from tests.kernel.temperaments import tidy_up


class Bare:
    """One end of a memory pair, without a peer: what is sent is exactly these bytes, in one piece."""

    def __init__(self, transport: MemoryTransport) -> None:
        self.channel = transport._channel
        self._rest = b""
        self._ended = False

    async def send(self, *messages: object) -> None:
        """Each is a line; bytes are sent as they are."""
        await self.channel.send(b"".join(_bytes(message) for message in messages))

    async def line(self) -> Any:
        """The next message; None at the end."""
        while b"\n" not in self._rest:
            data = await self.channel.receive()
            if not data:
                self._ended = True
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    async def lines(self, count: int) -> list[Any]:
        return [await self.line() for _ in range(count)]

    async def rest(self) -> list[Any]:
        """All messages up to the end."""
        found = []
        while (message := await self.line()) is not None:
            found.append(message)
        return found

    def close(self) -> None:
        self.channel.abort()

    async def ping(self) -> None:
        """The connection lives: it answers this, after whatever it had to say before."""
        await self.send({"jsonrpc": "2.0", "id": "ping", "method": "echo", "params": ["ping"]})
        while True:
            message = await self.line()
            assert message is not None, "the connection is over"
            if message.get("id") == "ping":
                assert message["result"] == ["ping"]
                return


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged, but for the remark that the machine stood still during a stop."""
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [each for each in said if "the event loop's thread was blocked" not in each]


def _bytes(message: object) -> bytes:
    return message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"


def asks(id: object, method: str, params: Any = None) -> dict[str, Any]:  # noqa: A002
    """A request."""
    return {"jsonrpc": "2.0", "id": id, "method": method, **({} if params is None else {"params": params})}


def tells(method: str, params: Any = None) -> dict[str, Any]:
    """A notification."""
    return {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})}


def cancels(id: object) -> dict[str, Any]:  # noqa: A002
    return tells("$/cancel_request", {"requestId": id})


def answers(id: object, result: Any) -> dict[str, Any]:  # noqa: A002
    return {"jsonrpc": "2.0", "id": id, "result": result}


async def echo(params: Any) -> Any:
    return params


@asynccontextmanager
async def bare_and_peer(
    handlers: dict[str, Any] | None = None, *, capacity: int = 65536, **options: Any
) -> AsyncIterator[tuple[Bare, Peer]]:
    """A peer that can at least echo, and its other side."""
    one, other = memory_pair(capacity=capacity)
    bare = Bare(other)
    try:
        async with Peer(one, {"echo": echo, **(handlers or {})}, **options) as peer:
            yield bare, peer
    finally:
        bare.close()


@asynccontextmanager
async def two_peers(
    ours: dict[str, Any] | None = None,
    theirs: dict[str, Any] | None = None,
    *,
    our_options: dict[str, Any] | None = None,
    their_options: dict[str, Any] | None = None,
    capacity: int = 65536,
    over_sockets: bool = False,
) -> AsyncIterator[tuple[Peer, Peer]]:
    """Two peers, connected."""
    if over_sockets:
        one, other = map(SocketTransport, socket.socketpair())
    else:
        one, other = memory_pair(capacity=capacity)  # type: ignore[assignment]
    async with (
        Peer(one, {"echo": echo, **(ours or {})}, name="we", **(our_options or {})) as us,
        Peer(other, {"echo": echo, **(theirs or {})}, name="they", **(their_options or {})) as them,
    ):
        yield us, them


class Worker:
    """A handler that works until it is told to go on, and keeps what happens to it."""

    def __init__(self, tidy: float = 0.0, result: Any = "done") -> None:
        self.log: list[str] = []
        self.begun = anyio.Event()
        self.go = anyio.Event()
        self.tidy = tidy
        self.result = result

    async def __call__(self, params: Any) -> Any:
        self.log.append("begins")
        self.begun.set()
        try:
            await self.go.wait()
        except anyio.get_cancelled_exc_class():
            if self.tidy:
                await tidy_up(self.tidy)
            self.log.append("cancelled")
            raise
        self.log.append("ends")
        return self.result
