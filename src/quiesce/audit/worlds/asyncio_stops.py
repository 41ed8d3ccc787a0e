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
    """What the stop `raise` raises: an outage, as far as the scenario can tell."""


class AsyncioStop:
    """One stop of one run. This one does nothing: the uninjected run.

    A second shot at whatever was stopped is a plain cancel of the root, and then that is what has to come out.
    """

    holds_bystander = True
    cancels = 0

    def __init__(self, scenario: Scenario, item: int | None = None) -> None:
        self.scenario = scenario
        self.root: asyncio.Task[Any] | None = None
        self.asked = 0
        self.items = 0
        self.item = item
        self.seen: list[Sighting] = []

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
                await asyncio.sleep(0.01)  # a body; not longer, as uvloop has no virtual clock

    def fire(
        self, lane: TaskRecord, task: Any, handle: Any, alive: Callable[[], list[asyncio.Task[Any]]]
    ) -> None:
        """Stop it, now."""

    def waits_for(self) -> list[asyncio.Task[Any]]:
        """What has to be over for the run to be."""
        assert self.root is not None
        return [self.root]

    def cancel_too(self) -> None:
        assert self.root is not None
        self.cancels += self.root.cancel()

    def forget(self) -> None:
        """Hold nothing of the run any more: the collector is to find what nobody else holds."""
        self.root = None

    def judge(self, root: asyncio.Task[Any]) -> list[Sighting]:
        """What is wrong with how the root ended."""
        if root.cancelled():
            self.seen.append(
                Sighting(
                    "bystander", self.scenario.name, detail="it was cancelled, and nobody asked for that"
                )
            )
        return self.seen


class CancelRoot(AsyncioStop):
    def fire(
        self, lane: TaskRecord, task: Any, handle: Any, alive: Callable[[], list[asyncio.Task[Any]]]
    ) -> None:
        assert self.root is not None
        self.asked += self.root.cancel()

    def judge(self, root: asyncio.Task[Any]) -> list[Sighting]:
        if not self.asked:
            return super().judge(root)
        name = self.scenario.name
        if not root.cancelled():
            return [*self.seen, _not_cancelled(name, root.exception())]
        if root.cancelling() != self.asked:
            detail = f"cancelled {_times(self.asked)}, and cancelling() says {root.cancelling()}"
            return [*self.seen, Sighting("count", name, detail=detail)]
        return self.seen


class CancelAll(CancelRoot):
    holds_bystander = False

    def __init__(self, scenario: Scenario, item: int | None = None) -> None:
        super().__init__(scenario, item)
        self._cancelled: list[asyncio.Task[Any]] = []

    def fire(
        self, lane: TaskRecord, task: Any, handle: Any, alive: Callable[[], list[asyncio.Task[Any]]]
    ) -> None:
        self._cancelled = alive()
        with task.get_loop().paused():  # code may tell this cancel from others by that
            for each in self._cancelled:
                self.asked += each.cancel() and each is self.root

    def waits_for(self) -> list[asyncio.Task[Any]]:
        waiting, self._cancelled = self._cancelled, []
        return [*super().waits_for(), *waiting]

    def judge(self, root: asyncio.Task[Any]) -> list[Sighting]:
        # Cancelling a task that waits for another cancels that one too, once more, and asyncio counts both.
        return [sighting for sighting in super().judge(root) if sighting.kind != "count"]


class CancelScope(AsyncioStop):
    _scope: anyio.CancelScope | None = None  # it holds the task
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
        if self.asked:
            self.cancel_too()
        elif self._scope is not None:
            assert self.root is not None
            self.asked += 1
            before = self.root.cancelling()
            self._scope.cancel()
            # A scope does not reach a task behind a shield, or one that is about to go on.
            self._was_reached = self.root.cancelling() > before

    def judge(self, root: asyncio.Task[Any]) -> list[Sighting]:
        if self.cancels:
            return (
                self.seen
                if root.cancelled()
                else [*self.seen, _not_cancelled(self.scenario.name, root.exception())]
            )
        if self.asked and root.cancelled():
            detail = "the scope was cancelled, and a CancelledError came out of it that it does not know as its own"
            return [*self.seen, Sighting("replaced", self.scenario.name, detail=detail)]
        # A scenario that has no checkpoint left may finish in a cancelled scope: then nothing was swallowed.
        if self.asked and not root.cancelled() and root.exception() is not None:
            return [*self.seen, _not_cancelled(self.scenario.name, root.exception())]
        if self.asked and self._finished and self._was_reached:
            return [*self.seen, _not_cancelled(self.scenario.name, None)]
        return [*super().judge(root), *_check_count(self.scenario.name, root)]


