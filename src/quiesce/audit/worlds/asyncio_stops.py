"""The stops on asyncio: how the scenario is started, how it is stopped, and how it should then have ended."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quiesce.audit.model import Scenario, Sighting, TaskRecord

if TYPE_CHECKING:
    import anyio

RAISED = "the audit made this fail"


class InjectedError(ConnectionError):
    """The error that the stop `raise` injects: to the scenario it looks like an outage."""


class AsyncioStop:
    """One stop of one run. The base class stops nothing: it is used for uninjected runs.

    A second stop in the same run is a plain cancel of the root, and the run is then judged by that cancel.
    """

    holds_bystander = True
    extra_cancels = 0

    def __init__(self, scenario: Scenario, item: int | None = None) -> None:
        self.scenario = scenario
        self.root: asyncio.Task[Any] | None = None
        self.stops_made = 0
        self.items = 0
        self.item = item
        self.sightings: list[Sighting] = []

    async def main(self) -> None:
        """The body of the root task."""
        made = self.scenario.make()
        if self.scenario.shape == "coroutine":
            await made
        elif self.scenario.shape == "generator":
            async for _ in made:
                self.items += 1
        else:
            async with made:
                self.items += 1
                # Stands for the body of the block. It is short because uvloop has no virtual clock.
                await asyncio.sleep(0.01)

    def fire(
        self, lane: TaskRecord, task: Any, handle: Any, alive: Callable[[], list[asyncio.Task[Any]]]
    ) -> None:
        """Make the stop now. `alive()` returns all unfinished tasks of the program."""

    def waits_for(self) -> list[asyncio.Task[Any]]:
        """The tasks that have to end before the run has ended, the root first."""
        assert self.root is not None
        return [self.root]

    def cancel_again(self) -> None:
        """Make a second stop: cancel the root."""
        assert self.root is not None
        self.extra_cancels += self.root.cancel()

    def forget(self) -> None:
        """Drop all references to the run, so that the garbage collector can find what else is unreferenced."""
        self.root = None

    def judge(self, root: asyncio.Task[Any]) -> list[Sighting]:
        """Compare how the root ended with how it should have ended after this stop."""
        if root.cancelled():
            self.sightings.append(
                Sighting(
                    "bystander", self.scenario.name, detail="it was cancelled, although nothing cancelled it"
                )
            )
        return self.sightings


class CancelRoot(AsyncioStop):
    """Cancels the root task, once or more. The root has to end as cancelled."""

    def fire(
        self, lane: TaskRecord, task: Any, handle: Any, alive: Callable[[], list[asyncio.Task[Any]]]
    ) -> None:
        assert self.root is not None
        self.stops_made += self.root.cancel()

    def judge(self, root: asyncio.Task[Any]) -> list[Sighting]:
        if not self.stops_made:
            return super().judge(root)
        name = self.scenario.name
        if not root.cancelled():
            return [*self.sightings, _not_cancelled(name, root.exception())]
        if root.cancelling() != self.stops_made:
            detail = f"cancelled {_times(self.stops_made)}, and cancelling() is {root.cancelling()}"
            return [*self.sightings, Sighting("count", name, detail=detail)]
        return self.sightings


class CancelAll(CancelRoot):
    """Cancels every task, as `asyncio.run` does at its end."""

    holds_bystander = False

    def __init__(self, scenario: Scenario, item: int | None = None) -> None:
        super().__init__(scenario, item)
        self._cancelled: list[asyncio.Task[Any]] = []

    def fire(
        self, lane: TaskRecord, task: Any, handle: Any, alive: Callable[[], list[asyncio.Task[Any]]]
    ) -> None:
        self._cancelled = alive()
        # asyncio.run does this while the loop is not running, and code may tell this cancel from others by that.
        with task.get_loop().paused():
            for each in self._cancelled:
                self.stops_made += each.cancel() and each is self.root

    def waits_for(self) -> list[asyncio.Task[Any]]:
        waiting, self._cancelled = self._cancelled, []
        return [*super().waits_for(), *waiting]

    def judge(self, root: asyncio.Task[Any]) -> list[Sighting]:
        # Cancelling a task that awaits another task extra_cancels the other one too. All tasks are cancelled here, so
        # some count twice, and the count says nothing.
        return [sighting for sighting in super().judge(root) if sighting.kind != "count"]


class CancelScope(AsyncioStop):
    """Cancels an anyio scope around the scenario. The scope has to catch the cancellation."""

    # The scope refers to the task, so `forget` drops it.
    _scope: anyio.CancelScope | None = None
    _was_reached = False
    _finished = False

    def forget(self) -> None:
        super().forget()
        self._scope = None

    async def main(self) -> None:
        import anyio

        with anyio.CancelScope() as self._scope:
            await super().main()
            self._finished = True

    def fire(
        self, lane: TaskRecord, task: Any, handle: Any, alive: Callable[[], list[asyncio.Task[Any]]]
    ) -> None:
        if self.stops_made:
            self.cancel_again()
        elif self._scope is not None:
            assert self.root is not None
            self.stops_made += 1
            before = self.root.cancelling()
            self._scope.cancel()
            # anyio does not cancel a task behind a shield, or one about to resume. Such a task swallows nothing.
            self._was_reached = self.root.cancelling() > before

    def judge(self, root: asyncio.Task[Any]) -> list[Sighting]:
        if self.extra_cancels:
            return (
                self.sightings
                if root.cancelled()
                else [*self.sightings, _not_cancelled(self.scenario.name, root.exception())]
            )
        if self.stops_made and root.cancelled():
            detail = "the scope was cancelled, and a CancelledError left it that the scope did not recognise as its own"
            return [*self.sightings, Sighting("replaced", self.scenario.name, detail=detail)]
        # A scenario without another checkpoint may finish in a cancelled scope: then nothing was swallowed.
        if self.stops_made and not root.cancelled() and root.exception() is not None:
            return [*self.sightings, _not_cancelled(self.scenario.name, root.exception())]
        if self.stops_made and self._finished and self._was_reached:
            return [*self.sightings, _not_cancelled(self.scenario.name, None)]
        return [*super().judge(root), *_check_count(self.scenario.name, root)]


class RunOutOfTime(AsyncioStop):
    """Lets an `asyncio.timeout` around the scenario expire. A TimeoutError has to come out."""

    # The timeout refers to the task, so `forget` drops it.
    _timeout: asyncio.Timeout | None = None

    def forget(self) -> None:
        super().forget()
        self._timeout = None

    async def main(self) -> None:
        async with asyncio.timeout(None) as self._timeout:
            await super().main()

    def fire(
        self, lane: TaskRecord, task: Any, handle: Any, alive: Callable[[], list[asyncio.Task[Any]]]
    ) -> None:
        if self.stops_made:
            self.cancel_again()
        elif self._timeout is not None:
            self.stops_made += 1
            # The callback of its timer. Setting a deadline instead would expire one round later, at another point.
            self._timeout._on_timeout()  # type: ignore[attr-defined]

    def judge(self, root: asyncio.Task[Any]) -> list[Sighting]:
        if not self.stops_made:
            return super().judge(root)
        if self.extra_cancels:
            return (
                self.sightings
                if root.cancelled()
                else [*self.sightings, _not_cancelled(self.scenario.name, root.exception())]
            )
        if root.cancelled():
            detail = "the timeout ran out, and a CancelledError came out instead of TimeoutError"
            return [*self.sightings, Sighting("replaced", self.scenario.name, detail=detail)]
        error = root.exception()
        if isinstance(error, TimeoutError):
            return [*self.sightings, *_check_count(self.scenario.name, root)]
        return [*self.sightings, _not_cancelled(self.scenario.name, error)]


class Fail(AsyncioStop):
    """Makes the future that a task waits for end with an error instead of its result."""

    def fire(
        self, lane: TaskRecord, task: Any, handle: Any, alive: Callable[[], list[asyncio.Task[Any]]]
    ) -> None:
        failed = task.get_loop().create_future()
        failed.set_exception(InjectedError(RAISED))
        # Marks the exception as retrieved, in case the task is cancelled before it looks.
        failed.exception()
        # The wake-up of a task gets the future as its argument: replace that, not the future that others may share.
        handle._args = (failed,)


class CancelOne(AsyncioStop):
    """Cancels one task below the root."""

    def fire(
        self, lane: TaskRecord, task: Any, handle: Any, alive: Callable[[], list[asyncio.Task[Any]]]
    ) -> None:
        self.stops_made += task.cancel()

    def judge(self, root: asyncio.Task[Any]) -> list[Sighting]:
        return []  # a root that awaits the cancelled task may rightly be cancelled with it


class ReleaseItem(AsyncioStop):
    """Releases a generator or context manager after its `item`-th item; the consumer must not be cancelled by that."""

    async def main(self) -> None:
        if self.item is None:
            return await super().main()
        holder = await self.scenario.hold(self.item)
        self.stops_made += 1
        await self.release(holder)
        for _ in range(3):
            await asyncio.sleep(0)
        return None

    async def release(self, holder: list[Any]) -> None:
        """Close or drop the only item of `holder`."""
        raise NotImplementedError


class CloseElsewhere(ReleaseItem):
    """Another task than the consumer closes it."""

    async def release(self, holder: list[Any]) -> None:
        closer = asyncio.create_task(self._close(holder.pop()))
        await asyncio.wait([closer])
        if closer.cancelled():
            self.sightings.append(
                Sighting("close", self.scenario.name, detail="the task that closed it was cancelled")
            )
        elif (error := closer.exception()) is not None:
            detail = f"{type(error).__name__}: {error}"
            self.sightings.append(Sighting("close", self.scenario.name, detail=detail))

    async def _close(self, made: Any) -> None:
        if self.scenario.shape == "generator":
            await made.aclose()
        elif self.item:
            await made.__aexit__(None, None, None)


class Drop(ReleaseItem):
    """The consumer drops its reference, and the garbage collector runs."""

    async def release(self, holder: list[Any]) -> None:
        holder.clear()
        gc.collect()


ASYNCIO_STOPS: dict[str, type[AsyncioStop]] = {
    "cancel": CancelRoot,
    "twice": CancelRoot,
    "thrice": CancelRoot,
    "shutdown": CancelAll,
    "scope": CancelScope,
    "timeout": RunOutOfTime,
    "raise": Fail,
    "close": CloseElsewhere,
    "drop": Drop,
    "descendant": CancelOne,
}


def _not_cancelled(name: str, error: BaseException | None) -> Sighting:
    """The sighting for a root that was cancelled and ended in another way."""
    if error is None:
        return Sighting("swallowed", name, detail="it was cancelled, and returned as if nothing had happened")
    return Sighting("replaced", name, detail=f"it was cancelled, and raised {type(error).__name__}: {error}")


def _check_count(name: str, root: asyncio.Task[Any]) -> list[Sighting]:
    """After a stop that a scope or timeout inside the task has handled, `cancelling()` must be 0 again."""
    if not root.cancelling():
        return []
    return [
        Sighting("count", name, detail=f"the stop has ended, and cancelling() is still {root.cancelling()}")
    ]


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
