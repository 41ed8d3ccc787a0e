"""Bad input: whatever comes is answered as JSON-RPC says, and the connection lives on. And two peers at random."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quiesce.wire import ConnectionEnded, Limits, Notification, Peer, RpcError, memory_pair
from tests.audit_level import FULL
from tests.kernel.temperaments import cancellation, tidy_up, turns
from tests.wire.bare import bare_and_peer, echo

PING = {"jsonrpc": "2.0", "id": "ping", "method": "echo", "params": ["ping"]}
VIRTUAL_WORLDS = pytest.mark.worlds("asyncio", "asyncio-eager", "trio")
EXAMPLES = 2000 if FULL else 60


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.getLogger("quiesce").disabled = True
    yield
    logging.getLogger("quiesce").disabled = False


# A table -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code", "whose"),
    [
        (b"nonsense\n", -32700, None),
        (b"\xff\xfe\n", -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"echo","params":"\xff"}\n', -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"echo"\n', -32700, None),
        (b"[" * 50_000 + b"\n", -32700, None),
        (b"[]\n", -32600, None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"echo"}]\n', -32600, None),
        (b"1\n", -32600, None),
        (b'"text"\n', -32600, None),
        (b"{}\n", -32600, None),
        (b'{"jsonrpc":"2.0","id":1}\n', -32600, 1),
        (b'{"jsonrpc":"2.0","id":1,"method":[]}\n', -32600, 1),
        (b'{"jsonrpc":"2.0","id":true,"method":"echo"}\n', -32600, None),
        (b'{"jsonrpc":"2.0","id":[1],"method":"echo"}\n', -32600, None),
        (b'{"jsonrpc":"1.0","id":1,"method":"echo"}\n', -32600, 1),
        (b'{"id":1,"method":"echo"}\n', -32600, 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"nobody"}\n', -32601, 1),
        (b'{"jsonrpc":"2.0","id":"x","method":""}\n', -32601, "x"),
        (b"x" * 20_000 + b"\n", -32600, None),
    ],
    ids=lambda it: repr(it[:50]) if isinstance(it, bytes) else None,
)
async def test_bad_input_is_answered_and_the_connection_lives_on(line: bytes, code: int, whose: Any) -> None:
    async with bare_and_peer(limits=Limits(frame=60_000 if line[:1] == b"[" else 10_000)) as (bare, _):
        await bare.send(line)
        answer = await bare.line()
        assert (answer["error"]["code"], answer["id"]) == (code, whose)
        assert answer["error"]["message"]
        await bare.ping()


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"   \t \r\n",
        b'{"jsonrpc":"2.0","id":99,"result":1}\n',
        b'{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":"?"}}\n',
        b'{"jsonrpc":"2.0","id":[],"result":1}\n',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"you said what?"}}\n',
        b'{"jsonrpc":"2.0","id":null,"error":7}\n',
        b'{"jsonrpc":"2.0","method":"nobody"}\n',
        b'{"jsonrpc":"2.0","method":"$/cancel_request","params":[[[]]]}\n',
        b'{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":{"a":1}}}\n',
        b'{"jsonrpc":"2.0","method":"$/cancel_request","params":' + b"[" * 900 + b"]" * 900 + b"}\n",
    ],
    ids=lambda it: repr(it[:60]),
)
async def test_what_wants_no_answer_gets_none(line: bytes) -> None:
    async with bare_and_peer() as (bare, _):
        await bare.send(line, PING)
        assert (await bare.line())["id"] == "ping"


async def test_lines_may_end_as_windows_ends_them() -> None:
    async with bare_and_peer() as (bare, _):
        await bare.send(json.dumps(PING).encode() + b"\r\n\r\n")
        assert (await bare.line())["result"] == ["ping"]


async def test_a_message_may_be_split_at_any_byte() -> None:
    line = json.dumps({**PING, "params": ["é☃"]}, ensure_ascii=False).encode() + b"\n"
    async with bare_and_peer() as (bare, _):
        for cut in range(1, len(line)):
            await bare.send(line[:cut])
            await turns(2)
            await bare.send(line[cut:])
            assert (await bare.line())["result"] == ["é☃"]


# At random ---------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
IDS = st.integers(0, 3) | st.sampled_from(["a", None, 1.5, True, 2**70, -0.0]) | JSON
METHODS = (
    st.sampled_from(["echo", "fail", "slow", "note", "at once", "nobody", "$/cancel_request", "$/odd"]) | JSON
)
NEARLY = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0")},
    optional={
        "id": IDS,
        "method": METHODS,
        "params": JSON | st.fixed_dictionaries({"requestId": IDS}),
        "result": JSON,
        "error": JSON | st.fixed_dictionaries({"code": st.integers(), "message": st.text(max_size=5)}),
    },
)
LINES = (
    NEARLY.map(lambda value: json.dumps(value).encode())
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=20)
    | NEARLY.flatmap(lambda value: st.integers(0, 40).map(lambda cut: json.dumps(value).encode()[:cut]))
    | st.integers(90, 300).map(lambda size: b"x" * size)
)


@VIRTUAL_WORLDS
@pytest.mark.audit
@pytest.mark.time_limit(300)
@settings(max_examples=EXAMPLES)
@given(lines=st.lists(LINES, max_size=8), cuts=st.lists(st.integers(0, 400), max_size=4), crlf=st.booleans())
@example(
    lines=[b'{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":[]}}'], cuts=[], crlf=False
)
async def test_whatever_comes_the_connection_lives_on(
    lines: list[bytes], cuts: list[int], crlf: bool
) -> None:
    async def fail(params: Any) -> None:
        raise LookupError(params)

    async def slow(params: Any) -> Any:
        await turns(5)
        return params

    handlers = {"fail": fail, "slow": slow}
    notifications: dict[str, Any] = {
        "note": Notification(slow, lane=lambda params: params["lane"] if isinstance(params, dict) else None),
        "at once": Notification(lambda params: params["what"], at_once=True),
    }
    limits = Limits(frame=200, concurrent=2, waiting=4)
    async with bare_and_peer(handlers, notifications=notifications, limits=limits) as (bare, peer):
        data = b"".join(line + (b"\r\n" if crlf else b"\n") for line in lines)
        edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
        for start, end in pairwise(edges):
            await bare.send(data[start:end])
            await turns(1)
        await bare.send(PING)
        while True:
            message = await bare.line()
            assert message is not None
            assert message["jsonrpc"] == "2.0"
            assert ("result" in message) != ("error" in message)
            if "error" in message:
                assert message["error"]["code"] in (-32700, -32600, -32601, -32602, -32603, -32800)
            if message.get("result") == ["ping"] and message["id"] == "ping":
                break
        assert not peer.closed
        statistics = peer.statistics()
        assert statistics.calls_waiting == 0
    assert peer._connection.requests._open == {}
    assert peer._connection.lanes.busy == {}


# Two peers at random -----------------------------------------------------------------------------------------


@dataclass
class Meeting:
    """Two peers, what each was asked and has answered on the wire, and how each call has ended."""

    peers: list[Peer] = field(default_factory=list)
    asked: list[Counter[Any]] = field(default_factory=lambda: [Counter(), Counter()])
    answered: list[Counter[Any]] = field(default_factory=lambda: [Counter(), Counter()])
    begun: int = 0
    ended: int = 0
    calls: list[anyio.CancelScope] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    gates: list[anyio.Event] = field(default_factory=list)

    def tap_of(self, side: int) -> Any:
        def tap(way: str, frame: bytes) -> None:
            message = json.loads(frame)
            if way == "in" and "method" in message and "id" in message:
                self.asked[side][message["id"]] += 1
            elif way == "out" and "method" not in message:
                self.answered[side][message["id"]] += 1

        return tap

    def handlers_of(self, side: int) -> dict[str, Any]:
        async def slow(params: Any) -> Any:
            self.begun += 1
            try:
                gate = anyio.Event()
                self.gates.append(gate)
                try:
                    await gate.wait()
                except cancellation():
                    await tidy_up(0.001)
                    if params % 2:
                        return "cancelled"
                    raise
                return "slow"
            finally:
                self.ended += 1

        async def back(params: Any) -> Any:
            self.begun += 1
            try:
                return await self.peers[side].request(
                    "back" if params else "slow", params - 1 if params else 0
                )
            finally:
                self.ended += 1

        async def leave(params: Any) -> str:
            await self.peers[side].close()
            return "bye"

        async def fail(params: Any) -> None:
            raise RpcError(7, "no")

        return {"echo": echo, "slow": slow, "back": back, "leave": leave, "fail": fail}

    async def call(self, side: int, method: str, params: Any) -> None:
        outcome = "cancelled"
        with anyio.CancelScope() as scope:
            self.calls.append(scope)
            try:
                await self.peers[side].request(method, params)
                outcome = "result"
            except RpcError:
                outcome = "error"
            except ConnectionEnded:
                outcome = "connection ended"
        self.outcomes.append(outcome)


SIDES = st.integers(0, 1)
STEPS = st.one_of(
    st.tuples(
        st.just("call"), SIDES, st.sampled_from(["echo", "slow", "back", "fail", "nobody"]), st.integers(0, 3)
    ),
    st.tuples(st.just("call"), SIDES, st.sampled_from(["slow", "back"]), st.integers(0, 3)),
    st.tuples(st.just("notify"), SIDES, st.integers(0, 3)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("open gate"), st.integers(0, 9)),
    st.tuples(st.just("turns"), st.integers(1, 9)),
)
ENDS = st.sampled_from(["close 0", "close 1", "both", "leave", "cancel", "nothing"])


@VIRTUAL_WORLDS
@pytest.mark.audit
@pytest.mark.time_limit(300)
@settings(max_examples=EXAMPLES)
@given(
    steps=st.lists(STEPS, max_size=15),
    end=ENDS,
    concurrent=st.integers(1, 3),
    later=st.lists(STEPS, max_size=3),
)
async def test_every_request_ends_exactly_once(
    steps: list[Any], end: str, concurrent: int, later: list[Any]
) -> None:
    meeting = Meeting()
    made = 0

    async def note(params: Any) -> None:
        await turns(params)
        if params == 3:
            await meeting.peers[0].request("echo", params)

    async def take(step: Any) -> None:
        nonlocal made
        match step:
            case ("call", side, method, params):
                made += 1
                group.start_soon(meeting.call, side, method, params)
            case ("notify", side, params):
                try:
                    await meeting.peers[side].notify("note", params)
                except ConnectionEnded:
                    pass
            case ("cancel", which) if which < len(meeting.calls):
                meeting.calls[which].cancel()
            case ("open gate", which) if which < len(meeting.gates):
                meeting.gates[which].set()
            case ("turns", count):
                await turns(count)

    for side, transport in enumerate(memory_pair()):
        meeting.peers.append(
            await Peer.open(
                transport,
                meeting.handlers_of(side),
                notifications={"note": note},
                tap=meeting.tap_of(side),
                limits=Limits(concurrent=concurrent, waiting=50),
            )
        )
    us, them = meeting.peers
    async with anyio.create_task_group() as group:
        for step in steps:
            await take(step)
        await turns(3)
        if end == "leave":
            await take(("call", 0, "leave", None))
        elif end == "cancel":
            us.cancel("enough")
        elif end in ("both", "close 0"):
            group.start_soon(us.close)
        if end in ("both", "close 1"):
            group.start_soon(them.close)
        for step in later:
            await take(step)
        await turns(3)
        assert (await us.close()).clean
        assert (await them.close()).clean
    assert len(meeting.outcomes) == made
    assert meeting.begun == meeting.ended
    assert meeting.asked == meeting.answered
    for peer in meeting.peers:
        connection = peer._connection
        assert len(connection.calls) == 0
        assert connection.requests._open == {}
        assert connection.lanes.busy == {}
        assert (connection.requests.lent, connection.backlog.nested, connection.backlog.notifications) == (
            0,
            0,
            0,
        )
