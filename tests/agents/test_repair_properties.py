"""`repair` for any history, of any shape, cut anywhere. The rules it is judged by are written apart from it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiesce.agents.history_repair.anthropic import BEGINNING
from quiesce.agents.history_repair.formats import repair
from tests.agents.histories import ANYTHING, SHAPES, said_by_people_and_models, valid
from tests.agents.transcript_rules import problems

by_shape = pytest.mark.parametrize("shape", SHAPES)


@by_shape
@settings(max_examples=80)
@given(data=st.data())
def test_whatever_it_is_given_the_provider_takes_what_comes_back(shape: Any, data: st.DataObject) -> None:
    history = data.draw(ANYTHING[shape])
    before = copy.deepcopy(history)
    repaired = repair(history, shape=shape)
    assert problems(repaired, shape) == []
    assert repair(repaired, shape=shape) == repaired
    assert history == before


@by_shape
@settings(max_examples=40)
@given(data=st.data())
def test_no_text_of_the_user_or_the_assistant_is_lost(shape: Any, data: st.DataObject) -> None:
    history = data.draw(ANYTHING[shape])
    said = [text for text in said_by_people_and_models(repair(history, shape=shape)) if text != BEGINNING]
    if shape == "responses":  # an item that is there twice, id and all, is one
        assert set(said) == set(said_by_people_and_models(history))
    else:
        assert said == said_by_people_and_models(history)


@by_shape
@settings(max_examples=25)
@given(data=st.data())
def test_a_valid_history_comes_back_as_the_very_same_messages(shape: Any, data: st.DataObject) -> None:
    history = data.draw(valid(shape))
    assert problems(history, shape) == []
    repaired = repair(history, shape=shape)
    assert repaired == history
    assert repaired is not history
    assert all(after is before for before, after in zip(history, repaired, strict=True))
    assert repair(history) == history


@by_shape
@settings(max_examples=40)
@given(data=st.data())
def test_a_run_that_is_cut_anywhere_keeps_all_that_it_had_done(shape: Any, data: st.DataObject) -> None:
    history = data.draw(valid(shape))
    cut = history[: data.draw(st.integers(0, len(history)))]
    repaired = repair(cut, shape=shape)
    assert problems(repaired, shape) == []
    assert said_by_people_and_models(repaired) == said_by_people_and_models(cut)
    kept = [message for message in cut if any(message is one for one in repaired)]
    # All but what cannot stand at an end: reasoning that has come to nothing.
    assert len(cut) - len(kept) <= 1
    assert problems([*repaired, *_next_turn(shape)], shape) == []


@by_shape
@settings(max_examples=40)
@given(data=st.data())
def test_messages_that_are_lost_swapped_or_doubled_do_no_harm(shape: Any, data: st.DataObject) -> None:
    history = data.draw(valid(shape))
    shuffled = data.draw(st.permutations(history)) if data.draw(st.booleans()) else history
    kept = [message for message in shuffled for _ in range(data.draw(st.sampled_from([0, 1, 1, 1, 2])))]
    repaired = repair(kept, shape=shape)
    assert problems(repaired, shape) == []
    assert repair(repaired, shape=shape) == repaired


@settings(max_examples=80)
@given(history=st.one_of(*ANYTHING.values()))
def test_doing_it_twice_is_doing_it_once_also_when_the_shape_is_guessed(history: list[Any]) -> None:
    try:
        repaired = repair(history)
    except ValueError:
        return  # text parts of Chat beside blocks of Anthropic, say
    assert repair(repaired) == repaired


def _next_turn(shape: str) -> list[Any]:
    from quiesce.models import Note

    # Anthropic wants the user's next words in the message with the results, which is what repair does with them.
    return {"items": [Note("go on")], "anthropic": []}.get(shape, [{"role": "user", "content": "go on"}])
