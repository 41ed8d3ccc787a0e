"""The history: each item once, in the order of the conversation, with what was known of it before."""

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
    RealtimeToolCallItem,
    SystemMessageItem,
    UserMessageItem,
)
from quiesce.realtime.session.history import History


def user(item_id: str, text: str = "", after: str | None = None) -> UserMessageItem:
    return UserMessageItem(item_id, [InputText(text)], after)


def ids(history: History) -> list[str]:
    return [item.item_id for item in history.items]


def test_items_are_in_the_order_in_which_they_follow_each_other() -> None:
    history = History()
    assert history.put(user("a"))
    assert history.put(user("c", after="a"))
    assert history.put(user("b", after="a"))
    assert history.put(user("d", after="nobody"))
    assert history.put(user("e"))
    assert ids(history) == ["a", "b", "c", "d", "e"]


def test_an_item_that_is_told_again_takes_the_place_of_what_was_known() -> None:
    history = History()
    history.put(user("a", "one"))
    history.put(user("b"))
    assert not history.put(user("a", "two"))
    assert ids(history) == ["a", "b"]
    assert history.items[0] == user("a", "two")


def test_an_update_that_leaves_out_what_was_told_before_does_not_take_it_away() -> None:
    history = History()
    history.put(UserMessageItem("a", [InputAudio()], "before"))
    history.set_transcript("a", "hello")
    history.put(UserMessageItem("a", [InputAudio()]))
    assert history.items == [UserMessageItem("a", [InputAudio(transcript="hello")], "before")]
    history.put(UserMessageItem("a", []))
    assert history.items == [UserMessageItem("a", [InputAudio(transcript="hello")], "before")]
    history.put(UserMessageItem("a", [InputAudio(transcript="hallo")]))
    assert history.items == [UserMessageItem("a", [InputAudio(transcript="hallo")], "before")]


def test_the_same_for_what_the_model_said() -> None:
    history = History()
    history.put(AssistantMessageItem("a", [AssistantAudio(transcript="Good day")], "in_progress"))
    history.put(AssistantMessageItem("a", [AssistantAudio()], "completed"))
    assert history.items == [AssistantMessageItem("a", [AssistantAudio(transcript="Good day")], "completed")]
    history.put(AssistantMessageItem("a", [AssistantText("written")], "completed"))
    assert history.items == [AssistantMessageItem("a", [AssistantText("written")], "completed")]


def test_the_output_of_a_call_stays() -> None:
    history = History()
    history.put(RealtimeToolCallItem("a", "call_1", "weather", "{}"))
    assert history.set_output("call_1", "rain")
    assert not history.set_output("call_1", "rain")  # that is known
    assert not history.set_output("call_2", "rain")
    assert history.items == [RealtimeToolCallItem("a", "call_1", "weather", "{}", "completed", "rain")]
    history.put(RealtimeToolCallItem("a", "call_1", "weather", "{}", "completed"))
    assert history.items[0].output == "rain"  # type: ignore[union-attr]


def test_a_call_that_has_its_output_stays_as_it_ended() -> None:
    history = History()
    history.put(RealtimeToolCallItem("a", "call_1", "weather", "{}", "incomplete", "not run"))
    history.put(RealtimeToolCallItem("a", "call_1", "weather", "{}", "in_progress"))
    assert history.items == [RealtimeToolCallItem("a", "call_1", "weather", "{}", "incomplete", "not run")]


def test_what_the_model_says_is_seen_while_it_says_it() -> None:
    history = History()
    history.put(AssistantMessageItem("a", [], "in_progress", "before"))
    before = list(history.items)
    history.add_words("a", "Good ")
    history.add_words("a", "day")
    said = AssistantMessageItem("a", [AssistantAudio(transcript="Good day")], "in_progress", "before")
    assert history.items == [said]
    assert before == [AssistantMessageItem("a", [], "in_progress", "before")]  # who has looked has what was
    history.put(AssistantMessageItem("a", [], "in_progress"))
    assert history.items == [said]
    history.put(AssistantMessageItem("a", [AssistantAudio(transcript="Good day!")], "completed"))
    history.add_words("a", " late")
    assert history.items == [
        AssistantMessageItem("a", [AssistantAudio(transcript="Good day!")], "completed", "before")
    ]


def test_what_it_writes_too() -> None:
    history = History()
    history.put(AssistantMessageItem("a", [AssistantAudio("AAAA", "Hear")], None))
    history.add_words("a", "!")
    history.add_words("a", "re", is_written=True)
    history.add_words("a", "ad", is_written=True)
    history.add_words("a", "again")
    assert history.items == [
        AssistantMessageItem(
            "a",
            [AssistantAudio("AAAA", "Hear!"), AssistantText("read"), AssistantAudio(transcript="again")],
            None,
        )
    ]


def test_words_of_what_is_no_item_of_the_model_change_nothing() -> None:
    history = History()
    history.put(user("a", "hello"))
    history.add_words("a", "x")
    history.add_words("nobody", "x")
    assert history.items == [user("a", "hello")]


def test_after_a_cut_there_are_the_words_that_were_heard_and_no_others() -> None:
    history = History()
    history.put(AssistantMessageItem("a", [AssistantAudio(transcript="one two three")], "completed"))
    history.put(AssistantMessageItem("a", [AssistantAudio(transcript="one")], "incomplete"))
    history.add_words("a", " four")
    history.put(AssistantMessageItem("a", [AssistantAudio()], "incomplete"))
    assert history.items == [AssistantMessageItem("a", [AssistantAudio(transcript="one")], "incomplete")]


@pytest.mark.parametrize(
    ("content", "after"),
    [
        ([InputAudio()], [InputAudio(transcript="hello")]),
        ([InputText("see"), InputAudio()], [InputText("see"), InputAudio(transcript="hello")]),
        ([InputImage("data:")], [InputImage("data:"), InputAudio(transcript="hello")]),
        ([], [InputAudio(transcript="hello")]),
    ],
)
def test_what_the_user_said_is_written_into_their_item(content: list[Any], after: list[Any]) -> None:
    history = History()
    history.put(UserMessageItem("a", content))
    assert history.set_transcript("a", "hello")
    assert history.items == [UserMessageItem("a", after)]


def test_a_transcript_of_an_item_that_nobody_has_told_of_makes_one() -> None:
    history = History()
    assert history.set_transcript("a", "hello")
    assert history.items == [UserMessageItem("a", [InputAudio(transcript="hello")])]
    history.put(AssistantMessageItem("b"))
    assert not history.set_transcript("b", "hello")


def test_items_may_be_deleted() -> None:
    history = History()
    history.put(user("a"))
    history.put(SystemMessageItem("b", [InputText("Be brief.")]))
    assert history.delete("a")
    assert not history.delete("a")
    assert ids(history) == ["b"]


def test_an_item_that_turns_out_to_be_another_kind_is_that() -> None:
    history = History()
    history.put(user("a"))
    history.put(SystemMessageItem("a", [InputText("Be brief.")]))
    assert history.items == [SystemMessageItem("a", [InputText("Be brief.")])]
