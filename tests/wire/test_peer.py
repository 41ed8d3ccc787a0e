"""Asking and telling: requests, notifications and errors, both ways."""

from __future__ import annotations

import contextvars
import json
import logging
import socket
from contextvars import ContextVar
from typing import Any

import anyio
import msgspec
import pytest

from quiesce import Reason
from quiesce.wire import (
    ConnectionEnded,
    FrameTooLong,
    Limits,
    Notification,
    Peer,
    Request,
    RpcError,
    SocketTransport,
    memory_pair,
    params_as,
)
from tests.kernel.temperaments import turns
from tests.wire.bare import Worker, answers, asks, bare_and_peer, complaints, echo, tells, two_peers

ANYTHING = [None, True, 1, -1.5, "text", "ünïcödé ☃ \n", [], {}, [1, [2]], {"a": {"b": None}}]


async def test_both_sides_ask_and_are_answered() -> None:
    async with two_peers() as (us, them):
        for value in ANYTHING:
            assert await us.request("echo", value) == value
            assert await them.request("echo", value) == value


async def test_a_request_without_parameters_says_nothing_of_them() -> None:
    async with bare_and_peer() as (bare, peer), anyio.create_task_group() as group:

        async def ask() -> None:
            assert await peer.request("hello") == 42

        group.start_soon(ask)
        assert await bare.line() == {"jsonrpc": "2.0", "id": 1, "method": "hello"}
        await bare.send(answers(1, 42))


async def test_answers_find_their_calls_in_whatever_order_they_come() -> None:
    got: dict[int, Any] = {}
    async with bare_and_peer() as (bare, peer), anyio.create_task_group() as group:

        async def ask(number: int) -> None:
            got[number] = await peer.request("work", {"number": number})

        for number in range(5):
            group.start_soon(ask, number)
        asked = await bare.lines(5)
        assert len({message["id"] for message in asked}) == 5
        await bare.send(*(answers(it["id"], it["params"]["number"] * 10) for it in reversed(asked)))
    assert got == {number: number * 10 for number in range(5)}


async def test_each_request_is_answered_when_it_is_done_not_when_it_is_its_turn() -> None:
    worker = Worker()
    async with bare_and_peer({"work": worker}) as (bare, _):
        await bare.send(asks(1, "work"), asks(2, "echo", 2))
        assert await bare.line() == answers(2, 2)
        worker.go.set()
        assert await bare.line() == answers(1, "done")


async def test_the_id_is_given_back_as_it_came() -> None:
    async with bare_and_peer() as (bare, _):
        for number in (0, -1, 2**53, 2**63, 2**70, "", "seven", "☃", 1.5, None):
            await bare.send(asks(number, "echo", "x"))
            assert await bare.line() == answers(number, "x")


async def test_an_error_of_the_handler_is_the_error_of_the_caller() -> None:
    async def refuse(params: Any) -> None:
        raise RpcError(-32042, "no such file", {"path": params})

    async with two_peers(theirs={"open": refuse}) as (us, _):
        with pytest.raises(RpcError, match="no such file") as caught:
            await us.request("open", "a.txt")
    assert (caught.value.code, caught.value.data) == (-32042, {"path": "a.txt"})


async def test_an_error_nobody_foresaw_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(params: Any) -> None:
        raise LookupError("page 7")

    async with two_peers(theirs={"read": broken}) as (us, _):
        with pytest.raises(RpcError, match="Internal error") as caught:
            await us.request("read")
        assert await us.request("echo", 1) == 1
    assert (caught.value.code, caught.value.data) == (-32603, {"details": "LookupError: page 7"})
    assert "they: the handler of 'read' failed" in caplog.text
    assert "page 7" in caplog.text


async def test_a_result_that_json_cannot_say_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def strange(params: Any) -> Any:
        return object()

    async def ill_formed(params: Any) -> Any:
        return "\ud800"

    async with two_peers(theirs={"strange": strange, "ill-formed": ill_formed}) as (us, _):
        for method in ("strange", "ill-formed"):
            with pytest.raises(RpcError, match="Internal error"):
                await us.request(method)


