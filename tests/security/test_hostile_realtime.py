"""Threat: the server of a realtime session is hostile: it says what no event is, calls what is not there, never ends, floods, and does not read."""

from __future__ import annotations

import logging
import socket
import threading
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from hashlib import sha1
from struct import pack
from typing import Any, get_args

import anyio
import msgspec
import pytest
from websockets.frames import Frame, Opcode

from quiesce.agents import FunctionTool, function_tool
from quiesce.realtime import OpenAIRealtimeWebSocketModel, RealtimeAgent, RealtimeLimits, RealtimeSession
from quiesce.realtime.openai import server_events as server
from quiesce.wire import ConnectionEnded
from tests.kernel.temperaments import virtual_worlds
from tests.realtime.scenes import Reading, reading
from tests.realtime.talk import Talk
from tests.realtime.test_connection_limits import HandLink
from tests.security.test_foreign_text import ATTACKS, check

SENT, BOUND = 1500, 1100
"""Of whatever the server can make us keep: there is no bound if all of what it has sent is kept. What is bounded here is so to 1024."""


class Attacker:
    """The server, by hand: what it says comes at once."""

    def __init__(self, link: HandLink, session: RealtimeSession, heard: Reading) -> None:
        self.link, self.session, self.heard = link, session, heard
        self.sent: list[Any] = []

    def says(self, kind: str, **fields: Any) -> None:
        self.link.says(kind, **fields)

    def comes(self, data: bytes) -> None:
        self.link.data_came(data)

    def calls(self, name: str, arguments: str = "{}", call_id: str = "call_1", **item: Any) -> None:
        fields = {"type": "function_call", "id": f"item of {call_id}", "status": "completed", **item}
        fields |= {"name": name, "arguments": arguments, "call_id": call_id}
        self.says("response.output_item.done", response_id="resp_1", item=fields)

    async def all_taken_in(self) -> None:
        """Wait until whoever reads has come to the last that was said."""
        self.says("the.last")
        last = len([event for event in self.heard.events if event.type == "raw_model_event"])
        while not self._is_last(last):
            await anyio.sleep(0.001)

    def _is_last(self, before: int) -> bool:
        raw = [event.data for event in self.heard.events if event.type == "raw_model_event"][before:]
        return any(event.type == "other" and event.data.get("type") == "the.last" for event in raw)

    def outputs(self) -> list[Any]:
        return [
            item["item"] for item in self.sent if item.get("item", {}).get("type") == "function_call_output"
        ]

    @property
    def errors(self) -> list[str]:
        return [str(event.error) for event in self.heard.of("error")]


class Socket(HandLink):
    """Remembers what was sent."""

    sent: list[Any]

    def send(self, frame: bytes) -> None:
        self.sent.append(msgspec.json.decode(frame))
        super().send(frame)


@asynccontextmanager
async def attacked(
    monkeypatch: pytest.MonkeyPatch, *tools: FunctionTool, **limits: Any
) -> AsyncIterator[Attacker]:
    given = RealtimeLimits(**limits)
    link = Socket(given.frame)
    link.sent = []
    monkeypatch.setattr("quiesce.wire.connect_websocket", lambda *_, **__: link)
    config: Any = {"limits": given}
    model = OpenAIRealtimeWebSocketModel()
    options: Any = {"url": "ws://memory/", "api_key": "none"}
    session = RealtimeSession(model, RealtimeAgent("agent", tools=list(tools)), None, options, config)
    async with session, reading(session) as heard:
        attacker = Attacker(link, session, heard)
        attacker.sent = link.sent
        yield attacker


# What no event is

VALUES = [
    *(b"null", b"true", b"-1", b"1e400", b"9" * 5000, b"NaN", b"[]", b"[[1]]", b"{}", b'{"a":{"b":1}}'),
    *(b'"x"', b'"\\ud800"', b'"\\u001b[2J\\u0000"', b'"\xff"', b"[" * 500 + b"]" * 500, b"[" * 100_000),
]
INSIDE = {
    "item": ["id", "type", "status", "role", "content", "call_id", "name", "arguments", "output"],
    "response": ["id", "status", "status_details", "usage", "conversation_id"],
    "error": ["type", "message", "code", "event_id", "param"],
    "session": ["audio", "output_audio_format", "turn_detection", "prompt"],
}


