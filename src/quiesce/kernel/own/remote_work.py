"""`remote`: work that runs elsewhere, and that only a message can stop.

A container that `docker exec` started in, a task of an MCP server, a response in the background at a provider, a
sandbox in a cloud: ending the local client ends none of them. So such work is owned like everything else. A stop
sends the cancel, waits for the confirmation that the work has ended, and names it in the report if none came.

Invariants
- `start` is not interrupted by the first cancel, from whatever side it comes: a request that was sent may have
  started something, and its answer is the only way to know what. It gets the time for clean-up. After that it is
  cancelled, and the work counts as left over: it may be running.
- Once started, the work stays in its scope until it is known to have ended: `wait` or `done` reported it, or
  `confirm` returned. Nothing else makes a report clean.
- A `cancel` or `confirm` that fails is tried again, after growing pauses: a network that is down for a moment
  leaves nothing over, and one that comes back later ends what costs money. The end of the event loop waits for it
  no longer than the grace.
- The owner task refers to none of the objects that users hold, so that it is noticed when those are dropped.
"""

from __future__ import annotations

import asyncio
import math
import sys
import warnings
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from quiesce._safe.printed import logger
from quiesce.kernel.base import (
    SETTLED,
    Reason,
    Rung,
    WaitQueue,
    check_function,
    check_grace,
    describe,
    is_cancel,
    raise_unchanged,
    site_of,
)
from quiesce.kernel.calls import owner_of
from quiesce.kernel.scope import (
    CANCELLED,
    FINISHED,
    RUNNING,
    Cancellable,
    Child,
    at_loop_end,
    current_backend,
    log_report,
    reason_of_cancel,
)

if TYPE_CHECKING:
    from quiesce.kernel.base import CancelToken, Grace, Site
    from quiesce.kernel.scope import Scope, ScopeCore

T = TypeVar("T")
R = TypeVar("R")

# Seconds between two tries to cancel; `_LATE_PAUSE` when the time of the stop is over, and nobody waits any more.
_FIRST_PAUSE, _LONGEST_PAUSE, _LATE_PAUSE = 0.05, 1.0, 60.0


def remote(
    start: Callable[[], Awaitable[T]],
    cancel: Callable[[T], Awaitable[object]],
    confirm: Callable[[T], Awaitable[R]],
    *,
    name: str,
    id: Callable[[T], object] | None = None,  # noqa: A002
    scope: Scope | None = None,
    grace: Grace | None = None,
) -> Remote[T, R]:
    """Own work that runs elsewhere, so that a stop really ends it, or says that it may still run.

    ```python
    job = remote(
        partial(client.responses.create, model="gpt-5", input=question, background=True),
        cancel=lambda response: client.responses.cancel(response.id),
        confirm=lambda response: wait_until_it_has_ended(client, response.id),
        name="response",
    )
    async with job:
        answer = await job.wait()        # what `confirm` returns
    ```

    - `start()` starts the work and returns what identifies it: `job.value`.
    - `cancel(value)` asks the other side to end it. If it raises, it is tried again.
    - `confirm(value)` returns when the work has ended, however it ended.
    - `id(value)` names it in reports; by default its attribute `id`, or else the value itself.

    When it is stopped (its block ends, `close()`, its scope), the cancel is sent, unless `wait()` has returned
    or `done()` was called, and the confirmation is waited for. If none comes within the grace, the report has a
    `Leftover` of kind `"remote"` with the id.

    A `start` that raises is taken to have started nothing. If its request may have arrived all the same, have
    it ask, or send a key with which the other side starts it only once.

    `scope` is its owner: by default, the current scope.
    """
    for what, fn in (("start", start), ("cancel", cancel), ("confirm", confirm)):
        check_function(f"remote ({what})", fn)
    return Remote(start, cancel, confirm, name, id, scope, check_grace(grace))


