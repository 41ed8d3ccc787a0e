"""The kernel on asyncio: bare tasks, futures and callbacks, without a task group or an owner task.

Three paths are written out for speed, in this module and in `asyncio_child`: a spawn, the first cancel of all
children, and the exit of an empty block. Each handles only the common case, and leaves the rest to the method
of `ScopeCore` that it stands for.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import CancelledError, Future, InvalidStateError
from collections.abc import Callable, Generator, Sequence
from contextvars import Context
from inspect import CO_COROUTINE
from types import FrameType
from typing import Any

from quiesce.kernel.base import CANCEL, OPEN, SETTLED, Reason, Site, Timer, WaitQueue, is_async
from quiesce.kernel.scope import RUNNING, Backend, Child, Handle, Scope, ScopeCore, current_node

from .anyio_shields import add_kernel_shield, discard_kernel_shield, is_known, table
from .asyncio_block import AsyncioBlockTask, AsyncioCallerTask
from .asyncio_child import AsyncioHandle, EagerTask, OwnedTask, plain_cancel, run_child

_get_running_loop = asyncio._get_running_loop
_current_task = asyncio.current_task


class AsyncioCore(ScopeCore):
    """A scope on asyncio: `spawn` and `cancel_once` are written out for the common case."""

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
        # True for nearly every function, and cheaper than a call of `is_async`.
        try:
            has_flag = fn.__code__.co_flags & CO_COROUTINE
        except AttributeError:
            has_flag = 0
        if (
            self.state is not OPEN
            or _get_running_loop() is not loop
            # The task factory of `contain()` makes the same tasks as there would be without it. (On 3.11 it
            # is installed as long as anything is owned.) Any other factory takes the general way.
            or (factory is not None and getattr(factory, "quiesce_inner", factory) is not None)
            or context is not None
            or not (has_flag or is_async(fn))
        ):
            return super().spawn(fn, args, name, site, context)
        handle = AsyncioHandle(self, name or fn, site)
        # `get_name` of `OwnedTask` returns the child's name. This one only keeps asyncio from making one up,
        # which takes time.
        handle._task = task = OwnedTask(run_child(handle, fn, args), loop=loop, name="child")
        task.handle = handle
        self.children[handle] = None
        return handle

    def cancel_once(self, children: Sequence[Child], reason: Reason) -> None:
        """Cancel all `children` for the first time, with the common case written out."""
        text = reason.text
        in_scopes = table()  # a task that is in a cancel scope of anyio may be shielded
        for child in children:
            if (
                type(child) is AsyncioHandle
                and child.state is RUNNING
                and (task := child._task) is not None
                and not (child._asked or child._cancel_holds or child._on_stop or child._interrupted_block)
                and not (in_scopes and task in in_scopes)
                # A task that is running may enter a shield before its next await: the current task and, from
                # 3.12 on, the tasks in which eager tasks are being made. One that waits for a future is not
                # running. `_climb` looks closer at the others.
                and (task._fut_waiter is not None or not is_known())  # type: ignore[attr-defined]
            ):
                if child.reason is None:
                    child.reason = reason
                if child._token is not None:
                    child._token.cancel(reason)
                child._asked = 1
                plain_cancel(task, text)
            else:
                child._climb(CANCEL)


class AsyncioBlock(AsyncioCore, AsyncioBlockTask):  # type: ignore[override]  # its `_core` is itself
    """The scope of an `async with Scope()` and its `BlockTask` in one: one object costs less than two."""

    __slots__ = ("cancels_before", "task")

    def __init__(
        self, backend: AsyncioBackend, scope: Scope, parent: ScopeCore | None, entered_by: FrameType
    ) -> None:
        # First, because it may raise: `AsyncioCore.__init__` registers the scope with its owner.
        self.take_task(_current_task(backend.loop))
        AsyncioCore.__init__(
            self,
            backend,
            scope._name,
            (entered_by.f_code, entered_by.f_lasti),
            scope._on_error,
            scope._on_child_error,
            scope._grace,
            parent,
            scope._outer_token,
        )
        self.enter(self, entered_by)
        self.host = self

    def may_leave(self) -> bool:
        """Whether the event loop is running: asyncio does not care which task exits."""
        return _get_running_loop() is self.backend.loop  # type: ignore[attr-defined]

    def let_go(self) -> None:
        """Drop the reference to the task: if it fails later, its traceback refers to the scope."""
        self.task = None  # type: ignore[assignment]

    def leave_if_empty(self) -> bool:
        """Settle and exit at once, if there is nothing to wait for, to wake or to call. Else False."""
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
        self.host = self.face = self.task = None  # type: ignore[assignment]  # as `let_go`
        return True


class FutureWaiter:
    """One wait for a future of our own: a `CancelledError` out of it is that of the waiting task.

    It has a future and is not one: tasks wait for a subclass of `Future` in a much slower way.
    """

    __slots__ = ("signal",)

    # Set by the code that makes a waiter: an `__init__` would cost as much as the future.
    signal: asyncio.Future[None]

    def wake(self) -> None:
        """Wake the waiting task."""
        try:
            self.signal.set_result(None)
        except (InvalidStateError, RuntimeError):  # cancelled, or the loop is closed: no task waits any more
            pass

    def __await__(self) -> Generator[Any, None, None]:
        return self.signal.__await__()

    async def wait(self) -> None:
        """Wait for `wake`."""
        await self.signal


def _enter_anyio_shield() -> Any:
    """Enter a shield of anyio, if anyio is imported."""
    # In a cancelled scope of anyio, a task is cancelled again in every turn of the loop. To wait on through
    # that uses a whole core; a shield of anyio's own stops it. If anyio was never imported, no task can be in
    # one of its scopes.
    if "anyio" not in sys.modules:
        return None
    import anyio

    shield = anyio.CancelScope(shield=True)
    shield.__enter__()
    add_kernel_shield(shield)
    return shield


class AsyncioBackend(Backend):
    """One asyncio event loop."""

    name = "asyncio"
    core_type = AsyncioCore
    host_type = AsyncioCallerTask

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        # Hides the method below, and saves a call: every stop reads the clock several times.
        self.now = loop.time  # type: ignore[method-assign]
        # uvloop runs the callbacks of file descriptors before the tasks that are ready.
        self._polls_first = not isinstance(loop, asyncio.BaseEventLoop)
        # The contexts that users have passed to `spawn`, by `id()`, and the child that runs in each now.
        self._contexts: dict[int, AsyncioHandle] = {}
        self._fd_waiters: dict[int, list[tuple[FutureWaiter, Callable[[int], object]]]] = {}
        super().__init__()

    def now(self) -> float:
        """The time by the loop's clock."""
        return self.loop.time()

    def call_at(self, when: float, fn: Callable[[], object]) -> Timer:
        """Run `fn()` at `when`, by the loop's own timers."""
        return self.loop.call_at(when, fn)

    def run_from_anywhere(self, fn: Callable[[], object]) -> None:
        """Run `fn()` at once in the loop's own thread, or soon from another."""
        if _get_running_loop() is self.loop:
            fn()
            return
        try:
            self.loop.call_soon_threadsafe(fn)
        except RuntimeError:  # the loop is closed: nothing is left that `fn` could act on
            pass

    def is_running(self) -> bool:
        """Whether some thread is running this loop."""
        return self.loop.is_running()

    def is_current(self) -> bool:
        """Whether the calling code runs in this loop."""
        return _get_running_loop() is self.loop

    def current_task(self) -> object:
        """The running task, or None in a plain callback."""
        return asyncio.current_task(self.loop)

    def is_adopted_and_cancelled(self) -> bool:
        """Whether the running task was started by a library, and cancelled by a `contain()` block."""
        adopted = getattr(asyncio.current_task(self.loop), "_quiesce_adopted", None)
        return adopted is not None and adopted._is_cleaning_up()

    def make_waiter(self) -> FutureWaiter:
        """A new waiter, with a future."""
        waiter = FutureWaiter()
        waiter.signal = Future(loop=self.loop)
        return waiter

    async def wait_through(self, ready: Callable[[], bool], queue: WaitQueue) -> BaseException | None:
        """Wait for one future after the other until `ready()`; returns the first cancellation, if any."""
        cancelled: BaseException | None = None
        shield: Any = None
        try:
            while not ready():
                waiter = FutureWaiter()
                waiter.signal = Future(loop=self.loop)
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
                discard_kernel_shield(shield)
                shield.__exit__(None, None, None)
        return cancelled

    def open_block(self, scope: Scope, parent: ScopeCore | None, entered_by: FrameType) -> ScopeCore:
        """Make the core of `scope`, which is its own `BlockTask` here."""
        return AsyncioBlock(self, scope, parent, entered_by)

    def make_handle(self, core: ScopeCore, label: object, site: Site) -> AsyncioHandle:
        """A handle for a child that is not started yet."""
        return AsyncioHandle(core, label, site)

    def start(
        self, handle: Handle, fn: Callable[..., Any], args: tuple[Any, ...], context: Context | None = None
    ) -> None:
        """Make the task. It may have run, and even ended, when this returns (eager tasks)."""
        assert isinstance(handle, AsyncioHandle)
        loop = self.loop
        factory: Any = loop.get_task_factory()
        while hasattr(factory, "quiesce_inner"):  # that of a `contain()` block: find the one behind it
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
        """Run a child in the context of a caller, whose current node is changed only as long as it runs."""
        before = current_node.get()
        self._contexts[id(context)] = handle
        try:
            await run_child(handle, fn, args)
        finally:
            del self._contexts[id(context)]
            current_node.set(before)

    def _check_is_free(self, context: Context) -> None:
        """Raise if a child is running in `context`."""
        # The current child is found by the context, so two children that share one would be mistaken for each
        # other: what one opens would belong to the other.
        other = self._contexts.get(id(context))
        if other is not None:
            raise RuntimeError(
                f"the context that was given is that of {other.name!r}, which is running: wait for its end, or "
                "give each child one of its own, context=context.copy()"
            )

    async def wait_readable(self, fd: int) -> None:
        """Wait until `fd` can be read. asyncio allows one reader per file descriptor."""
        await self._wait_fd(fd, self.loop.add_reader, self.loop.remove_reader)

    async def wait_writable(self, fd: int) -> None:
        """Wait until `fd` can be written. asyncio allows one writer per file descriptor."""
        await self._wait_fd(fd, self.loop.add_writer, self.loop.remove_writer)

    async def _wait_fd(self, fd: int, add: Callable[..., object], remove: Callable[[int], object]) -> None:
        waiter = self.make_waiter()
        waiting = self._fd_waiters.setdefault(fd, [])
        waiting.append((waiter, remove))
        if self._polls_first:
            # If such a loop woke the task right away, the task would not be waiting for a future whenever
            # anyio looks at it. anyio cancels only tasks that do, so a busy reader would never be cancelled.
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
        """Take `fd` out of the selector while it is still open, and wake the tasks that wait for it."""
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
