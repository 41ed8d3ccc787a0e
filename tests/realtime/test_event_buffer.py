"""Events wait in a bounded buffer: a reader that does not read makes the model wait, and nothing is lost by readers that come and go."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from quiesce import Scope, current_scope
from quiesce.realtime import (
    RealtimeLimits,
    RealtimeModel,
    RealtimeModelListener,
    RealtimeModelRawServerEvent,
    RealtimeSession,
)
from quiesce.realtime.session.event_buffer import EventBuffer
from quiesce.realtime.testing import Speech
from quiesce.realtime.words.events import RealtimeAudio, RealtimeError, RealtimeRawModelEvent
from quiesce.realtime.words.model_events import RealtimeModelAudioEvent, RealtimeModelErrorEvent
from tests.kernel.temperaments import turns, virtual_worlds
from tests.realtime.scenes import agent, inputs, scripted, session_of, talking

pytestmark = virtual_worlds  # how fast somebody speaks is a matter of time

INFO: Any = None


def buffer(**limits: Any) -> EventBuffer:
    return EventBuffer(RealtimeLimits(**limits))


def event(number: int) -> RealtimeError:
    return RealtimeError(number, INFO)


def audio(size: int, item: str = "item") -> RealtimeAudio:
    return RealtimeAudio(RealtimeModelAudioEvent(bytes(size), "response", item, 0), item, 0, INFO)


async def taken(buffer: EventBuffer, count: int) -> list[Any]:
    return [found.error for _ in range(count) if isinstance(found := await buffer.take(), RealtimeError)]


# The buffer


async def test_events_are_taken_in_their_order_and_each_once() -> None:
    it = buffer()
    got: list[Any] = []

    async def read() -> None:
        while (found := await it.take()) is not None:
            got.append(found.error)  # type: ignore[union-attr]

    async with Scope() as scope:
        readers = [scope.spawn(read) for _ in range(3)]
        await turns()
        for number in range(20):
            it.add(event(number))
            if number % 5 == 0:
                await turns(1)
        await turns()
        it.end()
        for reader in readers:
            await reader.wait()
    assert sorted(got) == list(range(20))


async def test_a_reader_that_is_cancelled_while_it_waits_loses_nothing() -> None:
    it = buffer()
    got: list[Any] = []

    async def read() -> None:
        got.append((await taken(it, 1))[0])

    async with Scope() as scope:
        first, second = scope.spawn(read), scope.spawn(read)
        await turns()
        it.add(event(1))  # for the first, which is woken and cancelled in one go; trio lets it have that
        first.cancel()
        await first.wait()
        await turns()
        assert got == [1]
        second.cancel()
    assert got == [1]
    assert len(it) == 0


async def test_what_waits_is_read_after_the_end_and_then_the_end() -> None:
    it = buffer()
    it.add(event(1))
    it.end()
    it.add(event(2))
    assert await taken(it, 1) == [1]
    assert await it.take() is None
    assert await it.take() is None


async def test_what_ended_it_is_raised_to_every_reader_after_what_waits() -> None:
    it = buffer()
    it.add(event(1))
    it.end(LookupError("gone"))
    it.end(ValueError("too late"))
    assert await taken(it, 1) == [1]
    for _ in range(2):
        with pytest.raises(LookupError, match="gone"):
            await it.take()


async def test_readers_that_wait_are_told_of_the_end() -> None:
    it = buffer()
    ended: list[Any] = []

    async def read() -> None:
        ended.append(await it.take())

    async with Scope() as scope:
        for _ in range(3):
            scope.spawn(read)
        await turns()
        it.end()
    assert ended == [None, None, None]


async def test_it_is_full_by_events_or_by_bytes_of_audio_and_of_raw_messages() -> None:
    few = buffer(events=3, bytes=10)
    full: list[bool] = []
    for number in range(3):
        full.append(few.is_full)
        few.add(event(number))
    full.append(few.is_full)
    await few.take()
    assert [*full, few.is_full] == [False, False, False, True, False]
    it = buffer(events=100, bytes=10)
    it.add(audio(9))
    assert not it.is_full
    it.add(RealtimeRawModelEvent(audio(100).audio, INFO))  # which is counted where it is played
    assert not it.is_full
    it.add(RealtimeRawModelEvent(RealtimeModelRawServerEvent(b"{}"), INFO))
    assert it.is_full


async def test_writers_wait_for_room_and_are_let_go_by_a_reader_or_by_the_end() -> None:
    it = buffer(events=2)
    log: list[str] = []

    async def write(name: str) -> None:
        await it.wait_for_room()
        log.append(name)

    it.add(event(1))
    it.add(event(2))
    async with Scope() as scope:
        scope.spawn(write, "a")
        given_up = scope.spawn(write, "b")
        await turns()
        assert log == []
        given_up.cancel()
        await given_up.wait()
        await it.take()
        await turns()
        assert log == ["a"]
        it.add(event(3))
        scope.spawn(write, "c")
        await turns()
        assert log == ["a"]
        it.end()
    assert log == ["a", "c"]
    assert not it._writers


async def test_dropped_audio_makes_room() -> None:
    it = buffer(events=100, bytes=100)
    let_go: list[str] = []

    async def write() -> None:
        await it.wait_for_room()
        let_go.append("writer")

    for item in ("a", "b", "a"):
        it.add(RealtimeRawModelEvent(audio(40, item).audio, INFO))
        it.add(audio(40, item))
    it.add(event(1))
    async with Scope() as scope:
        scope.spawn(write)
        await turns()
        assert not let_go
        it.drop_audio(lambda found: found.item_id == "a")
        await turns()
        assert let_go == ["writer"]
    left = [await it.take() for _ in range(3)]
    assert [type(found).__name__ for found in left] == [
        "RealtimeRawModelEvent",
        "RealtimeAudio",
        "RealtimeError",
    ]
    assert len(it) == 0
    assert it._bytes == 0


# A session's


LONG = Speech("many words", audio=bytes(4800 * 200))


async def test_nobody_reads_and_the_model_is_made_to_wait_then_goes_on() -> None:
    session = session_of([LONG], config={"limits": RealtimeLimits(events=50)})
    async with session:
        await session.send_message("go")
        await anyio.sleep(0.05)
        waiting = len(session._task.buffer)
        assert 50 <= waiting < 60
        await anyio.sleep(0.05)
        assert len(session._task.buffer) == waiting
        pieces = 0
        async for event in session:
            assert len(session._task.buffer) < 60
            if event.type == "audio":
                pieces += len(event.audio.data)
            if event.type == "agent_end":
                break
        assert pieces == 4800 * 200


async def test_a_model_that_only_complains_has_to_wait_too() -> None:
    session = session_of(config={"limits": RealtimeLimits(events=50)})
    async with session:
        told = 0

        async def complain() -> None:
            nonlocal told
            for number in range(500):
                await scripted(session).emit(RealtimeModelErrorEvent(ValueError(number)))
                told += 1

        async with Scope() as scope:
            scope.spawn(complain)
            await anyio.sleep(0.05)
            assert told < 50
            got = 0
            async for event in session:
                assert len(session._task.buffer) < 55
                got += event.type == "error"
                if got == 500:
                    break


async def test_memory_is_bounded_by_bytes_too() -> None:
    session = session_of([LONG], config={"limits": RealtimeLimits(bytes=48_000)})
    async with session:
        await session.send_message("go")
        await anyio.sleep(0.05)
        assert 48_000 <= session._task.buffer._bytes < 60_000


async def test_a_session_that_nobody_reads_can_be_closed_and_read_to_its_end_then() -> None:
    session = session_of([LONG], config={"limits": RealtimeLimits(events=20)})
    await session.enter()
    await session.send_message("go")
    await anyio.sleep(0.02)
    report = await session.close()
    assert report.clean, str(report)
    left = [event.type async for event in session]
    assert 20 <= len(left) < 30
    assert [event.type async for event in session] == []


async def test_what_is_sent_is_sent_while_nobody_reads() -> None:
    """Else whoever sends and reads in one task would wait for themselves."""
    session = session_of([LONG, "two"], config={"limits": RealtimeLimits(events=10)})
    async with session:
        await session.send_message("go")
        await anyio.sleep(0.02)
        with anyio.fail_after(5):
            await session.send_message("again")
            await session.send_audio(b"\0\0")
            await session.interrupt()
        assert len(inputs(session)) == 2


async def test_several_readers_share_the_events() -> None:
    session = session_of(["one two three four five six"])
    async with session:
        got: list[list[str]] = [[], []]

        async def read(place: int) -> None:
            async for event in session:
                got[place].append(event.type)

        async with Scope() as scope:
            for place in range(2):
                scope.spawn(read, place)
            await session.send_message("go")
            while sum(read.count("agent_end") for read in got) < 1:
                await anyio.sleep(0.005)
            await session.close()
        assert sum(read.count("audio") for read in got) == 6


async def test_a_reader_that_gives_up_and_another_get_everything_between_them() -> None:
    session = session_of([Speech("one two three four five six", pace=0.01)])
    async with session:
        await session.send_message("go")
        got: list[str] = []
        while "agent_end" not in got:
            with anyio.move_on_after(0.005):
                async for event in session:
                    got += [event.type]
        assert got.count("audio") == 6


async def test_reading_before_it_is_open_is_refused_and_after_its_end_is_the_end() -> None:
    session = session_of()
    with pytest.raises(Exception, match="not open"):
        aiter(session)
    async with talking(session):
        pass
    assert [event async for event in session] == []


# In a session -----------------------------------------------------------------------------------------------


class AnswersFromItsOwnTask(RealtimeModel):
    """Answers from a task that it starts when it is told something."""

    def __init__(self) -> None:
        self._listeners: list[RealtimeModelListener] = []
        self._scope: Scope | None = None

    async def connect(self, options: Any) -> None:
        self._scope = current_scope()

    def add_listener(self, listener: RealtimeModelListener) -> None:
        self._listeners.append(listener)

    def remove_listener(self, listener: RealtimeModelListener) -> None:
        self._listeners = [other for other in self._listeners if other is not listener]

    async def send_event(self, event: Any) -> None:
        assert self._scope is not None
        self._scope.spawn(self._answer)

    async def _answer(self) -> None:
        for _ in range(1000):
            for listener in self._listeners:
                await listener.on_event(RealtimeModelAudioEvent(b"\0" * 480, "response", "item", 0))
            await checkpoint()

    async def close(self) -> None:
        pass


async def test_a_model_that_answers_from_a_task_of_its_own_has_to_wait_too() -> None:
    limits = RealtimeLimits(events=100)
    async with RealtimeSession(AnswersFromItsOwnTask(), agent(), run_config={"limits": limits}) as session:
        await session.send_message("Hello")
        while len(session._task.buffer) < 100:
            await anyio.sleep(0.001)
        await anyio.sleep(0.5)
        assert 100 <= len(session._task.buffer) <= 102


@pytest.mark.parametrize("events", [1, 2])
async def test_a_buffer_of_next_to_nothing_does_not_keep_it_from_connecting(events: int) -> None:
    async with session_of(["Hello."], config={"limits": RealtimeLimits(events=events)}) as session:
        await session.send_message("Hello")
        async for event in session:
            if event.type == "agent_end":
                break