@pytest.mark.parametrize("kind", [str(each.__struct_config__.tag) for each in get_args(server.Meaningful)])
def test_a_field_of_any_type_is_an_error_event_or_none_and_the_next_event_is_heard(kind: str) -> None:
    talk = Talk()
    common = f'"type":"{kind}","item_id":"i","response_id":"r","delta":"AAAA"'.encode()
    for value in VALUES:
        for field in ("type", "item_id", "response_id", "delta", "content_index", "audio_end_ms", *INSIDE):
            talk.protocol.receive(b'{%s,"%s":%s}' % (common, field.encode(), value))
        for outer, names in INSIDE.items():
            for name in names:
                wrong = (common, outer.encode(), name.encode(), value)
                talk.protocol.receive(b'{%s,"%s":{"type":"function_call","%s":%s}}' % wrong)
        talk.protocol.receive(value)
    [told] = talk.server("response.output_audio.delta", response_id="new", item_id="new", delta="AAAA")
    assert told.data == b"\0\0\0"


@pytest.mark.parametrize("rate", [b"5e-324", b"1e-300", b"1e300", b"0", b"-1", b"1" + b"0" * 400, b'"fast"'])
def test_a_rate_that_no_audio_has_is_no_reason_to_fail(rate: bytes) -> None:
    talk = Talk()
    audio = b'{"output":{"format":{"type":"audio/pcm","rate":%s}}}' % rate
    talk.protocol.receive(b'{"type":"session.updated","session":{"audio":%s}}' % audio)
    talk.says(100)
    talk.tracker.on_play_bytes("item_1", 0, bytes(48))
    talk.server("input_audio_buffer.speech_started")


# What is not there


@function_tool
async def add(a: int, b: int) -> str:
    """Adds."""
    ran.append((a, b))
    return str(a + b)


ran: list[Any] = []


@virtual_worlds
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("rm", '{"a": 1, "b": 2}'),
        ("add\x00", '{"a": 1, "b": 2}'),
        ("ADD", '{"a": 1, "b": 2}'),
        ("__class__", "{}"),
        ("add", ""),
        ("add", "null"),
        ("add", "[1, 2]"),
        ("add", '{"a": "one", "b": 2}'),
        ("add", '{"a": 1, "b": ' + "[" * 900 + "]" * 900 + "}"),
        ("add", '{"a": ' + "[" * 200_000),
        ("add", '{"a": 1, "b": ' + "9" * 5000 + "}"),
        ("add", '{"a": 1, "b": "' + "x" * 1_000_000 + '"}'),
    ],
    ids=range(12),
)
async def test_what_is_not_there_or_not_so_is_answered_and_nothing_runs(
    monkeypatch: pytest.MonkeyPatch, name: str, arguments: str
) -> None:
    ran.clear()
    async with attacked(monkeypatch, add) as attacker:
        attacker.calls(name, arguments)
        await attacker.heard.until(attacker.outputs)
        [output] = attacker.outputs()
        assert output["call_id"] == "call_1"
        assert len(output["output"]) < 5000
        attacker.calls("add", '{"a": 1, "b": 2}', "call_2")
        await attacker.heard.until(lambda: len(attacker.outputs()) == 2)
    assert ran == [(1, 2)]


@virtual_worlds
async def test_what_is_approved_is_what_was_shown_though_another_call_has_its_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []

    @function_tool(needs_approval=True)
    async def shell(command: str) -> str:
        made.append(command)
        return ""

    async with attacked(monkeypatch, shell) as attacker:
        session = attacker.session
        attacker.calls("shell", '{"command": "ls"}', "call_1")
        asked = await attacker.heard.until_kind("tool_approval_required")
        for number in range(1100):  # more than are remembered
            attacker.calls("missing", "{}", f"other_{number}")
        for attempt in ("output_item.done", "item again"):
            attacker.calls("shell", '{"command": "rm -rf ~"}', "call_1", id=attempt)
        item = {
            "type": "function_call",
            "id": "item of call_1",
            "call_id": "call_1",
            "arguments": '{"command": "rm"}',
        }
        attacker.says("conversation.item.added", item=item)
        await attacker.all_taken_in()
        assert asked.arguments == '{"command": "ls"}'
        await session.approve_tool_call("call_1")
        await attacker.heard.until(lambda: made)
        await attacker.heard.until_kind("tool_end")
        attacker.calls("shell", '{"command": "rm -rf ~"}', "call_1")
        await attacker.all_taken_in()
    assert made == ["ls"]
    assert len(attacker.heard.of("tool_start")) == 1


