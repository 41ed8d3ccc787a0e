"""The kernel on asyncio: bare tasks, futures and callbacks; no task group and no owner task underneath."""

from __future__ import annotations

import asyncio
import sys
from asyncio import CancelledError, Future, InvalidStateError
from collections.abc import Callable, Generator, Sequence
from contextvars import Context
from types import FrameType
from typing import Any

from quiesce.kernel.base import CANCEL, OPEN, SETTLED, Reason, Site, Timer, WaitQueue, is_async
from quiesce.kernel.scope import RUNNING, Backend, Child, Handle, Options, ScopeCore, current_node

from .anyio_shields import give_up, is_known, table, take_as_own
from .asyncio_block import AsyncioBlockTask, AsyncioCallerTask
from .asyncio_child import AsyncioHandle, EagerTask, OwnedTask, plain_cancel, run_child

_get_running_loop = asyncio._get_running_loop
_current_task = asyncio.current_task


class AsyncioCore(ScopeCore):
    """A scope on asyncio: the same, with `spawn` written out flat for the common case."""

    __slots__ = ()

    def spawn(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        name: str | None,
        site: Site,
        context: Context | None = None,
    ) -> Handle:
        """Start a child task."""
        loop: asyncio.AbstractEventLoop = self.backend.loop  # type: ignore[attr-defined]
        factory = loop.get_task_factory()
        if (
            self.state is not OPEN
            or _get_running_loop() is not loop
            # A containment's makes what would be made without it: on 3.11 it is there as long as anything is owned.
            or (factory is not None and getattr(factory, "quiesce_inner", factory) is not None)
            or context is not None
            or not is_async(fn)
        ):
            return super().spawn(fn, args, name, site, context)
        handle = AsyncioHandle(self, name or fn, site)
        # A name, though nobody ever sees this one: asyncio would make one up, and that costs.
        handle._task = task = OwnedTask(run_child(handle, fn, args), loop=loop, name="child")
        task.handle = handle
        self.children[handle] = None
        return handle

    def cancel_once(self, children: Sequence[Child], reason: Reason) -> None:
        """The first rung for all of them, with the common case flat."""
        text = reason.text
        in_scopes = table()  # whoever is in one of anyio's may be shielded
        # Whoever runs now may enter one before it awaits. From 3.12 on that may be several: an eager task runs inside its maker.
        may_shield = is_known()
        running = _current_task(self.backend.loop) if may_shield else None  # type: ignore[attr-defined]
        several = may_shield and sys.version_info >= (3, 12)
        for child in children:
            if (
                type(child) is AsyncioHandle
                and child.state is RUNNING
                and (task := child._task) is not None
                and not (child._asked or child._deferred or child._on_stop or child._interrupted)
                and not (in_scopes and task in in_scopes)
                and task is not running
                and not (several and getattr(task.get_coro(), "cr_running", False))
            ):
                if child.reason is None:
                    child.reason = reason
                if child._token is not None:
                    child._token.cancel(reason)
                child._asked = 1
                plain_cancel(task, text)
            else:
                child._climb(CANCEL)


class AsyncioBlock(AsyncioCore, AsyncioBlockTask):  # type: ignore[override]  # its `lifecycle` is itself
    """The scope of an `async with Scope()`: its own host, as one object is cheaper than two."""

    __slots__ = ("cancels_before", "task")

    def __init__(
        self, backend: AsyncioBackend, options: Options, parent: ScopeCore | None, entered_by: FrameType
    ) -> None:
        name, on_error, on_child_error, grace, token, _ = options
        self.take_task(_current_task(backend.loop))  # first, as it may refuse
        site = entered_by.f_code, entered_by.f_lasti
        AsyncioCore.__init__(self, backend, name, site, on_error, on_child_error, grace, parent, token)
        self.enter(self, entered_by)
        self.host = self

    def may_leave(self) -> bool:
        """asyncio does not mind which task leaves."""
        return self.backend.is_current()

    def let_go(self) -> None:
        """The task may fail later, with the scope in its frame: they would hold each other."""
        self.task = None  # type: ignore[assignment]

    def leave_if_empty(self) -> bool:
        """The quick way out, where there is nobody to wait for and nobody to tell."""
        if (
            self.state is not OPEN
            or self.nested
            or self.waiters
            or self.parent is not None
            or self.on_settled is not None
        ):
            return False
        self.state = SETTLED
        if current_node.get() is self:
            current_node.set(self.opener)
        self.host = self.face = None
        self.let_go()
        return True