class RunOutOfTime(AsyncioStop):
    _timeout: asyncio.Timeout | None = None  # it holds the task

    def forget(self) -> None:
        super().forget()
        self._timeout = None

    async def main(self) -> None:
        async with asyncio.timeout(None) as self._timeout:
            await super().main()

    def fire(
        self, lane: TaskRecord, task: Any, handle: Any, alive: Callable[[], list[asyncio.Task[Any]]]
    ) -> None:
        if self.asked:
            self.cancel_too()
        elif self._timeout is not None:
            self.asked += 1
            self._timeout._on_timeout()  # type: ignore[attr-defined] # what its timer calls

    def judge(self, root: asyncio.Task[Any]) -> list[Sighting]:
        if not self.asked:
            return super().judge(root)
        if self.cancels:
            return (
                self.seen
                if root.cancelled()
                else [*self.seen, _not_cancelled(self.scenario.name, root.exception())]
            )
        if root.cancelled():
            detail = "the timeout ran out, and a CancelledError came out instead of TimeoutError"
            return [*self.seen, Sighting("replaced", self.scenario.name, detail=detail)]
        error = root.exception()
        if isinstance(error, TimeoutError):
            return [*self.seen, *_check_count(self.scenario.name, root)]
        return [*self.seen, _not_cancelled(self.scenario.name, error)]


class Fail(AsyncioStop):
    """The future that a task waits for has an error instead of its result."""

    def fire(
        self, lane: TaskRecord, task: Any, handle: Any, alive: Callable[[], list[asyncio.Task[Any]]]
    ) -> None:
        failed = task.get_loop().create_future()
        failed.set_exception(InjectedError(RAISED))
        failed.exception()
        handle._args = (failed,)


class CancelOne(AsyncioStop):
    def fire(
        self, lane: TaskRecord, task: Any, handle: Any, alive: Callable[[], list[asyncio.Task[Any]]]
    ) -> None:
        self.asked += task.cancel()

    def judge(self, root: asyncio.Task[Any]) -> list[Sighting]:
        return []  # a root that waits for the cancelled task may well be cancelled with it


class Held(AsyncioStop):
    """The consumer goes on after the `item`-th item, and should not be cancelled for it."""

    async def main(self) -> None:
        if self.item is None:
            return await super().main()
        holder = await self.scenario.hold(self.item)
        self.asked += 1
        await self.let_go(holder)
        for _ in range(3):
            await asyncio.sleep(0)
        return None

    async def let_go(self, holder: list[Any]) -> None:
        raise NotImplementedError  # abstract: the ways to let go of it


class CloseElsewhere(Held):
    async def let_go(self, holder: list[Any]) -> None:
        closer = asyncio.create_task(self._close(holder.pop()))
        await asyncio.wait([closer])
        if closer.cancelled():
            self.seen.append(
                Sighting("close", self.scenario.name, detail="the task that closed it was cancelled")
            )
        elif (error := closer.exception()) is not None:
            detail = f"{type(error).__name__}: {error}"
            self.seen.append(Sighting("close", self.scenario.name, detail=detail))

    async def _close(self, made: Any) -> None:
        if self.scenario.shape == "generator":
            await made.aclose()
        elif self.item:
            await made.__aexit__(None, None, None)


class Drop(Held):
    async def let_go(self, holder: list[Any]) -> None:
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
    if error is None:
        return Sighting(
            "swallowed", name, detail="it was told to stop, and returned as if nothing had happened"
        )
    return Sighting(
        "replaced", name, detail=f"it was told to stop, and raised {type(error).__name__}: {error}"
    )


def _check_count(name: str, root: asyncio.Task[Any]) -> list[Sighting]:
    """After a stop that ends inside the task, its count must be what it was before."""
    if not root.cancelling():
        return []
    return [
        Sighting("count", name, detail=f"the stop is over, and cancelling() still says {root.cancelling()}")
    ]


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