# What grows

EVENTS = 1_000_000  # somebody reads: what is kept is not what waits for them


@virtual_worlds
async def test_calls_at_work_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    at_work = most = 0

    @function_tool
    async def wait() -> str:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        try:
            await anyio.Event().wait()
        finally:
            at_work -= 1
        return ""

    async with attacked(monkeypatch, wait, events=EVENTS) as attacker:
        for number in range(SENT):
            attacker.calls("wait", "{}", f"call_{number}")
        await anyio.sleep(1)
    assert most <= BOUND


@virtual_worlds
async def test_what_is_known_of_responses_that_never_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with attacked(monkeypatch, events=EVENTS) as attacker:
        for number in range(SENT):
            attacker.says("response.created", response={"id": f"resp_{number}"})
            attacker.says("input_audio_buffer.speech_started")
        await attacker.all_taken_in()
        model: Any = attacker.session.model
        assert len(model._connection._protocol._state.responses.silenced) <= BOUND
        assert len(attacker.session._task._responses) <= BOUND


@virtual_worlds
async def test_audio_that_is_cut_again_and_again_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async with attacked(monkeypatch, events=EVENTS) as attacker:
        for number in range(SENT):
            place = {"response_id": "resp_1", "item_id": f"item_{number}"}
            attacker.says("response.output_audio.delta", delta="AAAA" * 100, **place)
            attacker.says("input_audio_buffer.speech_started")
        await attacker.all_taken_in()
        assert len(attacker.session._task._interrupted) <= BOUND


@virtual_worlds
async def test_answers_to_calls_are_bounded_while_the_server_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with attacked(monkeypatch, unsent=100_000) as attacker:
        attacker.link.takes = False
        for number in range(40):
            attacker.calls(f"{number}" + "x" * 50_000, "{}", f"call_{number}")
        with suppress(AssertionError):  # it may have been given up
            await attacker.all_taken_in()
        pending = attacker.link.pending
        attacker.link.takes = True
        attacker.link._write_soon()
    assert pending < 1_000_000


@virtual_worlds
async def test_a_name_that_is_long_is_not_long_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    async with attacked(monkeypatch, unsent=1000) as attacker:
        attacker.link.takes = False
        attacker.calls("x" * 300_000)
        await attacker.all_taken_in()
        report = await attacker.session.close()
    assert len(str(report)) < 5000
    assert all(len(text) < 5000 for text in attacker.errors)


@virtual_worlds
async def test_fragments_without_end_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async with attacked(monkeypatch, frame=10_000) as attacker:
        framing: Any = attacker.link.framing
        attacker.comes(Frame(Opcode.TEXT, b"[", fin=False).serialize(mask=False))
        for _ in range(200):
            attacker.comes(Frame(Opcode.CONT, b"1," * 1000, fin=False).serialize(mask=False))
            assert len(framing._begun) <= 10_000
        for _ in range(1000):
            attacker.comes(Frame(Opcode.CONT, b"", fin=False).serialize(mask=False))
        attacker.comes(Frame(Opcode.CONT, b"1]").serialize(mask=False))
        await attacker.all_taken_in()
        assert attacker.errors == ["a message of the server is longer than 10000 bytes, and was skipped"]


# How it ends


@virtual_worlds
async def test_what_is_compressed_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = packer.compress(bytes(30_000_000)) + packer.flush(zlib.Z_SYNC_FLUSH)
    async with attacked(monkeypatch) as attacker:
        attacker.comes(b"\xc1\x7f" + pack(">Q", len(bomb)) + bomb)  # with the bit that says so
        await attacker.heard.until_end()
    assert isinstance(attacker.heard.error, ConnectionEnded)
    assert "rules of WebSocket" in str(attacker.heard.error)


