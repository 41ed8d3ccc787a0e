"""What a connection does with the link below it, which is the test: when it stops reading, when it asks whether the other side is there, when it gives up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.uri import parse_uri

from quiesce.kernel.scope.backend import current_backend
from quiesce.realtime import RealtimeLimits, RealtimeModelSendInterrupt, RealtimePlaybackTracker
from quiesce.realtime.openai.connection import Connection
from quiesce.realtime.openai.protocol import Protocol
from quiesce.wire.base.websocket_framing import WebSocketFraming
from quiesce.wire.links.link import Link, Receiver
from tests.kernel.temperaments import turns, virtual_worlds

pytestmark = virtual_worlds  # how often somebody looks is a matter of time


class HandLink(Link):
    """The test is the socket: it hears what is sent, and says what comes. It takes everything off our hands, unless `takes` is False."""

    def __init__(self, limit: int) -> None:
        protocol = ClientProtocol(parse_uri("ws://memory/"), state=OPEN)
        super().__init__(current_backend(), WebSocketFraming(protocol, limit))
        self.takes = True
        self._is_paused = False
        self.pings: list[float] = []

    async def open(self, limits: Any, scope: Any) -> Link:
        return self

    def comes(self, opcode: Opcode, data: bytes) -> None:
        self.data_came(Frame(opcode, data).serialize(mask=False))

    def says(self, kind: str = "weather.changed", **fields: Any) -> None:
        event = {"type": kind, "event_id": "event_1", **fields}
        self.comes(Opcode.TEXT, msgspec.json.encode(event))

    def paused(self) -> bool:
        return self._is_paused

    def start(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False

    def stop_reading(self) -> None:
        self.receiver = None

    def send_raw(self, data: bytes) -> None:
        if data[:1] == b"\x89":
            self.pings.append(anyio.current_time())
        super().send_raw(data)

    def _write_soon(self) -> None:
        if self.takes:
            self._take()
            self.pending = 0
            self._wrote()

    def abort(self) -> None:
        self._lose(None)


class Listening:
    """Hears what a connection tells, or makes it wait."""

    connection: Connection

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.goes_on = anyio.Event()
        self.goes_on.set()
        self.ended_at: float | None = None

    async def tell(self, event: Any) -> None:
        self.events.append(event)
        await self.goes_on.wait()

    def tell_ended(self) -> None:
        self.ended_at = anyio.current_time()

    @property
    def error(self) -> str:
        [error] = [event.exception for event in self.events if event.type == "exception"]
        return str(error)


@asynccontextmanager
async def connected(**limits: Any) -> AsyncIterator[tuple[HandLink, Listening]]:
    given = RealtimeLimits(**limits)
    link, listening = HandLink(given.frame), Listening()
    connection = Connection(Protocol(RealtimePlaybackTracker()), given, listening.tell, listening.tell_ended)
    listening.connection = connection
    await connection.open(link, {})  # type: ignore[arg-type]
    try:
        yield link, listening
    finally:
        listening.goes_on.set()
        await connection.close()


# Reading


@pytest.mark.parametrize(("size", "most"), [(10, 64), (300_000, 4)])
async def test_so_many_messages_wait_or_so_many_bytes_and_nothing_more_is_read(size: int, most: int) -> None:
    async with connected(bytes=1_000_000) as (link, listening):
        listening.goes_on = anyio.Event()
        link.says(pad="x" * size)
        await turns()  # which is told, and takes its time
        came = 0
        while not link.paused():
            assert came < most
            link.says(pad="x" * size)
            came += 1
        assert came == most
        await anyio.sleep(10)
        assert link.paused()
        listening.goes_on.set()
        await anyio.sleep(1)
        assert not link.paused()
        assert len([event for event in listening.events if event.type == "raw_server_event"]) == came + 1


@pytest.mark.parametrize("in_one_piece", [True, False])
async def test_a_message_that_is_too_long_is_skipped_if_it_can_be(in_one_piece: bool) -> None:
    async with connected(frame=1000) as (link, listening):
        if in_one_piece:
            link.comes(Opcode.TEXT, bytes(1200))
        else:
            for opcode, is_last in ((Opcode.TEXT, False), (Opcode.CONT, False), (Opcode.CONT, True)):
                link.data_came(Frame(opcode, bytes(400), fin=is_last).serialize(mask=False))
        await anyio.sleep(1)
        if in_one_piece:
            assert "1000" in listening.error
        else:
            [error] = [event.error for event in listening.events if event.type == "error"]
            assert "longer than 1000 bytes" in str(error)
            assert listening.ended_at is None


# Asking whether the other side is there


async def test_it_is_asked_once_in_a_while() -> None:
    async with connected(ping=20) as (link, listening):
        began = anyio.current_time()
        for _ in range(5):
            await anyio.sleep(21)
            link.comes(Opcode.PONG, b"")
        assert [round(at - began) for at in link.pings] == [20, 40, 60, 80, 100]
        assert listening.ended_at is None


@pytest.mark.parametrize("after", [0, 25, 39])
async def test_one_that_vanished_is_noticed_within_twice_that(after: int) -> None:
    async with connected(ping=20) as (link, listening):
        for _ in range(after):
            await anyio.sleep(1)
            link.comes(Opcode.PONG, b"")
        vanished = anyio.current_time()
        await anyio.sleep(100)
        assert listening.ended_at is not None
        assert 20 <= listening.ended_at - vanished <= 40
        assert "has not answered for 20 s" in listening.error
        assert listening.events[-1].type == "end_of_stream"


async def test_one_that_reads_slowly_or_has_to_wait_for_us_has_not_vanished() -> None:
    async with connected(ping=20) as (link, listening):
        link.takes = False
        link.send(bytes(1000))
        for _ in range(200):
            await anyio.sleep(1)
            link.pending -= 1
        assert listening.ended_at is None
        listening.goes_on = anyio.Event()
        for _ in range(66):
            link.says()
        await anyio.sleep(200)
        assert link.paused()
        assert listening.ended_at is None
        listening.goes_on.set()
        await anyio.sleep(100)
        assert "has not answered for 20 s" in listening.error


# Answering


async def test_one_that_makes_us_answer_and_does_not_read_is_given_up() -> None:
    async with connected(unsent=10_000) as (link, listening):
        link.takes = False
        pings = 0
        while listening.ended_at is None:
            assert link.pending < 30_000
            link.comes(Opcode.PING, bytes(100))
            pings += 1
        assert pings > 100
        await anyio.sleep(1)
        assert "it does not read" in listening.error
        assert listening.events[-1].type == "end_of_stream"


async def test_the_same_with_answers_to_what_it_says() -> None:
    """Each of these is a call that came too late, and is answered so."""
    async with connected(unsent=10_000) as (link, listening):
        link.says("response.created", response={"id": "resp_1", "status": "in_progress"})
        await anyio.sleep(0.01)
        await listening.connection.send(RealtimeModelSendInterrupt())
        link.takes = False
        for number in range(1000):
            item = {
                "id": f"item_{number}",
                "type": "function_call",
                "status": "completed",
                "name": "f",
                "call_id": f"call_{number}",
                "arguments": "{}",
            }
            link.says("response.output_item.done", response_id="resp_1", output_index=number, item=item)
            await anyio.sleep(0.001)
            if listening.ended_at is not None:
                break
            assert link.pending < 30_000
        await anyio.sleep(1)
        assert "it does not read" in listening.error


async def test_many_questions_at_once_are_answered() -> None:
    async with connected(unsent=1000) as (link, listening):
        ping = Frame(Opcode.PING, bytes(100)).serialize(mask=False)
        for _ in range(10):
            link.data_came(ping * 100)
        assert listening.ended_at is None


async def test_what_we_send_ourselves_does_not_count_among_the_answers() -> None:
    """Whoever sends more than may be unsent waits; that the other side is slow meanwhile, and asks whether we are there, is in order."""
    async with connected(unsent=10_000) as (link, listening):
        link.takes = False
        link.send(bytes(1_000_000))
        for _ in range(50):
            link.comes(Opcode.PING, bytes(100))
        link.takes = True
        link._write_soon()
        link.takes = False
        for _ in range(150):
            link.comes(Opcode.PING, bytes(100))
        assert listening.ended_at is None
