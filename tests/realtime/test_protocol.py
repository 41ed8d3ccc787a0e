"""What comes from the server, and what it means for the listeners."""

from __future__ import annotations

import base64
import json
import pickle
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiesce.models.words.model import Usage
from quiesce.realtime.openai.protocol import Protocol
from quiesce.realtime.openai.server_events import KNOWN, MalformedServerEvent
from quiesce.realtime.words import items
from quiesce.realtime.words import model_events as told
from quiesce.realtime.words.model_inputs import RealtimeModelSendInterrupt, RealtimeModelSendToolOutput
from quiesce.realtime.words.playback import RealtimePlaybackTracker

from .talk import Talk, types

AUDIO = bytes(range(256)) * 3

WHERE = {"response_id": "resp_1", "item_id": "item_1", "output_index": 0, "content_index": 2}


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        (
            "response.output_audio.delta",
            {**WHERE, "delta": base64.b64encode(AUDIO).decode()},
            [told.RealtimeModelAudioEvent(AUDIO, "resp_1", "item_1", 2)],
        ),
        ("response.output_audio.done", WHERE, [told.RealtimeModelAudioDoneEvent("item_1", 2)]),
        (
            "response.output_audio_transcript.delta",
            {**WHERE, "delta": "hé"},
            [told.RealtimeModelTranscriptDeltaEvent("item_1", "hé", "resp_1")],
        ),
        (
            "response.output_text.delta",
            {**WHERE, "delta": "hé"},
            [told.RealtimeModelOutputTextDeltaEvent("item_1", "hé", "resp_1")],
        ),
        ("response.created", {"response": {"id": "resp_1"}}, [told.RealtimeModelTurnStartedEvent("resp_1")]),
        ("conversation.item.deleted", {"item_id": "item_1"}, [told.RealtimeModelItemDeletedEvent("item_1")]),
        (
            "conversation.item.input_audio_transcription.completed",
            {
                "item_id": "item_1",
                "content_index": 0,
                "transcript": "hello",
                "usage": {"type": "duration", "seconds": 1},
            },
            [told.RealtimeModelInputAudioTranscriptionCompletedEvent("item_1", "hello")],
        ),
        (
            "input_audio_buffer.timeout_triggered",
            {"item_id": "item_1", "audio_start_ms": 5, "audio_end_ms": 6005},
            [told.RealtimeModelInputAudioTimeoutTriggeredEvent("item_1", 5, 6005)],
        ),
        (
            "error",
            {
                "error": {
                    "type": "invalid_request_error",
                    "message": "no",
                    "code": "c",
                    "event_id": "e",
                    "param": "p",
                }
            },
            [
                told.RealtimeModelErrorEvent(
                    told.RealtimeServerError("invalid_request_error", "no", "c", "e", "p")
                )
            ],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_event_of_the_server_is_told(kind: str, fields: dict[str, Any], expected: list[Any]) -> None:
    talk = Talk()
    assert talk.server(kind, **fields) == expected
    assert talk.sent == []
    # The order of the fields makes no difference.
    frame = json.dumps({**fields, "type": kind}).encode()
    assert Protocol(RealtimePlaybackTracker()).receive(frame)[0][1:] == expected


@pytest.mark.parametrize(
    ("now", "before"),
    [
        ("response.output_audio.delta", "response.audio.delta"),
        ("response.output_audio.done", "response.audio.done"),
        ("response.output_audio_transcript.delta", "response.audio_transcript.delta"),
        ("response.output_text.delta", "response.text.delta"),
        ("conversation.item.added", "conversation.item.created"),
    ],
)
def test_names_of_the_wire_before_it_was_stable_are_taken_too(now: str, before: str) -> None:
    message = {"type": "message", "id": "item_1", "role": "user", "content": []}
    fields = {**WHERE, "delta": "AAAA", "item": message, "previous_item_id": "item_0"}
    meaning = Talk().server(now, **fields)
    assert meaning
    assert Talk().server(before, **fields) == meaning


def test_what_there_is_no_word_for_is_told_with_its_data() -> None:
    for kind in ("rate_limits.updated", "response.mcp_call.in_progress", "made.up.tomorrow"):
        [event] = Talk().server(kind, some=[1, {"more": None}])
        assert event == told.RealtimeModelOtherEvent(
            {"type": kind, "event_id": "event_1", "some": [1, {"more": None}]}
        )


def test_a_raw_event_gives_the_message_as_a_dict() -> None:
    for kind in ("response.created", "made.up.tomorrow"):
        frame = json.dumps({"type": kind, "response": {"id": "r"}}).encode()
        raw: Any = Protocol(RealtimePlaybackTracker()).receive(frame)[0][0]
        assert raw.data == json.loads(frame)


MALFORMED = [
    (b"", "not JSON"),
    (b"hello", "not JSON"),
    (b'{"type":"response.created","response":{"id":', "not JSON"),
    (b'{"type":"response.done"} {}', "not JSON"),
    (b'{"type":"\xff"}', "not JSON"),
    (b'{"type":"error","error":' + b"[" * 200_000, "not JSON"),
]
NO_EVENT = [
    (b"[1,2]", "array"),
    (b"null", "null"),
    (b'"response.done"', "string"),
    (b"{}", "no type; it has no fields at all"),
    (b'{"event_id":"e","a":1}', "no type; it has 'event_id', 'a'"),
    (b'{"type":null}', "the type None"),
    (b'{"type":["response.done"]}', "the type ['response.done']"),
    (
        b'{"type":"response.created"}',
        "'response.created' is malformed: Object missing required field `response`",
    ),
    (
        b'{"type":"response.created","response":[]}',
        "'response.created' is malformed: Expected `object`, got `array`",
    ),
    (b'{"type":"response.created","response":{"id":7}}', "`$.response.id`"),
    (b'{"type":"error","error":"no"}', "'error' is malformed"),
    (
        b'{"type":"response.output_audio.delta","response_id":"r","item_id":"i","content_index":"0","delta":""}',
        "`$.content_index`",
    ),
    (
        b'{"type":"response.output_audio.delta","response_id":"r","item_id":"i","content_index":-1,"delta":""}',
        "`$.content_index`",
    ),
    (
        b'{"type":"response.output_audio.delta","response_id":"r","item_id":"i","content_index":0,"delta":"AA*A"}',
        "Invalid base64",
    ),
    (
        b'{"type":"response.output_audio.delta","response_id":"r","item_id":"i","content_index":0,"delta":"AAA"}',
        "Invalid base64",
    ),
    (
        b'{"type":"response.audio.delta","response_id":"r","item_id":"i","delta":null}',
        "'response.audio.delta'",
    ),
    (b'{"type":"conversation.item.added","item":{"id":"i"}}', "`type`"),
    (b'{"type":"session.updated","session":"none"}', "`$.session`"),
    (
        b'{"type":"response.output_item.done","response_id":"r","item":{"type":"function_call","status":"completed",'
        b'"id":"item_7","name":"f","arguments":"{}"}}',
        "(item_7) without call_id",
    ),
    (
        b'{"type":"response.output_item.done","response_id":"r","item":{"type":"function_call","status":"completed",'
        b'"id":"item_7","call_id":"c","arguments":"{}"}}',
        "(item_7) without name",
    ),
]


@pytest.mark.parametrize(
    ("frame", "says"), MALFORMED + NO_EVENT, ids=[str(place) for place in range(len(MALFORMED + NO_EVENT))]
)
def test_a_malformed_message_is_an_error_event_and_nothing_is_lost(frame: bytes, says: str) -> None:
    talk = Talk()
    talk.begins()
    talk.says(100)
    events, frames = talk.protocol.receive(frame)
    assert frames == []
    error: Any = events[-1]
    assert isinstance(error.error, MalformedServerEvent)
    assert says in str(error.error)
    assert "the server" in str(error.error)
    assert types(events) == (["error"] if (frame, says) in MALFORMED else ["raw_server_event", "error"])
    assert types(talk.says(100)) == ["audio"]
    assert types(talk.ends()) == ["usage", "turn_ended"]


def test_bytes_that_are_no_text_are_an_error_wherever_they_are() -> None:
    events, _ = Protocol(RealtimePlaybackTracker()).receive(
        b'{"type":"input_audio_buffer.speech_started","x":"\xff"}'
    )
    assert types(events) == ["error"]


FIELDS = [
    "response",
    "response_id",
    "item_id",
    "item",
    "content_index",
    "delta",
    "error",
    "session",
    "id",
    "status",
    "usage",
    "role",
    "content",
    "type",
    "call_id",
    "name",
    "arguments",
    "audio",
    "output",
    "format",
    "turn_detection",
    "audio_end_ms",
    "transcript",
    "event_id",
    "code",
    "message",
    "rate",
]


def scrap(random: Random, depth: int) -> Any:
    """Anything that JSON has, with names and values as they are on the wire."""
    if depth and random.random() < 0.6:
        if random.random() < 0.2:
            return [scrap(random, depth - 1) for _ in range(random.randrange(3))]
        return {random.choice(FIELDS): scrap(random, depth - 1) for _ in range(random.randrange(7))}
    values = [
        None,
        True,
        -1,
        0,
        2**70,
        0.5,
        -1e300,
        "",
        "AAAA",
        "resp_1",
        "item_1",
        "function_call",
        "message",
        "failed",
    ]
    return random.choice([*values, "completed", "conversation_already_has_active_response", "audio/pcm", "é"])


def scrap_of_an_event(random: Random) -> bytes:
    """Something like an event: the right type, and fields as they happen."""
    fields = {random.choice(FIELDS): scrap(random, 3) for _ in range(random.randrange(9))}
    if random.random() < 0.7:
        where = {"response_id": "resp_1", "item_id": "item_1", "delta": "AAAA", "item": {"type": "message"}}
        fields = {**where, **fields} if random.random() < 0.5 else {**fields, **where}
    frame = json.dumps({**fields, "type": random.choice(sorted(KNOWN))}).encode()
    if random.random() < 0.1:
        place = random.randrange(len(frame))
        frame = frame[:place] + random.randbytes(random.randrange(3)) + frame[place + random.randrange(3) :]
    return frame


@settings(max_examples=40)
@given(st.integers(0, 2**64))
def test_whatever_comes_nothing_is_raised_and_the_session_goes_on(seed: int) -> None:
    random = Random(seed)
    talk = Talk()
    for _ in range(50):
        events, sent = talk.protocol.receive(scrap_of_an_event(random))
        assert events
        for frame in sent:
            assert isinstance(msgspec.json.decode(frame), dict)
        if random.random() < 0.1:
            talk.user(RealtimeModelSendInterrupt())
    talk.begins("resp_after")
    assert types(talk.says(10, "item_after", "resp_after")) == ["audio"]
    assert "turn_ended" in types(talk.ends("resp_after"))


# Items


def added(talk: Talk, item: dict[str, Any], before: str | None = None, kind: str = "added") -> list[Any]:
    return talk.server(f"conversation.item.{kind}", item=item, previous_item_id=before)


def test_messages_are_told_as_the_history_has_them() -> None:
    talk = Talk()
    user = [
        {"type": "input_text", "text": "look"},
        {"type": "input_audio", "audio": "AAAA", "transcript": "at this"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"},
        {"type": "input_smell", "smell": "of roses"},
    ]
    [event] = added(talk, {"type": "message", "id": "i1", "role": "user", "content": user}, "i0")
    assert event.item == items.UserMessageItem(
        "i1",
        [
            items.InputText("look"),
            items.InputAudio("AAAA", "at this"),
            items.InputImage("data:image/png;base64,AA", "low"),
        ],
        "i0",
    )
    [event] = added(talk, {"type": "message", "id": "i2", "role": "system", "content": [user[0]]}, "i1")
    assert event.item == items.SystemMessageItem("i2", [items.InputText("look")], "i1")
    said = [{"type": "output_text", "text": "yes"}, {"type": "output_audio", "transcript": "yes"}]
    [event] = added(talk, {"type": "message", "id": "i3", "role": "assistant", "content": said}, "i2")
    parts: list[Any] = [items.AssistantText("yes"), items.AssistantAudio(None, "yes")]
    assert event.item == items.AssistantMessageItem("i3", parts, "in_progress", "i2")
    beta = [{"type": "text", "text": "yes"}, {"type": "audio", "transcript": "yes"}]
    [event] = talk.server(
        "response.output_item.done",
        response_id="resp_1",
        item={"type": "message", "id": "i3", "role": "assistant", "content": beta, "status": "incomplete"},
    )
    assert event.item == items.AssistantMessageItem("i3", parts, "incomplete", "i2")


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("response.output_item.added", "in_progress"),
        ("response.output_item.done", "completed"),
        ("conversation.item.added", "in_progress"),
        ("conversation.item.created", "in_progress"),
        ("conversation.item.done", "completed"),
        ("conversation.item.retrieved", "completed"),
    ],
)
def test_a_message_without_a_status_has_that_of_the_moment(kind: str, status: str) -> None:
    message = {"type": "message", "id": "i1", "role": "assistant", "content": []}
    [event] = Talk().server(kind, item=message, response_id="resp_1")
    assert event.item.status == status
    [event] = Talk().server(kind, item={**message, "status": "incomplete"}, response_id="resp_1")
    assert event.item.status == "incomplete"