async def test_an_error_that_json_cannot_say_is_said_as_well_as_it_can() -> None:
    async def strange(params: Any) -> Any:
        raise RpcError(7, "odd \ud800 text", object())

    async with two_peers(theirs={"strange": strange}) as (us, _):
        with pytest.raises(RpcError, match=r"odd \? text") as caught:
            await us.request("strange")
    assert (caught.value.code, caught.value.data) == (7, None)


async def test_parameters_that_json_cannot_say_are_refused_here_and_nothing_is_sent() -> None:
    async with two_peers() as (us, _):
        with pytest.raises(TypeError, match="object cannot be written as JSON"):
            await us.request("echo", object())
        with pytest.raises(TypeError):
            await us.notify("echo", {"x": object()})
        assert us.statistics().calls_waiting == 0
        assert await us.request("echo", 1) == 1


async def test_an_unknown_method_is_answered_with_its_name() -> None:
    async with bare_and_peer() as (bare, _):
        await bare.send(asks(1, "nothing"), tells("nothing"))
        error = (await bare.line())["error"]
        assert error == {
            "code": -32601,
            "message": "Method not found: nothing",
            "data": {"method": "nothing"},
        }
        await bare.ping()


async def test_a_fallback_takes_all_other_methods() -> None:
    heard = anyio.Event()
    told: list[Any] = []

    async def on_request(method: str, params: Any) -> Any:
        return [method, params]

    async def on_notification(method: str, params: Any) -> None:
        told.append([method, params])
        heard.set()

    options = {"on_request": on_request, "on_notification": on_notification}
    async with two_peers(their_options=options) as (us, _):
        assert await us.request("what", {"a": 1}) == ["what", {"a": 1}]
        assert await us.request("ever") == ["ever", None]
        assert await us.request("echo", 3) == 3
        await us.notify("$/progress", 1)  # of the protocol itself: who does not know it, ignores it
        await us.notify("news", [1])
        await heard.wait()
        assert told == [["news", [1]]]


async def test_parameters_are_decoded_as_their_handler_wants_them() -> None:
    class Move(msgspec.Struct):
        x: int
        y: int = 0

    async def move(params: Move) -> int:
        assert isinstance(params, Move)
        return params.x + params.y

    async with two_peers(theirs={"move": Request(move, params_as(Move))}) as (us, _):
        assert await us.request("move", {"x": 1, "y": 2, "unknown": 3}) == 3
        with pytest.raises(RpcError, match=r"Invalid params: .*`int`.*x") as caught:
            await us.request("move", {"x": "one"})
        assert caught.value.code == -32602
        with pytest.raises(RpcError, match="Invalid params"):
            await us.request("move")
        assert await us.request("echo", {"x": 5}, decode=params_as(Move)) == Move(5)
        with pytest.raises(ValueError, match="Expected `int`"):
            await us.request("echo", {"x": "5"}, decode=params_as(Move))


async def test_parameters_that_are_nested_too_deeply_for_their_handler_are_invalid() -> None:
    deep = b"[" * 600 + b"]" * 600
    calls: list[Any] = []

    async def shallow(params: Any) -> None:
        calls.append(params)

    def decode(raw: msgspec.Raw) -> Any:
        raise ValueError("too deep for me")

    async with bare_and_peer({"shallow": Request(shallow, decode)}) as (bare, _):
        await bare.send(b'{"jsonrpc":"2.0","id":1,"method":"shallow","params":' + deep + b"}\n")
        assert (await bare.line())["error"] == {"code": -32602, "message": "Invalid params: too deep for me"}
        assert not calls
        await bare.ping()


async def test_a_notification_is_handled_and_not_answered() -> None:
    told: list[Any] = []

    async def news(params: Any) -> None:
        told.append(params)

    async with bare_and_peer(notifications={"news": news}) as (bare, _):
        await bare.send(tells("news", {"a": 1}), tells("news"))
        await bare.ping()  # its answer would be the second line
        assert told == [{"a": 1}, None]