@virtual_worlds
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x03",
        *(pack(">H", code) + b"x" for code in (0, 999, 1004, 1005, 1006, 1011, 1015, 4999, 65535)),
        pack(">H", 1000) + b"\xff\xfe",
        pack(">H", 1000) + b"x" * 200,
    ],
    ids=range(13),
)
async def test_whatever_the_last_frame_holds_it_is_the_end(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    async with attacked(monkeypatch) as attacker:
        attacker.comes(
            bytes([0x88])
            + (bytes([len(body)]) if len(body) < 126 else b"\x7e" + pack(">H", len(body)))
            + body
        )
        await attacker.heard.until_end()
    assert attacker.heard.error is None or isinstance(attacker.heard.error, ConnectionEnded)
    assert attacker.session.report is not None
    assert attacker.session.report.clean


@virtual_worlds
@pytest.mark.parametrize("text", [text for text in ATTACKS if text != "\ud800"], ids=range(len(ATTACKS) - 1))
async def test_what_it_says_reaches_no_log_and_no_report_as_it_is(
    monkeypatch: pytest.MonkeyPatch, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "quiesce")
    async with attacked(monkeypatch, add) as attacker:
        attacker.says("error", error={"type": text, "message": text, "code": text})
        attacker.says(text)
        attacker.calls(text, text, text)
        attacker.says("response.done", response={"id": text, "status": "failed"})
        await attacker.all_taken_in()
        attacker.comes(Frame(Opcode.CLOSE, pack(">H", 4000) + text.encode()).serialize(mask=False))
        await attacker.heard.until_end()
    assert attacker.session.report is not None
    check(str(attacker.session.report))
    for record in caplog.records:
        check(logging.Formatter("%(message)s").format(record))


# Shaking hands


@contextmanager
def answers(answer: Callable[[bytes], bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers the first request so, and says nothing more; its address, and the requests that came."""
    requests: list[bytes] = []
    over = threading.Event()

    def serve() -> None:
        with suppress(OSError), listener:
            listener.settimeout(5)
            connection, _ = listener.accept()
            with connection:
                requests.append(connection.recv(65536))
                connection.sendall(answer(requests[0]))
                over.wait(5)

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"ws://127.0.0.1:{listener.getsockname()[1]}/", requests
    finally:
        over.set()
        if not requests:
            with suppress(OSError):
                socket.create_connection(listener.getsockname()).close()
        thread.join()


def accepts(request: bytes, more: bytes = b"", headers: bytes = b"") -> bytes:
    [key] = [
        line[19:].strip()
        for line in request.split(b"\r\n")
        if line.lower().startswith(b"sec-websocket-key: ")
    ]
    accepted = b64encode(sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11", usedforsecurity=False).digest())
    head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    return head + b"Sec-WebSocket-Accept: " + accepted + b"\r\n" + headers + b"\r\n" + more


def session_at(url: str) -> RealtimeSession:
    config: Any = {"limits": RealtimeLimits(connect=1)}
    options: Any = {"url": url, "api_key": "sk-secret0123456789"}
    return RealtimeSession(OpenAIRealtimeWebSocketModel(), RealtimeAgent("agent"), None, options, config)


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_the_key_is_not_carried_to_where_a_server_points(status: int) -> None:
    with answers(lambda request: b"") as (other, elsewhere):
        redirect = f"HTTP/1.1 {status} Moved\r\nLocation: {other}\r\nContent-Length: 0\r\n\r\n".encode()
        with (
            answers(lambda request: redirect) as (url, requests),
            pytest.raises(ConnectionError, match=str(status)) as caught,
        ):
            await session_at(url).enter()
        assert b"sk-secret" in requests[0]
        assert elsewhere == []
    assert "sk-secret" not in str(caught.value)


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_an_extension_that_nobody_asked_for_is_refused() -> None:
    headers = b"Sec-WebSocket-Extensions: permessage-deflate\r\n"
    with (
        answers(lambda request: accepts(request, headers=headers)) as (url, _),
        pytest.raises(ConnectionError, match="extension"),
    ):
        await session_at(url).enter()


@pytest.mark.real_time
@pytest.mark.worlds("asyncio", "trio")
async def test_a_close_that_comes_with_the_handshake_is_told_at_once_and_with_its_words() -> None:
    close = Frame(Opcode.CLOSE, pack(">H", 4001) + b"no such key").serialize(mask=False)
    with answers(lambda request: accepts(request, close)) as (url, _):
        with pytest.raises((ConnectionError, ConnectionEnded)) as caught:
            async with session_at(url) as session:
                async for _ in session:
                    pass
        assert "no such key" in str(caught.value)
