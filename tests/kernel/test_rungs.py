"""When the rungs of a stop are over: arithmetic, so every figure here can be checked by hand."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quiesce import Grace
from quiesce.kernel.base.grace import Rung
from quiesce.kernel.base.rungs import (
    TO_TERMINATE,
    TURN,
    Ends,
    after_a_stall,
    earlier,
    entered_at,
    fitted,
    halved,
)

GRACE = Grace(cooperate=1, cancel=2, terminate=4, kill=8)


def test_a_hurry_halves_what_is_left_of_each_step() -> None:
    assert halved((10, 12, 16, 24), 8) == (9, 10, 12, 16)


def test_a_hurry_leaves_an_endless_step_endless() -> None:
    assert halved((10, inf, inf, inf), 8) == (9, inf, inf, inf)


@pytest.mark.parametrize(
    ("rung", "expected"),
    [
        (Rung.COOPERATE, (101, 103, 107, 115)),
        (Rung.CANCEL, (50, 102, 106, 114)),
        (Rung.TERMINATE, (50, 60, 104, 112)),
        (Rung.KILL, (50, 60, 70, 108)),
    ],
)
def test_another_grace_begins_now_at_the_rung_that_was_reached(rung: Rung, expected: Ends) -> None:
    assert entered_at(rung, (50, 60, 70, 80), GRACE, 100) == expected


@pytest.mark.parametrize(
    ("rung", "expected"),
    [
        (Rung.COOPERATE, (100 + TURN, 100 + 2 * TURN, 100 + 3 * TURN, 100 + 4 * TURN)),
        (Rung.CANCEL, (50, 100 + TURN, 100 + 2 * TURN, 100 + 3 * TURN)),
        (Rung.TERMINATE, (50, 60, 100 + TURN, 100 + 2 * TURN)),
        (Rung.KILL, (50, 60, 70, 100 + TURN)),
    ],
)
def test_after_a_stall_each_step_that_is_left_has_a_turn(rung: Rung, expected: Ends) -> None:
    assert after_a_stall(rung, (50, 60, 70, 80), 100) == pytest.approx(expected)


def test_after_a_stall_a_step_that_was_shorter_than_a_turn_has_its_own_length() -> None:
    assert after_a_stall(Rung.CANCEL, (10, 10.01, 10.03, 10.03), 20) == pytest.approx(
        (10, 20.01, 20.03, 20.03)
    )


def test_after_a_stall_a_step_that_would_end_later_anyway_keeps_its_end() -> None:
    assert after_a_stall(Rung.CANCEL, (10, 11, 30, 40), 20) == pytest.approx((10, 20 + TURN, 30, 40))


def test_of_two_ladders_each_step_ends_with_the_earlier_one() -> None:
    assert earlier((1, 5, 6, 9), (2, 3, 7, 8)) == (1, 3, 6, 8)


# A ladder inside another one


def test_a_nested_ladder_that_ends_before_the_last_step_of_the_outer_one_is_left_as_it_is() -> None:
    inner: Ends = (0, 3, 4, 5)
    outer: Ends = (0, 8, 9, 10)
    assert fitted(inner, outer, 0) is inner
    assert fitted((0, 7, 8, 9), outer, 0) == (0, 7, 8, 9), "at the very end of the third step"


def test_a_nested_ladder_keeps_its_time_to_clean_up_and_shares_the_rest() -> None:
    """Three seconds to clean up; of the one that is left before the outer kill, four fifths are for SIGTERM."""
    assert fitted((0, 3, 4, 5), (0, 3, 4, 5), 0) == pytest.approx((0, 3, 3 + TO_TERMINATE, 4))


def test_a_nested_ladder_with_a_longer_time_to_terminate_keeps_that_share() -> None:
    assert fitted((0, 3, 12, 13), (0, 3, 5, 6), 0) == pytest.approx((0, 3, 3 + 2 * 0.9, 5))


def test_a_nested_ladder_cleans_up_no_longer_than_the_outer_one() -> None:
    assert fitted((1, 30, 31, 32), (0, 3, 4, 5), 0) == pytest.approx((1, 3, 3 + 28 / 29, 4))


def test_the_time_to_cooperate_is_over_when_the_time_to_clean_up_is() -> None:
    assert fitted((20, 30, 31, 32), (0, 3, 4, 5), 0) == pytest.approx((3, 3, 3 + 28 / 29, 4))


def test_without_time_to_clean_up_what_is_left_is_shared_from_now_on() -> None:
    """The outer stop is past its own time to clean up."""
    assert fitted((3.5, 6.5, 7.5, 8.5), (0, 3, 4, 5), 3.5) == pytest.approx((3.5, 3.5, 3.5 + 0.5 * 0.8, 4))


def test_when_the_outer_stop_is_killing_the_nested_ladder_ends_with_it() -> None:
    assert fitted((4.5, 7.5, 8.5, 9.5), (0, 3, 4, 5), 4.5) == pytest.approx((4.5, 4.5, 4.5 + 0.5 * 0.8, 5))


def test_in_an_outer_stop_that_is_out_of_time_there_is_nothing_to_share() -> None:
    """Its alarm is late. A ladder without any time must not divide by nothing."""
    assert fitted((5, 5, 5, 5), (0, 1, 2, 3), 5)[3] == 3


def test_an_endless_nested_ladder_shares_what_the_outer_one_has() -> None:
    assert fitted((0, inf, inf, inf), (0, 3, 4, 5), 0) == pytest.approx((0, 3, 3 + TO_TERMINATE, 4))


steps = st.floats(0, 100)
graces = st.builds(Grace, cooperate=steps, cancel=steps, terminate=steps, kill=steps)


@given(graces, graces, st.floats(0, 50))
@example(
    Grace(cancel=0, terminate=33, kill=0),
    Grace(cancel=0, terminate=0, kill=34.01052600359301),
    1.3856558534530983,
)
def test_a_nested_ladder_never_goes_back_in_time_and_ends_before_the_outer_one(
    inner: Grace, outer: Grace, later: float
) -> None:
    around, now = outer.ends(0), later
    if around[3] <= now:
        return
    ends = fitted(inner.ends(now), around, now)
    assert list(ends) == sorted(ends)
    limit = around[2] if around[2] > now else around[3]
    assert ends[3] <= limit
    assert ends[1] <= inner.ends(now)[1]