async def test_a_notification_whose_handler_fails_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []

    async def news(params: Any) -> None:
        told.append(params)
        if params == 1:
            raise LookupError("page 7")

    async with bare_and_peer(notifications={"news": news}) as (bare, _):
        await bare.send(*(tells("news", number) for number in range(3)))
        await bare.ping()
        while len(told) < 3:
            await turns()
    assert told == [0, 1, 2]
    assert "the handler of 'news' failed" in caplog.text


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_notification_that_does_not_fit_is_logged_and_dropped(
    at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []
    taken = anyio.Event()

    def take(number: int) -> None:
        told.append(number)
        taken.set()

    async def later(number: int) -> None:
        take(number)

    news = Notification(take if at_once else later, params_as(int), at_once=at_once)
    async with bare_and_peer(notifications={"news": news}) as (bare, _):
        await bare.send(tells("news", "seven"), tells("news", 7))
        await taken.wait()
    assert told == [7]
    assert "sent parameters that do not fit: 'news'" in caplog.text


async def test_a_lane_that_cannot_be_named_is_logged_and_the_connection_lives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[Any] = []

    async def news(params: Any) -> None:
        told.append(params)

    lanes = {"news": Notification(news, lane=lambda params: params["key"])}
    async with bare_and_peer(notifications=lanes) as (bare, _):
        await bare.send(tells("news", {"key": [1]}), tells("news", {}), tells("news", {"key": 1}))
        await bare.ping()
        while not told:
            await turns()
    assert told == [{"key": 1}]
    assert caplog.text.count("made its handler fail: 'news'") == 2


async def test_what_is_called_at_once_sees_nothing_that_came_later() -> None:
    seen: list[Any] = []

    async def work(params: Any) -> Any:
        seen.append("work")
        return list(seen)

    stop = Notification(lambda params: seen.append("stop"), at_once=True)
    async with bare_and_peer({"work": work}, notifications={"stop": stop}) as (bare, _):
        await bare.send(tells("stop"), asks(1, "work"), tells("stop"))
        result = (await bare.line())["result"]
    assert result[0] == "stop"
    assert result.count("work") == 1


async def test_a_handler_at_once_that_fails_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def fail(params: Any) -> None:
        raise LookupError("page 7")

    async with bare_and_peer(notifications={"stop": Notification(fail, at_once=True)}) as (bare, _):
        await bare.send(tells("stop"))
        await bare.ping()
    assert "made its handler fail: 'stop': page 7" in caplog.text


async def test_a_tap_sees_every_message_both_ways_and_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[tuple[str, bytes]] = []

    def tap(way: str, frame: bytes) -> None:
        seen.append((way, frame))
        raise LookupError("the log is full")

    async with bare_and_peer(tap=tap) as (bare, _):
        await bare.send(asks(1, "echo", 5))
        assert await bare.line() == answers(1, 5)
    assert [way for way, _ in seen] == ["in", "out"]
    assert b'"params": 5' in seen[0][1]
    assert seen[1][1] == b'{"jsonrpc":"2.0","id":1,"result":5}'
    assert "the tap failed" in caplog.text


async def test_what_is_answered_can_be_followed_by_more_and_is_answered_once_whatever_that_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def open_(params: Any) -> str:
        return "open"

    def follow(result: Any) -> None:
        peer._connection.sender.send_notification("state", result)
        raise LookupError("page 7")

    async with bare_and_peer({"open": Request(open_, answered=follow)}) as (bare, peer):
        await bare.send(asks(1, "open"))
        assert await bare.lines(2) == [answers(1, "open"), tells("state", "open")]
        await bare.ping()
    assert "what follows failed" in caplog.text


async def test_a_result_of_raw_json_is_sent_on_one_line() -> None:
    async def pretty(params: Any) -> Any:
        return msgspec.Raw(b'{\n  "a": [\n1]\n}')

    async with two_peers(theirs={"pretty": pretty}) as (us, _):
        assert await us.request("pretty") == {"a": [1]}


async def test_a_message_that_is_too_long_to_be_sent_is_refused_here() -> None:
    async def long(params: Any) -> str:
        return "x" * 2000

    limits = {"limits": Limits(frame=1000)}
    async with two_peers(theirs={"long": long}, our_options=limits, their_options=limits) as (us, _):
        with pytest.raises(
            FrameTooLong, match=r"'echo' cannot be sent: it is \d+ bytes long, and the limit is 1000"
        ):
            await us.request("echo", "x" * 1000)
        with pytest.raises(FrameTooLong):
            await us.notify("echo", "x" * 1000)
        with pytest.raises(RpcError, match=r"cannot be sent: it is .* bytes long") as caught:
            await us.request("long")
        assert caught.value.code == -32603
        assert await us.request("echo", "x" * 900) == "x" * 900
        assert us.statistics().calls_waiting == 0


async def test_answers_to_nothing_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async with bare_and_peer() as (bare, peer):
        for number in (99, -1, "x", 1.5, None):
            await bare.send(answers(number, "what?"))
            await bare.send({"jsonrpc": "2.0", "id": number, "error": {"code": 1, "message": "odd"}})
        await bare.ping()
        assert not peer.closed
    assert "could not understand a message of ours: odd" in caplog.text  # an error for nobody: it was ours


@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"code": "x", "message": "y"}},
        {"error": 7},
        {"error": {"message": "no code"}},
        {"result": 1, "jsonrpc": 2},
        {},
    ],
    ids=str,
)
async def test_an_answer_that_is_none_ends_its_call(answer: dict[str, Any]) -> None:
    async with bare_and_peer() as (bare, peer), anyio.create_task_group() as group:

        async def ask() -> None:
            with pytest.raises(RpcError, match=r"the peer's answer|an error that is not valid"):
                await peer.request("x")

        group.start_soon(ask)
        asked = await bare.line()
        await bare.send({"jsonrpc": "2.0", "id": asked["id"], **answer})


