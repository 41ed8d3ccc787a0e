"""Programs at random: scopes, children, tokens and closers, driven from several tasks; the promises hold.

A program is a list of steps, run in virtual time in one world. What every child and every closer saw is
written down, and judged afterwards:

- whoever closed from outside found each child ended, or named in the report;
- nobody of a settled scope runs on, and in the end every scope settles;
- a clean-up was cut only when its time was over, which a small model of the ladders says;
- nobody saw a cancellation that the program did not ask for, and no closer lost its own;
- every close kept its deadline, and was clean when nobody was stubborn;
- reports and counts account for each child.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quiesce import Scope, ScopeClosed, current_token
from tests.kernel.people import Person, people
from tests.kernel.temperaments import (
    an_innocent_bystander,
    cancellation,
    forever,
    on_trio,
    tidy_up,
    turns,
)

GRACE = 5.0  # seconds of a whole ladder; 3 of them before anything is cut
CUT_AFTER = 3.0
EPSILON = 1e-6

QUIET = ("quick", "slow", "swallows", "fails", "fails late", "spawns late", "waits for token")
CLOSERS = ("closes", "closes late", "hosts", "opens", "hosts a closer", "opens a closer")
STUBBORN = ("stubborn",)


class Boom(Exception):
    pass


# Steps ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Open:
    inside: int | None


@dataclass(frozen=True)
class Spawn:
    scope: int
    kind: str
    delay: float
    tidy: float


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class CancelChild:
    child: int


@dataclass(frozen=True)
class CancelScope:
    scope: int
    in_thread: bool


@dataclass(frozen=True)
class CancelLeaf:
    scope: int
    in_thread: bool


@dataclass(frozen=True)
class Close:
    scope: int
    deadline: float | None


@dataclass(frozen=True)
class CancelCloser:
    closer: int
    times: int


@dataclass(frozen=True)
class WaitFor:
    child: int


Step = Open | Spawn | Pause | CancelChild | CancelScope | CancelLeaf | Close | CancelCloser | WaitFor

index = st.integers(0, 7)
moments = st.sampled_from([0.0, 0.1, 0.25])


def steps(kinds: tuple[str, ...]) -> st.SearchStrategy[list[Step]]:
    spawn = st.builds(Spawn, index, st.sampled_from(kinds), moments, moments)
    others = st.one_of(
        st.builds(Open, st.none() | index),
        st.builds(Pause, st.sampled_from([0.0, 0.05, 0.1, 0.3, 1.0])),
        st.builds(CancelChild, index),
        st.builds(CancelScope, index, st.booleans()),
        st.builds(CancelLeaf, index, st.booleans()),
        st.builds(Close, index, st.sampled_from([None, None, None, 0.0, 0.2, 2.0])),
        st.builds(CancelCloser, index, st.integers(1, 3)),
        st.builds(WaitFor, index),
    )
    return st.lists(st.one_of(spawn, others), min_size=2, max_size=14)


# What happened ----------------------------------------------------------------------------------------------


class Owned:
    """One scope of the program, and what the model knows of its ladder."""

    def __init__(self, program: Program, scope: Scope, parent: Owned | None) -> None:
        self.program = program
        self.scope = scope
        self.parent = parent
        self.lives: list[Life] = []
        self.cut_from = float("inf")  # before this moment no clean-up in here may be cut
        scope.token.on_cancel(self._signalled)

    def _signalled(self) -> None:
        in_the_loop = threading.current_thread() is self.program.thread
        now = anyio.current_time() if in_the_loop else self.program.step_at
        self.cut_from = min(self.cut_from, now + CUT_AFTER)

    def hurried(self, deadline: float | None) -> None:
        """Asked again, by `cancel()` or with a deadline."""
        now = anyio.current_time()
        if deadline is not None:
            self.cut_from = min(self.cut_from, now + deadline * CUT_AFTER / GRACE)
        elif self.cut_from < float("inf"):
            self.cut_from = min(self.cut_from, now + max(self.cut_from - now, 0) / 2)

    def may_cut_from(self) -> float:
        above = self.parent.may_cut_from() if self.parent is not None else float("inf")
        return min(self.cut_from, above)

    def everybody(self, all_owned: list[Owned]) -> list[Life]:
        inside = [owned for owned in all_owned if owned.is_inside(self)]
        return [life for owned in inside for life in owned.lives]

    def is_inside(self, other: Owned) -> bool:
        return self is other or (self.parent is not None and self.parent.is_inside(other))


class Life:
    """One child, as it saw itself."""

    def __init__(self, program: Program, owned: Owned, kind: str, delay: float, tidy: float) -> None:
        self.program = program
        self.owned = owned
        self.kind = kind
        self.delay = delay
        self.tidy = tidy
        self.name = f"{kind} {len(program.lives)}"
        self.handle: Any = None
        self.started = False
        self.ended = False
        self.cancelled_at: float | None = None
        self.tidying = False
        self.tidied = False
        self.cut_at: float | None = None
        self.handle_cut_from = float("inf")
        program.lives.append(self)
        owned.lives.append(self)

    def __repr__(self) -> str:
        return f"<{self.name} in {self.owned.scope.name}>"

    async def live(self) -> None:
        self.started = True
        try:
            await getattr(self, self.kind.replace(" ", "_"))()
        finally:
            self.ended = True

    async def until_cancelled(self) -> None:
        try:
            await forever()
        except cancellation():
            self.cancelled_at = anyio.current_time()
            raise

    async def clean_up(self) -> None:
        self.tidying = True
        try:
            await tidy_up(self.tidy)
        except cancellation():
            self.cut_at = anyio.current_time()
            raise
        self.tidied = True

    # Temperaments

    async def quick(self) -> None:
        try:
            await anyio.sleep(self.delay)
        except cancellation():
            self.cancelled_at = anyio.current_time()
            raise

    async def slow(self) -> None:
        try:
            await self.until_cancelled()
        finally:
            await self.clean_up()

    async def waits_for_token(self) -> None:
        try:
            await current_token().wait()
            await self.until_cancelled()
        except cancellation():
            self.cancelled_at = anyio.current_time()
            raise
        finally:
            await self.clean_up()

    async def swallows(self) -> None:
        try:
            await self.until_cancelled()
        except cancellation():
            await self.clean_up()

    async def fails(self) -> None:
        await self.quick()
        raise Boom(self.name)

    async def fails_late(self) -> None:
        try:
            await self.until_cancelled()
        finally:
            await self.clean_up()
            raise Boom(self.name)

    async def spawns_late(self) -> None:
        try:
            await self.until_cancelled()
        finally:
            was_open = self.owned.scope.state == "open"
            life = Life(self.program, self.owned, "quick", self.delay, 0.0)
            try:
                life.handle = self.owned.scope.spawn(life.live, name=life.name)
                assert was_open, "accepted by a scope that is being stopped"
            except ScopeClosed:
                assert not was_open
                self.program.forget(life)
            await self.clean_up()

    async def closes(self) -> None:
        await self.quick()
        await self.program.close_inside(self.owned.scope)
        await self.until_cancelled()

    async def closes_late(self) -> None:
        try:
            await self.until_cancelled()
        finally:
            with anyio.CancelScope(shield=True):
                await self.program.close_inside(self.owned.scope)
                await self.clean_up()

    async def hosts(self) -> None:
        async with Scope(f"block of {self.name}") as scope:
            inner = self.program.adopt(scope, self.owned)
            self.program.spawn(inner, "slow", self.delay, self.tidy)
            await self.until_cancelled()

    async def hosts_a_closer(self) -> None:
        async with Scope(f"block of {self.name}") as scope:
            inner = self.program.adopt(scope, self.owned)
            self.program.spawn(inner, "slow", self.delay, self.tidy)
            closer = Life(self.program, inner, "closes outer", self.delay, 0.0)
            closer.handle = scope.spawn(closer.live, name=closer.name)
            try:
                await self.until_cancelled()
            finally:
                await self.clean_up()

    async def opens(self) -> None:
        scope = await Scope.open(f"opened by {self.name}")
        inner = self.program.adopt(scope, self.owned)
        self.program.spawn(inner, "slow", self.delay, self.tidy)
        try:
            await self.until_cancelled()
        finally:
            await scope.close()

    async def opens_a_closer(self) -> None:
        scope = await Scope.open(f"opened by {self.name}")
        inner = self.program.adopt(scope, self.owned)
        closer = Life(self.program, inner, "closes outer", self.delay, 0.0)
        closer.handle = scope.spawn(closer.live, name=closer.name)
        try:
            await self.until_cancelled()
        finally:
            await scope.close()

    async def closes_outer(self) -> None:
        await self.quick()
        assert self.owned.parent is not None
        await self.program.close_inside(self.owned.parent.scope)
        await self.until_cancelled()

    async def stubborn(self) -> None:
        end = anyio.current_time() + 7
        while (left := end - anyio.current_time()) > EPSILON:
            try:
                await tidy_up(left)
            except cancellation():
                self.cancelled_at = self.cancelled_at or anyio.current_time()


class Closing:
    """One close from outside, by a person of its own."""

    def __init__(self, program: Program, owned: Owned, deadline: float | None) -> None:
        self.program = program
        self.owned = owned
        self.deadline = deadline
        self.person: Person | None = None
        self.began = anyio.current_time()
        self.took = -1.0
        self.in_close = False
        self.asked_to_go = 0
        self.left: list[str] | None = None
        self.still: list[str] = []

    async def close(self) -> None:
        self.in_close = True
        self.owned.hurried(self.deadline if self.deadline is not None else GRACE)
        try:
            await self.owned.scope.close(deadline=self.deadline, reason="closed by the program")
        finally:
            self.in_close = False
            self.took = anyio.current_time() - self.began
            report = self.owned.scope.report
            assert report is not None
            self.left = [left.name for left in report.left]
            everybody = self.owned.everybody(self.program.all_owned)
            self.still = [life.name for life in everybody if life.started and not life.ended]


class Program:
    """Runs the steps, and keeps what happened."""

    def __init__(self, start: Callable[[Callable[[], Awaitable[None]]], Person]) -> None:
        self.start = start
        self.thread = threading.current_thread()
        self.step_at = 0.0
        self.all_owned: list[Owned] = []
        self.lives: list[Life] = []
        self.closings: list[Closing] = []
        self.inside: list[tuple[str, float]] = []
        self.waiters: list[Person] = []

    def adopt(self, scope: Scope, parent: Owned | None) -> Owned:
        owned = Owned(self, scope, parent)
        self.all_owned.append(owned)
        return owned

    def forget(self, life: Life) -> None:
        self.lives.remove(life)
        life.owned.lives.remove(life)

    def spawn(self, owned: Owned, kind: str, delay: float, tidy: float) -> None:
        life = Life(self, owned, kind, delay, tidy)
        was_open = owned.scope.state == "open"
        try:
            life.handle = owned.scope.spawn(life.live, name=life.name)
            assert was_open
        except ScopeClosed:
            assert not was_open
            self.forget(life)

    async def close_inside(self, scope: Scope) -> None:
        began = anyio.current_time()
        try:
            await scope.close(reason="closed from inside")
        finally:
            self.inside.append((scope.name, anyio.current_time() - began))

    async def run(self, step: Step) -> None:
        self.step_at = anyio.current_time()
        match step:
            case Open(inside):
                parent = None if inside is None else self.all_owned[inside % len(self.all_owned)]
                try:
                    scope = await Scope.open(
                        f"scope {len(self.all_owned)}", scope=parent.scope if parent else None
                    )
                    self.adopt(scope, parent)
                except ScopeClosed:
                    assert parent is not None
                    assert parent.scope.state != "open"
            case Spawn(scope, kind, delay, tidy):
                self.spawn(self.all_owned[scope % len(self.all_owned)], kind, delay, tidy)
            case Pause(seconds):
                await anyio.sleep(seconds)
            case CancelChild(child) if self.lives:
                life = self.lives[child % len(self.lives)]
                patience = 1.0 if life.handle.asked else CUT_AFTER
                life.handle_cut_from = min(life.handle_cut_from, anyio.current_time() + patience)
                life.handle.cancel("one child")
            case CancelScope(scope, in_thread):
                owned = self.all_owned[scope % len(self.all_owned)]
                owned.hurried(None)
                await maybe_in_a_thread(in_thread, lambda: owned.scope.cancel("cancelled by the program"))
            case CancelLeaf(scope, in_thread):
                token = self.all_owned[scope % len(self.all_owned)].scope.token.child()
                await maybe_in_a_thread(in_thread, lambda: token.cancel("a leaf"))
                assert token.cancelled
            case Close(scope, deadline):
                closing = Closing(self, self.all_owned[scope % len(self.all_owned)], deadline)
                self.closings.append(closing)
                closing.person = self.start(closing.close)
            case CancelCloser(closer, times) if self.closings:
                closing = self.closings[closer % len(self.closings)]
                assert closing.person is not None
                for _ in range(times):
                    if closing.in_close:
                        closing.asked_to_go += 1
                        closing.person.cancel()
                    await anyio.sleep(0)
            case WaitFor(child) if self.lives:
                handle = self.lives[child % len(self.lives)].handle
                self.waiters.append(self.start(handle.wait))
            case _:
                await anyio.sleep(0)

    def nobody_of_a_settled_scope_runs_on(self) -> None:
        for owned in self.all_owned:
            if owned.scope.state == "settled":
                for life in owned.everybody(self.all_owned):
                    assert life.ended or not life.started, f"{life} outlived its scope"

    async def finish(self) -> None:
        """Close what is open, wait for the stubborn, close again: now everything has to settle."""
        for owned in self.all_owned:
            if owned.parent is None:
                await owned.scope.close()
        await anyio.sleep(8)
        for owned in self.all_owned:
            report = await owned.scope.close()
            assert report.clean, str(report)
            assert owned.scope.state == "settled"
            assert report.ended == len(owned.lives), str(report)
            assert {outcome.name for outcome in report.outcomes} <= {life.name for life in owned.lives}
        for person in [*self.waiters, *(closing.person for closing in self.closings)]:
            assert person is not None
            await person.wait()


async def maybe_in_a_thread(in_thread: bool, fn: Callable[[], object]) -> None:
    if in_thread:
        thread = threading.Thread(target=fn)
        thread.start()
        thread.join()
        await turns(5)
    else:
        fn()


# Judgement --------------------------------------------------------------------------------------------------


def judge(program: Program) -> None:
    for life in program.lives:
        assert life.handle.done, f"{life} never ended"
        assert life.ended == life.started
        if life.cancelled_at is not None:
            asked = life.owned.scope.token.cancelled or life.handle.reason is not None
            assert asked, f"{life} was cancelled by nobody"
        if life.tidying and not life.tidied:
            assert not on_trio(), f"the shielded clean-up of {life} was cut"
            assert life.cut_at is not None
            allowed = min(life.owned.may_cut_from(), life.handle_cut_from)
            assert life.cut_at >= allowed - EPSILON, f"{life} was cut at {life.cut_at}, not before {allowed}"
    anybody_stubborn = any(life.kind in STUBBORN for life in program.lives)
    for closing in program.closings:
        assert closing.person is not None
        limit = GRACE if closing.deadline is None else closing.deadline
        assert closing.took <= limit + EPSILON, f"close took {closing.took}, not {limit}"
        assert closing.left is not None
        assert set(closing.still) <= set(closing.left), "left, and not named"
        if not anybody_stubborn and closing.owned.may_cut_from() - closing.began > 2.5:
            assert closing.left == [], "nobody was stubborn, and there was time"
        assert closing.person.cancelled == (closing.asked_to_go > 0)
        if not on_trio():
            assert closing.person.cancels == closing.asked_to_go
    for name, took in program.inside:
        assert took <= GRACE + EPSILON, f"a close of {name} from inside took {took}"
        if not anybody_stubborn:
            assert took < 2.5, f"a close of {name} from inside waited for somebody who waited for it"
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
    max_examples=60,
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

