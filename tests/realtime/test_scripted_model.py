"""A model that answers from a script."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from quiesce import Scope
from quiesce.realtime.testing import ScriptedRealtimeModel, Speech
from quiesce.realtime.words.config import RealtimeModelConfig
from quiesce.realtime.words.model import RealtimeModelListener
from quiesce.realtime.words.model_events import (
    RealtimeModelAudioEvent,
    RealtimeModelEvent,
    RealtimeModelOtherEvent,
    RealtimeModelToolCallEvent,
)
from quiesce.realtime.words.model_inputs import (
    RealtimeModelSendAudio,
    RealtimeModelSendInterrupt,
    RealtimeModelSendRawMessage,
    RealtimeModelSendSessionUpdate,
    RealtimeModelSendToolOutput,
    RealtimeModelSendUserInput,
)
from quiesce.realtime.words.playback import RealtimePlaybackTracker
from quiesce.testing import ScriptExhausted, call
from quiesce.wire import ConnectionEnded
from tests.world import asyncio_only

virtual_time = pytest.mark.worlds("asyncio", "asyncio-eager", "trio")  # uvloop's is real


class Ears(RealtimeModelListener):
    """Hears everything, and can be waited with."""

    def __init__(self, *, slowly: float = 0.0) -> None:
        self.heard: list[Any] = []
        self.slowly = slowly
        self.at: list[float] = []
        self._came = anyio.Event()

    async def on_event(self, event: RealtimeModelEvent) -> None:
        if self.slowly:
            await anyio.sleep(self.slowly)
        self.heard.append(event)
        self.at.append(anyio.current_time())
        self._came.set()
        self._came = anyio.Event()

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.heard]

    async def until(self, kind: str, count: int = 1) -> None:
        with anyio.fail_after(100):
            while self.types.count(kind) < count:
                await self._came.wait()


@asynccontextmanager
async def connected(model: ScriptedRealtimeModel, **options: Any) -> AsyncIterator[Ears]:
    ears = Ears()
    model.add_listener(ears)
    await model.connect(options)  # type: ignore[arg-type]
    try:
        yield ears
    finally:
        await model.close()


SAID = ["turn_started", "transcript_delta", "audio", "audio_done", "item_updated", "usage", "turn_ended"]


async def test_a_str_is_said_word_by_word_with_audio() -> None:
    model = ScriptedRealtimeModel(["Good morning."])
    async with connected(model) as ears:
        await model.send_event(RealtimeModelSendUserInput("Hello"))
        await ears.until("turn_ended")
    assert ears.types == ["item_updated", *SAID[:3], *SAID[1:3], *SAID[3:]]
    assert ears.heard[0].item.role == "user"
    assert ears.heard[0].item.content[0].text == "Hello"
    assert [event.delta for event in ears.heard if event.type == "transcript_delta"] == ["Good ", "morning."]
    assert all(len(event.data) == 4800 for event in ears.heard if event.type == "audio")  # 100 ms
    said = ears.heard[-3].item
    assert (said.role, said.status, said.content[0].transcript) == ("assistant", "completed", "Good morning.")
    assert ears.heard[-2].usage.requests == 1
    assert ears.heard[-1].status == "completed"
    assert len({event.response_id for event in ears.heard if hasattr(event, "response_id")}) == 1


async def test_a_call_asks_for_a_tool_and_its_output_for_the_next_turn() -> None:
    model = ScriptedRealtimeModel([call("weather", city="Paris"), "It rains."])
    async with connected(model) as ears:
        await model.send_event(RealtimeModelSendUserInput("How is it?"))
        await ears.until("turn_ended")
        asked = next(event for event in ears.heard if isinstance(event, RealtimeModelToolCallEvent))
        assert (asked.name, asked.arguments) == ("weather", '{"city":"Paris"}')
        assert model.remaining == 1
        await model.send_event(RealtimeModelSendToolOutput(asked, "rain"))
        await ears.until("turn_ended", 2)
    outputs = [
        e.item.output for e in ears.heard if e.type == "item_updated" and e.item.type == "function_call"
    ]
    assert outputs == [None, "rain"]
    assert model.remaining == 0


@virtual_time
async def test_a_tool_output_that_wants_no_response_gets_none() -> None:
    model = ScriptedRealtimeModel(["Never said."])
    async with connected(model) as ears:
        asked = RealtimeModelToolCallEvent("weather", "call_1", "{}")
        await model.send_event(RealtimeModelSendToolOutput(asked, "rain", start_response=False))
        await ears.until("item_updated")
        await anyio.sleep(1)
    assert ears.types == ["item_updated"]
    assert model.remaining == 1


async def test_a_list_is_one_response_of_many_items() -> None:
    model = ScriptedRealtimeModel([["Let me look.", call("weather"), call("time")]])
    async with connected(model) as ears:
        await model.send_event(RealtimeModelSendUserInput("How is it?"))
        await ears.until("turn_ended")
    assert ears.types.count("turn_started") == 1
    assert [event.name for event in ears.heard if event.type == "function_call"] == ["weather", "time"]
    calls = [event.call_id for event in ears.heard if event.type == "function_call"]
    assert len(set(calls)) == 2


@virtual_time
async def test_a_function_writes_the_turn_when_it_is_asked() -> None:
    async def echo(sent: Any) -> str:
        await anyio.sleep(1)
        return f"You said {sent.user_input}"

    model = ScriptedRealtimeModel([echo, lambda sent: call("shout", text=sent.user_input)])
    async with connected(model) as ears:
        await model.send_event(RealtimeModelSendUserInput("this"))
        await model.send_event(RealtimeModelSendUserInput("that"))
        await ears.until("turn_ended", 2)
    assert "".join(event.delta for event in ears.heard if event.type == "transcript_delta") == "You said this"
    assert [event.arguments for event in ears.heard if event.type == "function_call"] == ['{"text":"that"}']


@pytest.mark.parametrize("turn", [LookupError("no model today"), LookupError])
async def test_an_exception_is_announced(turn: Any) -> None:
    model = ScriptedRealtimeModel([turn])
    async with connected(model) as ears:
        await model.send_event(RealtimeModelSendUserInput("Hello"))
        await ears.until("exception")
    assert isinstance(ears.heard[-1].exception, LookupError)
    assert "turn_ended" not in ears.types


async def test_a_function_that_fails_is_announced() -> None:
    async def fail(sent: Any) -> str:
        raise LookupError("no model today")

    model = ScriptedRealtimeModel([fail])
    async with connected(model) as ears:
        await model.send_event(RealtimeModelSendUserInput("Hello"))
        await ears.until("exception")
    assert str(ears.heard[-1].exception) == "no model today"


async def test_one_response_too_many_is_an_exception_that_says_so() -> None:
    model = ScriptedRealtimeModel(["Once."])
    async with connected(model) as ears:
        await model.send_event(RealtimeModelSendUserInput("Hello"))
        await model.send_event(RealtimeModelSendUserInput("Hello?"))
        await ears.until("exception")
    assert isinstance(ears.heard[-1].exception, ScriptExhausted)
    assert "got 2 requests for a response, but its script has only 1 turns" in str(ears.heard[-1].exception)


@virtual_time
async def test_speech_has_its_own_audio_at_its_own_pace() -> None:
    audio = bytes(range(250)) * 4
    model = ScriptedRealtimeModel([Speech("one two three four", audio=audio, piece=400, pace=0.25)])
    async with connected(model) as ears:
        await model.send_event(RealtimeModelSendUserInput("Count"))
        await ears.until("turn_ended")
    pieces = [event for event in ears.heard if isinstance(event, RealtimeModelAudioEvent)]
    assert [len(piece.data) for piece in pieces] == [400, 400, 200]
    assert b"".join(piece.data for piece in pieces) == audio
    deltas = [event.delta for event in ears.heard if event.type == "transcript_delta"]
    assert "".join(deltas) == "one two three four"
    at = [when for when, event in zip(ears.at, ears.heard, strict=True) if event.type == "audio"]
    apart = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert apart == pytest.approx([0.25, 0.25])


async def test_speech_without_audio_is_written() -> None:
    model = ScriptedRealtimeModel([Speech("Read this", audio=b"")])
    async with connected(model) as ears:
        await model.send_event(RealtimeModelSendUserInput("Write"))
        await ears.until("turn_ended")
    assert [event.delta for event in ears.heard if event.type == "output_text_delta"] == ["Read ", "this"]
    assert not {"audio", "audio_done", "transcript_delta"} & set(ears.types)
    assert ears.heard[-3].item.content[0].text == "Read this"


async def test_committed_audio_is_transcribed_and_answered() -> None:
    model = ScriptedRealtimeModel(["I heard you."], transcripts=["Hello?"])
    async with connected(model) as ears:
        await model.send_event(RealtimeModelSendAudio(b"\0" * 100))
        assert not ears.heard
        await model.send_event(RealtimeModelSendAudio(b"\0" * 100, commit=True))
        await ears.until("turn_ended")
    assert ears.types[:3] == ["item_updated", "input_audio_transcription_completed", "turn_started"]
    assert ears.heard[1].transcript == "Hello?"
    assert ears.heard[1].item_id == ears.heard[0].item.item_id


@virtual_time
async def test_an_interrupt_stops_what_is_being_said() -> None:
    model = ScriptedRealtimeModel([Speech("one two three four five six", pace=1), "Next."])
    async with connected(model) as ears:
        await model.send_event(RealtimeModelSendUserInput("Count"))
        await ears.until("audio", 2)
        await model.send_event(RealtimeModelSendInterrupt())
        await ears.until("turn_ended")
        assert ears.types[-4:] == ["audio_interrupted", "item_updated", "usage", "turn_ended"]
        interrupted, updated, _, ended = ears.heard[-4:]
        assert interrupted.item_id == updated.item.item_id
        assert (updated.item.status, updated.item.content[0].transcript) == ("incomplete", "one two ")
        assert ended.status == "cancelled"
        heard = len(ears.heard)
        await anyio.sleep(2)
        assert len(ears.heard) == heard
        await model.send_event(RealtimeModelSendUserInput("Go on"))
        await ears.until("turn_ended", 2)
    assert ears.heard[-1].status == "completed"


async def test_an_interrupt_cancels_a_function_and_waits_for_its_clean_up() -> None:
    order: list[str] = []
    begun = anyio.Event()

    async def think(sent: Any) -> str:
        begun.set()
        try:
            await anyio.sleep(100)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.1)
            order.append("cleaned up")
        return "Never said."

    class Notes(Ears):
        async def on_event(self, event: RealtimeModelEvent) -> None:
            order.append(event.type)
            await super().on_event(event)

    model = ScriptedRealtimeModel([think])
    ears = Notes()
    model.add_listener(ears)
    await model.connect({})
    await model.send_event(RealtimeModelSendUserInput("Think"))
    await begun.wait()
    await model.send_event(RealtimeModelSendInterrupt())
    await ears.until("turn_ended")
    await model.close()
    assert order == ["item_updated", "turn_started", "cleaned up", "usage", "turn_ended"]


@virtual_time
async def test_an_interrupt_of_another_response_changes_nothing() -> None:
    model = ScriptedRealtimeModel([Speech("one two three", pace=0.1)])
    async with connected(model) as ears:
        await model.send_event(RealtimeModelSendUserInput("Count"))
        await ears.until("audio")
        await model.send_event(RealtimeModelSendInterrupt(response_id="another"))
        await ears.until("turn_ended")
    assert ears.heard[-1].status == "completed"


@pytest.mark.parametrize(
    ("how", "told", "status"),
    [
        ({"playback_only": True}, 1, "completed"),
        ({"cancel_response_only": True}, 0, "cancelled"),
        ({}, 1, "cancelled"),
    ],
)
async def test_an_interrupt_stops_playing_or_saying_or_both(how: Any, told: int, status: str) -> None:
    model = ScriptedRealtimeModel([Speech("one two three", pace=0.1)])
    async with connected(model) as ears:
        await model.send_event(RealtimeModelSendUserInput("Count"))
        await ears.until("audio")
        await model.send_event(RealtimeModelSendInterrupt(**how))
        await ears.until("turn_ended")
    assert ears.types.count("audio_interrupted") == told
    assert ears.heard[-1].status == status


async def test_what_was_said_but_not_played_is_interrupted_too() -> None:
    tracker = RealtimePlaybackTracker()
    model = ScriptedRealtimeModel(["All of this is said at once."])
    async with connected(model, playback_tracker=tracker) as ears:
        await model.send_event(RealtimeModelSendInterrupt())  # nothing to interrupt
        await model.send_event(RealtimeModelSendUserInput("Hello"))
        await ears.until("turn_ended")
        assert "audio_interrupted" not in ears.types
        tracker.on_play_ms("item_2", 0, 50)
        await model.send_event(RealtimeModelSendInterrupt())
        await ears.until("audio_interrupted")
    assert ears.heard[-1].item_id == "item_2"
    assert tracker.get_state()["current_item_id"] is None


async def test_the_user_speaks_and_the_model_stops() -> None:
    model = ScriptedRealtimeModel([Speech("one two three four", pace=1)])
    async with connected(model) as ears:
        await model.send_event(RealtimeModelSendUserInput("Count"))
        await ears.until("audio")
        await model.user_speaks()
        await ears.until("turn_ended")
    at = ears.types.index("raw_server_event")
    assert ears.heard[at].data["type"] == "input_audio_buffer.speech_started"
    assert ears.types[at + 1 :] == ["audio_interrupted", "item_updated", "usage", "turn_ended"]


async def test_the_wire_s_own_messages_begin_and_cancel_a_response() -> None:
    model = ScriptedRealtimeModel([Speech("one two three", pace=1)])
    async with connected(model) as ears:
        await model.send_event(RealtimeModelSendRawMessage({"type": "response.create"}))
        await ears.until("audio")
        await model.send_event(RealtimeModelSendRawMessage({"type": "response.cancel"}))
        await ears.until("turn_ended")
    assert ears.heard[-1].status == "cancelled"


@virtual_time
async def test_a_listener_that_takes_its_time_makes_the_model_wait() -> None:
    model = ScriptedRealtimeModel(["one two three"])
    async with connected(model) as ears:
        ears.slowly = 0.05
        await model.send_event(RealtimeModelSendUserInput("Count"))
        await ears.until("turn_ended")
    apart = [later - earlier for earlier, later in itertools.pairwise(ears.at)]
    assert len(apart) == 11
    assert min(apart) > 0.04


async def test_a_listener_may_send_and_emit_while_it_is_told() -> None:
    model = ScriptedRealtimeModel([call("weather"), "It rains."])

    class Eager(Ears):
        async def on_event(self, event: RealtimeModelEvent) -> None:
            await super().on_event(event)
            if isinstance(event, RealtimeModelToolCallEvent):
                await model.emit(RealtimeModelOtherEvent("I am on it"))
                await model.send_event(RealtimeModelSendToolOutput(event, "rain"))

    ears = Eager()
    model.add_listener(ears)
    await model.connect({})
    await model.send_event(RealtimeModelSendUserInput("How is it?"))
    await ears.until("turn_ended", 2)
    await model.close()
    assert ears.types.count("other") == 1


async def test_a_listener_may_close_the_model() -> None:
    model = ScriptedRealtimeModel([Speech("one two three", pace=1)])
    closed = anyio.Event()

    class Impatient(Ears):
        async def on_event(self, event: RealtimeModelEvent) -> None:
            await super().on_event(event)
            if event.type == "audio":
                await model.close()
                closed.set()

    ears = Impatient()
    model.add_listener(ears)
    await model.connect({})
    await model.send_event(RealtimeModelSendUserInput("Count"))
    with anyio.fail_after(10):
        await closed.wait()
    assert ears.types[-1] == "audio"
    assert not model.connected


async def test_what_is_emitted_has_been_heard_when_emit_returns() -> None:
    model = ScriptedRealtimeModel()
    async with connected(model) as ears:
        ears.slowly = 0.1
        await model.emit(RealtimeModelOtherEvent("anything"))
        assert ears.types == ["other"]


async def test_an_error_of_a_listener_is_raised_by_emit() -> None:
    class Deaf(RealtimeModelListener):
        async def on_event(self, event: RealtimeModelEvent) -> None:
            raise LookupError("no ears")

    model, deaf = ScriptedRealtimeModel(), Deaf()
    model.add_listener(deaf)
    async with connected(model) as ears:
        with pytest.raises(LookupError, match="no ears"):
            await model.emit(RealtimeModelOtherEvent("anything"))
        model.remove_listener(deaf)
        model.remove_listener(deaf)
        await model.emit(RealtimeModelOtherEvent("anything"))
        assert ears.types == ["other"]


async def test_an_error_of_a_listener_is_logged_and_the_turn_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Picky(Ears):
        async def on_event(self, event: RealtimeModelEvent) -> None:
            await super().on_event(event)
            if event.type == "audio":
                raise LookupError("no ears")

    model, ears = ScriptedRealtimeModel(["Hello."]), Picky()
    model.add_listener(ears)
    await model.connect({})
    with caplog.at_level(logging.ERROR, "quiesce"):
        await model.send_event(RealtimeModelSendUserInput("Hello"))
        await ears.until("turn_ended")
    await model.close()
    assert "a listener of realtime model 'scripted' failed" in caplog.text


async def test_closing_ends_a_turn_in_the_middle_and_whoever_emits() -> None:
    class Stuck(RealtimeModelListener):
        async def on_event(self, event: RealtimeModelEvent) -> None:
            await anyio.sleep_forever()

    model = ScriptedRealtimeModel([Speech("one two", pace=10), "three"])
    model.add_listener(Stuck())
    await model.connect({})
    await model.send_event(RealtimeModelSendUserInput("Count"))
    errors: list[BaseException] = []

    async def emit() -> None:
        try:
            await model.emit(RealtimeModelOtherEvent("anything"))
        except ConnectionEnded as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(emit)
        await anyio.sleep(0.1)
        with anyio.fail_after(5):
            await model.close()
    assert [str(error) for error in errors] == ["realtime model 'scripted' was closed"]


@asyncio_only
@pytest.mark.parametrize("which", ["deliver", "answer", "turn resp_1"])
async def test_a_task_that_somebody_else_cancels_is_announced_as_the_failure_of_the_model(which: str) -> None:
    model = ScriptedRealtimeModel([Speech("one two", pace=3600)])
    async with connected(model) as ears:
        await model.send_event(RealtimeModelSendUserInput("Count"))
        await ears.until("audio")
        next(task for task in asyncio.all_tasks() if task.get_name() == which).cancel()
        await ears.until("exception")
    assert f"the task {which!r} of" in str(ears.heard[-1].exception)


async def test_the_scope_of_whoever_connects_ends_it_too() -> None:
    model = ScriptedRealtimeModel([Speech("one two", pace=10)])
    ears = Ears()
    model.add_listener(ears)
    scope = await Scope.open("somebody")
    nothing_asked: RealtimeModelConfig = {}
    handle = scope.spawn(model.connect, nothing_asked)
    await handle.wait()
    await model.send_event(RealtimeModelSendUserInput("Count"))
    await ears.until("audio")
    report = await scope.close()
    assert report.clean
    with pytest.raises(ConnectionEnded):
        await model.emit(RealtimeModelOtherEvent("anything"))
    await model.connect({})
    await model.close()


@virtual_time
async def test_it_starts_clean_after_close_with_the_turns_that_are_left() -> None:
    model = ScriptedRealtimeModel([Speech("one two", pace=10), "three"])
    async with connected(model) as ears:
        await model.send_event(RealtimeModelSendUserInput("Count"))
        await model.send_event(RealtimeModelSendUserInput("More"))
        await ears.until("audio")
    heard = len(ears.heard)
    async with connected(model) as again:
        await anyio.sleep(3600)
        assert not again.heard
        await model.send_event(RealtimeModelSendUserInput("Go on"))
        await again.until("turn_ended")
    assert "".join(event.delta for event in again.heard if event.type == "transcript_delta") == "three"
    assert len(ears.heard) > heard  # a listener stays until it is removed
    assert (model.connects, model.closes) == (2, 2)
    assert [event.user_input for event in model.sent] == ["Count", "More", "Go on"]  # type: ignore[union-attr]


@virtual_time
@virtual_time
async def test_a_connection_that_is_lost_ends_in_the_middle_and_can_be_had_again() -> None:
    class Told(Ears):
        ended_behind = -1

        def on_connection_ended(self) -> None:
            self.ended_behind = len(self.heard)

    model = ScriptedRealtimeModel([Speech("one two three", pace=1), "again", "more"])
    ears = Told()
    model.add_listener(ears)
    await model.connect({})
    await model.send_event(RealtimeModelSendUserInput("count"))
    await model.send_event(RealtimeModelSendUserInput("and then?"))
    await ears.until("audio", 2)
    before = len(ears.heard)
    await model.lose(error := ConnectionResetError("by somebody between"))
    assert ears.ended_behind == before
    assert ears.types[before:] == ["item_updated", "connection_status", "exception", "end_of_stream"]
    said = ears.heard[before].item
    assert (said.content[0].transcript, said.status) == ("one two ", "in_progress")
    assert ears.heard[before + 2].exception is error
    assert not model.connected
    for forbidden in (model.send_event(RealtimeModelSendUserInput("hello?")), model.lose()):
        with pytest.raises(ConnectionEnded, match="not connected"):
            await forbidden
    await anyio.sleep(10)
    assert len(ears.heard) == before + 4
    await model.close()
    assert model.remaining == 2  # what waited to be answered is gone
    await model.connect({})
    await model.send_event(RealtimeModelSendUserInput("again"))
    await ears.until("turn_ended")
    await model.close()


async def test_a_listener_may_lose_the_connection() -> None:
    model = ScriptedRealtimeModel(["hello"])

    class Losing(Ears):
        async def on_event(self, event: RealtimeModelEvent) -> None:
            await super().on_event(event)
            if event.type == "turn_started":
                await model.lose()

    ears = Losing()
    model.add_listener(ears)
    await model.connect({})
    await model.send_event(RealtimeModelSendUserInput("hello"))
    await ears.until("end_of_stream")
    assert "turn_ended" not in ears.types
    assert isinstance(ears.heard[-2].exception, ConnectionEnded)
    await model.close()


async def test_closing_twice_and_at_the_same_time_is_fine() -> None:
    model = ScriptedRealtimeModel(close_delay=1)
    await model.close()
    await model.connect({})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(model.close)
        tasks.start_soon(model.close)
    await model.close()
    assert model.closes == 4
    assert not model.connected


@virtual_time
async def test_a_close_that_is_cancelled_has_closed_all_the_same() -> None:
    model = ScriptedRealtimeModel([Speech("one two", pace=100)], close_delay=10)
    ears = Ears()
    model.add_listener(ears)
    await model.connect({})
    await model.send_event(RealtimeModelSendUserInput("Count"))
    await ears.until("audio")
    with anyio.move_on_after(1) as limit:
        await model.close()
    assert limit.cancelled_caught
    model.close_delay = 0
    await model.connect({})
    await model.close()


@virtual_time
async def test_connecting_can_fail_or_be_cancelled_and_leaves_nothing() -> None:
    model = ScriptedRealtimeModel(connect_delay=10, connect_error=ConnectionRefusedError("no"))
    with anyio.move_on_after(1):
        await model.connect({})
    assert not model.connected
    model.connect_delay = 0
    with pytest.raises(ConnectionRefusedError):
        await model.connect({})
    await model.close()
    model.connect_error = None
    await model.connect({})
    with pytest.raises(RuntimeError, match="connected already"):
        await model.connect({})
    await model.close()


@virtual_time
async def test_sending_can_take_time_and_fail() -> None:
    model = ScriptedRealtimeModel(send_delay=1)
    await model.connect({})
    begun = anyio.current_time()
    await model.send_event(RealtimeModelSendSessionUpdate({"voice": "ash"}))
    assert anyio.current_time() - begun > 0.9
    assert model.sent == [RealtimeModelSendSessionUpdate({"voice": "ash"})]
    model.send_delay, model.send_error = 0, BrokenPipeError("gone")
    with pytest.raises(BrokenPipeError):
        await model.send_event(RealtimeModelSendUserInput("Hello"))
    assert len(model.sent) == 1
    await model.close()


async def test_an_error_at_close_is_raised_when_all_has_ended() -> None:
    model = ScriptedRealtimeModel([Speech("one two", pace=10)], close_error=OSError("no goodbye"))
    ears = Ears()
    model.add_listener(ears)
    await model.connect({})
    await model.send_event(RealtimeModelSendUserInput("Count"))
    await ears.until("audio")
    with pytest.raises(OSError, match="no goodbye"):
        await model.close()
    assert not model.connected
    await model.close()  # there is none


async def test_nothing_can_be_sent_without_a_connection() -> None:
    model = ScriptedRealtimeModel(name="mine")
    with pytest.raises(ConnectionEnded, match="'mine' is not connected: connect"):
        await model.send_event(RealtimeModelSendUserInput("Hello"))
    with pytest.raises(ConnectionEnded):
        await model.emit(RealtimeModelOtherEvent("anything"))
    with pytest.raises(ConnectionEnded):
        await model.user_speaks()
    assert not model.sent


@pytest.mark.parametrize("turn", [3, [3], None])
async def test_what_is_no_turn_is_an_exception_that_says_what_is(turn: Any) -> None:
    model = ScriptedRealtimeModel([turn])
    async with connected(model) as ears:
        await model.send_event(RealtimeModelSendUserInput("Hello"))
        await ears.until("exception")
    assert "a str, a Speech" in str(ears.heard[-1].exception)


def test_speech_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Speech("Hello", piece=0)
    with pytest.raises(ValueError, match="seconds"):
        Speech("Hello", pace=-1)


def test_a_single_turn_is_a_script() -> None:
    assert ScriptedRealtimeModel("Hello").remaining == 1
    assert ScriptedRealtimeModel(call("weather")).remaining == 1
