"""Responses: one at a time, and none that was wanted is lost."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiesce.agents.agent.errors import UserError
from quiesce.realtime.openai.client_events import AUDIO_PIECE
from quiesce.realtime.openai.responses import ANOTHER_IS_ON, NONE_IS_ON, TRIES
from quiesce.realtime.words.model_events import RealtimeModelToolCallEvent
from quiesce.realtime.words.model_inputs import (
    RealtimeModelSendAudio,
    RealtimeModelSendInterrupt,
    RealtimeModelSendRawMessage,
    RealtimeModelSendToolOutput,
    RealtimeModelSendUserInput,
)

from .talk import Talk, types

HELLO = RealtimeModelSendUserInput("hello")
OUTPUT = RealtimeModelSendToolOutput(RealtimeModelToolCallEvent("f", "call_1", "{}"), "done")
ITEM, CREATE = "conversation.item.create", "response.create"


def refuse(
    talk: Talk, event_id: str | None, code: str = ANOTHER_IS_ON, message: str = "no", told: str = "error"
) -> None:
    error = {"type": "invalid_request_error", "code": code, "message": message, "event_id": event_id}
    assert types(talk.server("error", error=error)) == [told]


def fail(talk: Talk) -> None:
    """The server has failed on something, and does not say on what."""
    error = {"type": "server_error", "code": None, "message": "Sorry about that!", "event_id": None}
    assert types(talk.server("error", error=error)) == ["error"]


def test_a_message_is_an_item_and_then_a_wish_for_an_answer() -> None:
    talk = Talk()
    talk.user(HELLO)
    assert talk.sent == [
        {
            "type": ITEM,
            "item": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        },
        {"type": CREATE},
    ]


def test_a_message_may_have_text_and_pictures() -> None:
    talk = Talk()
    content: list[Any] = [
        {"type": "input_text", "text": "what is this?"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"},
    ]
    talk.user(RealtimeModelSendUserInput({"type": "message", "role": "user", "content": content}))
    assert talk.sent[0]["item"]["content"] == content


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (7, "not int"),
        ({"type": "message", "role": "system", "content": [{"type": "input_text", "text": "x"}]}, "'system'"),
        ({"type": "message", "role": "user", "content": []}, "at least one part"),
        ({"type": "message", "role": "user", "content": "hello"}, "at least one part"),
        ({"type": "message", "role": "user", "content": ["hello"]}, "'hello'"),
        ({"type": "message", "role": "user", "content": [{"type": "text", "text": "x"}]}, "'input_text'"),
        ({"type": "message", "role": "user", "content": [{"type": "input_text"}]}, "needs 'text'"),
        (
            {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": 1}]},
            "'image_url'",
        ),
        ("\ud800", "cannot be sent"),
    ],
    ids=[str(place) for place in range(9)],
)
def test_a_message_that_is_none_is_refused_and_nothing_is_asked_for(given: Any, says: str) -> None:
    talk = Talk()
    with pytest.raises(UserError, match=says):
        talk.user(RealtimeModelSendUserInput(given))
    talk.user(HELLO)
    assert talk.sent_types == [ITEM, CREATE]


def test_who_wants_an_answer_while_one_is_asked_for_or_on_waits_and_all_get_one_together() -> None:
    talk = Talk()
    talk.user(HELLO)
    talk.user(HELLO)  # asked for
    assert talk.sent_types == [ITEM, CREATE, ITEM]
    talk.begins()
    talk.user(HELLO)
    talk.user(OUTPUT)
    assert talk.sent_types == [ITEM, ITEM]
    talk.ends()
    assert talk.sent_types == [CREATE]
    talk.begins("resp_2")
    talk.ends("resp_2")
    assert talk.sent == []


def test_a_tools_output_asks_for_an_answer_only_if_told_to() -> None:
    talk = Talk()
    talk.user(RealtimeModelSendToolOutput(OUTPUT.tool_call, "done", start_response=False))
    assert talk.sent_types == [ITEM]
    talk.user(OUTPUT)
    assert talk.sent_types == [ITEM, CREATE]
    with pytest.raises(UserError, match="'f' must be a str"):
        talk.user(RealtimeModelSendToolOutput(OUTPUT.tool_call, {"not": "text"}))  # type: ignore[arg-type]


def test_it_waits_for_a_response_that_the_server_began_by_itself() -> None:
    talk = Talk()
    talk.begins("resp_of_the_server")
    talk.user(HELLO)
    assert talk.sent_types == [ITEM]
    talk.ends("resp_of_before")  # not the one that is on
    assert talk.sent == []
    talk.ends("resp_of_the_server", "cancelled")
    assert talk.sent_types == [CREATE]


def test_a_request_that_crossed_with_a_response_of_the_server_is_made_again_when_that_has_ended() -> None:
    for told_first in (True, False):
        talk = Talk()
        talk.user(HELLO)
        [_, create] = talk.sent_with_ids
        if told_first:
            talk.begins("resp_of_the_server")
        refuse(talk, create["event_id"])
        if not told_first:
            talk.begins("resp_of_the_server")
        talk.user(HELLO)
        assert talk.sent_types == [ITEM]
        talk.ends("resp_of_the_server")
        assert talk.sent_types == [CREATE]
        talk.begins("resp_2")
        talk.ends("resp_2")
        assert talk.sent == []


def test_the_same_where_the_server_does_not_say_which_event_was_wrong() -> None:
    talk = Talk()
    talk.user(HELLO)
    refuse(talk, None)
    talk.begins("resp_of_the_server")
    assert talk.sent_types == [ITEM, CREATE]
    talk.ends("resp_of_the_server")
    assert talk.sent_types == [CREATE]


def test_a_request_refused_for_a_response_that_has_ended_is_made_again_at_once_but_not_for_ever() -> None:
    talk = Talk()
    talk.begins("resp_1")
    talk.ends("resp_1")
    talk.user(HELLO)
    for _ in range(3):
        [*_, create] = talk.sent_with_ids
        assert create["type"] == CREATE
        refuse(talk, create["event_id"], message="already has an active response: resp_1")
    [create] = talk.sent_with_ids
    refuse(talk, create["event_id"], message="already has an active response: resp_1")
    assert talk.sent == []
    talk.ends("resp_1")  # it is kept all the same
    assert talk.sent_types == [CREATE]


def test_a_request_that_the_server_does_not_like_is_not_made_again_and_holds_up_nobody() -> None:
    for code in ("invalid_value", None):
        talk = Talk()
        talk.user(HELLO)
        [_, create] = talk.sent_with_ids
        talk.user(HELLO)
        refuse(talk, create["event_id"] if code else None, code or "bad_response_create")
        assert talk.sent_types == [ITEM, CREATE]
        refuse(talk, "another_event", "invalid_value")
        assert talk.sent == []


def test_an_error_about_something_else_changes_nothing() -> None:
    talk = Talk()
    talk.user(HELLO)
    refuse(talk, "my_event", "invalid_value")
    talk.user(HELLO)
    assert talk.sent_types == [ITEM, CREATE, ITEM]
    talk.begins()
    refuse(talk, None, "invalid_value")
    fail(talk)
    assert talk.sent == []


def test_a_request_on_which_the_server_may_have_failed_is_made_again_but_not_for_ever() -> None:
    talk = Talk()
    talk.user(HELLO)
    assert talk.sent_types == [ITEM, CREATE]
    for _ in range(TRIES):
        fail(talk)
        assert talk.sent_types == [CREATE]
    fail(talk)
    assert talk.sent == []
    talk.user(HELLO)  # and nobody is held up
    assert talk.sent_types == [ITEM, CREATE]
    talk.begins()
    talk.ends()
    assert talk.sent == []


def test_requests_that_are_made_again_keep_their_order() -> None:
    talk = Talk()
    talk.user(raw(CREATE, response={"instructions": "first"}))
    talk.user(raw(CREATE, response={"instructions": "second"}))
    fail(talk)
    talk.begins()
    talk.ends()
    assert [each["response"]["instructions"] for each in talk.sent] == ["first", "first", "second"]


def test_an_error_that_does_not_say_what_it_is_about_holds_up_nobody() -> None:
    """It may be about something else: who asks too early for the next one is refused, and asked for again."""
    talk = Talk()
    talk.user(HELLO)
    refuse(talk, None, "invalid_value")
    assert talk.sent_types == [ITEM, CREATE]
    talk.user(HELLO)
    [_, create] = talk.sent_with_ids
    talk.begins()
    refuse(talk, create["event_id"])
    talk.ends()
    assert talk.sent_types == [CREATE]


def test_a_request_that_was_interrupted_is_not_made_again() -> None:
    for how in ("refused", "failed", "crossed"):
        talk = Talk()
        talk.user(HELLO)
        [_, create] = talk.sent_with_ids
        if how == "crossed":
            talk.begins("resp_of_the_server")
        talk.user(RealtimeModelSendInterrupt())
        if how == "failed":
            fail(talk)
        else:
            refuse(talk, create["event_id"])
            talk.ends("resp_of_the_server")
        assert talk.sent == []
        talk.user(HELLO)
        assert talk.sent_types == [ITEM, CREATE]


def test_a_response_that_ended_without_having_begun_holds_up_nobody() -> None:
    talk = Talk()
    talk.user(HELLO)
    talk.user(HELLO)
    talk.ends("resp_1", "failed")
    assert talk.sent_types == [ITEM, CREATE, ITEM, CREATE]


def test_where_the_server_knows_of_no_response_to_cancel_none_is_on() -> None:
    talk = Talk()
    talk.begins()
    talk.user(RealtimeModelSendInterrupt(force_response_cancel=True))
    [cancel] = talk.sent_with_ids
    talk.user(HELLO)
    refuse(talk, "another", NONE_IS_ON)
    assert talk.sent_types == [ITEM]
    refuse(talk, cancel["event_id"], NONE_IS_ON, told="other")
    assert talk.sent_types == [CREATE]


def test_that_a_response_had_ended_when_it_was_to_be_ended_is_no_error() -> None:
    talk = Talk()
    talk.begins()
    talk.user(RealtimeModelSendInterrupt(force_response_cancel=True))
    [cancel] = talk.sent_with_ids
    talk.ends()
    talk.begins("resp_2")
    refuse(talk, cancel["event_id"], NONE_IS_ON, told="other")
    talk.user(HELLO)
    assert talk.sent_types == [ITEM]  # the second one is on
    refuse(talk, cancel["event_id"], "invalid_value")  # that is one
    talk.user(RealtimeModelSendRawMessage({"type": "response.cancel", "event_id": "mine"}))
    refuse(talk, "mine", NONE_IS_ON)  # and so is what the user has done


# Responses that the user asks for by a message of the wire


def raw(kind: str, **fields: Any) -> RealtimeModelSendRawMessage:
    return RealtimeModelSendRawMessage({"type": kind, "other_data": fields})


def test_responses_of_a_certain_kind_are_each_asked_for_in_their_turn() -> None:
    talk = Talk()
    talk.begins("resp_0")
    first, second = {"instructions": "be brief"}, {"instructions": "sing"}
    talk.user(raw(CREATE, response=first))
    first["instructions"] = "changed afterwards"
    talk.user(HELLO)
    talk.user(raw(CREATE))
    talk.user(raw(CREATE, response=second, event_id="mine"))
    assert talk.sent_types == [ITEM]
    asked = []
    for number in range(5):
        talk.ends(f"resp_{number}")
        asked += talk.sent_with_ids
        talk.begins(f"resp_{number + 1}")
    assert [each.get("response") for each in asked] == [{"instructions": "be brief"}, None, second]
    assert asked[-1]["event_id"] == "mine"


def test_a_response_outside_of_the_conversation_neither_waits_nor_lets_wait() -> None:
    talk = Talk()
    talk.begins("resp_1")
    talk.user(raw(CREATE, response={"conversation": "none"}))
    assert talk.sent_types == [CREATE]
    talk.server("response.created", response={"id": "resp_aside", "conversation_id": None})
    talk.user(HELLO)
    talk.ends("resp_aside")
    assert talk.sent_types == [ITEM]
    talk.ends("resp_1")
    assert talk.sent_types == [CREATE]


def test_one_outside_that_was_refused_is_not_taken_for_the_next_response() -> None:
    talk = Talk()
    talk.user(raw(CREATE, response={"conversation": "none"}))
    [create] = talk.sent_with_ids
    refuse(talk, create["event_id"], "invalid_value")
    talk.server("response.created", response={"id": "resp_1", "conversation_id": None})
    talk.user(HELLO)
    assert talk.sent_types == [ITEM]


def test_other_messages_of_the_wire_are_sent_as_they_are() -> None:
    talk = Talk()
    talk.user(raw("conversation.item.delete", item_id="item_1"))
    talk.user(RealtimeModelSendRawMessage({"type": "conversation.item.retrieve", "item_id": "item_2"}))
    talk.user(RealtimeModelSendRawMessage({"type": "input_audio_buffer.clear"}))
    assert talk.sent == [
        {"type": "conversation.item.delete", "item_id": "item_1"},
        {"type": "conversation.item.retrieve", "item_id": "item_2"},
        {"type": "input_audio_buffer.clear"},
    ]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({}, "'type'"),
        ("response.create", "'type'"),
        ({"type": 1}, "'type'"),
        ({"type": "response.cancel", "other_data": ["x"]}, "'other_data' of a raw message 'response.cancel'"),
        ({"type": "made.up", "other_data": {"x": object()}}, "'made.up' cannot be sent"),
        ({"type": "response.create", "other_data": {"response": {"x": object()}}}, "cannot be sent"),
        ({"type": "made.up", "other_data": {"x": "\ud800"}}, "cannot be sent"),
        ({"type": "response.create", "event_id": [1]}, "'event_id'"),
    ],
    ids=[str(place) for place in range(8)],
)
def test_a_message_of_the_wire_that_is_none_is_refused(message: Any, says: str) -> None:
    talk = Talk()
    talk.begins()
    with pytest.raises(UserError, match=says):
        talk.user(RealtimeModelSendRawMessage(message))
    talk.ends()
    assert talk.sent == []


# Audio of the user


def audio_of(sent: list[dict[str, Any]]) -> list[bytes]:
    return [
        msgspec.json.decode(msgspec.json.encode(each["audio"]), type=bytes)
        for each in sent
        if each["type"] == "input_audio_buffer.append"
    ]


@pytest.mark.parametrize("size", [0, 1, AUDIO_PIECE, AUDIO_PIECE + 1, 2 * AUDIO_PIECE + 5])
def test_audio_is_sent_in_pieces_of_a_bounded_size(size: int) -> None:
    talk = Talk()
    audio = Random(size).randbytes(size)
    talk.user(RealtimeModelSendAudio(audio))
    pieces = audio_of(talk.sent)
    assert b"".join(pieces) == audio
    assert [len(piece) for piece in pieces] == [AUDIO_PIECE] * (size // AUDIO_PIECE) + (
        [size % AUDIO_PIECE] if size % AUDIO_PIECE else []
    )


def test_audio_may_be_anything_with_bytes() -> None:
    talk = Talk()
    for audio in (b"abcd", bytearray(b"abcd"), memoryview(b"abcd"), memoryview(b"abcd").cast("H")):
        talk.user(RealtimeModelSendAudio(audio))  # type: ignore[arg-type]
        assert audio_of(talk.sent) == [b"abcd"]
    talk.user(RealtimeModelSendAudio(memoryview(b"a-b-c-")[::2]))  # type: ignore[arg-type]
    assert audio_of(talk.sent) == [b"abc"]
    with pytest.raises(TypeError, match="not str"):
        talk.user(RealtimeModelSendAudio("abcd"))  # type: ignore[arg-type]


def test_audio_that_is_complete_is_answered_by_the_server_if_it_detects_turns_and_else_on_request() -> None:
    append, commit = "input_audio_buffer.append", "input_audio_buffer.commit"
    talk = Talk()
    talk.user(RealtimeModelSendAudio(b"abcd", commit=True))
    assert talk.sent_types == [append, commit]
    talk = Talk({"turn_detection": None})
    talk.user(RealtimeModelSendAudio(b"abcd"))
    assert talk.sent_types == [append]
    talk.user(RealtimeModelSendAudio(b"", commit=True))
    assert talk.sent_types == [commit, CREATE]
    talk.begins()
    talk.user(RealtimeModelSendAudio(b"abcd", commit=True))
    assert talk.sent_types == [append, commit]
    talk.ends()
    assert talk.sent_types == [CREATE]


def test_what_is_no_event_to_send_is_refused() -> None:
    with pytest.raises(UserError, match="not str"):
        Talk().user("hello")


# A server on a slow line, whose own responses cross with the requests


class SlowServer:
    """One conversation, as the real one has it; both ways take their time. It begins responses by itself now and then."""

    def __init__(self, random: Random) -> None:
        self.talk = Talk()
        self.random = random
        self.to_server: deque[dict[str, Any]] = deque()
        self.to_client: deque[tuple[str, dict[str, Any]]] = deque()
        self.active: str | None = None
        self.begun = 0
        self.items = 0  # that came
        self.answered = 0  # how many of them had come when the last response began
        self.instructions: list[str] = []

    def step(self) -> None:
        """One of the things that may happen."""
        what = self.random.randrange(6)
        if what == 0 and self.to_server:
            self.takes(self.to_server.popleft())
        elif what == 1 and self.to_client:
            kind, fields = self.to_client.popleft()
            self.talk.server(kind, **fields)
            self.to_server += self.talk.sent_with_ids
        elif what == 2 and self.active is None:
            self.begins()
        elif what == 3 and self.active is not None:
            self.ends("completed")

    def takes(self, message: dict[str, Any]) -> None:
        """A message has arrived."""
        if message["type"] == ITEM:
            self.items += 1
        elif message["type"] == CREATE and self.active is not None:
            self.fails(message, ANOTHER_IS_ON, f"there is {self.active}")
        elif message["type"] == CREATE:
            if "response" in message:
                self.instructions.append(message["response"]["instructions"])
            self.begins()
        elif message["type"] == "response.cancel":
            if self.active is not None and message.get("response_id") in (None, self.active):
                self.ends("cancelled")
            else:
                self.fails(message, NONE_IS_ON, "nothing to cancel")

    def fails(self, message: dict[str, Any], code: str, why: str) -> None:
        """It does not like a message."""
        error = {
            "type": "invalid_request_error",
            "code": code,
            "message": why,
            "event_id": message["event_id"],
        }
        self.to_client.append(("error", {"error": error}))

    def begins(self) -> None:
        """A response."""
        self.begun += 1
        self.active = f"resp_{self.begun:04}"
        self.answered = self.items
        self.to_client.append(("response.created", {"response": {"id": self.active}}))

    def ends(self, status: str) -> None:
        """The response."""
        self.to_client.append(("response.done", {"response": {"id": self.active, "status": status}}))
        self.active = None


@settings(max_examples=60)
@given(st.integers(0, 2**64))
def test_however_the_messages_cross_everything_is_answered_in_the_end(seed: int) -> None:
    random = Random(seed)
    server = SlowServer(random)
    asked: list[str] = []
    stopped, is_last_stopped = (
        0,
        False,
    )  # how many of them came before an interrupt; and whether all did that was wanted
    for _ in range(random.randrange(1, 60)):
        server.step()
        what = random.randrange(12)
        if what < 3:
            server.talk.user(HELLO if what else OUTPUT)
            is_last_stopped = False
        elif what == 3:
            asked.append(f"number {len(asked)}")
            server.talk.user(raw(CREATE, response={"instructions": asked[-1]}))
        elif what == 4 and random.random() < 0.5:
            server.talk.user(RealtimeModelSendInterrupt(force_response_cancel=random.random() < 0.5))
            stopped, is_last_stopped = len(asked), True
        server.to_server += server.talk.sent_with_ids
    # Nothing more is wanted: all that is under way arrives, and responses end. The server begins none by itself any more.
    for _ in range(2000):
        if server.to_server:
            server.takes(server.to_server.popleft())
        elif server.to_client:
            kind, fields = server.to_client.popleft()
            server.talk.server(kind, **fields)
            server.to_server += server.talk.sent_with_ids
        elif server.active is not None:
            server.ends("completed")
        else:
            break
    else:
        pytest.fail("it never ends")
    # A response began after the last thing that was said, and each of a certain kind began once, unless it was stopped.
    assert is_last_stopped or server.answered == server.items
    assert len(server.instructions) == len(set(server.instructions))
    assert set(asked[stopped:]) <= set(server.instructions) <= set(asked)
