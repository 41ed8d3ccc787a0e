"""Interruptions: what was not heard is cut, what is late is not told, and what goes on is ended."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiesce.agents.agent.errors import UserError
from quiesce.realtime.openai.protocol_events import NOT_RUN
from quiesce.realtime.words.items import AssistantAudio, AssistantMessageItem
from quiesce.realtime.words.model_events import RealtimeModelAudioInterruptedEvent as Interrupted
from quiesce.realtime.words.model_inputs import (
    RealtimeModelSendInterrupt,
    RealtimeModelSendRawMessage,
    RealtimeModelSendSessionUpdate,
    RealtimeModelSendUserInput,
)
from quiesce.realtime.words.playback import AssumedPlayback, RealtimePlaybackTracker

from .talk import MS, Talk, truncation, types

INTERRUPT = RealtimeModelSendInterrupt()
FORCED = RealtimeModelSendInterrupt(force_response_cancel=True)
CANCEL = {"type": "response.cancel", "response_id": "resp_1"}
TRUNCATE = "conversation.item.truncate"
PASSIVE = {"turn_detection": {"type": "server_vad", "interrupt_response": False}}


def speaking(ms: int = 1000, played: float = 300, given: Any = None) -> Talk:
    """A response is on, and some of it was played."""
    talk = Talk(given)
    talk.begins()
    talk.says(ms)
    talk.tracker.on_play_ms("item_1", 0, played)
    return talk


def speech(talk: Talk) -> list[Any]:
    """The user begins to speak; returns what is told besides."""
    told = talk.server("input_audio_buffer.speech_started", audio_start_ms=5, item_id="item_9")
    assert types(told[:1]) == ["other"]
    return told[1:]


def test_what_is_being_played_is_cut_to_what_was_heard() -> None:
    talk = speaking()
    assert talk.user(INTERRUPT) == [Interrupted("item_1", 0)]
    assert talk.sent == [truncation("item_1", 300)]
    assert talk.tracker.get_state()["current_item_id"] is None


def test_the_same_when_the_user_speaks() -> None:
    talk = speaking()
    assert speech(talk) == [Interrupted("item_1", 0)]
    assert talk.sent == [truncation("item_1", 300)]
    assert talk.tracker.get_state()["current_item_id"] is None


@pytest.mark.parametrize(
    ("played", "heard"),
    [
        (0, 0),
        (0.9, 0),
        (999.9, 999),
        (1000, 1000),
        (5000, 1000),
        (-7, 0),
        (math.nan, 0),
        (math.inf, 1000),
        (-math.inf, 0),
    ],
)
def test_no_more_was_heard_than_came_and_never_less_than_nothing(played: float, heard: int) -> None:
    talk = speaking(played=played)
    talk.user(INTERRUPT)
    assert talk.sent == [truncation("item_1", heard)]


def test_part_of_a_millisecond_that_came_does_not_count() -> None:
    talk = Talk()
    talk.begins()
    talk.server(
        "response.output_audio.delta",
        response_id="resp_1",
        item_id="item_1",
        content_index=0,
        delta="AAAA" * 25,
    )
    talk.tracker.on_play_ms("item_1", 0, 50)
    talk.user(INTERRUPT)
    assert talk.sent == [truncation("item_1", 75 // MS)]


def test_it_is_cut_once() -> None:
    talk = speaking()
    talk.user(INTERRUPT)
    assert talk.sent_types == ["conversation.item.truncate"]
    talk.tracker.on_play_ms("item_1", 0, 20)  # the player was slow to stop
    assert talk.user(INTERRUPT) == []
    assert speech(talk) == []
    assert talk.sent == []


def test_nothing_is_cut_where_nothing_is_said() -> None:
    talk = Talk()
    assert talk.user(INTERRUPT) == []
    assert speech(talk) == []
    talk.begins()
    talk.server("response.output_text.delta", response_id="resp_1", item_id="item_1", delta="hello")
    assert talk.user(INTERRUPT) == []
    talk.tracker.on_play_ms("item_of_old", 0, 100)  # of which no audio came
    assert talk.user(INTERRUPT) == []
    assert talk.sent == []


def test_what_was_heard_to_its_end_is_not_cut() -> None:
    for end in ("audio", "response"):
        talk = speaking(1000, 999.5)
        if end == "audio":
            talk.has_said()
        else:
            talk.ends()
        assert talk.user(INTERRUPT) == []
        assert talk.sent == []
        assert talk.tracker.get_state()["current_item_id"] is None


def test_what_is_still_being_played_of_a_response_that_has_ended_is_cut() -> None:
    talk = speaking()
    talk.has_said()
    talk.ends()
    assert talk.user(FORCED) == [Interrupted("item_1", 0)]
    assert talk.sent == [truncation("item_1", 300)]  # and there is nothing to cancel


def test_what_comes_after_that_which_is_played_was_not_heard_at_all_and_what_came_before_was() -> None:
    talk = Talk()
    talk.begins()
    talk.says(500, "item_1")
    talk.says(500, "item_2", content_index=1)
    talk.ends()
    talk.begins("resp_2")
    talk.says(500, "item_3", "resp_2")
    talk.tracker.on_play_ms("item_1", 0, 500)
    talk.tracker.on_play_ms("item_2", 1, 100)
    assert talk.user(INTERRUPT) == [Interrupted("item_2", 1), Interrupted("item_3", 0)]
    assert talk.sent == [truncation("item_2", 100, 1), truncation("item_3", 0)]


def test_audio_that_came_and_of_which_nothing_was_played_is_cut_altogether() -> None:
    talk = Talk()
    talk.begins()
    talk.says(500)
    talk.server(
        "response.output_audio.delta", response_id="resp_1", item_id="item_2", content_index=0, delta=""
    )
    assert talk.user(INTERRUPT) == [Interrupted("item_1", 0)]
    assert talk.sent == [truncation("item_1", 0)]


def test_an_item_that_was_deleted_is_not_cut() -> None:
    talk = speaking()
    talk.server("conversation.item.deleted", item_id="item_1")
    assert talk.user(INTERRUPT) == []
    assert talk.sent == []


def test_what_was_heard_before_something_that_is_cut_or_deleted_is_not_cut() -> None:
    for how in ("cut", "deleted"):
        talk = two_responses()
        talk.has_said("item_1")
        talk.tracker.on_play_ms("item_1", 0, 700)
        talk.tracker.on_play_ms("item_2", 0, 100)
        if how == "deleted":
            talk.server("conversation.item.deleted", item_id="item_2")
        else:
            only = RealtimeModelSendInterrupt(force_response_cancel=True, response_id="resp_2")
            assert talk.user(only) == [Interrupted("item_2", 0)]
            talk.tracker.on_play_ms("item_2", 0, 20)  # the player was slow to stop
        assert talk.sent_types == ([] if how == "deleted" else ["response.cancel", TRUNCATE])
        talk.ends("resp_2")
        talk.begins("resp_3")
        talk.says(100, "item_3", "resp_3")
        assert talk.user(INTERRUPT) == [Interrupted("item_3", 0)]
        assert talk.sent == [truncation("item_3", 0)]


def take(talk: Talk, events: list[Any]) -> None:
    """What a session does whose user keeps no account."""
    tracker = talk.tracker
    assert isinstance(tracker, AssumedPlayback)
    for event in events:
        if event.type == "audio":
            tracker.on_taken(event.item_id, event.content_index, len(event.data))
        elif event.type == "audio_interrupted":
            tracker.on_cut(event.item_id, event.content_index)


def test_what_waits_behind_a_response_that_is_cut_while_it_is_played_is_known_to_be_heard_then() -> None:
    now = 0.0
    talk = Talk(tracker=AssumedPlayback(lambda: now))
    for number, ms in ((1, 3_000), (2, 2_000)):
        talk.begins(f"resp_{number}")
        take(talk, talk.says(ms, f"item_{number}", f"resp_{number}"))
        talk.has_said(f"item_{number}", f"resp_{number}")
        talk.ends(f"resp_{number}")
    now = 1.0  # in the midst of the first
    take(talk, talk.user(RealtimeModelSendInterrupt(force_response_cancel=True, response_id="resp_1")))
    assert talk.sent == [truncation("item_1", 1_000)]
    now = 1.75
    take(talk, talk.user(INTERRUPT))
    assert talk.sent == [truncation("item_2", 750)]


def test_the_assumed_account_knows_what_was_heard_around_a_response_that_is_cut_alone() -> None:
    now = 0.0
    talk = Talk(tracker=AssumedPlayback(lambda: now))
    for number, ms in ((1, 10_000), (2, 30_000)):
        talk.begins(f"resp_{number}")
        take(talk, talk.says(ms, f"item_{number}", f"resp_{number}"))
        talk.ends(f"resp_{number}")
    now = 2.0  # in the midst of the first
    take(talk, talk.user(RealtimeModelSendInterrupt(force_response_cancel=True, response_id="resp_2")))
    assert talk.sent == [truncation("item_2", 0)]
    talk.begins("resp_3")
    take(talk, talk.says(20_000, "item_3", "resp_3"))
    talk.ends("resp_3")
    now = 25.0
    take(talk, speech(talk))
    assert talk.sent == [truncation("item_3", 15_000)]


def test_audio_of_an_item_that_was_deleted_is_stopped_but_there_is_nothing_to_cut_it_from() -> None:
    talk = speaking()
    talk.server("conversation.item.deleted", item_id="item_1")
    assert types(talk.says(100)) == ["audio"]
    assert talk.user(INTERRUPT) == [Interrupted("item_1", 0)]
    assert talk.sent == []


# Whether the response is cancelled


@pytest.mark.parametrize(
    ("given", "event", "cancels"),
    [
        (None, INTERRUPT, False),
        (None, FORCED, True),
        (PASSIVE, INTERRUPT, True),
        (PASSIVE, FORCED, True),
        ({"turn_detection": None}, INTERRUPT, True),
        ({"turn_detection": {"type": "server_vad"}}, INTERRUPT, False),
    ],
)
def test_an_interrupt_cancels_the_response_unless_the_server_does_by_itself(
    given: Any, event: Any, cancels: bool
) -> None:
    talk = speaking(given=given)
    talk.user(event)
    assert talk.sent == ([CANCEL] if cancels else []) + [truncation("item_1", 300)]
    talk.user(FORCED)
    talk.user(FORCED)
    assert talk.sent == ([] if cancels else [CANCEL])


@pytest.mark.parametrize(("given", "cancels"), [(None, False), (PASSIVE, True)])
def test_when_the_user_speaks_the_server_cancels_by_itself_unless_it_was_told_not_to(
    given: Any, cancels: bool
) -> None:
    talk = speaking(given=given)
    speech(talk)
    assert talk.sent == ([CANCEL] if cancels else []) + [truncation("item_1", 300)]


def test_the_server_has_the_last_word_on_how_it_takes_turns() -> None:
    active = {"type": "server_vad", "interrupt_response": True}
    passive = {"type": "server_vad", "interrupt_response": False}

    def cancels(talk: Talk) -> bool:
        talk.begins()
        speech(talk)
        return talk.sent == [CANCEL]

    talk = Talk(PASSIVE)
    talk.server("session.created", session={"audio": {"input": {"turn_detection": active}}})
    assert cancels(talk)  # what was asked for comes after what it was like at first
    talk.server("session.updated", session={"audio": {"input": {"turn_detection": active}}})
    assert not cancels(talk)
    talk.server(
        "session.updated", session={"turn_detection": passive}
    )  # as it was before the wire was stable
    assert cancels(talk)
    talk.server("session.updated", session={"audio": {"input": None}})
    assert cancels(talk)
    talk.user(RealtimeModelSendSessionUpdate({"turn_detection": active}))  # type: ignore[typeddict-item]
    assert talk.sent_types == ["session.update"]
    assert not cancels(talk)
    talk.user(
        RealtimeModelSendRawMessage({"type": "session.update", "session": {"audio": {"input": PASSIVE}}})
    )
    assert talk.sent_types == ["session.update"]
    assert cancels(talk)


def test_a_response_whose_id_is_unknown_is_cancelled_without_one() -> None:
    talk = Talk()
    talk.server("response.created", response={})
    talk.user(FORCED)
    assert talk.sent == [{"type": "response.cancel"}]


def test_who_waits_for_an_answer_of_before_the_interrupt_gets_none_and_who_asks_afterwards_does() -> None:
    for asks_again in (False, True):
        talk = speaking()
        talk.user(RealtimeModelSendUserInput("wait"))
        talk.user(FORCED)
        assert talk.sent_types == [
            "conversation.item.create",
            "response.cancel",
            "conversation.item.truncate",
        ]
        if asks_again:
            talk.user(RealtimeModelSendUserInput("go on"))
            assert talk.sent_types == ["conversation.item.create"]
        talk.ends(status="cancelled")
        assert talk.sent_types == (["response.create"] if asks_again else [])


@pytest.mark.parametrize(
    "event",
    [
        RealtimeModelSendInterrupt(force_response_cancel=True, response_id="resp_1"),
        RealtimeModelSendInterrupt(playback_only=True),
        None,
    ],
)
def test_an_interrupt_of_less_than_everything_takes_no_answer_from_those_who_wait(event: Any) -> None:
    talk = speaking()
    talk.user(RealtimeModelSendUserInput("wait"))
    if event is not None:
        talk.user(event)
    else:
        speech(talk)
    talk.ends(status="cancelled")
    assert talk.sent_types[-1] == "response.create"


# Before it has begun


@pytest.mark.parametrize("event", [INTERRUPT, FORCED, RealtimeModelSendInterrupt(cancel_response_only=True)])
def test_a_response_that_is_interrupted_before_it_begins_ends_when_it_does_and_is_not_heard(
    event: Any,
) -> None:
    talk = Talk()
    talk.user(RealtimeModelSendUserInput("hello"))
    assert talk.sent_types == ["conversation.item.create", "response.create"]
    assert talk.user(event) == []
    talk.user(RealtimeModelSendUserInput("something else"))
    assert talk.sent_types == ["conversation.item.create"]
    talk.begins()
    assert talk.sent == [CANCEL]
    assert talk.says(100) == []
    assert types(call(talk)) == ["item_updated"]  # and no tool is called
    assert [each["type"] for each in talk.sent] == ["conversation.item.truncate", "conversation.item.create"]
    talk.ends(status="cancelled")
    assert talk.sent_types == ["response.create"]
    talk.begins("resp_2")
    assert types(talk.says(100, "item_2", "resp_2")) == ["audio"]
    assert talk.sent == []


ELSEWHERE = {"type": "invalid_request_error", "code": "x", "message": "something is wrong", "event_id": None}


@pytest.mark.parametrize("first", ["interrupt", "error"])
def test_an_error_of_which_nobody_knows_what_it_is_about_does_not_make_an_interrupt_forgotten(
    first: str,
) -> None:
    talk = Talk()
    talk.user(RealtimeModelSendUserInput("hello"))
    for what in ("interrupt", "error") if first == "interrupt" else ("error", "interrupt"):
        if what == "interrupt":
            talk.user(INTERRUPT)
        else:
            talk.server("error", error=ELSEWHERE)
    assert talk.sent_types == ["conversation.item.create", "response.create"]
    talk.begins()
    assert talk.sent == [CANCEL]
    assert talk.says(100) == []
    talk.ends(status="cancelled")
    talk.begins("resp_2")
    assert types(talk.says(100, "item_2", "resp_2")) == ["audio"]


@pytest.mark.parametrize("by", ["request", "speech", "silence"])
def test_a_request_that_was_refused_after_an_interrupt_takes_no_other_answer_with_it(by: str) -> None:
    talk = Talk()
    talk.user(RealtimeModelSendUserInput("hello"))
    talk.user(INTERRUPT)
    talk.server("error", error=ELSEWHERE)
    if by == "request":
        talk.user(RealtimeModelSendUserInput("and?"))
        assert talk.sent_types[-1] == "response.create"
    elif by == "speech":
        speech(talk)
    else:
        kind = "input_audio_buffer.timeout_triggered"
        talk.server(kind, item_id="item_9", audio_start_ms=0, audio_end_ms=1)
    talk.begins()
    assert types(talk.says(100)) == ["audio"]
    assert CANCEL not in talk.sent


def test_playback_alone_cannot_end_before_it_begins() -> None:
    talk = Talk()
    talk.user(RealtimeModelSendUserInput("hello"))
    talk.user(RealtimeModelSendInterrupt(playback_only=True))
    talk.begins()
    assert types(talk.says(100)) == ["audio"]
    assert talk.sent_types == ["conversation.item.create", "response.create"]


# What is late


@pytest.mark.parametrize("how", [INTERRUPT, FORCED, None])
def test_audio_of_an_interrupted_response_is_not_told_any_more(how: Any) -> None:
    talk = speaking()
    if how is not None:
        talk.user(how)
    else:
        speech(talk)
    assert talk.sent
    assert talk.says(200) == []
    assert talk.says(200, "item_2") == []  # of which nobody has heard anything
    assert talk.says(200, "item_2") == []
    sent = talk.sent
    assert [each for each in sent if each != CANCEL] == [truncation("item_2", 0)]
    # It was to stop, and goes on: it is cancelled, if it was not before, and once. When the user speaks, the server cancels it.
    assert sent.count(CANCEL) == (1 if how is INTERRUPT else 0)
    talk.ends(status="cancelled")
    talk.begins("resp_2")
    assert types(talk.says(100, "item_3", "resp_2")) == ["audio"]


@pytest.mark.parametrize("kind", ["response.output_text.delta", "response.output_audio_transcript.delta"])
def test_a_response_that_goes_on_in_words_after_an_interrupt_is_cancelled(kind: str) -> None:
    talk = Talk()
    talk.begins()
    talk.user(INTERRUPT)
    assert talk.sent == []
    for _ in range(2):
        assert len(talk.server(kind, response_id="resp_1", item_id="item_1", delta="and")) == 1
    assert talk.sent == [CANCEL]


# One response, or one of the two


def two_responses() -> Talk:
    """One is being played and has ended, the next is on."""
    talk = Talk()
    talk.begins("resp_1")
    talk.says(1000, "item_1", "resp_1")
    talk.ends("resp_1")
    talk.begins("resp_2")
    talk.says(1000, "item_2", "resp_2")
    talk.tracker.on_play_ms("item_1", 0, 300)
    return talk


def test_only_what_is_asked_for_is_interrupted() -> None:
    talk = two_responses()
    event = RealtimeModelSendInterrupt(force_response_cancel=True, response_id="resp_1")
    assert talk.user(event) == [Interrupted("item_1", 0)]
    assert talk.sent == [truncation("item_1", 300)]
    assert types(talk.says(100, "item_2", "resp_2")) == ["audio"]
    talk.tracker.on_play_ms("item_2", 0, 200)  # it waited behind the other, and is played on
    talk.user(INTERRUPT)
    assert talk.sent == [truncation("item_2", 200)]
    assert talk.tracker.get_state()["current_item_id"] is None

    talk = two_responses()
    event = RealtimeModelSendInterrupt(force_response_cancel=True, response_id="resp_2")
    assert talk.user(event) == [Interrupted("item_2", 0)]
    assert talk.sent == [{"type": "response.cancel", "response_id": "resp_2"}, truncation("item_2", 0)]
    assert talk.tracker.get_state()["current_item_id"] == "item_1"  # it is played on
    assert talk.says(100, "item_2", "resp_2") == []

    talk = two_responses()
    assert talk.user(RealtimeModelSendInterrupt(force_response_cancel=True, response_id="resp_of_old")) == []
    assert talk.sent == []


def test_a_response_may_be_cancelled_while_what_came_of_it_is_played_on() -> None:
    for response_id in ("resp_1", None):
        talk = speaking()
        assert talk.user(RealtimeModelSendInterrupt(cancel_response_only=True, response_id=response_id)) == []
        assert talk.sent == [CANCEL]
        assert types(talk.says(100)) == ["audio"]
        assert talk.tracker.get_state()["elapsed_ms"] == 300


def test_playback_may_end_while_the_response_goes_on() -> None:
    talk = speaking(given=PASSIVE)
    assert talk.user(RealtimeModelSendInterrupt(playback_only=True)) == [Interrupted("item_1", 0)]
    assert talk.sent == [truncation("item_1", 300)]
    assert talk.says(100) == []
    assert talk.sent == []
    assert call(talk)[-1].type == "function_call"


def test_the_two_together_are_refused() -> None:
    for event in (
        RealtimeModelSendInterrupt(playback_only=True, cancel_response_only=True),
        RealtimeModelSendInterrupt(playback_only=True, force_response_cancel=True),
    ):
        with pytest.raises(UserError, match="playback_only"):
            speaking().user(event)


def test_what_is_said_outside_of_the_conversation_is_stopped_but_there_is_nothing_to_cut_it_from() -> None:
    talk = Talk()
    talk.user(RealtimeModelSendRawMessage({"type": "response.create", "response": {"conversation": "none"}}))
    talk.server("response.created", response={"id": "resp_aside", "conversation_id": None})
    talk.says(500, "item_aside", "resp_aside")
    assert talk.sent_types == ["response.create"]
    event = RealtimeModelSendInterrupt(force_response_cancel=True, response_id="resp_aside")
    assert talk.user(event) == [Interrupted("item_aside", 0)]
    assert talk.sent == [{"type": "response.cancel", "response_id": "resp_aside"}]
    assert talk.says(500, "item_more", "resp_aside") == []
    assert talk.sent == []


# The words of what was cut


def words(talk: Talk, text: str, item_id: str = "item_1", content_index: int = 0) -> None:
    [event] = talk.server(
        "response.output_audio_transcript.delta",
        response_id="resp_1",
        item_id=item_id,
        content_index=content_index,
        delta=text,
    )
    assert event.delta == text


def truncated(talk: Talk, ms: int, item_id: str = "item_1", content_index: int = 0) -> list[Any]:
    """The server has done as it was told; returns what is told besides."""
    first, *rest = talk.server(
        "conversation.item.truncated", item_id=item_id, content_index=content_index, audio_end_ms=ms
    )
    assert first.type == "other"
    assert first.data["audio_end_ms"] == ms
    return rest


def message(talk: Talk, kind: str, *transcripts: str | None, status: str = "completed") -> list[Any]:
    content = [{"type": "output_audio", "transcript": transcript} for transcript in transcripts]
    item = {"type": "message", "role": "assistant", "id": "item_1", "status": status, "content": content}
    return talk.server(kind, item=item, previous_item_id="item_0", response_id="resp_1")


def as_told(*transcripts: str | None) -> AssistantMessageItem:
    """The item, after it was cut."""
    parts: list[Any] = [AssistantAudio(transcript=transcript) for transcript in transcripts]
    return AssistantMessageItem("item_1", parts, "incomplete", "item_0")


@pytest.mark.parametrize(
    ("text", "ms", "heard"),
    [
        ("one two three four", 0, ""),
        ("one two three four", 100, ""),
        ("one two three four", 167, "one"),  # just so
        ("one two three four", 500, "one two"),
        ("one two three four", 999, "one two three"),
        ("one two three four", 1000, "one two three four"),
        ("one two three four", 5000, "one two three four"),
        ("abcdefghij", 500, "abcde"),  # a language without spaces
    ],
)
def test_of_what_was_cut_the_words_stay_that_were_heard(text: str, ms: int, heard: str) -> None:
    talk = Talk()
    talk.begins()
    message(talk, "conversation.item.added", status="in_progress")
    for letter in text:
        words(talk, letter)
        talk.says(1000 // len(text))
    talk.says(1000 % len(text))
    talk.user(INTERRUPT)
    [event] = truncated(talk, ms)
    assert event.item == as_told(heard)


def test_what_is_told_of_it_later_has_no_other_words() -> None:
    for kind in ("response.output_item.done", "conversation.item.done", "conversation.item.retrieved"):
        talk = speaking()
        message(talk, "conversation.item.added", status="in_progress")
        words(talk, "one two three ")
        talk.user(INTERRUPT)
        words(talk, "four")  # it goes on meanwhile
        talk.says(1000)
        [event] = message(talk, kind, "one two three four")  # it had not come there yet
        assert event.item.content == [AssistantAudio(transcript="one two three four")]
        [event] = truncated(talk, 1000)
        assert event.item == as_told("one two")
        [event] = message(talk, kind, "one two three four")
        assert event.item == as_told("one two")


def test_a_content_of_which_nothing_was_told_has_no_words() -> None:
    talk = speaking()
    talk.user(INTERRUPT)
    words(talk, "never heard", "item_2")
    talk.says(100, "item_2")
    assert truncation("item_2", 0) in talk.sent
    [event] = truncated(talk, 0, "item_2")
    assert event.item.content == [AssistantAudio(transcript="")]


def test_several_contents_are_cut_each_by_itself() -> None:
    talk = Talk()
    talk.begins()
    message(talk, "conversation.item.added", status="in_progress")
    for index, text in enumerate(("one two", "three four", "five")):
        words(talk, text, content_index=index)
        talk.says(100, content_index=index)
    talk.tracker.on_play_ms("item_1", 1, 60)
    talk.user(INTERRUPT)
    assert talk.sent == [truncation("item_1", 60, 1), truncation("item_1", 0, 2)]
    [event] = truncated(talk, 60, content_index=1)
    assert event.item == as_told(None, "three", None)  # None: as it was
    [event] = truncated(talk, 0, content_index=2)
    assert event.item == as_told(None, "three", "")
    [event] = message(talk, "conversation.item.done", "one two", "three four", "five")
    assert event.item == as_told("one two", "three", "")


def test_where_the_words_are_not_known_the_item_is_incomplete_at_least() -> None:
    talk = speaking()
    talk.user(INTERRUPT)
    [event] = truncated(talk, 300)
    assert (event.item.status, event.item.content) == ("incomplete", [AssistantAudio()])
    assert truncated(talk, 300, "item_of_old") == []
    assert truncated(talk, 300, content_index=2**31) == []
    talk.says(100, content_index=7)
    assert truncated(talk, 0, content_index=7) == []  # there is something else in it


# Tool calls of interrupted responses


def call(talk: Talk, status: str = "completed") -> list[Any]:
    item = {
        "type": "function_call",
        "id": "item_7",
        "call_id": "call_7",
        "name": "f",
        "arguments": "{}",
        "status": status,
    }
    return talk.server("response.output_item.done", item=item, response_id="resp_1")


@pytest.mark.parametrize(
    "event", [INTERRUPT, FORCED, RealtimeModelSendInterrupt(cancel_response_only=True, response_id="resp_1")]
)
def test_a_call_that_is_complete_after_its_response_was_stopped_is_answered_and_not_made(event: Any) -> None:
    talk = Talk()
    talk.begins()
    talk.user(event)
    assert talk.sent in ([], [CANCEL])
    [updated] = call(talk)
    assert (updated.item.call_id, updated.item.status, updated.item.output) == (
        "call_7",
        "incomplete",
        NOT_RUN,
    )
    assert talk.sent == [
        {
            "type": "conversation.item.create",
            "item": {"type": "function_call_output", "call_id": "call_7", "output": NOT_RUN},
        }
    ]
    assert call(talk) == []
    assert talk.sent == []


def test_one_that_is_not_complete_is_neither() -> None:
    talk = Talk()
    talk.begins()
    talk.user(FORCED)
    assert types(call(talk, "incomplete")) == ["item_updated"]
    assert talk.sent == [CANCEL]


def test_a_call_that_was_complete_before_the_user_spoke_is_made() -> None:
    talk = speaking()
    speech(talk)
    assert types(call(talk)) == ["item_updated", "function_call"]


# The account of what was played is the user's code


class Broken(RealtimePlaybackTracker):
    """One that fails wherever it is asked."""

    def get_state(self) -> Any:
        raise RuntimeError("no idea")

    def on_interrupted(self) -> None:
        raise RuntimeError("no way")

    def set_audio_format(self, format: Any) -> None:  # noqa: A002
        if format != {"type": "audio/pcm", "rate": 24000}:
            raise RuntimeError("no such format")


def test_an_account_that_fails_is_an_error_and_the_interruption_takes_place() -> None:
    talk = Talk(tracker=Broken())
    talk.begins()
    talk.says(100)
    first, interrupted, second = talk.user(FORCED)
    assert (str(first.error), str(second.error)) == ("no idea", "no way")
    assert interrupted == Interrupted("item_1", 0)
    assert talk.sent == [CANCEL]  # nobody knows to what it would have to be cut
    told = talk.server("session.updated", session={"audio": {"output": {"format": {"type": "audio/pcmu"}}}})
    assert [str(each.error) for each in told if each.type == "error"] == ["no such format"]


def test_an_account_that_fails_when_the_session_begins_is_raised() -> None:
    with pytest.raises(RuntimeError, match="no such format"):
        Talk({"output_audio_format": "g711_ulaw"}, tracker=Broken())


@pytest.mark.parametrize(
    "state", [None, {}, {"current_item_id": [], "current_item_content_index": 0, "elapsed_ms": "x"}]
)
def test_an_account_that_makes_no_sense_is_an_error_too(state: Any) -> None:
    class Odd(RealtimePlaybackTracker):
        def get_state(self) -> Any:
            return state

    talk = Talk(tracker=Odd())
    talk.begins()
    talk.says(100)
    assert types(talk.user(INTERRUPT)) == ["error", "audio_interrupted"]


# Formats


@pytest.mark.parametrize(("form", "rate"), [("g711_ulaw", 8), ("g711_alaw", 8), ("pcm16", 48)])
def test_how_long_audio_lasts_depends_on_its_format(form: str, rate: int) -> None:
    talk = Talk({"output_audio_format": form})
    talk.begins()
    talk.says(100)  # so many milliseconds of pcm16
    talk.tracker.on_play_bytes("item_1", 0, bytes(rate * 50))
    talk.tracker.on_play_ms("item_1", 0, 10_000)
    talk.user(INTERRUPT)
    assert talk.sent == [truncation("item_1", 100 * MS // rate)]


def test_the_server_says_which_format_it_is() -> None:
    for session in (
        {"audio": {"output": {"format": {"type": "audio/pcmu"}}}},
        {"output_audio_format": "g711_ulaw"},
    ):
        talk = Talk()
        talk.server("session.updated", session=session)
        talk.tracker.on_play_bytes("item_1", 0, bytes(80))
        assert talk.tracker.get_state()["elapsed_ms"] == 10


@pytest.mark.parametrize(
    "form", [7, {"type": 1}, {"type": "audio/pcm", "rate": -1}, {"type": "audio/pcm", "rate": "x"}, "mp3"]
)
def test_a_format_that_makes_no_sense_is_an_error_and_the_one_before_holds(form: Any) -> None:
    talk = Talk()
    told = talk.server("session.updated", session={"audio": {"output": {"format": form}}})
    assert types(told) == ["other", "error"]
    talk.begins()
    talk.says(100)
    talk.tracker.on_play_bytes("item_1", 0, bytes(40 * MS))
    talk.user(INTERRUPT)
    assert talk.sent == [truncation("item_1", 40)]


# Any conversation


class Player:
    """Plays what is told, one content after the other, and stops when it is told to."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.queue: list[tuple[str, int, int]] = []  # item, response, milliseconds
        self.came: dict[str, int] = {}
        self.heard: dict[str, int] = {}
        self.cut: dict[str, int] = {}

    def hear(self, events: list[Any]) -> None:
        """Events were told."""
        for event in events:
            if event.type == "audio":
                ms = len(event.data) // MS
                self.queue.append((event.item_id, event.content_index, ms))
                self.came[event.item_id] = self.came.get(event.item_id, 0) + ms
            elif event.type == "audio_interrupted":
                assert event.item_id in self.came
                self.queue = [each for each in self.queue if each[0] != event.item_id]

    def play(self, ms: int) -> None:
        """Time passes."""
        while ms and self.queue:
            item_id, index, left = self.queue.pop(0)
            now = min(left, ms)
            ms -= now
            if now < left:
                self.queue.insert(0, (item_id, index, left - now))
            self.heard[item_id] = self.heard.get(item_id, 0) + now
            self.talk.tracker.on_play_ms(item_id, index, now)

    def sent(self) -> None:
        """Look at what was sent."""
        for message in self.talk.sent:
            if message["type"] == "conversation.item.truncate":
                item_id = message["item_id"]
                assert item_id not in self.cut
                self.cut[item_id] = message["audio_end_ms"]


