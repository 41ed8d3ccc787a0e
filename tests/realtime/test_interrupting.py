"""The user speaks while the model does: it is interrupted, and what was not played is known."""

from __future__ import annotations

from typing import Any

import anyio

from quiesce.realtime import AssistantMessageItem, RealtimePlaybackTracker
from quiesce.realtime.testing import Speech
from quiesce.realtime.words.playback import AssumedPlayback
from quiesce.testing import call
from tests.kernel.temperaments import virtual_worlds
from tests.realtime.scenes import Part, scripted, session_of, talking

pytestmark = virtual_worlds  # how fast somebody speaks is a matter of time

COUNTING = Speech(
    "one two three four five six " * 50, pace=0.02
)  # for seconds: it is interrupted long before its end


async def test_speech_of_the_user_interrupts_what_is_being_said() -> None:
    session = session_of([COUNTING, "Yes?"])
    async with talking(session, "count") as heard:
        await heard.until_kind("audio", 2)
        await scripted(session).user_speaks()
        interrupted = await heard.until_kind("audio_interrupted")
        assert (interrupted.item_id, interrupted.content_index) == (heard.of("audio")[0].item_id, 0)
        await heard.until_kind("agent_end")
        assert 2 <= len(heard.of("audio")) < 6
        assert isinstance(session.history[-1], AssistantMessageItem)
        assert session.history[-1].status == "incomplete"
        await session.send_audio(b"\0\0", commit=True)
        await heard.until_kind("agent_end", 2)


async def test_audio_that_nobody_has_read_is_dropped() -> None:
    session = session_of([COUNTING, "Yes?"])
    async with session:
        await session.send_message("count")
        while scripted(session).remaining > 1 or session._task.buffer._bytes < 6 * 4800:
            await anyio.sleep(0.001)
        taken: list[Any] = []
        async for event in session:
            taken.append(event)
            if event.type == "audio":
                break
        await session.interrupt()
        await anyio.sleep(0.01)
        async for event in session:
            taken.append(event)
            if event.type == "audio_interrupted":
                break
        assert len([event for event in taken if event.type == "audio"]) == 1
        assert session._task.buffer._bytes == 0


async def test_tools_go_on_when_the_user_speaks() -> None:
    tool = Part("tool")
    session = session_of([[call("tool"), COUNTING]], tool.tool)
    async with talking(session, "count") as heard:
        await heard.until_kind("audio", 2)
        await scripted(session).user_speaks()
        await heard.until_kind("agent_end")
        assert not tool.cleaning


async def test_the_users_own_account_of_what_was_played_is_used() -> None:
    tracker = RealtimePlaybackTracker()
    session = session_of(["one two three"], model_config={"playback_tracker": tracker})
    async with talking(session, "count") as heard:
        options: Any = scripted(session).options
        assert options["playback_tracker"] is tracker
        assert session._task.playback is None
        await heard.until_kind("agent_end")
        piece = heard.of("audio")[0]
        tracker.on_play_bytes(piece.item_id, piece.content_index, piece.audio.data)
        assert tracker.get_state() == {
            "current_item_id": piece.item_id,
            "current_item_content_index": 0,
            "elapsed_ms": 100.0,
        }
        await session.interrupt()  # all was said, and not all was played
        await heard.until_kind("audio_interrupted")
        assert tracker.get_state()["current_item_id"] is None


@virtual_worlds
async def test_without_one_audio_is_played_from_the_moment_when_it_is_taken() -> None:
    session = session_of([Speech("one two three four", pace=0.0)])
    async with session:
        await session.send_message("count")
        playback = session._task.playback
        assert playback is not None
        taken = 0
        async for event in session:
            taken += event.type == "audio"
            if taken == 3:
                break
        assert playback.get_state()["elapsed_ms"] == 0.0
        await anyio.sleep(0.15)
        elapsed = playback.get_state()["elapsed_ms"]
        assert elapsed is not None
        assert abs(elapsed - 150) < 1
        await anyio.sleep(10)
        assert playback.get_state()["elapsed_ms"] == 300.0


def test_assumed_playback_plays_one_piece_after_the_other() -> None:
    now = 0.0
    playback = AssumedPlayback(lambda: now)
    assert playback.get_state()["current_item_id"] is None
    playback.on_taken("a", 0, 4800)  # 100 ms
    now = 0.05
    playback.on_taken("a", 0, 4800)
    assert round(playback.get_state()["elapsed_ms"] or 0) == 50
    now = 0.3  # all was played, and there was a silence
    playback.on_taken("a", 0, 4800)
    now = 0.35
    assert round(playback.get_state()["elapsed_ms"] or 0) == 250
    playback.on_interrupted()
    assert playback.get_state()["current_item_id"] is None
    playback.on_taken("b", 1, 4800)
    now = 0.4
    assert playback.get_state()["current_item_id"] == "b"
    assert round(playback.get_state()["elapsed_ms"] or 0) == 50


def test_the_next_item_is_heard_when_the_one_before_has_been_played() -> None:
    """Both were taken at once: the user still hears the first."""
    now = 0.0
    playback = AssumedPlayback(lambda: now)
    playback.on_taken("a", 0, 48000)  # a second
    playback.on_taken("b", 0, 48000)
    now = 0.4
    state = playback.get_state()
    assert state["current_item_id"] == "a"
    assert round(state["elapsed_ms"] or 0) == 400
    now = 1.3
    state = playback.get_state()
    assert state["current_item_id"] == "b"
    assert round(state["elapsed_ms"] or 0) == 300


def test_an_account_counts_what_it_is_told_in_the_format_of_the_model() -> None:
    tracker = RealtimePlaybackTracker()
    tracker.on_play_bytes("a", 0, bytes(48))
    assert tracker.get_state()["elapsed_ms"] == 1.0
    tracker.set_audio_format("g711_ulaw")
    tracker.on_play_bytes("a", 0, bytes(8))
    assert tracker.get_state()["elapsed_ms"] == 2.0
    tracker.on_play_ms("a", 0, 5)
    assert tracker.get_state()["elapsed_ms"] == 7.0
    tracker.on_play_ms("a", 1, 5)
    assert tracker.get_state() == {
        "current_item_id": "a",
        "current_item_content_index": 1,
        "elapsed_ms": 5.0,
    }
