"""Real servers and a real upstream, on loopback sockets, in the loop of the test.

`run_in(where, main)` runs an async function where a server can run; `serving(where, app)` is that server: uvicorn on uvloop,
hypercorn on asyncio, hypercorn on trio. When `main` has returned, no task may be left.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import hypercorn.asyncio
import hypercorn.config
import hypercorn.trio
import uvicorn

from tests.world import make_world

WHERE = ("uvicorn", "hypercorn", "hypercorn-trio")
_WORLDS = {"uvicorn": "uvloop", "hypercorn": "asyncio", "hypercorn-trio": "trio"}


def run_in(where: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    make_world(_WORLDS[where], virtual=False).run(main)


@asynccontextmanager
async def serving(where: str, app: Any) -> AsyncIterator[int]:
    """The port at which `app` is served."""
    listener = socket.create_server(("127.0.0.1", 0))
    port: int = listener.getsockname()[1]
    serve = _serve_with_uvicorn if where == "uvicorn" else _serve_with_hypercorn
    async with anyio.create_task_group() as tasks:
        stop = anyio.Event()
        await tasks.start(serve, where, app, listener, stop)
        try:
            yield port
        finally:
            stop.set()
    listener.close()


async def _serve_with_uvicorn(
    where: str, app: Any, listener: socket.socket, stop: anyio.Event, *, task_status: Any
) -> None:
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listener])
        while not server.started:
            await anyio.sleep(0.005)
        task_status.started()
        with anyio.CancelScope(shield=True):
            await stop.wait()
        server.should_exit = True


async def _serve_with_hypercorn(
    where: str, app: Any, listener: socket.socket, stop: anyio.Event, *, task_status: Any
) -> None:
    config = hypercorn.config.Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.graceful_timeout = 0.5
    config.loglevel = "CRITICAL"
    module: Any = hypercorn.trio if where == "hypercorn-trio" else hypercorn.asyncio
    started = anyio.Event()

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        async def send_and_see(message: Any) -> None:
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                started.set()

        await app(scope, receive, send_and_see if scope["type"] == "lifespan" else send)

    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope(shield=True):
            tasks.start_soon(_hypercorn, module, watched, config, stop)
            await started.wait()
            task_status.started()
            await stop.wait()


async def _hypercorn(module: Any, app: Any, config: Any, stop: anyio.Event) -> None:
    await module.serve(app, config, shutdown_trigger=stop.wait, mode="asgi")


class Upstream:
    """A model server that streams without end, and knows who is still connected."""

    def __init__(self) -> None:
        self.port = 0
        self.opened = 0
        self.open = 0
        self.hung_up = anyio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    async def serve(self, *, task_status: Any) -> None:
        listener: Any = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
        self.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with listener:
            task_status.started()
            await listener.serve(self._answer)

    async def _answer(self, stream: anyio.abc.SocketStream) -> None:
        self.opened += 1
        self.open += 1
        try:
            async with stream:
                asked = await stream.receive()
                head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                if b"slow" in asked:  # thinks for ever, and hears only whether its client is there
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._wait_until_hung_up, tasks.cancel_scope)
                        await stream.receive()
                    raise anyio.EndOfStream
                await stream.send(head)
                while True:
                    await stream.send(b"c\r\ndata: word\n\n\r\n")
                    await anyio.sleep(0.01)
        except* (anyio.BrokenResourceError, anyio.EndOfStream):
            pass
        finally:
            self.open -= 1

    async def _wait_until_hung_up(self, scope: anyio.CancelScope) -> None:
        await self.hung_up.wait()
        scope.cancel()


@asynccontextmanager
async def an_upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    async with anyio.create_task_group() as tasks:
        await tasks.start(upstream.serve)
        yield upstream
        tasks.cancel_scope.cancel()


async def until(holds: Callable[[], bool], what: str, within: float = 15.0) -> None:
    """Wait for something that happens on the other side of a socket."""
    with anyio.move_on_after(within):
        while not holds():
            await anyio.sleep(0.005)
        return
    raise AssertionError(f"after {within:g} s it does not hold that {what}")


async def connect(port: int) -> anyio.abc.SocketStream:
    return await anyio.connect_tcp("127.0.0.1", port)


def request(path: str, *headers: str, body: bytes = b"", method: str | None = None) -> bytes:
    method = method or ("POST" if body else "GET")
    lines = [f"{method} {path} HTTP/1.1", "host: test", *headers]
    if body:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def read_until(stream: anyio.abc.SocketStream, end: bytes) -> bytes:
    """What comes, up to and with `end`."""
    found = b""
    with anyio.fail_after(15):
        while end not in found:
            found += await stream.receive()
    return found


Call = Callable[..., Awaitable[Any]]