async def test_an_answer_that_says_it_has_no_error_has_none() -> None:
    async with bare_and_peer() as (bare, peer), anyio.create_task_group() as group:

        async def ask(expected: Any) -> None:
            assert await peer.request("x") == expected

        group.start_soon(ask, 5)
        await bare.send({**answers((await bare.line())["id"], 5), "error": None})
        group.start_soon(ask, None)
        await bare.send({"jsonrpc": "2.0", "id": (await bare.line())["id"], "error": None})


async def test_only_the_first_of_two_answers_counts() -> None:
    async with bare_and_peer() as (bare, peer), anyio.create_task_group() as group:

        async def ask() -> None:
            assert await peer.request("x") == 1

        group.start_soon(ask)
        asked = await bare.line()
        await bare.send(answers(asked["id"], 1), answers(asked["id"], 2))


async def test_a_duplicate_id_is_refused_and_the_request_at_work_is_not_disturbed() -> None:
    worker = Worker()
    async with bare_and_peer({"work": worker}) as (bare, _):
        await bare.send(asks(1, "work"), asks(1, "echo", "again"))
        refused = await bare.line()
        assert refused["id"] == 1
        assert refused["error"]["code"] == -32600
        assert "id 1 is that of a request still unanswered" in refused["error"]["message"]
        worker.go.set()
        assert await bare.line() == answers(1, "done")
        await bare.send(asks(1, "echo", "again"))
        assert await bare.line() == answers(1, "again")


async def test_requests_without_a_name_are_all_answered() -> None:
    async with bare_and_peer() as (bare, _):
        await bare.send(*(asks(None, "echo", number) for number in range(3)))
        assert sorted(it["result"] for it in await bare.lines(3)) == [0, 1, 2]


async def test_what_a_handler_puts_into_its_context_reaches_no_other_handler() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")
    user.set("the opener")

    async def login(name: str) -> str:
        before = user.get()
        user.set(name)
        await turns()
        return before

    async with two_peers(theirs={"login": login}, their_options={"limits": Limits(concurrent=1)}) as (us, _):
        found: list[str] = []

        async def ask(name: str) -> None:
            found.append(await us.request("login", name))

        async with anyio.create_task_group() as group:
            for name in ("anne", "bert", "cleo"):
                group.start_soon(ask, name)
    assert found == ["the opener"] * 3


async def test_the_same_handler_serves_many_at_once() -> None:
    async with two_peers() as (us, them), anyio.create_task_group() as group:

        async def ask(peer: Peer, number: int) -> None:
            assert await peer.request("echo", number) == number

        for number in range(200):
            group.start_soon(ask, us, number)
            group.start_soon(ask, them, number)


async def test_statistics_say_what_a_peer_is_at() -> None:
    worker = Worker()
    async with two_peers(theirs={"work": worker}) as (us, them), anyio.create_task_group() as group:
        group.start_soon(us.request, "work")
        await worker.begun.wait()
        assert us.statistics().calls_waiting == 1
        assert them.statistics().requests_at_work == 1
        assert them.statistics().reading
        worker.go.set()
    assert us.statistics().calls_waiting == 0
    assert them.statistics().requests_at_work == 0
    assert not them.statistics().reading