@settings(max_examples=60)
@given(st.integers(0, 2**64))
def test_whatever_was_said_the_model_knows_what_was_heard_of_it(seed: int) -> None:
    random = Random(seed)
    talk = Talk(random.choice([None, PASSIVE]))
    player = Player(talk)
    number, items, on = 0, 0, False
    came: dict[str, int] = {}  # whether it was told or not
    for _ in range(random.randrange(1, 50)):
        what = random.randrange(8)
        if what == 0 and not on:
            number, on = number + 1, True
            talk.begins(f"resp_{number}")
        elif what < 4 and on:
            items += random.random() < 0.3
            item_id, ms = f"item_{number}_{items}", random.randrange(1, 400)
            came[item_id] = came.get(item_id, 0) + ms
            player.hear(talk.says(ms, item_id, f"resp_{number}"))
        elif what == 4 and on:
            on = False
            talk.ends(f"resp_{number}")
        elif what == 5:
            player.hear(speech(talk))
        elif what == 6:
            response_id = (
                f"resp_{random.randrange(1, number + 1)}" if number and random.random() < 0.5 else None
            )
            player.hear(talk.user(RealtimeModelSendInterrupt(random.random() < 0.5, response_id)))
        player.sent()
        player.play(random.randrange(300))
    player.hear(talk.user(FORCED))
    player.sent()
    assert player.queue == []
    for item_id, ms in came.items():
        heard = player.heard.get(item_id, 0)
        if item_id in player.cut:
            assert player.cut[item_id] == heard
        else:
            assert heard == ms
