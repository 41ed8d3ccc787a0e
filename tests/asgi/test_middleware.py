"""`StopOnDisconnect`, in memory, in the worlds whose time is virtual; uvloop has its turn with real servers."""

from __future__ import annotations

import logging
import math
from typing import Any

import anyio
import pytest

import quiesce
from quiesce import Grace, Scope, current_scope, current_token
from quiesce.asgi import ClientGone, StopOnDisconnect
from quiesce.asgi.types import Message, Receive, Send
from tests.asgi.memory import Client, after, answer, be_deaf, watched

pytestmark = pytest.mark.worlds("asyncio", "asyncio-eager", "trio")


async def test_a_handler_is_cancelled_when_its_client_has_gone_before_the_first_byte() -> None:
    seen: list[object] = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        try:
            await anyio.sleep(3600)
        finally:
            seen.append(current_token().reason)

    watched_app, reports = watched(app)
    client = Client(b"hello")
    current_scope().spawn(after, 1, client.go)
    started = anyio.current_time()
    await client.ask(watched_app)
    assert anyio.current_time() - started == pytest.approx(1, abs=0.1)
    assert [str(reason) for reason in seen] == ["disconnect: the client disconnected"]
    assert reports.kinds == ["disconnect"]
    assert reports[0].clean
    assert str(reports[0]).startswith("scope 'POST /ask' stopped (disconnect: the client disconnected)")
    assert [str(outcome) for outcome in reports[0].outcomes] == ["POST /ask: cancelled"]
    assert client.status == 499  # nobody hears it but middleware in between


async def test_a_handler_is_cancelled_while_it_streams() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await answer(send, b"0", more=True)
        while True:
            await anyio.sleep(0.1)
            await send({"type": "http.response.body", "body": b"1", "more_body": True})

    watched_app, reports = watched(app)
    client = Client()
    current_scope().spawn(after, 0.35, client.go)
    await client.ask(watched_app)
    assert reports.kinds == ["disconnect"]
    assert client.body == b"0111"
    assert not client.is_answered  # the server sees that the answer is not whole


async def test_a_request_that_comes_to_its_end_is_not_touched_and_not_reported() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message["body"]
            if not message["more_body"]:
                break
        await anyio.sleep(1)
        await answer(send, body)

    watched_app, reports = watched(app)
    client = Client(b"a", b"b", b"c")
    await client.ask(watched_app)
    assert (client.status, client.body, reports) == (200, b"abc", [])


async def test_a_client_that_goes_after_its_answer_does_not_stop_background_work() -> None:
    done: list[str] = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await answer(send)
        await anyio.sleep(5)
        done.append("mail sent")

    watched_app, reports = watched(app)
    client = Client()
    current_scope().spawn(after, 1, client.go)
    await client.ask(watched_app)
    assert done == ["mail sent"]
    assert not reports


async def test_an_answer_with_trailers_is_complete_when_they_are_sent() -> None:
    done: list[str] = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [], "trailers": True})
        await send({"type": "http.response.body", "body": b"x"})
        if scope["path"] == "/whole":
            await send({"type": "http.response.trailers", "headers": []})
        await anyio.sleep(1)
        done.append(scope["path"])

    watched_app, reports = watched(app)
    await Client(path="/whole").ask(watched_app)
    await Client(path="/without its trailers").ask(watched_app)
    assert done == ["/whole"]
    assert reports.kinds == ["disconnect"]


@pytest.mark.parametrize("error", [LookupError("no such page"), ExceptionGroup("two", [ValueError("one")])])
async def test_what_the_handler_raises_comes_out_unchanged(error: Exception) -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await anyio.sleep(1)
        raise error

    watched_app, reports = watched(app)
    with pytest.raises(type(error)) as raised:
        await Client().ask(watched_app)
    assert raised.value is error
    assert raised.value.__context__ is None
    assert not reports


async def test_a_handler_that_ignores_its_cancel_is_named_when_the_grace_is_over_and_stays_owned() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await be_deaf(60)
        with pytest.raises(ClientGone):
            await answer(send)
        assert (await receive())["type"] == "http.disconnect"

    watched_app, reports = watched(app, grace=Grace(cancel=0.3, terminate=0.1, kill=0.1))
    owner = await Scope.open("application", on_error="report")

    async def serve() -> None:
        client = Client()
        current_scope().spawn(after, 1, client.go)
        started = anyio.current_time()
        await client.ask(watched_app)
        assert anyio.current_time() - started == pytest.approx(1.5, abs=0.1)

    await owner.spawn(serve).wait()
    [left] = reports[0].left
    assert (left.kind, left.name) == ("task", "POST /ask")
    assert left.stuck_at.endswith("in be_deaf")
    report = await owner.close(grace=Grace(cancel=100))
    assert report.clean, report
    assert not report.errors, report


