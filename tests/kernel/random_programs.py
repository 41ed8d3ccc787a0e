"""Programs of steps that open, use, stop and close scopes, and write down what everybody saw.

The children are in `random_lives`; here are `Closing`, a close, and `Hosting`, a block, each in a task of its
own. Judging what is written down is the business of the tests.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from quiesce import Scope, ScopeClosed
from tests.kernel.people import Person
from tests.kernel.random_lives import CUT_AFTER, GRACE, Life, Owned
from tests.kernel.temperaments import turns

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
    patience: float | None = None


@dataclass(frozen=True)
class Host:
    kinds: tuple[str, str]
    seconds: float
    tidy: float


@dataclass(frozen=True)
class CancelPerson:
    person: int
    times: int


@dataclass(frozen=True)
class WaitFor:
    child: int


Step = Open | Spawn | Pause | CancelChild | CancelScope | CancelLeaf | Close | Host | CancelPerson | WaitFor


# What happens -----------------------------------------------------------------------------------------------


class Acting:
    """Something that a person of its own does to a scope."""

    person: Person
    began: float
    took = -1.0
    busy = False
    asked_to_go = 0  # cancels by the program while it was busy

    def __init__(self, program: Program) -> None:
        self.program = program
        self.began = anyio.current_time()

    async def act(self) -> None:
        self.busy = True
        try:
            await self.do()
        finally:
            self.busy = False
            self.took = anyio.current_time() - self.began

    async def do(self) -> None:
        raise NotImplementedError


class Closing(Acting):
    """A close from outside."""

    def __init__(
        self, program: Program, owned: Owned, deadline: float | None, patience: float | None
    ) -> None:
        super().__init__(program)
        self.owned = owned
        self.deadline = deadline
        self.patience = patience
        self.gave_up = False
        self.left: list[str] | None = None
        self.still: list[str] = []

    async def do(self) -> None:
        self.owned.hurried(self.deadline if self.deadline is not None else GRACE)
        try:
            with anyio.move_on_after(self.patience) as around:
                await self.owned.scope.close(deadline=self.deadline, reason="closed by the program")
            self.gave_up = around.cancelled_caught
        finally:
            report = self.owned.scope.report
            assert report is not None
            self.left = [left.name for left in report.left]
            everybody = self.owned.everybody(self.program.all_owned)
            self.still = [life.name for life in everybody if life.started and not life.ended]


class Hosting(Acting):
    """A block with two children, whose body waits for a while and then leaves."""

    def __init__(self, program: Program, step: Host) -> None:
        super().__init__(program)
        self.step = step
        self.raised: BaseException | None = None

    async def do(self) -> None:
        try:
            async with Scope(f"block {len(self.program.all_owned)}") as scope:
                owned = self.program.adopt(scope, None)
                for kind in self.step.kinds:
                    self.program.spawn(owned, kind, self.step.tidy, self.step.tidy)
                await anyio.sleep(self.step.seconds)
        except BaseExceptionGroup as error:
            self.raised = error


class Program:
    """Runs the steps, and keeps what happened."""

    def __init__(self, start: Callable[[Callable[[], Awaitable[None]]], Person]) -> None:
        self.start = start
        self.thread = threading.current_thread()
        self.step_at = 0.0
        self.all_owned: list[Owned] = []
        self.lives: list[Life] = []
        self.actings: list[Acting] = []
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

    def let_act(self, acting: Acting) -> None:
        self.actings.append(acting)
        acting.person = self.start(acting.act)

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
                assert life.handle is not None
                patience = 1.0 if life.handle._asked else CUT_AFTER
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
            case Close(scope, deadline, patience):
                self.let_act(Closing(self, self.all_owned[scope % len(self.all_owned)], deadline, patience))
            case Host():
                self.let_act(Hosting(self, step))
            case CancelPerson(person, times) if self.actings:
                acting = self.actings[person % len(self.actings)]
                for _ in range(times):
                    if acting.busy:
                        acting.asked_to_go += 1
                        acting.person.cancel()
                    await anyio.sleep(0)
            case WaitFor(child) if self.lives:
                handle = self.lives[child % len(self.lives)].handle
                assert handle is not None
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
        await anyio.sleep(8)  # longer than anybody is stubborn
        for owned in self.all_owned:
            report = await owned.scope.close()
            assert not report.left, str(report)
            assert owned.scope.state == "settled"
            assert report.ended == len(owned.lives), str(report)
            known = {life.name for life in owned.lives}
            below = {life.name for life in owned.everybody(self.all_owned)}
            for outcome in report.outcomes:  # failures of nested scopes are told too, with the scope's name
                if outcome.name not in known:
                    assert outcome.state == "failed", str(report)
                    assert outcome.name.rpartition(": ")[2] in below, str(report)
        for person in [*self.waiters, *(acting.person for acting in self.actings)]:
            await person.wait()


async def maybe_in_a_thread(in_thread: bool, fn: Callable[[], object]) -> None:
    if in_thread:
        thread = threading.Thread(target=fn)
        thread.start()
        thread.join()
        await turns(5)
    else:
        fn()
