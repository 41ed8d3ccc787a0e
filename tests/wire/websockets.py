"""WebSockets by hand: the other side of a connection, byte by byte."""

from __future__ import annotations

import json
import socket
from typing import Any

import anyio
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import OPEN
from websockets.uri import parse_uri

from quiesce.wire import Peer


async def echo(params: Any) -> Any:
    return params


async def answer(transport: Any) -> None:
    """The handler of a server: a peer that echoes, until the other side ends."""
    async with Peer(transport, {"echo": echo, "initialize": echo}) as peer:
        await peer.wait_closed()


class Raw:
    """A client that does what it is told, with the protocol but without manners."""

    def __init__(self, port: int, path: str = "/") -> None:
        self.protocol = ClientProtocol(parse_uri(f"ws://127.0.0.1:{port}{path}"))
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setblocking(False)
        self.frames: list[Frame] = []
        self.response: Response | None = None
        self.at_end = False

    async def shake_hands(self, *, also: bytes = b"") -> None:
        """`also` is sent in the same piece."""
        self.protocol.send_request(self.protocol.connect())
        await self.send(self.pending() + also)
        while self.response is None and not self.at_end:
            await self.hear()
        assert self.protocol.state is OPEN

    def pending(self) -> bytes:
        return b"".join(self.protocol.data_to_send())

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self.socket.send(view) :]
            except BlockingIOError:
                await anyio.wait_writable(self.socket)

    async def say(self, message: object) -> None:
        self.protocol.send_text(json.dumps(message).encode())
        await self.send(self.pending())

    async def hear(self) -> None:
        """Whatever comes next."""
        await anyio.wait_readable(self.socket)
        data = self.socket.recv(65536)
        if data:
            self.protocol.receive_data(data)
        else:
            self.at_end = True
        for event in self.protocol.events_received():
            if isinstance(event, Response):
                self.response = event
            elif isinstance(event, Frame):
                self.frames.append(event)

    async def frame(self) -> Frame:
        """The next one."""
        while not self.frames:
            assert not self.at_end, "the connection is over"
            await self.hear()
        return self.frames.pop(0)

    async def message(self) -> Any:
        frame = await self.frame()
        assert frame.opcode is Opcode.TEXT
        return json.loads(bytes(frame.data))

    async def end(self) -> None:
        """Wait until the other side has closed."""
        with anyio.fail_after(10):
            while not self.at_end:
                await self.hear()

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Close without any manners at all."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()


async def http(port: int, request: bytes) -> bytes:
    """Everything that a server answers to these bytes."""
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.setblocking(False)
        raw.send(request)
        answered = b""
        with anyio.fail_after(10):
            while True:
                await anyio.wait_readable(raw)
                try:
                    data = raw.recv(65536)
                except ConnectionResetError:
                    return answered
                if not data:
                    return answered
                answered += data


def asks(id: object, method: str, params: Any = None) -> dict[str, Any]:  # noqa: A002
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
