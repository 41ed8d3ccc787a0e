"""`lifespan`: the server's own scope, in memory. Signals are in `test_signals`."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from quiesce import Grace, Reason, Scope, StopReport, current_scope, current_token, stream
from quiesce.asgi import StopOnDisconnect, lifespan, server_scope
from quiesce.asgi.server import server_of
from quiesce.asgi.types import Receive, Send
from tests.asgi.memory import Client, Reports, answer, be_deaf, watched

pytestmark = pytest.mark.worlds("asyncio", "asyncio-eager", "trio")


def asking(client: Client, state: Mapping[str, Any]) -> Client:
    client.scope["state"] = dict(state)
    return client


async def stop_and_time(state: Mapping[str, Any], reason: str = "told to end") -> float:
    """Stop the server's scope, as a signal does; how long that took."""
    scope = server_scope({"state": state})
    assert scope is not None
    started = anyio.current_time()
    await scope.close(reason=reason)
    return anyio.current_time() - started


async def test_requests_in_flight_are_stopped_all_at_once_with_the_reason_of_the_server() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        try:
            await anyio.sleep(3600)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
            seen.append(str(current_token().reason))

    watched_app, reports = watched(app)
    async with lifespan(grace=Grace())(None) as state:
        clients = [asking(Client(), state) for _ in range(5)]
        handles = [current_scope().spawn(client.ask, watched_app) for client in clients]
        await anyio.sleep(1)
        assert await stop_and_time(state) == pytest.approx(1, abs=0.1)
        for handle in handles:
            await handle.wait()
    assert seen == ["user: told to end"] * 5
    assert len(reports) == 5
    assert [client.status for client in clients] == [503] * 5


async def test_requests_have_time_to_come_to_their_end_and_hear_their_token_at_once() -> None:
    heard: list[float] = []

    async def to_the_end() -> None:
        """Needs things of its own, and time for them."""
        async with Scope("late"):
            async for _ in stream(numbers()):
                pass

    async def numbers() -> AsyncIterator[int]:
        await anyio.sleep(1)
        yield 1

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        if scope["path"] == "/token":
            await current_token().wait()
            heard.append(anyio.current_time())
        else:
            await anyio.sleep(2 if scope["path"] == "/short" else 3600)
            await to_the_end()
        await answer(send)

    reports = Reports()
    watched_app = StopOnDisconnect(app, on_stop=reports.take)
    clients = {}
    async with lifespan(grace=Grace(cooperate=4))(None) as state:
        for path in ("/short", "/long", "/token"):
            clients[path] = asking(Client(path=path), state)
            current_scope().spawn(clients[path].ask, watched_app)
        await anyio.sleep(1)
        stopped = anyio.current_time()
        server = server_of({"state": state})
        assert server is not None
        server.stop(Reason("shutdown", "SIGTERM"))  # as a signal does
        await anyio.sleep(5)
        assert heard == [pytest.approx(stopped, abs=0.1)]
    assert reports.kinds == ["shutdown"]
    assert {path: client.status for path, client in clients.items()} == {
        "/short": 200,
        "/long": 503,
        "/token": 200,
    }


async def test_a_signal_that_is_ignored_stops_no_server() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await answer(send)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a script
    try:
        async with lifespan()(None) as state:
            signal.raise_signal(signal.SIGINT)
            await anyio.sleep(1)
            client = asking(Client(), state)
            await client.ask(StopOnDisconnect(app))
    finally:
        signal.signal(signal.SIGINT, before)
    assert client.status == 200


async def test_a_request_that_comes_when_the_server_stops_is_refused() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        raise AssertionError("it must not start")

    async with lifespan()(None) as state:
        await stop_and_time(state)
        client = asking(Client(), state)
        await client.ask(StopOnDisconnect(app))
        socket = asking(Client(kind="websocket"), state)
        await socket.ask(StopOnDisconnect(app))
    assert client.status == 503
    assert (b"retry-after", b"1") in client.sent[0]["headers"]
    assert socket.sent == [{"type": "websocket.close", "code": 1012}]


async def test_a_websocket_is_closed_with_service_restart_when_the_server_stops() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        await receive()

    async with lifespan(grace=Grace())(None) as state:
        client = asking(Client(kind="websocket"), state)
        handle = current_scope().spawn(client.ask, StopOnDisconnect(app))
        await anyio.sleep(1)
        await stop_and_time(state)
        await handle.wait()
    assert [message["type"] for message in client.sent] == ["websocket.accept", "websocket.close"]
    assert client.sent[1]["code"] == 1012


async def test_what_was_spawned_in_the_scope_of_the_server_outlives_its_request_and_ends_with_the_server() -> (
    None
):
    ended: list[str] = []
    reports: list[StopReport] = []

    async def mail() -> None:
        try:
            await anyio.sleep(3600)
        finally:
            ended.append(str(current_token().reason))

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        server = server_scope(scope)
        assert server is not None
        server.spawn(mail)
        await answer(send)

    started = anyio.current_time()
    async with lifespan(on_stop=reports.append)(None) as state:
        await asking(Client(), state).ask(StopOnDisconnect(app))
        assert not ended
    assert anyio.current_time() - started < 1  # the time to cooperate is for requests
    assert ended == ["shutdown: the server stopped"]
    assert reports[0].clean


async def test_an_own_lifespan_is_entered_inside_and_left_first() -> None:
    order: list[str] = []

    @asynccontextmanager
    async def inner(app: object) -> AsyncIterator[dict[str, Any]]:
        order.append(f"in {app}")
        yield {"pool": 1}
        order.append("out")

    async with lifespan(inner, on_stop=lambda report: order.append("closed"))("app") as state:
        assert state["pool"] == 1
        assert server_scope({"state": state}) is not None
    assert order == ["in app", "out", "closed"]


async def test_an_own_lifespan_that_fails_fails_unchanged_and_the_scope_is_closed() -> None:
    reports: list[StopReport] = []

    @asynccontextmanager
    async def inner(app: object) -> AsyncIterator[None]:
        if app is None:
            raise LookupError("no database")
        yield

    with pytest.raises(LookupError, match="no database"):
        async with lifespan(inner, on_stop=reports.append)(None):
            pass
    assert len(reports) == 1


async def test_a_worker_that_does_not_end_is_named_in_the_report_and_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def serve() -> None:
        async with lifespan(grace=Grace(cancel=0.1, terminate=0.1, kill=0))(None) as state:
            scope = server_scope({"state": state})
            assert scope is not None
            scope.spawn(be_deaf, 3, name="worker")
            await anyio.sleep(1)

    started = anyio.current_time()
    await serve()
    assert anyio.current_time() - started < 2
    assert "left: task 'worker', stuck at" in caplog.text
    await anyio.sleep(5)


async def test_an_on_stop_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with lifespan(on_stop=lambda report: 1 / 0)(None):  # type: ignore[arg-type]
        pass
    assert "on_stop of lifespan failed" in caplog.text


async def test_without_a_lifespan_there_is_no_scope_of_the_server() -> None:
    assert server_scope({"type": "http"}) is None
    assert server_scope({"type": "http", "state": {}}) is None


def test_a_grace_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="grace must be a Grace"):
        lifespan(grace=5)  # type: ignore[arg-type]