def test_items_that_the_history_does_not_have_are_told_with_their_data() -> None:
    for item in (
        {"type": "mcp_call", "id": "i", "arguments": "{}", "name": "f", "server_label": "s"},
        {"type": "message", "id": "i", "role": "stranger", "content": []},
        {"type": "message", "role": "user", "content": []},
        {"type": "function_call_output", "call_id": "unknown", "output": "x"},
    ):
        [event] = added(Talk(), item)
        assert event.type == "other"
        assert event.data["item"] == item


# Tool calls


CALL = {
    "type": "function_call",
    "id": "item_1",
    "call_id": "call_1",
    "name": "weather",
    "arguments": '{"city":"Rome"}',
    "status": "completed",
}


def test_a_call_is_told_once_when_it_is_complete() -> None:
    talk = Talk()
    talk.begins()
    begun = {**CALL, "arguments": "", "status": "in_progress"}
    assert types(talk.server("response.output_item.added", item=begun, response_id="resp_1")) == [
        "item_updated"
    ]
    assert types(added(talk, begun, "item_0")) == ["item_updated"]
    assert types(talk.server("response.function_call_arguments.delta", delta="{", item_id="item_1")) == [
        "other"
    ]
    updated, called = talk.server("response.output_item.done", item=CALL, response_id="resp_1")
    assert updated.item == items.RealtimeToolCallItem(
        "item_1", "call_1", "weather", '{"city":"Rome"}', "in_progress", None, "item_0"
    )
    assert called == told.RealtimeModelToolCallEvent(
        "weather", "call_1", '{"city":"Rome"}', "item_1", "item_0", "resp_1"
    )
    assert talk.server("response.output_item.done", item=CALL, response_id="resp_1") == []
    assert "function_call" not in types(added(talk, CALL, "item_0", "done"))
    assert "function_call" not in types(talk.ends(output=[CALL]))


