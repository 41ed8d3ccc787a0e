"""Programs at random: scopes, children, tokens and closers, driven from several tasks; the promises hold.

What every child and every closer saw is written down (`random_programs`) and judged here:

- whoever closed from outside found each child ended, or named in the report;
- nobody of a settled scope runs on, and in the end every scope settles;
- a clean-up was cut only when its time was over, which a small model of the ladders says;
- nobody saw a cancellation that the program did not ask for, and no closer or block lost its own;
- every close kept its deadline, and was clean when nobody was stubborn;
- reports and counts account for each child.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quiesce import ScopeClosed
from tests.kernel.people import people
from tests.kernel.random_lives import EPSILON, GRACE, Boom, Life
from tests.kernel.random_programs import (
    CancelChild,
    CancelLeaf,
    CancelPerson,
    CancelScope,
    Close,
    Closing,
    Host,
    Hosting,
    Open,
    Pause,
    Program,
    Spawn,
    Step,
    WaitFor,
)
from tests.kernel.temperaments import an_innocent_bystander, on_trio

pytestmark = pytest.mark.audit

QUIET = ("quick", "slow", "swallows", "fails", "fails late", "spawns late", "waits for token")
HOSTS = ("hosts", "opens", "hosts a failure", "swallows and hosts")
CLOSERS = (*HOSTS, "closes", "closes late", "hosts a closer", "opens a closer")
STUBBORN = ("stubborn",)

SOON = 2.5  # enough for every clean-up of a program one after the other, and less than any rung

index = st.integers(0, 7)
moments = st.sampled_from([0.0, 0.1, 0.25])


def steps(kinds: tuple[str, ...]) -> st.SearchStrategy[list[Step]]:
    kind = st.sampled_from(kinds)
    others = st.one_of(
        st.builds(Open, st.none() | index),
        st.builds(Pause, st.sampled_from([0.0, 0.05, 0.1, 0.3, 1.0])),
        st.builds(CancelChild, index),
        st.builds(CancelScope, index, st.booleans()),
        st.builds(CancelLeaf, index, st.booleans()),
        st.builds(Close, index, st.sampled_from([None, None, 0.0, 0.2, 2.0]), st.sampled_from([None, 0.17])),
        st.builds(Host, st.tuples(kind, kind), st.sampled_from([0.0, 0.15, 100.0]), moments),
        st.builds(CancelPerson, index, st.integers(1, 3)),
        st.builds(WaitFor, index),
    )
    spawn = st.builds(Spawn, index, kind, moments, moments)
    return st.lists(st.one_of(spawn, others), min_size=2, max_size=14)


# Judgement --------------------------------------------------------------------------------------------------


def judge_life(life: Life) -> None:
    assert life.handle is not None
    assert life.handle.done, f"{life} never ended"
    assert life.ended == life.started
    if life.cancelled_at is not None:
        assert life.was_asked_to_go, f"{life} was cancelled by nobody"
    if life.tidying and not life.tidied:
        assert not on_trio(), f"the shielded clean-up of {life} was cut"
        assert life.cut_at is not None
        allowed = min(life.owned.may_cut_from(), life.handle_cut_from)
        assert life.cut_at >= allowed - EPSILON, f"{life} was cut at {life.cut_at}, not before {allowed}"


def judge_closing(closing: Closing, *, anybody_stubborn: bool) -> None:
    limit = GRACE if closing.deadline is None else closing.deadline
    assert closing.took <= limit + EPSILON, f"close took {closing.took}, not {limit}"
    assert closing.left is not None
    assert set(closing.still) <= set(closing.left), "left, and not named"
    if not anybody_stubborn and closing.owned.may_cut_from() - closing.began > SOON:
        assert closing.left == [], "nobody was stubborn, and there was time"
    if closing.asked_to_go == 0 and closing.patience is not None:
        assert closing.gave_up == (closing.took > closing.patience)


def judge_hosting(hosting: Hosting) -> None:
    if hosting.raised is not None:
        assert isinstance(hosting.raised, ExceptionGroup)
        # a child that opens a scope when its own is already stopping is refused
        assert hosting.raised.split((Boom, ScopeClosed))[1] is None, hosting.raised


def judge(program: Program) -> None:
    anybody_stubborn = any(life.kind in STUBBORN for life in program.lives)
    for life in program.lives:
        judge_life(life)
    for acting in program.actings:
        if isinstance(acting, Closing):
            judge_closing(acting, anybody_stubborn=anybody_stubborn)
        elif isinstance(acting, Hosting):
            judge_hosting(acting)
        assert acting.person.cancelled == (acting.asked_to_go > 0), f"{acting.asked_to_go} cancels"
        if not on_trio():
            assert acting.person.cancels == acting.asked_to_go
    for name, took in program.inside:
        assert took <= GRACE + EPSILON, f"a close of {name} from inside took {took}"
        if not anybody_stubborn:
            assert took < SOON, f"a close of {name} from inside waited for somebody who waited for it"
    assert not any(waiter.cancelled for waiter in program.waiters)


async def run_program(program_steps: list[Step]) -> None:
    async with an_innocent_bystander(pace=1.0), people() as start:
        program = Program(start)
        await program.run(Open(None))
        for step in program_steps:
            await program.run(step)
            program.nobody_of_a_settled_scope_runs_on()
        await program.finish()
        program.nobody_of_a_settled_scope_runs_on()
        judge(program)


random_programs = settings(
    derandomize=True,
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
worlds = pytest.mark.worlds("asyncio", "asyncio-eager", "trio")


@worlds
@random_programs
@given(steps(QUIET))
async def test_programs_of_willing_children_keep_the_promises(program: list[Step]) -> None:
    await run_program(program)


@worlds
@random_programs
@given(steps(QUIET + CLOSERS))
async def test_programs_whose_children_close_their_scopes_keep_the_promises(program: list[Step]) -> None:
    await run_program(program)


@worlds
@random_programs
@given(steps(QUIET + CLOSERS + STUBBORN * 4))
async def test_programs_with_stubborn_children_keep_the_promises(program: list[Step]) -> None:
    await run_program(program)
