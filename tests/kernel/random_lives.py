"""The children of random programs: each of some temperament, and each writes down what it saw.

`Owned` is one scope, with a small model of its ladder: before which moment no clean-up in it may be cut.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import anyio

from quiesce import Handle, Scope, ScopeClosed, current_token
from tests.kernel.temperaments import cancellation, forever, tidy_up

if TYPE_CHECKING:
    from tests.kernel.random_programs import Program

GRACE = 5.0  # seconds of a whole ladder; 3 of them before anything is cut
CUT_AFTER = 3.0
EPSILON = 1e-6


class Boom(Exception):
    pass


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
        self.handle: Handle | None = None
        self.block: Owned | None = None  # of which it runs the body
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

    @property
    def was_asked_to_go(self) -> bool:
        assert self.handle is not None
        scopes = [self.owned] if self.block is None else [self.owned, self.block]
        return self.handle.reason is not None or any(owned.scope.token.cancelled for owned in scopes)

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
            inner = self.block = self.program.adopt(scope, self.owned)
            self.program.spawn(inner, "slow", self.delay, self.tidy)
            await self.until_cancelled()

    async def hosts_a_closer(self) -> None:
        async with Scope(f"block of {self.name}") as scope:
            inner = self.block = self.program.adopt(scope, self.owned)
            self.program.spawn(inner, "slow", self.delay, self.tidy)
            closer = Life(self.program, inner, "closes outer", self.delay, 0.0)
            closer.handle = scope.spawn(closer.live, name=closer.name)
            try:
                await self.until_cancelled()
            finally:
                await self.clean_up()

    async def hosts_a_failure(self) -> None:
        async with Scope(f"block of {self.name}") as scope:
            inner = self.block = self.program.adopt(scope, self.owned)
            self.program.spawn(inner, "fails", self.delay, self.tidy)
            try:
                await self.until_cancelled()
            finally:
                await self.clean_up()

    async def swallows_and_hosts(self) -> None:
        try:
            await self.until_cancelled()
        except cancellation():
            with anyio.CancelScope(shield=True):
                try:
                    await self.hosts_a_failure()
                except (ScopeClosed, ExceptionGroup):
                    pass

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