async def test_a_handler_that_swallows_its_cancel_ends_as_it_likes() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        try:
            await anyio.sleep(3600)
        except anyio.get_cancelled_exc_class():
            pass
        with anyio.CancelScope(shield=True):
            await answer(send, b"to nobody")

    watched_app, reports = watched(app)
    client = Client()
    current_scope().spawn(after, 1, client.go)
    await client.ask(watched_app)
    assert [outcome.state for outcome in reports[0].outcomes] == ["finished"]
    assert client.body == b"to nobody"


async def test_a_clean_up_of_the_handler_has_its_time() -> None:
    done: list[str] = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        try:
            await anyio.sleep(3600)
        finally:
            with anyio.CancelScope(shield=True):  # for trio
                await anyio.sleep(2)
            done.append("rolled back")

    watched_app, reports = watched(app)
    client = Client()
    current_scope().spawn(after, 1, client.go)
    await client.ask(watched_app)
    assert done == ["rolled back"]
    assert reports[0].clean


async def test_what_the_handler_owned_has_ended_when_the_request_is_over() -> None:
    ended: list[str] = []

    async def upstream() -> Any:
        try:
            while True:
                await anyio.sleep(0.1)
                yield b"word"
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
            ended.append("upstream")

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await answer(send, b"", more=True)
        async for word in quiesce.stream(upstream()):
            await send({"type": "http.response.body", "body": word, "more_body": True})
            await anyio.sleep(10)  # so that the stream waits at its yield

    watched_app, reports = watched(app)
    client = Client()
    current_scope().spawn(after, 1, client.go)
    await client.ask(watched_app)
    assert ended == ["upstream"]
    assert reports[0].clean


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_request_that_the_server_cancels_cleans_up_and_is_reported(times: int) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        try:
            await anyio.sleep(3600)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
            seen.append(str(current_token().reason))

    watched_app, reports = watched(app)
    server = await Scope.open("server")
    request = server.spawn(Client().ask, watched_app)
    await anyio.sleep(1)
    for _ in range(times):
        request.cancel()
        await anyio.sleep(0.1)
    await request.wait()
    assert request.state == "cancelled"
    assert seen == ["cancelled: the server cancelled the request"]
    assert reports.kinds == ["cancelled"]
    assert reports[0].clean
    assert (await server.close()).clean


async def test_a_handler_that_cancels_itself_is_an_error_for_the_server() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        for handle in current_scope().children:
            handle.cancel("for no reason")
        await anyio.sleep(1)

    watched_app, _ = watched(app)
    with pytest.raises(quiesce.ChildCancelled, match="for no reason"):
        await Client().ask(watched_app)


async def test_a_body_that_nobody_reads_is_taken_in_up_to_a_bound() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await anyio.sleep(10)
        await answer(send, str(client.taken).encode())

    watched_app, reports = watched(app)
    client = Client(*[b"x" * 10_000] * 100)
    await client.ask(watched_app)
    assert int(client.body) == 7  # the first that brings it over 64 KiB is the last
    assert not reports


async def test_a_small_body_that_nobody_reads_does_not_hide_that_the_client_has_gone() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await anyio.sleep(3600)

    watched_app, reports = watched(app)
    client = Client(*[b"x"] * 10)
    current_scope().spawn(after, 1, client.go)
    await client.ask(watched_app)
    assert reports.kinds == ["disconnect"]


async def test_a_big_body_is_passed_on_whole_and_in_order() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
            await anyio.sleep(0.01)
        await answer(send, body)

    watched_app, _ = watched(app)
    parts = [bytes([number]) * 20_000 for number in range(100)]
    client = Client(*parts)
    await client.ask(watched_app)
    assert client.body == b"".join(parts)


async def test_a_client_that_waits_for_permission_to_send_gets_it_when_the_handler_reads() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await anyio.sleep(1)
        assert client.taken == 0
        assert (await receive())["body"] == b"hello"
        await answer(send)

    watched_app, _ = watched(app)
    client = Client(b"hello", headers=((b"expect", b"100-continue"),))
    await client.ask(watched_app)
    assert client.status == 200


async def test_a_receive_that_never_ends_does_not_keep_the_loop() -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        for _ in range(5):
            assert (await receive())["type"] == "http.request"
        await anyio.sleep(1)
        await answer(send)

    client = Client()
    await StopOnDisconnect(app)(client.scope, receive, client.send)
    assert client.status == 200