class FutureWaiter:
    """A wait on a future of our own: a CancelledError that comes out of it is the waiter's.

    A plain future inside, not a subclass of one: tasks wait for those by a path that is much slower.
    """

    __slots__ = ("signal",)

    signal: asyncio.Future[None]  # set by who makes it: an `__init__` would cost as much as the future

    def wake(self) -> None:
        """Let the waiter go on."""
        try:
            self.signal.set_result(None)
        except (InvalidStateError, RuntimeError):  # cancelled, or the loop is closed: nobody waits any more
            pass

    def __await__(self) -> Generator[Any, None, None]:
        return self.signal.__await__()

    async def wait(self) -> None:
        """Until `wake`."""
        await self.signal


def _enter_anyio_shield() -> Any:
    """Inside a cancelled anyio scope a task is cancelled again on every turn of the loop.

    Waiting on through that burns a core; anyio's own shield makes it stop. If anyio was never imported,
    nobody can be inside one of its scopes.
    """
    if "anyio" not in sys.modules:
        return None
    import anyio

    shield = anyio.CancelScope(shield=True)
    shield.__enter__()
    take_as_own(shield)
    return shield


class AsyncioBackend(Backend):
    """One asyncio event loop."""

    name = "asyncio"
    core_type = AsyncioCore
    host_type = AsyncioCallerTask

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        # Straight to the loop, past the method below: it is on the path of every stop.
        self.now = loop.time  # type: ignore[method-assign]
        self._polls_first = not isinstance(loop, asyncio.BaseEventLoop)  # uvloop
        self._contexts: dict[int, AsyncioHandle] = {}  # given for a child that runs in it now
        self._fd_waiters: dict[int, list[tuple[FutureWaiter, Callable[[int], object]]]] = {}
        super().__init__()

    def now(self) -> float:
        """The loop's clock."""
        return self.loop.time()

    def call_at(self, when: float, fn: Callable[[], object]) -> Timer:
        """As the loop's."""
        return self.loop.call_at(when, fn)

    def run_from_anywhere(self, fn: Callable[[], object]) -> None:
        """At once in the loop's own thread, else soon."""
        if _get_running_loop() is self.loop:
            fn()
            return
        try:
            self.loop.call_soon_threadsafe(fn)
        except RuntimeError:  # the loop is closed: there is nobody left to tell
            pass

    def is_running(self) -> bool:
        """As the loop's own."""
        return self.loop.is_running()

    def is_current(self) -> bool:
        """Whether the calling code runs in this loop."""
        return _get_running_loop() is self.loop

    def current_task(self) -> object:
        """The task at hand."""
        return asyncio.current_task(self.loop)

    def is_adopted_and_cancelled(self) -> bool:
        """Whether the task at hand is somebody else's that a containment has cancelled."""
        adopted = getattr(asyncio.current_task(self.loop), "_quiesce_adopted", None)
        return adopted is not None and adopted._is_cleaning_up()

    def make_waiter(self) -> FutureWaiter:
        """A fresh future."""
        waiter = FutureWaiter()
        waiter.signal = Future(loop=self.loop)
        return waiter

    async def wait_through(self, ready: Callable[[], bool], queue: WaitQueue) -> BaseException | None:
        """Wait on fresh futures until ready, keeping the first cancellation for later."""
        cancelled: BaseException | None = None
        shield: Any = None
        try:
            while not ready():
                waiter = self.make_waiter()
                queue.add(waiter)
                try:
                    await waiter.signal
                except CancelledError as exc:
                    queue.discard(waiter)
                    if cancelled is None:
                        cancelled = exc
                        shield = _enter_anyio_shield()
        finally:
            if shield is not None:
                give_up(shield)
                shield.__exit__(None, None, None)
        return cancelled

    def open_block(self, options: Options, parent: ScopeCore | None, entered_by: FrameType) -> ScopeCore:
        """Its own host."""
        return AsyncioBlock(self, options, parent, entered_by)

    def make_handle(self, core: ScopeCore, label: object, site: Site) -> AsyncioHandle:
        """A handle for a child to come."""
        return AsyncioHandle(core, label, site)

    def start(
        self, handle: Handle, fn: Callable[..., Any], args: tuple[Any, ...], context: Context | None = None
    ) -> None:
        """Make the task; it may have run, and even ended, when this returns (eager tasks)."""
        assert isinstance(handle, AsyncioHandle)
        loop = self.loop
        factory: Any = loop.get_task_factory()
        while hasattr(factory, "quiesce_inner"):  # a containment's: look behind it
            factory = factory.quiesce_inner
        if context is not None:
            self._check_is_free(context)
            coro = self._run_child_in(context, handle, fn, args)
        else:
            coro = run_child(handle, fn, args)
        if factory is None:
            task = OwnedTask(coro, loop=loop, name="child", context=context)
            task.handle = handle
            handle._task = task
            return
        made: asyncio.Task[None]
        if factory is _eager_task_factory:
            made = EagerTask(handle, coro, loop, context)
        else:
            made = loop.create_task(coro, context=context)
            made.add_done_callback(handle._never_started)
        handle._task = None if handle.done else made

    async def _run_child_in(
        self, context: Context, handle: AsyncioHandle, fn: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        """Run it in somebody's context, which has our mark only as long as that lasts."""
        before = current_node.get()
        self._contexts[id(context)] = handle
        try:
            await run_child(handle, fn, args)
        finally:
            del self._contexts[id(context)]
            current_node.set(before)

    def _check_is_free(self, context: Context) -> None:
        """What a child opens is found by its context: two that run in one would be taken for each other."""
        other = self._contexts.get(id(context))
        if other is not None:
            raise RuntimeError(
                f"the context that was given is that of {other.name!r}, which runs: wait for its end, or give "
                "each child one of its own, context=context.copy()"
            )

    async def wait_readable(self, fd: int) -> None:
        """One reader a file descriptor, as asyncio has it."""
        await self._wait_fd(fd, self.loop.add_reader, self.loop.remove_reader)

    async def wait_writable(self, fd: int) -> None:
        """One writer a file descriptor, as asyncio has it."""
        await self._wait_fd(fd, self.loop.add_writer, self.loop.remove_writer)

    async def _wait_fd(self, fd: int, add: Callable[..., object], remove: Callable[[int], object]) -> None:
        waiter = self.make_waiter()
        waiting = self._fd_waiters.setdefault(fd, [])
        waiting.append((waiter, remove))
        if self._polls_first:
            # Woken before its ready queue runs, the task would look as if it never waited, and anyio,
            # which cancels only tasks that wait, would never get at it.
            add(fd, self.loop.call_soon, waiter.wake)
        else:
            add(fd, waiter.wake)
        try:
            await waiter
        finally:
            if (waiter, remove) in waiting:
                waiting.remove((waiter, remove))
                remove(fd)
            if not waiting:
                self._fd_waiters.pop(fd, None)

    def stop_waiting_for(self, fd: int) -> None:
        """Take it out of the selector while it is still ours, and wake the waiters."""
        waiting = self._fd_waiters.pop(fd, [])
        for waiter, remove in waiting:
            remove(fd)
            waiter.wake()
        waiting.clear()


_eager_task_factory = getattr(asyncio, "eager_task_factory", None)


def backend_of(loop: asyncio.AbstractEventLoop) -> AsyncioBackend:
    """The backend of `loop`; it lives as long as the loop does."""
    try:
        backend: AsyncioBackend = loop._quiesce  # type: ignore[attr-defined]
    except AttributeError:
        backend = loop._quiesce = AsyncioBackend(loop)  # type: ignore[attr-defined]
    return backend