class Remote(Cancellable, Generic[T, R]):
    """Work that runs elsewhere: what `remote` returns. Use `async with`, or `await` its `open()`."""

    def __init__(
        self,
        start: Callable[[], Awaitable[T]],
        cancel: Callable[[T], Awaitable[object]],
        confirm: Callable[[T], Awaitable[R]],
        name: str,
        id: Callable[[T], object] | None,  # noqa: A002
        scope: Scope | None,
        grace: Grace | None,
    ) -> None:
        self._owner: RemoteOwner[T, R] | None = None
        self._options = (start, cancel, confirm, id, scope, grace)
        self.name = name

    async def open(self) -> Self:
        """Start the work. Close this yourself, from any task.

        If you are cancelled meanwhile, what was started has ended, or is in the report, when your cancellation
        is raised.
        """
        await self._start(site_of(sys._getframe(1)))
        return self

    async def __aenter__(self) -> Self:
        await self._start(site_of(sys._getframe(1)))
        return self

    async def _start(self, site: Site) -> None:
        if self._owner is not None:
            raise RuntimeError(f"{self.name!r} was started before; call remote() again")
        start, cancel, confirm, id_of, scope, grace = self._options
        backend = current_backend()
        parent = owner_of(backend, scope)
        parent.check_takes(f"start {self.name!r} in")
        core = backend.make_core(name=self.name, site=site, on_error="report", grace=grace, parent=parent)
        self._owner = owner = RemoteOwner(core, self.name, site, cancel, confirm, id_of)
        owner.begin(start)
        await owner.wait_until_started()

    @property
    def value(self) -> T:
        """What `start` returned."""
        return self._started().value

    @property
    def id(self) -> str:
        """The id of the work, as in reports."""
        return self._started().id

    @property
    def token(self) -> CancelToken:
        """A token that is cancelled, with the reason, as soon as it is being stopped."""
        return self._started().core.token

    async def wait(self) -> R:
        """Wait until the work has ended by itself; returns what `confirm` returns. Then there is nothing to stop.

        If you are cancelled, or `confirm` raises, the work goes on until this is closed. You may wait again.
        """
        owner = self._started()
        result = await owner.confirm(owner.value)
        owner.finish()
        return result

    def done(self) -> None:
        """You know that the work has ended, or never began: there is nothing to stop any more."""
        if self._owner is None:
            raise self._how_to_open()
        self._owner.finish()

    def _started(self) -> RemoteOwner[T, R]:
        if self._owner is None or not self._owner.started:
            raise self._how_to_open()
        return self._owner

    def _find_core(self) -> ScopeCore | None:
        return self._owner.core if self._owner is not None else None

    def _how_to_open(self) -> Exception:
        return RuntimeError(
            f"{self.name!r} is not started: use `async with remote(...)` or `await remote(...).open()`"
        )

    def __del__(self) -> None:
        owner = getattr(self, "_owner", None)
        if owner is None or owner.core.closed or owner.ended:
            return
        core = owner.core
        core.backend.run_from_anywhere(partial(core.stop, Reason("parent", "dropped without close()")))
        warnings.warn(
            f"{self.name!r}, started at {describe(core._site)}, was dropped without close(): it is being stopped",
            ResourceWarning,
            source=self,
            stacklevel=1,
        )

    def __repr__(self) -> str:
        owner = self._owner
        return f"<Remote {self.name!r} not started>" if owner is None else f"<Remote {owner.work.name!r}>"


class RemoteWork(Child):
    """The work itself, as a child of its scope: it is there until it is known to have ended."""

    __slots__ = ("problem",)

    _kind = "remote"

    def __init__(self, core: ScopeCore, label: object, site: Site) -> None:
        super().__init__(core, label, site)
        self.state = RUNNING
        self.problem = "it is being started"

    def rename(self, label: str) -> None:
        """It has an id now."""
        self._label = label

    def end(self) -> None:
        """It has ended. May be called again."""
        if self.state != RUNNING:
            return
        self.state = CANCELLED if self.reason is not None else FINISHED
        self._ended()

    def _climb(self, rung: Rung) -> None:
        """The owner task does what there is to do."""
        if self._core.reason is not None:
            self._note_reason(self._core.reason)

    def _is_at_work(self, *, loop_goes_on: bool) -> bool:
        """It does not depend on our event loop."""
        return self.state == RUNNING

    def _stuck_at(self) -> str:
        """How far the stop has come."""
        return self.problem


