"""A network in memory, below the real HTTP library: its pool and its protocol are at work, only the socket is not there.

It is for tests that need every step to come in the same order each time, and for connections that take their time to close.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import anyio
import httpcore2
import httpx2

from tests.kernel.audited import ledger, pause

HEAD = b"HTTP/1.1 %d Status\r\ncontent-type: %s\r\ntransfer-encoding: chunked\r\n%s\r\n"
END = b"0\r\n\r\n"


def reply(
    pieces: Sequence[bytes],
    status: int = 200,
    headers: bytes = b"",
    *,
    whole: bool = True,
    content_type: bytes = b"text/event-stream",
) -> list[bytes]:
    """What comes back over a connection, read by read. Without its end, nothing comes after it."""
    return [
        HEAD % (status, content_type, headers),
        *[b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces],
        *([END] if whole else []),
    ]


class Line(httpcore2.AsyncNetworkStream):
    """One connection."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._incoming: deque[bytes] = deque()
        self._hung_up = anyio.Event()
        self.is_open = True

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if not self.is_open:
            await anyio.sleep(0)
            raise httpcore2.ReadError("closed")
        if self._incoming:
            await pause(0.2)
            return self._incoming.popleft()
        await self._hung_up.wait()
        raise httpcore2.ReadError("closed")

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await pause(0.1)
        if buffer.startswith((b"POST", b"GET")):
            self._network.requests.append(buffer.split(b"\r\n")[0].decode())
            self._incoming.extend(self._network.next_reply())

    async def aclose(self) -> None:
        self._hung_up.set()
        if self.is_open:
            with ledger.entry("closing a connection", but_by_others=True), suppress(ConnectionError):
                await pause(0.3)  # a socket that is closed is closed, whatever its other end does
            self.is_open = False

    def get_extra_info(self, info: str) -> Any:
        return False if info == "is_readable" else None


class Network(httpcore2.AsyncNetworkBackend):
    """Gives the replies, one a request; its HTTP client has one connection."""

    def __init__(self, *replies: list[bytes]) -> None:
        self._replies = deque(replies)
        self.lines: list[Line] = []
        self.requests: list[str] = []
        self.pool = httpcore2.AsyncConnectionPool(max_connections=1, network_backend=self)

    def next_reply(self) -> list[bytes]:
        return self._replies.popleft()

    def pass_over_all_but_the_last(self) -> None:
        """Also the reply to a request that was given up before it was sent."""
        self._replies = deque([self._replies[-1]])

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> Line:
        await pause(0.2)
        line = Line(self)
        self.lines.append(line)
        return line

    def http_client(self) -> httpx2.AsyncClient:
        transport = httpx2.AsyncHTTPTransport(verify=False)
        transport._pool = self.pool
        return httpx2.AsyncClient(transport=transport, timeout=None)

    @property
    def open_lines(self) -> int:
        return sum(line.is_open for line in self.lines)

    @property
    def slots_taken(self) -> int:
        return len(self.pool._requests)
