"""The kernel on asyncio: bare tasks, futures and callbacks.

Why a child is a coroutine of ours around the user's function: it contains `SystemExit`, keeps the error, and
reports its own end from its last step. That costs less than a done-callback (which the loop has to
schedule) and needs no look at the task afterwards. Only a task cancelled before its first step never gets
there; `OwnedTask.cancel` sees that case and adds the callback for it alone.

Why a task class of ours: `asyncio.run` ends by cancelling every task again, which would cut a clean-up in
half. A second cancel that comes while the loop is not running is that one, and is ignored by a child that is
already being stopped. Cancels inside a running loop (timeouts, other people's scopes) pass as always.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import CancelledError
from collections.abc import Callable, Generator, Sequence
from functools import partial
from types import FrameType
from typing import Any

from ._backend import Backend, Timer, Waiter
from ._child import CANCELLED, FAILED, FINISHED, PENDING, RUNNING, Child, Handle
from ._core import ScopeCore
from ._current import current_node
from ._grace import Rung
from ._host import Host
from ._reason import Reason
from ._site import Site, awaiting_frames, stuck_at

_get_running_loop = asyncio._get_running_loop
_current_task = asyncio.current_task


class AsyncioHandle(Handle):
    """A child task on asyncio."""

    __slots__ = ("interrupted", "task")

    def __init__(self, core: ScopeCore, label: object, site: Site | None) -> None:
        # Written out flat, without the calls to the bases: this is the hot path of `spawn`.
        self.core = core
        self.label = label
        self.site = site
        self.state = PENDING
        self.reason = None
        self.waiters = None
        self._token = None
        self._hurry = None
        self.on_stop = None
        self.asked = 0
        self.deferred = 0
        self.withheld = False
        self.task: asyncio.Task[None] | None = None
        self.interrupted: AsyncioHost | None = None  # a block in this task that is being stopped

    def deliver_cancel(self) -> None:
        """Cancel the task; while it is still inside its eager first step there is none yet."""
        task = self.task
        if task is None:
            return
        if self.interrupted is not None and self.asked < 2:
            # Its block is cleaning up after a cancel already: this one is due when the block is left.
            self.interrupted.owed = True
            return
        if self.state is PENDING:
            task.remove_done_callback(self.never_started)
            task.add_done_callback(self.never_started)
        _cancel(task, self.reason.text if self.reason is not None else None)

    def runs_in(self, task: object) -> bool:
        """Whether `task` is this child's own."""
        return self.task is task

    def stuck_at(self) -> str:
        """Where the task waits."""
        return stuck_at(self.task.get_coro(), self.core.backend.thread) if self.task else "not started"

    def never_started(self, task: asyncio.Task[None]) -> None:
        """Done-callback for a task that may have been cancelled before its first step."""
        if self.state == PENDING:
            self.state = CANCELLED
            self.task = None
            self.ended()


_cancel = asyncio.Task.cancel  # without the detour through `OwnedTask.cancel`


class OwnedTask(asyncio.Task[None]):
    """The task of a child."""

    __slots__ = ("handle",)

    handle: AsyncioHandle

    def cancel(self, msg: Any | None = None) -> bool:
        """As ever, except for the sweep at the end of `asyncio.run`: see the top of this module."""
        handle = self.handle
        if handle.state == PENDING:
            self.remove_done_callback(handle.never_started)
            self.add_done_callback(handle.never_started)
        if not self.get_loop().is_running():
            if handle.asked or handle.core.is_clean_up():
                return False
            handle.asked = 1
            handle.note_reason(Reason("shutdown", "the event loop is ending"))
        return super().cancel(msg)

    def set_name(self, value: object) -> None:
        """It is called that in reports too."""
        self.handle.label = str(value)

    def get_name(self) -> str:
        """The child's name, worked out only when somebody looks."""
        return self.handle.name