# Bad use ----------------------------------------------------------------------------------------------------


async def test_a_peer_that_is_not_open_says_how_it_is_opened() -> None:
    peer = Peer(memory_pair()[0])
    for use in (lambda: peer.request("x"), lambda: peer.notify("x"), peer.close, peer.wait_closed):
        with pytest.raises(RuntimeError, match=r"is not open: use `async with Peer\(\.\.\.\)`"):
            await use()
    with pytest.raises(RuntimeError, match="is not open"):
        peer.cancel()
    assert not peer.closed
    assert "new" in repr(peer)


async def test_a_peer_is_used_once() -> None:
    async with two_peers() as (us, _):
        with pytest.raises(RuntimeError, match="was opened before; it is used once"):
            us.start()


@pytest.mark.parametrize("given", [None, 7, "stdio", object()])
def test_what_is_no_transport_is_refused(given: object) -> None:
    with pytest.raises(TypeError, match="a peer is connected by a Transport"):
        Peer(given)


def test_what_is_no_handler_is_refused() -> None:
    one, _ = memory_pair()

    async def generates(params: Any) -> Any:
        yield 1

    with pytest.raises(TypeError, match="the handler of 'x' must be a function, not int"):
        Peer(one, {"x": 7})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="must not be a generator"):
        Peer(one, {"x": generates})
    with pytest.raises(TypeError, match="'x' is called at once, so it must be a plain function"):
        Peer(one, notifications={"x": Notification(echo, at_once=True)})
    with pytest.raises(TypeError, match="a method is named by a str"):
        Peer(one, {7: echo})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="limits must be a Limits"):
        Peer(one, limits={"frame": 7})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Limits\.frame must be a whole number of at least 1"):
        Limits(frame=0)


async def test_a_request_after_the_end_says_why() -> None:
    async with two_peers() as (us, them):
        await us.close(reason="enough")
        with pytest.raises(ConnectionEnded, match=r"'echo' cannot be sent: we is closed \(user: enough\)"):
            await us.request("echo", 1)
        with pytest.raises(ConnectionEnded, match="cannot be sent"):
            await us.notify("echo", 1)
        await them.wait_closed()
        with pytest.raises(ConnectionEnded, match="the other side has closed it"):
            await them.request("echo", 1)


async def test_nothing_is_logged_where_nothing_is_wrong(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with two_peers() as (us, _):
            await us.request("echo", 1)
            await us.notify("nobody", 1)
    assert not complaints(caplog)


who: ContextVar[str | None] = ContextVar("who", default=None)


async def forever(params: Any) -> None:
    await anyio.sleep_forever()


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "asyncio-eager", "uvloop")
async def test_a_request_after_a_pause_does_not_run_in_the_context_of_another() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    async def sign_in(name: str) -> str | None:
        who.set(name)
        await anyio.sleep(0.001)
        return name

    async def whoami(params: Any) -> str | None:
        return who.get()

    async def lines(count: int) -> list[Any]:
        data = b""
        while data.count(b"\n") < count:
            await anyio.wait_readable(theirs)
            data += theirs.recv(65536)
        return [json.loads(line) for line in data.splitlines()]

    def line(number: int, method: str, params: Any) -> bytes:
        return (
            json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"
        )

    limits = Limits(concurrent=1, waiting=1)
    with theirs:
        async with Peer(SocketTransport(ours), {"sign_in": sign_in, "whoami": whoami}, limits=limits):
            theirs.send(b"".join(line(number, "sign_in", f"alice{number}") for number in range(4)))
            await lines(4)
            theirs.send(line(9, "whoami", None))
            assert (await lines(1))[0]["result"] is None


async def test_a_hook_that_fails_costs_nobody_behind_it_his_answer(caplog: pytest.LogCaptureFixture) -> None:
    one, other = memory_pair()

    def stopping(params: Any, reason: Reason) -> None:
        raise RuntimeError("a mistake")

    async with Peer(one, {"forever": Request(forever, stopping=stopping), "echo": echo}), Peer(other) as peer:
        with caplog.at_level(logging.CRITICAL, "quiesce"):
            with anyio.move_on_after(0.01):
                await peer.request("forever")
            assert await peer.request("echo", 1) == 1