class RemoteOwner(Generic[T, R]):
    """The state that the owner task shares with the tasks that use it."""

    value: T

    def __init__(
        self,
        core: ScopeCore,
        name: str,
        site: Site,
        cancel: Callable[[T], Awaitable[object]],
        confirm: Callable[[T], Awaitable[R]],
        id_of: Callable[[T], object] | None,
    ) -> None:
        self.core = core
        self.confirm = confirm
        self.id = ""
        self.started = False
        self.ended = False  # the work, as far as we know
        self._name = name
        self._cancel = cancel
        self._id_of = id_of
        self._leaving = False
        self._was_asked = False  # to start it
        self._failure: BaseException | None = None  # what `start` raised
        self._queue = WaitQueue()  # the owner waits here until there is something to do
        self.work = RemoteWork(core, name, site)
        self._handle = core.backend.make_handle(core, None, site)  # reports name the work instead
        self._handle._on_stop = self._on_stop

    # In the owner task

    async def _hold(self, start: Callable[[], Awaitable[T]]) -> None:
        work = self.work
        try:
            try:
                self._was_asked = True
                self.value = await start()
            except BaseException as error:
                if is_cancel(error):
                    work.problem = "its start was interrupted: it may be running"
                    raise
                self._failure = error
                self.ended = True
            else:
                self._note_start()
                await self._queue.wait_until(lambda: self._leaving or self.ended)
                await self._cancel_until_confirmed()
        finally:
            if self.ended:
                work.end()
            self._handle._on_stop = None  # it refers to us, and we to it: a cycle
            self.core.wake()

    def _note_start(self) -> None:
        try:
            named = (
                self._id_of(self.value) if self._id_of is not None else getattr(self.value, "id", self.value)
            )
            self.id = str(named)
        except Exception as error:  # it runs all the same, and has to be stopped
            logger.warning("the id of %r cannot be told: %r", self._name, error)
            self.id = f"of {type(self.value).__name__}"
        self.work.rename(f"{self._name} {self.id}")
        self.work.problem = "it runs"
        self.started = True
        self.core.wake()

    async def _cancel_until_confirmed(self) -> None:
        pause, was_sent = _FIRST_PAUSE, False
        while not self.ended:
            try:
                if not was_sent:
                    self.work.problem = "its cancel is being sent"
                    await self._cancel(self.value)
                    was_sent = True
                self.work.problem = "cancelled, and not confirmed"
                await self.confirm(self.value)
                self.ended = True
            except BaseException as error:
                if not (isinstance(error, Exception) or _was_cancelled_below(error)):
                    raise
                doing = "its end could not be confirmed" if was_sent else "its cancel could not be sent"
                self.work.problem = f"{doing}: {error!r}"
                await self._sleep(pause)
                pause = min(2 * pause, _LATE_PAUSE if self.core.is_over() else _LONGEST_PAUSE)

    async def _sleep(self, seconds: float) -> None:
        backend = self.core.backend
        waiter = backend.make_waiter()
        timer = backend.call_at(backend.now() + seconds, waiter.wake)
        try:
            await waiter.wait()
        finally:
            timer.cancel()

    # From other tasks

    def begin(self, start: Callable[[], Awaitable[T]]) -> None:
        """Start the owner. With eager tasks it may have started the work when this returns."""
        core = self.core
        core.add(self.work)
        core.add(self._handle)
        # The end of `asyncio.run` would interrupt a request of ours, and nobody would hear of the work again.
        at_loop_end[self._handle] = self._leave_with_the_loop
        self._handle._on_end(self._note_end)
        try:
            core.start(self._handle, self._hold, (start,))
        except BaseException:
            core.forget_children()
            core.settle()
            raise

    def _note_end(self) -> None:
        """The owner task has ended, perhaps before its first step: then there is no work."""
        at_loop_end.pop(self._handle, None)
        if not self._was_asked:
            self.work.end()

    def finish(self) -> None:
        """The work has ended by itself."""
        if self.ended:
            return
        self.ended = True
        self.work.end()
        if self._leaving:  # nobody needs the confirmation any more
            self._handle._deliver_cancel()
        self._queue.wake_all()

    def _on_stop(self, rung: Rung) -> bool:
        """Tell the owner instead of cancelling it: see `Handle._on_stop`."""
        self._leave()
        # A start has had its time. What was started is still to be cancelled: as long as that takes.
        return rung is Rung.CANCEL or self.started

    def _leave(self) -> None:
        self._leaving = True
        self._queue.wake_all()

    def _leave_with_the_loop(self) -> None:
        """Nobody will close it any more: stop it, and give it up when its time is over."""
        core, backend = self.core, self.core.backend
        self._leave()
        # Soon, because asyncio calls this while its loop does not run.
        backend.call_at(backend.now(), partial(core.stop, Reason("shutdown", "the event loop is ending")))
        if core.is_over():  # somebody has the report
            backend.call_at(backend.now(), self._handle._deliver_cancel)
        else:
            self._give_up_at(backend.now() + core.grace.total)

    def _give_up_at(self, when: float) -> None:
        if when < math.inf:
            self.core.backend.call_at(when, self._give_up)

    def _give_up(self) -> None:
        core = self.core
        if self._handle.done:
            return
        if not core.is_over():  # the last step of the ladder is due at the same time
            self._give_up_at(core.backend.now() + _FIRST_PAUSE)
            return
        log_report(core.report())
        self._handle._deliver_cancel()

    async def wait_until_started(self) -> None:
        """Wait until the work was started. If this raises, nothing was, or it has been stopped again."""
        core = self.core
        backend = core.backend
        while not (self.started or self._handle.done or core.is_over()):
            try:
                await core.waiters.wait()
            except GeneratorExit:  # the caller's coroutine is being closed: nothing can be awaited
                backend.run_from_anywhere(partial(core.stop, Reason("parent", "its opener was dropped")))
                raise
            except BaseException as mine:
                core.stop(reason_of_cancel(core, mine))
                await backend.wait_through(core.is_over, core.waiters)
                if self._failure is not None:
                    mine.__cause__ = self._failure
                if core.state is not SETTLED:
                    log_report(core.report())
                raise
        if self.started and not core.closed:
            return
        core.stop(Reason("error", "it was not started"))  # has no effect if it was stopped
        await backend.reraise(await backend.wait_through(core.is_over, core.waiters))
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise_unchanged(failure)
        raise core.refusal(f"start {self._name!r} in")


def _was_cancelled_below(error: BaseException) -> bool:
    """Whether this is the cancellation of what was awaited, and not of this task: a failure like any other."""
    if not isinstance(error, asyncio.CancelledError):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # trio
        return False
    return task is not None and not task.cancelling()
