"""A server for models, on a real socket, with every fault that a test asks for.

It runs in a thread, in an event loop of its own, so that one server serves tests in every world. Each request takes the next `Reply`
that was put in; without one it is answered well, in the words of the API that was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tests.models.wires import APIS

Step: TypeAlias = "bytes | float | Literal['silence', 'drop', 'flood', 'cut']"
"""What is done next: send this, wait so many seconds, or

- `silence`: send nothing, for ever; `flood`: send the last piece again, for ever;
- `drop`: reset the connection; `cut`: end it properly, but in the middle.
"""


@dataclass
class Reply:
    """What a request is answered with."""

    steps: Sequence[Step] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"
    silent_before: bool = False  # no headers, even


@dataclass(eq=False)
class Connection:
    """One that a client has made. It is busy from a request to the end of its reply."""

    busy: bool = False


@dataclass
class Request:
    """What a client has sent."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Server:
    """Where it listens: `url`."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.connections: set[Connection] = set()
        self.accepted = 0
        self._replies: deque[Reply] = deque()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="model server", daemon=True)

    def start(self) -> Server:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)

    def reset(self) -> None:
        """Forget what was asked, and what is to be answered."""
        self._replies.clear()
        self.requests.clear()

    def reply(self, *replies: Reply) -> None:
        self._replies.extend(replies)

    def say(self, *steps: Step, **options: Any) -> None:
        """Answer the next request like that."""
        self.reply(Reply(steps, **options))

    @property
    def busy(self) -> int:
        return sum(connection.busy for connection in list(self.connections))

    def wait_for(self, holds: Callable[[], bool], what: str, seconds: float = 15.0) -> None:
        """Wait, without the event loop of the test, until something holds here."""
        give_up_at = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < give_up_at, f"the server did not see {what} within {seconds:g} s"
            time.sleep(0.002)

    # In the thread

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._over.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection()
        self.connections.add(connection)
        self.accepted += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            try:
                while await self._request(connection, reader, writer):
                    pass
            finally:
                self.connections.discard(connection)
                writer.close()

    async def _request(
        self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        except asyncio.IncompleteReadError:
            return False
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        path = head[0].split()[1]
        connection.busy = True
        self.requests.append(Request(path, headers, json.loads(body or b"{}")))
        reply = self._replies.popleft() if self._replies else self._good(path)
        # A client that goes is noticed at once, not with the next thing that is sent.
        work = asyncio.ensure_future(self._reply(reply, writer))
        gone = asyncio.ensure_future(self._gone(reader, work))
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            return work.done() and work.result()
        finally:
            connection.busy = False
            for task in (work, gone):
                task.cancel()

    async def _gone(self, reader: asyncio.StreamReader, work: asyncio.Future[bool]) -> None:
        # `StreamReader` has no way to look without taking. Clients here send nothing before they have their answer.
        while not reader.at_eof() and reader.exception() is None and not work.done():
            await asyncio.sleep(0.002)

    def _good(self, path: str) -> Reply:
        return Reply(next(api.text("Hel", "lo") for api in APIS if api.path == path))

    async def _reply(self, reply: Reply, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection can be used again."""
        if reply.silent_before:
            await asyncio.sleep(3600)
        headers = {"content-type": reply.content_type, "transfer-encoding": "chunked", **reply.headers}
        lines = [f"HTTP/1.1 {reply.status} Status", *[f"{name}: {value}" for name, value in headers.items()]]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        await writer.drain()
        last = b": nothing\n\n"
        for step in reply.steps:
            if isinstance(step, bytes):
                last = step
                writer.write(b"%x\r\n%s\r\n" % (len(step), step))
            elif isinstance(step, float):
                await asyncio.sleep(step)
            elif step == "silence":
                await asyncio.sleep(3600)
            elif step == "drop":
                await asyncio.sleep(0.01)
                writer.transport.abort()
                return False
            elif step == "cut":
                return False
            while step == "flood":
                writer.write(b"%x\r\n%s\r\n" % (len(last), last) * 50)
                await writer.drain()
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True
