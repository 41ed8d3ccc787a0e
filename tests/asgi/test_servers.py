"""FastAPI and Starlette behind uvicorn and hypercorn, on asyncio and trio, with real sockets on both sides.

A client leaves. What is measured is what others see of it: the upstream server its connection closed, the server its
request over, and the event loop no task left.
"""

from __future__ import annotations

import functools
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import anyio
import anyio.abc
import h2.config
import h2.connection
import h2.events
import httpx
import pytest
import wsproto
import wsproto.events
from fastapi import BackgroundTasks, Body, FastAPI, Request, WebSocket
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.responses import Response, StreamingResponse
from starlette.websockets import WebSocketDisconnect

import quiesce
from quiesce import Grace, current_token
from quiesce.asgi import ClientGone, StopOnDisconnect, lifespan, unless_disconnected
from tests.asgi.memory import Reports
from tests.asgi.servers import (
    WHERE,
    Upstream,
    an_upstream,
    connect,
    read_until,
    request,
    run_in,
    serving,
    until,
)

pytestmark = pytest.mark.slow

Main = Callable[..., Coroutine[Any, Any, None]]

everywhere = pytest.mark.parametrize("where", WHERE)


def served(test: Main) -> Callable[..., None]:
    """Run an async test where its server runs."""

    @functools.wraps(test)
    def run(where: str, **others: Any) -> None:
        run_in(where, functools.partial(test, where, **others))

    return run


