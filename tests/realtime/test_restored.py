"""A conversation that is told to a server that does not know it: what is sent for each item, and that nobody hears of it again."""

from __future__ import annotations

from typing import Any

import pytest

from quiesce.realtime import (
    AssistantAudio,
    AssistantMessageItem,
    AssistantText,
    InputAudio,
    InputImage,
    InputText,
    RealtimeItem,
    RealtimeModelSendHistory,
    RealtimeModelSendToolOutput,
    RealtimeModelToolCallEvent,
    RealtimePlaybackTracker,
    RealtimeToolCallItem,
    SystemMessageItem,
    UserMessageItem,
)
from quiesce.realtime.openai.restored_items import CUT_OFF, NOT_TRANSCRIBED
from quiesce.realtime.testing.server.client_event_check import ClientEventCheck
from tests.realtime.talk import Talk, types

PICTURE = "data:image/png;base64,AA=="


def message(role: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "id": "item_1", "role": role, "content": list(content)}


def text(words: str) -> dict[str, Any]:
    return {"type": "input_text", "text": words}


def said(words: str) -> dict[str, Any]:
    return {"type": "output_text", "text": words}


ITEMS: dict[str, tuple[RealtimeItem, list[dict[str, Any]]]] = {
    "what the user wrote": (
        UserMessageItem("item_1", [InputText("hello")]),
        [message("user", text("hello"))],
    ),
    "what the user said": (
        UserMessageItem("item_1", [InputAudio(transcript="hello")]),
        [message("user", text("hello"))],
    ),
    "what the user said, and nobody wrote down": (
        UserMessageItem("item_1", [InputAudio()]),
        [message("user", text(NOT_TRANSCRIBED))],
    ),
    "what the user said, as audio": (
        UserMessageItem("item_1", [InputAudio(audio="AAAA")]),
        [message("user", {"type": "input_audio", "audio": "AAAA"})],
    ),
    "what the user has shown": (
        UserMessageItem("item_1", [InputText("this"), InputImage(PICTURE, "low"), InputImage(PICTURE)]),
        [
            message(
                "user",
                text("this"),
                {"type": "input_image", "image_url": PICTURE, "detail": "low"},
                {"type": "input_image", "image_url": PICTURE},
            )
        ],
    ),
    "a picture that is not there": (UserMessageItem("item_1", [InputImage()]), []),
    "a message of the system": (
        SystemMessageItem("item_1", [InputText("be brief")]),
        [message("system", text("be brief"))],
    ),
    "what the model wrote": (
        AssistantMessageItem("item_1", [AssistantText("hi")], "completed"),
        [message("assistant", said("hi"))],
    ),
    "what the model said": (
        AssistantMessageItem(
            "item_1", [AssistantAudio(transcript="hi"), AssistantText("there")], "completed"
        ),
        [message("assistant", said("hi there"))],
    ),
    "what the model said, and was interrupted in": (
        AssistantMessageItem("item_1", [AssistantAudio(transcript="once upon")], "incomplete"),
        [message("assistant", said(f"once upon {CUT_OFF}"))],
    ),
    "what the model has not said": (AssistantMessageItem("item_1", [AssistantAudio()], "incomplete"), []),
    "a message without anything": (UserMessageItem("item_1"), []),
    "a call that was answered": (
        RealtimeToolCallItem("item_1", "call_1", "search", '{"a":1}', "completed", "found"),
        [
            {
                "type": "function_call",
                "id": "item_1",
                "call_id": "call_1",
                "name": "search",
                "arguments": '{"a":1}',
            },
            {"type": "function_call_output", "id": "restored_1", "call_id": "call_1", "output": "found"},
        ],
    ),
    "a call that was not answered": (RealtimeToolCallItem("item_1", "call_1", "search", "{}"), []),
    "a call without an id": (RealtimeToolCallItem("item_1", None, "search", "{}", "completed", "found"), []),
}