async def test_a_receive_that_fails_fails_in_the_handler() -> None:
    async def receive() -> Message:
        raise OSError("the wire is cut")

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await anyio.sleep(1)
        with pytest.raises(OSError, match="the wire is cut"):
            await receive()
        await answer(send)

    client = Client()
    await StopOnDisconnect(app)(client.scope, receive, client.send)
    assert client.status == 200


async def test_a_handler_that_waits_for_its_body_is_cancelled_and_not_merely_told() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await receive()
        try:
            seen.append((await receive())["type"])
        except anyio.get_cancelled_exc_class():
            seen.append("cancelled")
            raise

    watched_app, reports = watched(app)
    client = Client()
    current_scope().spawn(after, 1, client.go)
    await client.ask(watched_app)
    assert seen == ["cancelled"]
    assert reports.kinds == ["disconnect"]


async def test_a_websocket_that_waits_for_a_message_is_told_that_its_client_has_gone() -> None:
    heard: list[str] = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] != "websocket.disconnect":
            heard.append(message["text"])
        await anyio.sleep(1)
        heard.append("saved")

    watched_app, reports = watched(app)
    client = Client(kind="websocket")
    client.say("hello")
    client.say("world")
    current_scope().spawn(after, 1, client.go)
    await client.ask(watched_app)
    assert heard == ["hello", "world", "saved"]
    assert not reports
    assert not client.sent


async def test_a_websocket_that_is_busy_is_cancelled() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await receive()
        await anyio.sleep(3600)

    watched_app, reports = watched(app)
    client = Client(kind="websocket")
    client.say("write me a novel")
    current_scope().spawn(after, 1, client.go)
    await client.ask(watched_app)
    assert reports.kinds == ["disconnect"]
    assert reports[0].name == "WEBSOCKET /ask"
    assert not client.sent


async def test_a_websocket_that_is_flooded_is_read_up_to_a_bound() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await anyio.sleep(1)
        taken.append(client.taken)

    taken: list[int] = []
    watched_app, _ = watched(app)
    client = Client(kind="websocket")
    for number in range(100):
        client.say(str(number))
    await client.ask(watched_app)
    assert taken == [16]


async def test_of_two_middlewares_the_outer_one_does_it() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await anyio.sleep(3600)

    inner, inner_reports = watched(app)
    outer, outer_reports = watched(inner)
    client = Client()
    current_scope().spawn(after, 1, client.go)
    await client.ask(outer)
    assert outer_reports.kinds == ["disconnect"]
    assert not inner_reports


async def test_without_on_stop_a_stop_is_logged_and_what_is_left_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        if scope["path"] == "/deaf":
            await be_deaf(60)
        else:
            await anyio.sleep(60)

    caplog.set_level(logging.INFO, "quiesce")
    owner = await Scope.open("application", on_error="report")
    for path in ("/polite", "/deaf"):
        client = Client(path=path)
        current_scope().spawn(after, 1, client.go)
        asking = owner.spawn(client.ask, StopOnDisconnect(app, grace=Grace(cancel=0.1, terminate=0, kill=0)))
        await asking.wait()
    levels = [(record.levelname, record.getMessage().partition(" stopped")[0]) for record in caplog.records]
    assert levels == [("INFO", "scope 'POST /polite'"), ("WARNING", "scope 'POST /deaf'")]
    assert (await owner.close(grace=Grace(cancel=100))).clean


async def test_an_on_stop_that_fails_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        await anyio.sleep(3600)

    client = Client()
    current_scope().spawn(after, 1, client.go)
    await client.ask(StopOnDisconnect(app, on_stop=lambda report, scope: 1 / 0))  # type: ignore[arg-type]
    assert "on_stop of StopOnDisconnect failed" in caplog.text


async def test_other_scopes_are_passed_on_as_they_are() -> None:
    seen: list[tuple[object, ...]] = []

    async def app(*args: object) -> None:
        seen.append(args)

    client = Client()
    scope = {"type": "lifespan"}
    await StopOnDisconnect(app)(scope, client.receive, client.send)
    assert seen == [(scope, client.receive, client.send)]


def test_wrong_options_are_refused_with_what_to_write() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None: ...

    with pytest.raises(TypeError, match="grace must be a Grace"):
        StopOnDisconnect(app, grace=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="on_stop must be a function"):
        StopOnDisconnect(app, on_stop="log")  # type: ignore[arg-type]


async def test_a_patient_grace_waits_for_the_handler() -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        try:
            await anyio.sleep(3600)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(600)

    watched_app, reports = watched(app, grace=Grace(cancel=math.inf))
    client = Client()
    current_scope().spawn(after, 1, client.go)
    await client.ask(watched_app)
    assert reports[0].clean
    assert reports[0].elapsed == pytest.approx(600, abs=1)
