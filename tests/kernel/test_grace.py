"""`Grace`: how long each step of a stop may take."""

from __future__ import annotations

from math import inf

import pytest

from quiesce import Grace


def test_a_stop_takes_five_seconds_at_most_unless_told_otherwise() -> None:
    grace = Grace()
    assert (grace.cooperate, grace.cancel, grace.terminate, grace.kill) == (0, 3, 1, 1)
    assert grace.total == 5


def test_the_total_is_the_sum_of_the_steps() -> None:
    assert Grace(cooperate=1, cancel=20, terminate=300, kill=4000).total == 4321


def test_the_steps_end_one_after_the_other() -> None:
    assert Grace(cooperate=1, cancel=2, terminate=4, kill=8).ends(100) == (101, 103, 107, 115)


def test_a_deadline_scales_every_step() -> None:
    assert Grace(cooperate=1, cancel=2, terminate=4, kill=8).within(30) == Grace(
        cooperate=2, cancel=4, terminate=8, kill=16
    )
    assert Grace(cooperate=1, cancel=2, terminate=4, kill=8).within(7.5) == Grace(
        cooperate=0.5, cancel=1, terminate=2, kill=4
    )


def test_a_deadline_of_nothing_leaves_no_time() -> None:
    assert Grace().within(0).total == 0


def test_a_deadline_without_end_is_time_to_clean_up() -> None:
    assert Grace(cooperate=1, terminate=2).within(inf) == Grace(cooperate=1, cancel=inf, terminate=2)


def test_an_endless_grace_within_a_deadline_has_the_usual_shares() -> None:
    assert Grace(cancel=inf).within(10) == Grace(cooperate=0, cancel=6, terminate=2, kill=2)


def test_a_grace_of_nothing_within_a_deadline_is_time_to_clean_up() -> None:
    nothing = Grace(cancel=0, terminate=0, kill=0)
    assert nothing.within(7) == Grace(cooperate=0, cancel=7, terminate=0, kill=0)


def test_graces_are_values() -> None:
    assert Grace(cancel=1) == Grace(cancel=1) != Grace(cancel=2)
    assert len({Grace(), Grace(), Grace(cancel=7)}) == 2
    assert repr(Grace(cancel=1)) == "Grace(cooperate=0.0, cancel=1, terminate=1.0, kill=1.0)"


@pytest.mark.parametrize("deadline", [-0.1, float("nan")])
def test_a_deadline_that_is_no_time_is_refused(deadline: float) -> None:
    with pytest.raises(ValueError, match="deadline must be 0 or more seconds"):
        Grace().within(deadline)
