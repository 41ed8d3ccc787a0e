"""The least that a JSON-RPC connection on asyncio can be: what the others are measured by.

The same JSON library, one task a request, and nothing else: no limits, no order beyond the socket's, no
cancelling, no end. Once as an `asyncio.Protocol` and once on asyncio's streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode

Handle = Callable[[Any], Awaitable[Any]]
Told = Callable[[Any], object]


class Bare:
    """What both have in common: calls that wait, and a task for each request that came."""

    def __init__(self, handle: Handle, told: Told) -> None:
        self._handle = handle
        self._told = told
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._last_id = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def came(self, line: bytes) -> None:
        message = decode(line)
        if "method" not in message:
            self._pending.pop(message["id"]).set_result(message["result"])
        elif "id" in message:
            task = self._loop.create_task(self.answer(message["id"], message["params"]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._told(message["params"])

    async def answer(self, number: int, params: Any) -> None:
        result = await self._handle(params)
        await self.send({"jsonrpc": "2.0", "id": number, "result": result})

    async def request(self, method: str, params: Any) -> Any:
        self._last_id = number = self._last_id + 1
        self._pending[number] = answer = self._loop.create_future()
        await self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return await answer

    async def notify(self, method: str, params: Any) -> None:
        await self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def send(self, message: dict[str, Any]) -> None:
        raise NotImplementedError  # abstract: the one thing in which the two differ


class BareProtocol(Bare, asyncio.Protocol):
    """By callbacks of a transport."""

    _transport: asyncio.Transport

    def __init__(self, handle: Handle, told: Told) -> None:
        super().__init__(handle, told)
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.came(line)

    # Written out, without `send`: a coroutine less for each message.

    async def answer(self, number: int, params: Any) -> None:
        result = await self._handle(params)
        self._transport.write(encode({"jsonrpc": "2.0", "id": number, "result": result}) + b"\n")

    async def request(self, method: str, params: Any) -> Any:
        self._last_id = number = self._last_id + 1
        self._pending[number] = answer = self._loop.create_future()
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self._transport.write(encode(message) + b"\n")
        return await answer

    async def notify(self, method: str, params: Any) -> None:
        self._transport.write(encode({"jsonrpc": "2.0", "method": method, "params": params}) + b"\n")

    async def close(self) -> None:
        self._transport.close()


class BareStreams(Bare):
    """By a task that reads line after line; whoever writes waits until there is room."""

    def __init__(
        self, handle: Handle, told: Told, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        super().__init__(handle, told)
        self._writer = writer
        self._reading = self._loop.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            self.came(line)

    async def send(self, message: dict[str, Any]) -> None:
        self._writer.write(encode(message) + b"\n")
        await self._writer.drain()

    async def close(self) -> None:
        self._writer.close()
        await self._reading