@pytest.mark.parametrize("status", ["incomplete", "in_progress", None])
def test_a_call_that_is_not_complete_is_not_made(status: str | None) -> None:
    [event] = Talk().server(
        "response.output_item.done", item={**CALL, "status": status}, response_id="resp_1"
    )
    assert event.type == "item_updated"
    assert event.item.status == ("incomplete" if status == "incomplete" else "in_progress")


def test_the_output_of_a_call_stays_with_it_whatever_is_told_of_it_later() -> None:
    talk = Talk()
    call = talk.server("response.output_item.done", item=CALL, response_id="resp_1")[1]
    [event] = talk.user(RealtimeModelSendToolOutput(call, "sunny", start_response=False))
    assert (event.item.item_id, event.item.output, event.item.status) == ("item_1", "sunny", "completed")
    assert talk.sent == [
        {
            "type": "conversation.item.create",
            "item": {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
        }
    ]
    answer = {"type": "function_call_output", "id": "item_2", "call_id": "call_1", "output": "sunny"}
    for item in (CALL, answer):
        [event] = added(talk, item, "item_0", "done")
        assert (event.item.item_id, event.item.output, event.item.status) == ("item_1", "sunny", "completed")


def answer(talk: Talk, number: int, output: str = "sunny") -> None:
    """A call, and its output, as the server tells of them."""
    call = {**CALL, "id": f"item_{number}", "call_id": f"call_{number}"}
    called = talk.server("response.output_item.done", item=call, response_id="resp_1")[1]
    talk.user(RealtimeModelSendToolOutput(called, output, start_response=False))


def test_how_a_call_ended_is_known_longer_than_its_output() -> None:
    talk = Talk()
    for number in range(100):
        answer(talk, number)
    [event] = added(talk, {**CALL, "id": "item_0", "call_id": "call_0"}, "item_before", "done")
    assert (event.item.status, event.item.output) == ("completed", None)
    [event] = added(talk, {**CALL, "id": "item_99", "call_id": "call_99"}, "item_98", "done")
    assert (event.item.status, event.item.output) == ("completed", "sunny")
    assert (
        talk.server("response.output_item.done", item={**CALL, "call_id": "call_0"}, response_id="resp_1")
        == []
    )


def test_a_call_whose_item_is_deleted_is_forgotten() -> None:
    talk = Talk()
    answer(talk, 1)
    begun = {**CALL, "id": "item_2", "call_id": "call_2", "status": "in_progress"}
    talk.server("response.output_item.added", item=begun, response_id="resp_1")
    for item_id in ("item_1", "item_2"):
        talk.server("conversation.item.deleted", item_id=item_id)
    for call_id in ("call_1", "call_2"):
        output = {"type": "function_call_output", "id": "item_9", "call_id": call_id, "output": "sunny"}
        assert types(added(talk, output)) == ["other"]


def test_what_is_known_of_a_session_does_not_grow_for_ever() -> None:
    talk = Talk()

    def hours(numbers: range) -> int:
        """A conversation goes on; returns how many bytes of it are kept."""
        for number in numbers:
            response_id, item_id = f"resp_{number}", f"said_{number}"
            talk.begins(response_id)
            message = {"type": "message", "role": "assistant", "id": item_id, "content": []}
            added(talk, message, f"item_{number - 1}")
            talk.server(
                "response.output_audio_transcript.delta",
                response_id=response_id,
                item_id=item_id,
                delta="a word " * 20,
            )
            talk.says(1, item_id, response_id)
            answer(talk, number, f"{number}" * 1000)
            open_call = {**CALL, "id": f"o{number}", "call_id": f"open_{number}", "status": "in_progress"}
            talk.server("response.output_item.added", item=open_call, response_id=response_id)
            if number % 3:
                talk.user(RealtimeModelSendInterrupt(force_response_cancel=True))
            talk.ends(response_id)
        assert talk.sent
        assert talk.told
        return len(pickle.dumps(talk.protocol._state))

    full = hours(range(1000, 2500))
    assert hours(range(2500, 4000)) <= full * 1.01
    assert full < 1_000_000


# The end of a response


def test_the_end_of_a_response_says_what_it_cost() -> None:
    usage = {
        "total_tokens": 30,
        "input_tokens": 20,
        "output_tokens": 10,
        "input_token_details": {"text_tokens": 12, "cached_tokens": 5},
        "output_token_details": {"audio_tokens": 9},
    }
    talk = Talk()
    talk.begins()
    spent, ended = talk.ends(usage=usage)
    assert spent.usage == Usage(requests=1, input_tokens=20, output_tokens=10, cached_input_tokens=5)
    assert spent.input_tokens_details == {"text_tokens": 12, "cached_tokens": 5}
    assert spent.output_tokens_details == {"audio_tokens": 9}
    assert ended == told.RealtimeModelTurnEndedEvent("resp_1", "completed")


def test_a_response_that_was_cut_off_without_a_bill_counts_as_unreported() -> None:
    spent, ended = Talk().ends(status="cancelled", usage=None)
    assert spent.usage == Usage(requests=1, unreported=1)
    assert ended.status == "cancelled"


def test_a_response_that_failed_is_an_error_too() -> None:
    error = {"type": "server_error", "code": "overloaded", "message": "try later"}
    *_, ended, failed = Talk().ends(status="failed", status_details={"type": "failed", "error": error})
    assert ended == told.RealtimeModelTurnEndedEvent("resp_1", "failed")
    assert failed.error == told.RealtimeServerError("server_error", "try later", "overloaded")
    *_, failed = Talk().ends(status="failed")
    assert "resp_1" in failed.error.message


def test_a_transcription_that_failed_is_an_error_that_names_the_item() -> None:
    [event] = Talk().server(
        "conversation.item.input_audio_transcription.failed",
        item_id="item_9",
        content_index=0,
        error={"type": "transcription_error", "code": "audio_unintelligible", "message": "too loud"},
    )
    assert "item_9" in event.error.message
    assert "too loud" in event.error.message
    assert event.error.code == "audio_unintelligible"