class PassOn(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


def an_app(reports: Reports, *, between: str = "", grace: Grace | None = None) -> FastAPI:
    """An application with the middleware in it, and perhaps Starlette's `inside` or `outside` of that."""
    app = FastAPI(lifespan=lifespan(grace=Grace(cancel=1, terminate=0.1, kill=0.1)))
    if between == "inside":
        app.add_middleware(PassOn)
    app.add_middleware(StopOnDisconnect, on_stop=reports.take, grace=grace)
    if between == "outside":
        app.add_middleware(PassOn)
    return app


def add_model(app: FastAPI, upstream: Upstream) -> None:
    """Endpoints that ask a model: in one go, streamed through `quiesce.stream`, and as a plain generator."""

    async def words() -> AsyncIterator[bytes]:
        async with httpx.AsyncClient() as client, client.stream("GET", upstream.url) as answer:
            async for chunk in answer.aiter_bytes():
                yield chunk

    @app.get("/whole")
    async def whole() -> str:
        async with httpx.AsyncClient(timeout=60) as client:
            return str((await client.get(upstream.url + "slow")).text)

    @app.get("/streamed")
    async def streamed() -> StreamingResponse:
        return StreamingResponse(quiesce.stream(words()))

    @app.get("/plain")
    async def plain() -> StreamingResponse:
        return StreamingResponse(words())


# trio says of httpx's own generators that they are left to the collector, which they are
@pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning")
@everywhere
@pytest.mark.parametrize("between", ["", "inside", "outside"])
@pytest.mark.parametrize("path", ["/whole", "/streamed"])
@served
async def test_a_client_that_leaves_stops_the_handler_and_its_call_upstream(
    where: str, path: str, between: str
) -> None:
    reports = Reports()
    app = an_app(reports, between=between)
    async with an_upstream() as upstream:
        add_model(app, upstream)
        async with serving(where, app) as port:
            client = await connect(port)
            await client.send(request(path))
            await until(lambda: upstream.open == 1, "the upstream is asked")
            if path == "/streamed":
                await read_until(client, b"data: word")
            assert not reports
            await client.aclose()
            await until(lambda: upstream.open == 0, "the upstream is left")
            await until(lambda: len(reports) == 1, "the stop is reported")
            assert reports.kinds == ["disconnect"]
            assert reports[0].clean, reports[0]
            assert (await httpx_get(port, "/openapi.json")).status_code == 200  # the server lives on


async def httpx_get(port: int, path: str) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.get(f"http://127.0.0.1:{port}{path}")


@everywhere
@served
async def test_without_the_middleware_the_call_upstream_goes_on(where: str) -> None:
    app = FastAPI()
    async with an_upstream() as upstream:
        add_model(app, upstream)
        async with serving(where, app) as port:
            client = await connect(port)
            await client.send(request("/whole"))
            await until(lambda: upstream.open == 1, "the upstream is asked")
            await client.aclose()
            await anyio.sleep(0.3)
            assert upstream.open == 1
            upstream.hung_up.set()  # or the server would wait for it for ever


@everywhere
@served
async def test_a_sync_endpoint_hears_its_token_and_keeps_its_handler_until_its_thread_has_ended(
    where: str,
) -> None:
    reports, seen = Reports(), []
    app = an_app(reports)

    @app.get("/sync")
    def sync() -> str:
        seen.append("begun")
        token = current_token()
        while not token.cancelled:
            time.sleep(0.005)
        seen.append(str(token.reason))
        time.sleep(0.1)
        seen.append("ended")
        return "to nobody"

    async with serving(where, app) as port:
        client = await connect(port)
        await client.send(request("/sync"))
        await until(lambda: len(seen) == 1, "the thread runs")
        await client.aclose()
        await until(lambda: len(reports) == 1, "the stop is reported")
        assert seen == ["begun", "disconnect: the client disconnected", "ended"]
        assert reports[0].clean


@everywhere
@served
async def test_a_sync_endpoint_that_does_not_listen_is_named_and_keeps_its_place_among_the_threads(
    where: str,
) -> None:
    reports, running, most = Reports(), [0], [0]
    free = threading.Event()
    app = an_app(reports, grace=Grace(cancel=0.1, terminate=0, kill=0))

    @app.get("/deaf")
    def deaf() -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        free.wait(15)
        running[0] -= 1

    async with serving(where, app) as port:
        limiter = anyio.to_thread.current_default_thread_limiter()
        before, limiter.total_tokens = limiter.total_tokens, 2
        try:
            for number in range(4):
                client = await connect(port)
                await client.send(request("/deaf"))
                await until(lambda n=number: running[0] == min(n + 1, 2), "it has a thread")  # type: ignore[misc]
                await anyio.sleep(0.05)
                await client.aclose()
            await until(lambda: len(reports) == 4, "all are reported")
            assert most[0] == 2  # never more threads than allowed, though four clients have come and gone
            named = [left.name for report in reports for left in report.left]
            assert named.count("GET /deaf") >= 2
            free.set()
            await until(lambda: running[0] == 0, "the threads have ended")
            await anyio.sleep(0.05)
        finally:
            free.set()
            limiter.total_tokens = before


def collected(condition: Callable[[], bool]) -> Callable[[], bool]:
    """The condition, after a collection each time: the server's own tasks may hold frames a moment longer than a report takes."""

    def holds() -> bool:
        gc.collect()
        return condition()

    return holds


@everywhere
@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")  # trio says the same, in its own way
@served
async def test_a_sync_generator_that_streams_from_threads_is_stopped_when_its_thread_is_back(
    where: str,
) -> None:
    reports, at_work, closed = Reports(), [False], []
    app = an_app(reports)

    def words() -> Iterator[bytes]:
        try:
            while True:
                at_work[0] = True
                time.sleep(0.02)
                at_work[0] = False
                yield b"word"
        finally:
            closed.append(True)

    @app.get("/words")
    async def stream_words() -> StreamingResponse:
        return StreamingResponse(words())

    async with serving(where, app) as port:
        client = await connect(port)
        await client.send(request("/words"))
        await read_until(client, b"word")
        await client.aclose()
        await until(lambda: len(reports) == 1, "the stop is reported")
        assert reports[0].clean
        assert not at_work[0]
        await until(collected(lambda: closed == [True]), "the generator is closed")


@pytest.mark.parametrize("where", ["uvicorn", "hypercorn"])
@served
async def test_a_plain_generator_is_stopped_too_but_closed_by_the_loop_when_the_collector_finds_it(
    where: str,
) -> None:
    reports = Reports()
    app = an_app(reports)
    async with an_upstream() as upstream:
        add_model(app, upstream)
        async with serving(where, app) as port:
            client = await connect(port)
            await client.send(request("/plain"))
            await read_until(client, b"data: word")
            await client.aclose()
            await until(lambda: len(reports) == 1, "the stop is reported")
            await until(collected(lambda: upstream.open == 0), "the upstream is left")


@everywhere
@served
async def test_background_tasks_run_on_though_the_client_has_left(where: str) -> None:
    reports, done = Reports(), []
    app = an_app(reports)

    async def send_mail() -> None:
        await anyio.sleep(0.2)
        done.append("async")

    def write_log() -> None:
        time.sleep(0.05)
        done.append("sync")

    @app.get("/order")
    async def order(tasks: BackgroundTasks) -> str:
        tasks.add_task(send_mail)
        tasks.add_task(write_log)
        return "ordered"

    async with serving(where, app) as port:
        client = await connect(port)
        await client.send(request("/order"))
        await read_until(client, b"ordered")
        await client.aclose()
        await until(lambda: done == ["async", "sync"], "both tasks ran")
    assert not reports


@everywhere
@served
async def test_a_connection_is_kept_alive_and_a_pipelined_request_is_answered(where: str) -> None:
    reports = Reports()
    app = an_app(reports)

    @app.get("/number/{number}")
    async def number(number: int) -> str:
        await anyio.sleep(0.02)
        return f"this is {number}."

    async with serving(where, app) as port, await connect(port) as client:
        for count in (1, 2):
            await client.send(request(f"/number/{count}"))
            assert b"200" in await read_until(client, f"this is {count}.".encode())
        await client.send(request("/number/3") + request("/number/4"))
        found = await read_until(client, b"this is 4.")
        assert found.index(b"this is 3.") < found.index(b"this is 4.")
    assert not reports


@everywhere
@served
async def test_an_upload_that_nobody_reads_is_held_back(where: str) -> None:
    size = 64 * 1024 * 1024
    reports = Reports()
    app = an_app(reports)
    go_on = anyio.Event()

    @app.post("/upload")
    async def upload(request: Request) -> str:
        await go_on.wait()
        return f"{len(await request.body())} bytes"

    async with serving(where, app) as port:
        client = await connect(port)
        sent = 0

        async def send() -> None:
            nonlocal sent
            part = b"x" * 65536
            while sent < size:
                await client.send(part)
                sent += len(part)

        async with client, anyio.create_task_group() as tasks:
            await client.send(request("/upload", f"content-length: {size}", method="POST"))
            tasks.start_soon(send)
            before = -1
            while sent != before:
                before = sent
                await anyio.sleep(0.2)
            assert sent < size / 2, "it has been read though nobody asked"
            go_on.set()
            assert f"{size} bytes".encode() in await read_until(client, b"bytes")
    assert not reports


@everywhere
@served
async def test_a_client_that_leaves_in_the_middle_of_its_upload_stops_the_handler_that_reads_it(
    where: str,
) -> None:
    reports = Reports()
    app = an_app(reports)

    @app.post("/upload")
    async def upload(data: bytes = Body()) -> int:
        raise AssertionError("it never comes to that")

    async with serving(where, app) as port:
        client = await connect(port)
        await client.send(request("/upload", "content-length: 1000000", method="POST") + b"x" * 1000)
        await anyio.sleep(0.1)
        await client.aclose()
        await until(lambda: len(reports) == 1, "the stop is reported")
        assert reports.kinds == ["disconnect"]
        assert reports[0].clean
        assert not reports[0].errors


@everywhere
@served
async def test_a_client_that_waits_for_permission_gets_it(where: str) -> None:
    app = an_app(Reports())
    asked: list[float] = []

    @app.post("/upload")
    async def upload(request: Request) -> str:
        await anyio.sleep(0.2)
        asked.append(anyio.current_time())
        return f"{len(await request.body())} bytes"

    async with serving(where, app) as port, await connect(port) as client:
        await client.send(request("/upload", "expect: 100-continue", "content-length: 5", method="POST"))
        await read_until(client, b"100")
        if where == "uvicorn":  # hypercorn gives it by itself, before it calls the application
            assert asked
        await client.send(b"hello")
        assert b"5 bytes" in await read_until(client, b"bytes")


@everywhere
@served
async def test_an_error_of_the_handler_is_a_500_and_reaches_the_servers_log_as_it_is(where: str) -> None:
    app = an_app(Reports())
    raised: list[BaseException] = []

    @app.get("/fails")
    async def fails() -> None:
        raise LookupError("no such page")

    async def seen_by_the_server(scope: Any, receive: Any, send: Any) -> None:
        try:
            await app(scope, receive, send)
        except Exception as error:
            raised.append(error)
            raise

    async with serving(where, seen_by_the_server) as port, await connect(port) as client:
        await client.send(request("/fails"))
        assert b" 500 " in await read_until(client, b"\r\n\r\n")
    assert [repr(error) for error in raised] == ["LookupError('no such page')"]


@everywhere
@served
async def test_one_call_of_one_endpoint_is_given_up_without_the_middleware(where: str) -> None:
    gone: list[str] = []
    app = FastAPI(lifespan=lifespan())

    @app.post("/ask")
    async def ask(request: Request, question: str = Body()) -> str:
        try:
            return await unless_disconnected(request, think)
        except ClientGone as error:
            gone.append(str(error))
            raise

    async def think() -> str:
        await anyio.sleep(60)
        return "42"

    async with serving(where, app) as port:
        client = await connect(port)
        await client.send(request("/ask", "content-type: application/json", body=b'"why?"'))
        await anyio.sleep(0.2)
        await client.aclose()
        await until(lambda: len(gone) == 1, "the call is given up")
    assert "think was stopped" in gone[0]


class SocketClient:
    """A websocket's client; its own end of the protocol is wsproto's."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self.stream = stream
        self.wire = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)

    async def open(self, path: str) -> None:
        await self.stream.send(self.wire.send(wsproto.events.Request(host="test", target=path)))
        assert isinstance(await self.event(), wsproto.events.AcceptConnection)

    async def say(self, text: str) -> None:
        await self.stream.send(self.wire.send(wsproto.events.TextMessage(data=text)))

    async def event(self) -> wsproto.events.Event:
        with anyio.fail_after(15):
            while True:
                for event in self.wire.events():
                    return event
                self.wire.receive_data(await self.stream.receive())


@everywhere
@served
async def test_a_websocket_whose_client_has_left(where: str) -> None:
    reports, heard = Reports(), []
    app = an_app(reports)

    @app.websocket("/chat")
    async def chat(socket: WebSocket) -> None:
        await socket.accept()
        try:
            while True:
                heard.append(text := await socket.receive_text())
                await socket.send_text(text)
                if text == "write me a novel":
                    await anyio.sleep(60)
        except WebSocketDisconnect:
            heard.append("left")

    async with serving(where, app) as port:
        for text in ("hello", "write me a novel"):
            client = SocketClient(await connect(port))
            await client.open("/chat")
            await client.say(text)
            assert isinstance(await client.event(), wsproto.events.TextMessage)
            await client.stream.aclose()
            await until(lambda: heard[-1] == "left" or len(reports) == 1, "it has ended")
    assert heard == ["hello", "left", "write me a novel"]
    assert reports.kinds == ["disconnect"]
    assert reports[0].name == "WEBSOCKET /chat"


@pytest.mark.parametrize("where", ["hypercorn", "hypercorn-trio"])
@served
async def test_a_stream_of_http_2_that_is_reset_stops_its_handler_and_no_other(where: str) -> None:
    reports = Reports()
    app = an_app(reports)

    @app.get("/slow/{seconds}")
    async def slow(seconds: float) -> str:
        await anyio.sleep(seconds)
        return "slow but sure"

    async with serving(where, app) as port, await connect(port) as client:
        wire = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        wire.initiate_connection()
        for stream, seconds in ((1, 60), (3, 0.5)):
            names = [
                (":method", "GET"),
                (":path", f"/slow/{seconds}"),
                (":scheme", "http"),
                (":authority", "test"),
            ]
            wire.send_headers(stream, names, end_stream=True)
        await client.send(wire.data_to_send())
        await anyio.sleep(0.1)
        wire.reset_stream(1)
        await client.send(wire.data_to_send())
        await until(lambda: len(reports) == 1, "the stop is reported")
        assert reports.kinds == ["disconnect"]
        assert reports[0].name == "GET /slow/60"
        body = b""
        with anyio.fail_after(15):
            while body != b'"slow but sure"':
                for event in wire.receive_data(await client.receive()):
                    if isinstance(event, h2.events.DataReceived):
                        body += event.data
    assert len(reports) == 1
