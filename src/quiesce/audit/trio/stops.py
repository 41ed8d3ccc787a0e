"""The stops on trio: how the scenario is started, how it is stopped, and how it should then have ended.

On trio a cancel is a state of a scope, not an event: every checkpoint inside raises `Cancelled` until the scope is
exited. A scenario that reaches no further checkpoint may therefore finish in a cancelled scope. It has swallowed the
cancel only if a `Cancelled` was raised in the root and did not come out.
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
    cancel_reaches,
    current_status,
    gets_cancelled,
    innermost_scope,
    make_next_step_fail,
    trio,
)

if TYPE_CHECKING:
    import anyio


class TrioStop:
    """One stop of one run. The base class stops nothing: it is used for uninjected runs.

    A second stop in the same run cancels a scope further out.
    """

    def __init__(self, scenario: Scenario, item: int | None = None) -> None:
        self.scenario = scenario
        # The nursery in which the root runs.
        self.nursery: trio.Nursery | None = None
        self.closer: Task | None = None
        self.stops_made = 0
        self.items = 0
        self.item = item
        self.sightings: list[Sighting] = []
        # The scenario returned, or the scope that was cancelled caught the cancel.
        self.is_finished = False
        # The scope that was cancelled caught the cancel.
        self.is_caught = False
        # The outer scope, for a second stop.
        self._outer_scope = trio.CancelScope()
        # The cancel status of the scope that the stop cancels.
        self._scope_status: object = None
        # Whether a Cancelled of that scope was raised in the root.
        self._cancel_reached_root = False

    async def run(self) -> None:
        """The body of the root task."""
        with self._outer_scope:
            await self.main()
            self.is_finished = True

    async def main(self) -> None:
        """Run the scenario, inside the scopes that this stop needs."""
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
        """Make the stop now. The second stop of a run cancels the outer scope."""
        if self.stops_made:
            self._outer_scope.cancel()
        else:
            self.stops_made += 1
            self.make_first_stop(task)

    def make_first_stop(self, task: Task) -> None:
        """Make the first stop of the run."""

    def root_resumes(self, root: Task) -> None:
        """Called before each step of the root after the stop; notes whether the cancel has reached it."""
        if not self._cancel_reached_root and self._scope_status is not None and gets_cancelled(root):
            self._cancel_reached_root = cancel_reaches(root, self._scope_status)

    def judge(self, error: BaseException | None) -> list[Sighting]:
        """Compare how the root ended with how it should have ended after this stop."""
        if isinstance(error, trio.Cancelled):
            detail = "it was cancelled, although nothing cancelled it"
            return [*self.sightings, Sighting("bystander", self.scenario.name, detail=detail)]
        return self.sightings


class CancelRoot(TrioStop):
    """Cancels a scope around the scenario, which has to catch the cancel."""

    def __init__(self, scenario: Scenario, item: int | None = None) -> None:
        super().__init__(scenario, item)
        self._scope = trio.CancelScope()

    async def main(self) -> None:
        with self._scope:
            self._scope_status = current_status()
            await super().main()
            return
        self.is_caught = True

    def make_first_stop(self, task: Task) -> None:
        self._scope.cancel()

    def judge(self, error: BaseException | None) -> list[Sighting]:
        if not self.stops_made:
            return super().judge(error)
        if isinstance(error, trio.Cancelled):
            return self.sightings  # it belongs to a scope further out, and is judged there
        if error is not None:
            detail = f"it was cancelled, and raised {text_of(error)}"
            return [*self.sightings, Sighting("replaced", self.scenario.name, detail=detail)]
        if self._cancel_reached_root and self.is_finished and not self.is_caught:
            detail = "it was cancelled, and returned as if nothing had happened"
            return [*self.sightings, Sighting("swallowed", self.scenario.name, detail=detail)]
        return self.sightings


class CancelScope(CancelRoot):
    """Cancels an anyio scope around the scenario."""

    _anyio_scope: anyio.CancelScope | None = None

    async def main(self) -> None:
        import anyio

        with anyio.CancelScope() as self._anyio_scope:
            self._scope_status = current_status()
            await TrioStop.main(self)
            return
        self.is_caught = True

    def make_first_stop(self, task: Task) -> None:
        if self._anyio_scope is not None:
            self._anyio_scope.cancel()


class RunOutOfTime(CancelRoot):
    """Lets a `trio.fail_after` around the scenario expire. A TooSlowError has to come out."""

    async def main(self) -> None:
        with trio.fail_after(inf) as self._scope:
            self._scope_status = current_status()
            await TrioStop.main(self)

    def make_first_stop(self, task: Task) -> None:
        self._scope.deadline = trio.current_time()
        # trio checks deadlines once per round. Reading `cancel_called` makes this one take effect now.
        assert self._scope.cancel_called

    def judge(self, error: BaseException | None) -> list[Sighting]:
        return (
            self.sightings
            if self.stops_made and isinstance(error, trio.TooSlowError)
            else super().judge(error)
        )


class Fail(TrioStop):
    """Makes the operation that a task waits for fail."""

    def make_first_stop(self, task: Task) -> None:
        make_next_step_fail(task, InjectedError(RAISED))


class CancelOne(TrioStop):
    """Cancels the innermost scope around one task, which may be that of its nursery."""

    def make_first_stop(self, task: Task) -> None:
        assert self.nursery is not None
        scope = innermost_scope(task, self.nursery.cancel_scope)
        if scope is not None and scope is not self._outer_scope:
            scope.cancel()

    def judge(self, error: BaseException | None) -> list[Sighting]:
        return []


class ReleaseItem(TrioStop):
    """Releases a generator or context manager after its `item`-th item; the consumer must not be cancelled by that."""

    async def main(self) -> None:
        if self.item is None:
            return await super().main()
        holder = await self.scenario.hold(self.item)
        self.stops_made += 1
        await self.release(holder)
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        return None

    async def release(self, holder: list[Any]) -> None:
        """Close or drop the only item of `holder`."""
        raise NotImplementedError  # abstract: the two kinds of stop differ in this

    def judge(self, error: BaseException | None) -> list[Sighting]:
        if error is not None and not isinstance(error, trio.Cancelled):
            detail = f"its consumer got {text_of(error)}"
            self.sightings.append(Sighting("close", self.scenario.name, detail=detail))
        return super().judge(error)


class CloseElsewhere(ReleaseItem):
    """Another task than the consumer closes it."""

    async def release(self, holder: list[Any]) -> None:
        assert self.nursery is not None
        closed = trio.Event()
        # In the root's nursery: a nursery opened here would be inside the scopes of the object that is to be closed.
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
            self.sightings.append(
                Sighting("close", self.scenario.name, detail="the task that closed it was cancelled")
            )
            raise
        except Exception as error:
            self.sightings.append(Sighting("close", self.scenario.name, detail=text_of(error)))
        finally:
            closed.set()
            self.closer = None


class Drop(ReleaseItem):
    """The consumer drops its reference, and the garbage collector runs."""

    async def release(self, holder: list[Any]) -> None:
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