class EagerTask(OwnedTask):
    """The same, run up to its first await while it is being made."""

    __slots__ = ()

    def __init__(self, handle: AsyncioHandle, coro: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.handle = handle  # its body may look for it, or cancel it, before the constructor returns
        handle.task = self
        super().__init__(coro, loop=loop, eager_start=True)  # type: ignore[call-arg, unused-ignore]


async def _child(handle: AsyncioHandle, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    handle.state = RUNNING
    try:
        handle.value = await fn(*args)
        handle.state = FINISHED
    except CancelledError as exc:
        if handle.asked and exc.__cause__ is None:
            handle.state = CANCELLED
        else:
            handle.end_cancelled(exc)
        raise
    except BaseException as exc:
        if isinstance(exc, GeneratorExit) and not handle.core.backend.is_current():
            handle.state = CANCELLED  # the loop is gone and the collector closes the coroutine
            raise
        handle.fail(exc)
        if isinstance(exc, KeyboardInterrupt):
            raise
    finally:
        handle.task = None
        core = handle.core
        core.children.pop(handle, None)
        state: str = handle.state
        if core.children and handle.waiters is None and state is not FAILED and not core.closers:
            core.ended += 1  # nobody to tell
        else:
            core.child_ended(handle)


class AsyncioCore(ScopeCore):
    """A scope on asyncio: the same, with `spawn` written out flat for the common case."""

    __slots__ = ()

    def spawn(self, fn: Callable[..., Any], args: tuple[Any, ...], name: str | None, site: Site) -> Handle:
        """Start a child task."""
        loop: asyncio.AbstractEventLoop = self.backend.loop  # type: ignore[attr-defined]
        if (
            self.closed
            or _get_running_loop() is not loop
            or loop.get_task_factory() is not None
            or not callable(fn)
        ):
            return super().spawn(fn, args, name, site)
        handle = AsyncioHandle(self, name or fn, site)
        before = current_node.set(handle)
        try:
            handle.task = task = OwnedTask(_child(handle, fn, args), loop=loop)
        finally:
            current_node.reset(before)
        task.handle = handle
        self.children[handle] = None
        return handle

    def cancel_once(self, children: Sequence[Child]) -> None:
        """The first rung for all of them, with the common case flat."""
        reason = self.reason
        assert reason is not None
        text = reason.text
        for child in children:
            if (
                type(child) is AsyncioHandle
                and child.state is RUNNING
                and not (child.asked or child.deferred or child.on_stop or child.interrupted)
            ):
                if child.reason is None:
                    child.reason = reason
                if child._token is not None:
                    child._token.cancel(reason)
                child.asked = 1
                if child.task is not None:
                    _cancel(child.task, text)
            else:
                child.climb(Rung.CANCEL)


class FutureWaiter:
    """A wait on a future of our own: a CancelledError that comes out of it is the waiter's.

    A plain future inside, not a subclass of one: tasks wait for those by a path that is much slower.
    """

    __slots__ = ("future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[None] = loop.create_future()

    def wake(self) -> None:
        """Let the waiter go on."""
        if not self.future.done():
            try:
                self.future.set_result(None)
            except RuntimeError:  # the loop is closed: nobody waits any more
                pass

    def __await__(self) -> Generator[Any, None, None]:
        return self.future.__await__()

    async def wait(self) -> None:
        """Until `wake`."""
        await self.future


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
    return shield


class AsyncioBackend(Backend):
    """One asyncio event loop."""

    name = "asyncio"
    core_type = AsyncioCore

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        # Straight to the loop, past the methods below: both are on the path of every stop.
        self.make_waiter = partial(FutureWaiter, loop)  # type: ignore[method-assign]
        self.now = loop.time  # type: ignore[method-assign]
        self._polls_first = not isinstance(loop, asyncio.BaseEventLoop)  # uvloop
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

    def is_current(self) -> bool:
        """Whether the calling code runs in this loop."""
        return _get_running_loop() is self.loop

    def current_task(self) -> object:
        """The task at hand."""
        return asyncio.current_task(self.loop)

    def make_waiter(self) -> Waiter:
        """A fresh future."""
        return FutureWaiter(self.loop)

    async def wait_through(self, ready: Callable[[], bool], waiters: list[Waiter]) -> BaseException | None:
        """Wait on fresh futures until ready, keeping the first cancellation for later."""
        cancelled: BaseException | None = None
        shield: Any = None
        try:
            while not ready():
                waiter = self.make_waiter()
                waiters.append(waiter)
                try:
                    await waiter
                except CancelledError as exc:
                    if waiter in waiters:
                        waiters.remove(waiter)
                    if cancelled is None:
                        cancelled = exc
                        shield = _enter_anyio_shield()
        finally:
            if shield is not None:
                shield.__exit__(None, None, None)
        return cancelled

    def make_handle(self, core: ScopeCore, label: object, site: Site) -> AsyncioHandle:
        """A handle for a child to come."""
        return AsyncioHandle(core, label, site)

    def start(self, handle: Handle, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Make the task; it may have run, and even ended, when this returns (eager tasks)."""
        assert isinstance(handle, AsyncioHandle)
        loop = self.loop
        factory: Any = loop.get_task_factory()
        while hasattr(factory, "quiesce_inner"):  # a containment's: look behind it
            factory = factory.quiesce_inner
        coro = _child(handle, fn, args)
        if factory is None:
            task = OwnedTask(coro, loop=loop)
            task.handle = handle
            handle.task = task
            return
        made: asyncio.Task[None]
        if factory is _eager_task_factory:
            made = EagerTask(handle, coro, loop)
        else:
            made = loop.create_task(coro)
            made.add_done_callback(handle.never_started)
        handle.task = None if handle.done else made

    async def wait_readable(self, fd: int) -> None:
        """One reader a file descriptor, as asyncio has it."""
        await self._wait_fd(fd, self.loop.add_reader, self.loop.remove_reader)

    async def wait_writable(self, fd: int) -> None:
        """One writer a file descriptor, as asyncio has it."""
        await self._wait_fd(fd, self.loop.add_writer, self.loop.remove_writer)

    async def _wait_fd(self, fd: int, add: Callable[..., object], remove: Callable[[int], object]) -> None:
        waiter = FutureWaiter(self.loop)
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


class AsyncioHost(Host):
    """The task that runs an `async with` body, on asyncio."""

    __slots__ = ("asked_before", "cancels_before", "owed", "task")

    def __init__(self, core: ScopeCore, entered_by: FrameType) -> None:
        self.enter(core, entered_by)
        task = _current_task()
        if task is None:
            raise RuntimeError("a scope needs a task around it, not a bare callback of the loop")
        self.task = task
        self.cancels_before = task.cancelling()
        self.asked_before = task.handle.asked if isinstance(task, OwnedTask) else 0
        self.owed = False  # a cancel of the whole task that came while we had cancelled the body

    def is_current(self) -> bool:
        """Whether the calling code runs in this task."""
        return asyncio.current_task() is self.task

    def may_leave(self) -> bool:
        """asyncio does not mind which task leaves."""
        return _get_running_loop() is not None

    def nothing_to_wait_for(self) -> bool:
        """The quick way out of a block whose children are gone."""
        core = self.core
        if core.closed or core.nested:
            return False
        core.settle()
        return True

    def cancel_body(self, reason: Reason) -> bool:
        """Cancel the task, unless the body is a generator that has handed out a value."""
        task = self.task
        if task.done() or not self._in_body():
            return False
        if isinstance(task, OwnedTask):
            if task.handle.asked > self.asked_before:
                return False  # its own scope has cancelled it: a second one would cut its clean-up
            if task.handle.interrupted is None:
                task.handle.interrupted = self
        if task.cancelling() > self.cancels_before:
            # Somebody has cancelled it before us: that was its one cancel. Ours comes when its time is over.
            backend = self.core.backend
            backend.call_at(backend.now() + self.core.grace.cancel, partial(self._insist, reason))
            return False
        task.cancel(reason.text)
        return True

    def _insist(self, reason: Reason) -> None:
        if self.core.host is self and not (self.leaving or self.requested or self.task.done()):
            self.requested = self._in_body()
            if self.requested:
                self.task.cancel(reason.text)

    def _in_body(self) -> bool:
        if self.generator is None:
            return True
        if self.is_current():
            frame: FrameType | None = sys._getframe()
            while frame is not None and frame is not self.generator:
                frame = frame.f_back
            return frame is not None
        return self.generator in awaiting_frames(self.task.get_coro())

    async def leave(self, error: BaseException | None) -> BaseException | None:
        """Wait until all is over, and tell our own cancel from other people's."""
        core = self.core
        cancelled: BaseException | None = error if isinstance(error, CancelledError) else None
        self.begin_to_leave(error)
        if not core.is_over():
            late = await core.backend.wait_through(core.until_over(), core.waiters)
            if cancelled is None or (late is not None and self.requested):
                cancelled = late  # the first was ours, so this is the one to be told apart
        return await self._whose(cancelled) if self.requested else cancelled

    async def _whose(self, cancelled: BaseException | None) -> BaseException | None:
        """We cancelled the body: take that back, and see whether somebody else did too."""
        mine = self.is_current()
        if mine and cancelled is None:
            try:
                await asyncio.sleep(0)  # ours may not have been delivered yet
            except CancelledError as exc:
                cancelled = exc
        task = self.task
        if isinstance(task, OwnedTask) and task.handle.interrupted is self:
            task.handle.interrupted = None
        if self.owed:  # ours has become the one that is owed
            return cancelled or CancelledError(str(self.core.reason))
        others = task.uncancel() > self.cancels_before
        if mine and others and cancelled is not None and str(cancelled) == str(self.core.reason):
            # Both came in one turn and only ours was delivered. An anyio scope knows its own by their
            # text and sends another; a plain cancel was this one.
            try:
                await asyncio.sleep(0)
            except CancelledError as exc:
                cancelled = exc
        return cancelled if others or not mine else None


def backend_of(loop: asyncio.AbstractEventLoop) -> AsyncioBackend:
    """The backend of `loop`; it lives as long as the loop does."""
    try:
        backend: AsyncioBackend = loop._quiesce  # type: ignore[attr-defined]
    except AttributeError:
        backend = loop._quiesce = AsyncioBackend(loop)  # type: ignore[attr-defined]
    return backend


AsyncioBackend.host_type = AsyncioHost