@pytest.mark.parametrize("kind", ITEMS)
def test_an_item_is_sent_as_a_server_takes_it(kind: str) -> None:
    item, expected = ITEMS[kind]
    talk = Talk()
    assert talk.user(RealtimeModelSendHistory([item])) == []
    sent = talk.sent
    assert sent == [{"type": "conversation.item.create", "item": each} for each in expected]
    check = ClientEventCheck()
    assert check._types, "the official client is not installed"
    assert [check.fault_of(each) for each in sent] == [None] * len(sent)


def test_all_of_it_is_sent_in_its_order_and_no_answer_is_asked_for() -> None:
    talk = Talk()
    items: list[RealtimeItem] = [
        UserMessageItem("item_1", [InputText("where?")]),
        RealtimeToolCallItem("item_2", "call_1", "search", "{}", "completed", "here"),
        AssistantMessageItem("item_3", [AssistantText("there")], "completed"),
    ]
    talk.user(RealtimeModelSendHistory(items))
    sent = talk.sent
    assert {each["type"] for each in sent} == {"conversation.item.create"}
    assert [each["item"]["id"] for each in sent] == ["item_1", "item_2", "restored_2", "item_3"]
    assert not any("previous_item_id" in each for each in sent)


def test_what_the_server_says_to_it_is_not_told_again() -> None:
    talk = Talk()
    talk.user(RealtimeModelSendHistory([UserMessageItem("item_1", [InputAudio(transcript="hello")])]))
    item = {
        "id": "item_1",
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "hello"}],
    }
    assert talk.server("conversation.item.added", item=item, previous_item_id=None) == []
    assert talk.server("conversation.item.done", item=item, previous_item_id=None) == []
    assert types(talk.server("conversation.item.retrieved", item=item)) == ["item_updated"]
    new = {**item, "id": "item_2"}
    assert types(talk.server("conversation.item.added", item=new, previous_item_id="item_1")) == [
        "item_updated"
    ]


def test_a_call_whose_outcome_was_unknown_has_its_output_in_that_place() -> None:
    talk = Talk()
    unknown = RealtimeToolCallItem("item_1", "call_1", "search", "{}", "in_progress", "unknown so far")
    talk.user(RealtimeModelSendHistory([unknown]))
    assert [each["item"].get("output") for each in talk.sent] == [None, "unknown so far"]
    made = RealtimeModelToolCallEvent("search", "call_1", "{}", "item_1")
    [told] = talk.user(RealtimeModelSendToolOutput(made, "found"))
    assert (told.item.output, told.item.status) == ("found", "completed")
    output = {"type": "function_call_output", "call_id": "call_1", "output": "found"}
    sent = talk.sent
    assert sent == [
        {"type": "conversation.item.delete", "item_id": "restored_1"},
        {"type": "conversation.item.create", "previous_item_id": "item_1", "item": output},
        {"type": "response.create"},
    ]
    check = ClientEventCheck()
    assert [check.fault_of(each) for each in sent] == [None] * 3
    talk.user(RealtimeModelSendToolOutput(made, "found"))
    assert "conversation.item.delete" not in talk.sent_types


def test_what_came_by_an_earlier_connection_is_silenced_when_the_user_speaks() -> None:
    tracker = RealtimePlaybackTracker()
    talk = Talk(tracker=tracker)
    talk.user(
        RealtimeModelSendHistory(
            [AssistantMessageItem("item_1", [AssistantAudio(transcript="hi")], "completed")]
        )
    )
    _ = talk.sent
    tracker.on_play_ms("item_1", 0, 100)
    told = talk.server("input_audio_buffer.speech_started", item_id="item_2", audio_start_ms=0)
    assert [(each.item_id, each.content_index) for each in told if each.type == "audio_interrupted"] == [
        ("item_1", 0)
    ]
    assert talk.sent == []
    assert tracker.get_state()["current_item_id"] is None
    told = talk.server("input_audio_buffer.speech_started", item_id="item_3", audio_start_ms=0)
    assert "audio_interrupted" not in types(told)
