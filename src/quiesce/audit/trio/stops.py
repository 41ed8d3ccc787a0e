"""The stops on trio: how the scenario is started, how it is stopped, and how it should then have ended.

A trio cancel is a state of a scope, not an event: every checkpoint inside raises `Cancelled` until the scope is left.
A scenario may therefore finish in a cancelled scope, if it has no checkpoint left. It has swallowed the cancel only if a
`Cancelled` was raised in the root and nothing of it came out.
"""

from __future__ import annotations

import gc
from math import inf
from typing import TYPE_CHECKING, Any

from quiesce.audit.model import Scenario, Sighting, TaskRecord
from quiesce.audit.watch import text_of
from quiesce.audit.worlds import RAISED, InjectedError

from .private_parts import (
    Task,
    current_status,
    gets_cancelled,
    innermost_scope,
    make_next_step_fail,
    stands_in,
    trio,
)

if TYPE_CHECKING:
    import anyio


class TrioStop:
    """One stop of one run. This one does nothing: the uninjected run.

    A second shot at whatever was stopped cancels a scope further out.
    """

    def __init__(self, scenario: Scenario, item: int | None = None) -> None:
        self.scenario = scenario
        self.nursery: trio.Nursery | None = None  # that of the root itself
        self.closer: Task | None = None
        self.asked = 0
        self.items = 0
        self.item = item
        self.seen: list[Sighting] = []
        self.is_finished = False  # it came to its end, or to that of the scope which was cancelled
        self.is_caught = False  # that scope caught the cancel
        self._beyond = trio.CancelScope()
        self._status: object = None  # of the scope that is cancelled
        self._is_told = False  # a Cancelled of that scope was raised in the root

    async def run(self) -> None:
        """The body of the root task."""
        with self._beyond:
            await self.main()
            self.is_finished = True

    async def main(self) -> None:
        made = self.scenario.make()
        if self.scenario.shape == "coroutine":
            await made
        elif self.scenario.shape == "generator":
            async for _ in made:
                self.items += 1
        else:
            async with made:
                self.items += 1
                await trio.sleep(1)

    def fire(self, lane: TaskRecord, task: Task) -> None:
        """Stop it, now."""
        if self.asked:
            self._beyond.cancel()
        else:
            self.asked += 1
            self.shoot(task)

    def shoot(self, task: Task) -> None:
        """The first stop."""

    def root_resumes(self, root: Task) -> None:
        """Called before each step of the root once it was told to stop."""
        if not self._is_told and self._status is not None and gets_cancelled(root):
            self._is_told = stands_in(root, self._status)

    def judge(self, error: BaseException | None) -> list[Sighting]:
        """What is wrong with how the root ended."""
        if isinstance(error, trio.Cancelled):
            detail = "it was cancelled, and nobody asked for that"
            return [*self.seen, Sighting("bystander", self.scenario.name, detail=detail)]
        return self.seen


class CancelRoot(TrioStop):
    def __init__(self, scenario: Scenario, item: int | None = None) -> None:
        super().__init__(scenario, item)
        self._scope = trio.CancelScope()

    async def main(self) -> None:
        with self._scope:
            self._status = current_status()
            await super().main()
            return
        self.is_caught = True

    def shoot(self, task: Task) -> None:
        self._scope.cancel()

    def judge(self, error: BaseException | None) -> list[Sighting]:
        if not self.asked:
            return super().judge(error)
        if isinstance(error, trio.Cancelled):
            return self.seen  # of a scope further out, which is told of as such
        if error is not None:
            detail = f"it was told to stop, and raised {text_of(error)}"
            return [*self.seen, Sighting("replaced", self.scenario.name, detail=detail)]
        if self._is_told and self.is_finished and not self.is_caught:
            detail = "it was told to stop, and returned as if nothing had happened"
            return [*self.seen, Sighting("swallowed", self.scenario.name, detail=detail)]
        return self.seen


class CancelScope(CancelRoot):
    _anyio_scope: anyio.CancelScope | None = None

    async def main(self) -> None:
        import anyio

        with anyio.CancelScope() as self._anyio_scope:
            self._status = current_status()
            await TrioStop.main(self)
            return
        self.is_caught = True

    def shoot(self, task: Task) -> None:
        if self._anyio_scope is not None:
            self._anyio_scope.cancel()


class RunOutOfTime(CancelRoot):
    async def main(self) -> None:
        with trio.fail_after(inf) as self._scope:
            self._status = current_status()
            await TrioStop.main(self)

    def shoot(self, task: Task) -> None:
        self._scope.deadline = trio.current_time()
        # A deadline is looked at once a round. Asking makes it count now.
        assert self._scope.cancel_called

    def judge(self, error: BaseException | None) -> list[Sighting]:
        return self.seen if self.asked and isinstance(error, trio.TooSlowError) else super().judge(error)


class Fail(TrioStop):
    """What a task waits for has failed."""

    def shoot(self, task: Task) -> None:
        make_next_step_fail(task, InjectedError(RAISED))


class CancelOne(TrioStop):
    """The scope nearest to one task, which may be that of the nursery it is in."""

    def shoot(self, task: Task) -> None:
        assert self.nursery is not None
        scope = innermost_scope(task, self.nursery.cancel_scope)
        if scope is not None and scope is not self._beyond:
            scope.cancel()

    def judge(self, error: BaseException | None) -> list[Sighting]:
        return []


class Held(TrioStop):
    """The consumer goes on after the `item`-th item, and should not be cancelled for it."""

    async def main(self) -> None:
        if self.item is None:
            return await super().main()
        holder = await self.scenario.hold(self.item)
        self.asked += 1
        await self.let_go(holder)
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        return None

    async def let_go(self, holder: list[Any]) -> None:
        raise NotImplementedError  # abstract: the ways to let go of it

    def judge(self, error: BaseException | None) -> list[Sighting]:
        if error is not None and not isinstance(error, trio.Cancelled):
            detail = f"its consumer got {text_of(error)}"
            self.seen.append(Sighting("close", self.scenario.name, detail=detail))
        return super().judge(error)


class CloseElsewhere(Held):
    async def let_go(self, holder: list[Any]) -> None:
        assert self.nursery is not None
        closed = trio.Event()
        # In the nursery of the root: one opened here would stand inside the scopes of what is to be closed.
        self.nursery.start_soon(self.close, holder, closed)
        await closed.wait()

    async def close(self, holder: list[Any], closed: trio.Event) -> None:
        self.closer = trio.lowlevel.current_task()
        try:
            made = holder.pop()
            if self.scenario.shape == "generator":
                await made.aclose()
            elif self.item:
                await made.__aexit__(None, None, None)
        except trio.Cancelled:
            self.seen.append(
                Sighting("close", self.scenario.name, detail="the task that closed it was cancelled")
            )
            raise
        except Exception as error:
            self.seen.append(Sighting("close", self.scenario.name, detail=text_of(error)))
        finally:
            closed.set()
            self.closer = None


class Drop(Held):
    async def let_go(self, holder: list[Any]) -> None:
        holder.clear()
        gc.collect()


TRIO_STOPS: dict[str, type[TrioStop]] = {
    "cancel": CancelRoot,
    "scope": CancelScope,
    "timeout": RunOutOfTime,
    "raise": Fail,
    "close": CloseElsewhere,
    "drop": Drop,
    "descendant": CancelOne,
}
