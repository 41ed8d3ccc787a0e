"""The account of what was played: the user's own, and the one that is assumed."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiesce.realtime.words.playback import AssumedPlayback, RealtimePlaybackTracker

MS = 48  # bytes of pcm16 in a millisecond

State = tuple[str | None, int | None, float | None]


def state(tracker: RealtimePlaybackTracker) -> State:
    found = tracker.get_state()
    return found["current_item_id"], found["current_item_content_index"], found["elapsed_ms"]


NOTHING: State = (None, None, None)


def test_what_is_played_is_added_up_for_each_content() -> None:
    tracker = RealtimePlaybackTracker()
    assert state(tracker) == NOTHING
    tracker.on_play_bytes("item_1", 0, bytes(10 * MS))
    tracker.on_play_ms("item_1", 0, 5)
    assert state(tracker) == ("item_1", 0, 15)
    tracker.on_play_ms("item_1", 1, 7)
    assert state(tracker) == ("item_1", 1, 7)
    tracker.on_play_ms("item_2", 1, 3)
    assert state(tracker) == ("item_2", 1, 3)


def test_after_an_interruption_nothing_is_being_played() -> None:
    tracker = RealtimePlaybackTracker()
    tracker.on_play_ms("item_1", 0, 5)
    tracker.on_interrupted()
    assert state(tracker) == NOTHING
    tracker.on_play_ms("item_1", 0, 2)
    assert state(tracker) == ("item_1", 0, 2)


@pytest.mark.parametrize(
    ("form", "rate"), [("g711_ulaw", 8), ("pcm16", 48), ({"type": "audio/pcm", "rate": 8000}, 16)]
)
def test_how_long_bytes_last_depends_on_the_format(form: str, rate: int) -> None:
    tracker = RealtimePlaybackTracker()
    tracker.set_audio_format(form)
    tracker.on_play_bytes("item_1", 0, bytes(rate * 20))
    assert state(tracker) == ("item_1", 0, 20)


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_ms(self, ms: float) -> None:
        self.now += ms / 1000


def heard(tracker: AssumedPlayback) -> tuple[str | None, int]:
    item_id, _, elapsed = state(tracker)
    return item_id, round(elapsed or 0)


def test_audio_is_assumed_to_be_played_from_the_moment_when_it_is_taken() -> None:
    clock = Clock()
    tracker = AssumedPlayback(clock)
    assert state(tracker) == NOTHING
    tracker.on_taken("item_1", 0, 100 * MS)
    assert heard(tracker) == ("item_1", 0)
    clock.pass_ms(40)
    assert heard(tracker) == ("item_1", 40)
    tracker.on_taken("item_1", 0, 100 * MS)  # behind the first piece
    clock.pass_ms(100)
    assert heard(tracker) == ("item_1", 140)
    clock.pass_ms(1000)
    assert heard(tracker) == ("item_1", 200)  # there is no more


def test_a_pause_between_two_pieces_is_not_played() -> None:
    clock = Clock()
    tracker = AssumedPlayback(clock)
    tracker.on_taken("item_1", 0, 100 * MS)
    clock.pass_ms(500)
    tracker.on_taken("item_1", 0, 100 * MS)
    clock.pass_ms(30)
    assert heard(tracker) == ("item_1", 130)


def test_what_is_taken_while_something_else_is_played_waits_for_its_turn() -> None:
    clock = Clock()
    tracker = AssumedPlayback(clock)
    tracker.on_taken("item_1", 0, 100 * MS)
    tracker.on_taken("item_2", 0, 100 * MS)
    clock.pass_ms(60)
    assert heard(tracker) == ("item_1", 60)
    clock.pass_ms(60)
    assert heard(tracker) == ("item_2", 20)


def test_after_an_interruption_what_was_taken_is_forgotten() -> None:
    clock = Clock()
    tracker = AssumedPlayback(clock)
    tracker.on_taken("item_1", 0, 1000 * MS)
    clock.pass_ms(100)
    tracker.on_interrupted()
    assert state(tracker) == NOTHING
    tracker.on_taken("item_2", 0, 100 * MS)
    clock.pass_ms(10)
    assert heard(tracker) == ("item_2", 10)


def test_what_is_cut_alone_does_not_hold_up_what_was_taken_after_it() -> None:
    clock = Clock()
    tracker = AssumedPlayback(clock)
    for number in (1, 2, 3):
        tracker.on_taken(f"item_{number}", 0, 100 * MS)
    clock.pass_ms(50)
    tracker.on_cut("item_2", 0)
    clock.pass_ms(70)
    assert heard(tracker) == ("item_3", 20)
    tracker.on_cut("item_3", 0)
    clock.pass_ms(70)
    assert heard(tracker) == ("item_3", 20)  # nothing more of it, and nothing else
    tracker.on_taken("item_4", 0, 100 * MS)
    clock.pass_ms(10)
    assert heard(tracker) == ("item_4", 10)


def test_what_was_heard_before_something_that_is_cut_stays_heard() -> None:
    clock = Clock()
    tracker = AssumedPlayback(clock)
    for number in (1, 2):
        tracker.on_taken(f"item_{number}", 0, 100 * MS)
    clock.pass_ms(50)
    assert heard(tracker) == ("item_1", 50)
    clock.pass_ms(51)
    tracker.on_cut("item_2", 0)  # its turn had just come when this was heard of
    assert heard(tracker) == ("item_2", 1)
    tracker.on_taken("item_3", 0, 100 * MS)
    clock.pass_ms(10)
    assert heard(tracker) == ("item_3", 10)


def test_what_was_taken_before_something_that_is_cut_is_played_on() -> None:
    clock = Clock()
    tracker = AssumedPlayback(clock)
    for number in (1, 2):
        tracker.on_taken(f"item_{number}", 0, 100 * MS)
    clock.pass_ms(50)
    tracker.on_cut("item_2", 0)
    assert heard(tracker) == ("item_1", 50)
    clock.pass_ms(25)
    tracker.on_taken("item_3", 0, 100 * MS)
    assert heard(tracker) == ("item_1", 75)
    clock.pass_ms(35)
    assert heard(tracker) == ("item_3", 10)


@settings(max_examples=60)
@given(st.integers(0, 2**64))
def test_it_is_what_a_player_would_say_that_plays_one_millisecond_after_the_other(seed: int) -> None:
    random = Random(seed)
    clock, plain = Clock(), RealtimePlaybackTracker()
    tracker = AssumedPlayback(clock)
    queue: list[str] = []  # an item for each millisecond
    item = 0
    for _ in range(random.randrange(30)):
        what = random.randrange(4)
        if what == 0:
            item += 1
        if what <= 1:
            ms = random.randrange(1, 50)
            queue += [f"item_{item}"] * ms
            tracker.on_taken(f"item_{item}", 0, ms * MS)
        elif what == 2:
            ms = random.randrange(80)
            clock.pass_ms(ms)
            for played in queue[:ms]:
                plain.on_play_ms(played, 0, 1)
            del queue[:ms]
        elif random.random() < 0.2:
            queue.clear()
            plain.on_interrupted()
            tracker.on_interrupted()
        item_id, _, elapsed = state(tracker)
        their_id, _, theirs = state(plain)
        if item_id == their_id:
            assert elapsed == pytest.approx(theirs or 0.0, abs=0.01) or (elapsed, theirs) == (None, None)
        else:  # it is just about to begin with the next one
            assert elapsed == pytest.approx(0.0, abs=0.01)
            assert queue[:1] == [item_id]
