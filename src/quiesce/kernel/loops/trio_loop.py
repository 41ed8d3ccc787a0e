"""The kernel on trio: one owner task for the whole run.

A trio task lives in a nursery, and a nursery belongs to the task that opened it. A nursery per scope would
bind each scope to the task that opened it. So there is one system task per run, the owner, with one nursery
for the children of all scopes. It also keeps the timers, because it has nothing else to do.

- Each child has a cancel scope of its own; that of the nursery is never cancelled.
- No exception may escape from a child: in a system task it would end the whole run. The `except` stands
  outside the child's cancel scope, because the exit of that scope may itself raise what remains of a group.
- Children are protected from KeyboardInterrupt. Otherwise a Ctrl-C that arrives in a child would be kept as
  the error of that child, and lost. With the protection, trio raises it in the main task.
- When the main task returns, trio cancels the system tasks. The owner is shielded from that. A second system
  task notices it and stops the scopes, so that tokens and reasons are set first and deadlines still work.

trio cancels by level: every await in a clean-up raises again unless it is shielded. That is trio's rule, and
quiesce keeps to it; `shielded` is the way to await there.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from inspect import getcoroutinelocals
from itertools import count
from math import inf
from threading import get_ident
from types import FrameType
from typing import Any

import trio

from quiesce._safe.printed import logger
from quiesce.kernel.base import CANCEL, OPEN, Reason, Site, Timer, WaitQueue, is_async, stuck_at
from quiesce.kernel.scope import (
    CANCELLED,
    FAILED,
    FINISHED,
    PENDING,
    RUNNING,
    Backend,
    BlockTask,
    Child,
    Handle,
    ScopeCore,
    at_loop_end,
    current_node,
)

_current_task = trio.lowlevel.current_task
_current_trio_token = trio.lowlevel.current_trio_token


class TrioHandle(Handle):
    """A child task on trio."""

    __slots__ = ("_cancel_scope", "_task")

    def __init__(self, core: ScopeCore, label: object, site: Site | None) -> None:
        # Written out, without calls of the base classes: this is the hot path of `spawn`.
        self._core = core
        self._label = label
        self._site = site
        self.state = PENDING
        self.reason = None
        self._at_end = None
        self._token = None
        self._second_cancel = None
        self._on_stop = None
        self._asked = 0
        self._cancel_holds = 0
        self._has_held_cancel = False
        self._cancel_scope = trio.CancelScope()
        self._task: trio.lowlevel.Task | None = None

    def _deliver_cancel(self) -> None:
        """Cancel the child's own cancel scope."""
        self._cancel_scope.cancel()

    def _task_at_work(self) -> object:
        """The task that runs it."""
        return self._task

    def _stuck_at(self) -> str:
        """Where in the source the task waits."""
        return stuck_at(self._task.coro, self._core.backend.thread) if self._task else "not started"


@trio.lowlevel.enable_ki_protection
async def _child(handle: TrioHandle, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Run the function of a child, keep how it ends, and report that to its scope."""
    handle.state = RUNNING
    handle._task = _current_task()
    current_node.set(handle)
    try:
        with handle._cancel_scope:
            try:
                handle._value = await fn(*args)
                handle.state = FINISHED
            except trio.Cancelled as exc:
                if exc.__cause__ is not None or not handle._asked:
                    handle._end_cancelled(exc)
                raise
        if handle.state == RUNNING:  # it raised a group of cancellations, which the cancel scope has caught
            handle.state = CANCELLED
    except trio.Cancelled:  # not by the child's own scope: trio itself is ending
        raise
    except BaseException as exc:
        if isinstance(exc, GeneratorExit) and not handle._core.backend.is_current():
            handle.state = CANCELLED  # the run has ended, and the garbage collector closes the coroutine
            raise
        handle._fail(exc)
    finally:
        handle._task = None
        core = handle._core
        core.children.pop(handle, None)
        state: str = handle.state
        if core.children and handle._at_end is None and state is not FAILED and not core.closers:
            # The common case of `child_ended`, written out: others are still running, no callback, no error.
            core.ended += 1
        else:
            core.child_ended(handle)
        backend: TrioBackend = core.backend  # type: ignore[assignment]
        if backend.ending:
            backend.sleep_scope.cancel()  # the owner may be waiting for this child only


class TrioCore(ScopeCore):
    """A scope on trio: `spawn` and `cancel_once` are written out for the common case."""

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
        backend: TrioBackend = self.backend  # type: ignore[assignment]
        nursery = backend.nursery
        if (
            self.state is not OPEN
            or nursery is None
            or backend.over
            or context is not None
            or not is_async(fn)
            or get_ident() != backend.thread  # a run that has not ended is the current one of its thread
        ):
            return super().spawn(fn, args, name, site, context)
        handle = TrioHandle(self, name or fn, site)
        self.children[handle] = None
        try:
            nursery.start_soon(_child, handle, fn, args, name=name or getattr(fn, "__qualname__", "child"))
        except BaseException:  # the owner is about to end, and has closed its nursery
            self.children.pop(handle, None)
            raise
        return handle

    def cancel_once(self, children: Sequence[Child], reason: Reason) -> None:
        """Cancel all `children` for the first time, with the common case written out."""
        for child in children:
            if type(child) is TrioHandle and not (child._asked or child._cancel_holds or child._on_stop):
                if child.reason is None:
                    child.reason = reason
                if child._token is not None:
                    child._token.cancel(reason)
                child._asked = 1
                child._cancel_scope.cancel()
            else:
                child._climb(CANCEL)


class EventWaiter:
    """One wait for an event of our own."""

    __slots__ = ("wait", "wake")

    def __init__(self) -> None:
        event = trio.Event()
        self.wake = event.set
        self.wait = event.wait

    @property
    def signal(self) -> EventWaiter:
        """What to await."""
        return self

    def __await__(self) -> Generator[Any, None, None]:
        return self.wait().__await__()


class _OwnerTimer:
    __slots__ = ("fn",)

    def __init__(self, fn: Callable[[], object]) -> None:
        self.fn: Callable[[], object] | None = fn

    def cancel(self) -> None:
        self.fn = None


class TrioBackend(Backend):
    """One trio run."""

    name = "trio"
    core_type = TrioCore

    def __init__(self) -> None:
        self.trio_token = trio.lowlevel.current_trio_token()
        self.nursery: trio.Nursery | None = None
        self._early_starts: list[Callable[[], object]] = []  # children spawned before the owner's first step
        self.ending = False
        self.over = False
        # A heap of (when, number, timer); the number decides between equal times.
        self._timers: list[tuple[float, int, _OwnerTimer]] = []
        self._order = count()
        # What the owner sleeps in until the next timer: a new deadline or a cancel wakes it.
        self.sleep_scope = trio.CancelScope()
        super().__init__()
        trio.lowlevel.spawn_system_task(self._own, name="quiesce owner")
        trio.lowlevel.spawn_system_task(self._watch_for_the_end, name="quiesce owner's sentinel")

    # The owner

    async def _own(self) -> None:
        try:
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    self.nursery = nursery
                    while self._early_starts:
                        self._early_starts.pop(0)()  # a loop variable would keep the last one alive
                    while not (self.ending and not nursery.child_tasks):
                        due = self._timers[0][0] if self._timers else inf
                        with trio.CancelScope(deadline=due) as self.sleep_scope:
                            await trio.sleep_forever()
                        self._run_due_timers()
        finally:
            self.over = True

    async def _watch_for_the_end(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.ending = True
            self.sleep_scope.cancel()
            for task in tuple(self.nursery.child_tasks) if self.nursery is not None else ():
                # Not from the task's context: a child that has not taken its first step has not set it yet.
                handle: TrioHandle = getcoroutinelocals(task.coro)["handle"]
                if (leave := at_loop_end.get(handle)) is not None:
                    leave()
                elif not handle._core.is_clean_up():
                    handle._core.stop(Reason("shutdown", "the trio run is ending"))

    def _run_due_timers(self) -> None:
        now = trio.current_time()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            fn, timer.fn = timer.fn, None
            if fn is not None:
                try:
                    fn()
                except Exception:  # it would end the owner, and with it the whole run
                    logger.exception("a timer of the kernel failed")

    def now(self) -> float:
        """The time by trio's clock."""
        try:
            return trio.current_time()
        except RuntimeError:  # the run has ended, and the garbage collector closes what is left of it
            return inf

    def call_at(self, when: float, fn: Callable[[], object]) -> Timer:
        """Run `fn()` at `when`, in the owner task."""
        timer = _OwnerTimer(fn)
        while self._timers and self._timers[0][2].fn is None:  # cancelled meanwhile
            heapq.heappop(self._timers)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        if self._timers[0][2] is timer:
            self.sleep_scope.deadline = when
        return timer

    def run_from_anywhere(self, fn: Callable[[], object]) -> None:
        """Run `fn()` at once in trio's own thread, or soon from another."""
        if self.is_current():
            fn()
            return
        try:
            self.trio_token.run_sync_soon(fn)
        except trio.RunFinishedError:  # nothing is left that `fn` could act on
            pass

    def is_running(self) -> bool:
        """Whether the run has not ended: the owner is among the last tasks that end."""
        return not self.over

    def is_current(self) -> bool:
        """Whether the calling code runs in this run."""
        try:
            return _current_trio_token() is self.trio_token
        except RuntimeError:
            return False

    def current_task(self) -> object:
        """The running task, or None in a plain callback."""
        try:
            return trio.lowlevel.current_task()
        except RuntimeError:
            return None

    def make_waiter(self) -> EventWaiter:
        """A new waiter, with an event."""
        return EventWaiter()

    async def wait_through(self, ready: Callable[[], bool], queue: WaitQueue) -> BaseException | None:
        """Wait under a shield; then return the caller's cancellation, which trio has kept pending."""
        with trio.CancelScope(shield=True):
            while not ready():
                waiter = EventWaiter()
                queue.add(waiter)
                await waiter.wait()
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled as exc:
            return exc
        return None

    async def checkpoint_if_cancelled(self) -> None:
        """Raise the cancellation that is pending for the caller, if any."""
        await trio.lowlevel.checkpoint_if_cancelled()

    def make_handle(self, core: ScopeCore, label: object, site: Site) -> TrioHandle:
        """A handle for a child that is not started yet."""
        return TrioHandle(core, label, site)

    def start(
        self, handle: Handle, fn: Callable[..., Any], args: tuple[Any, ...], context: Context | None = None
    ) -> None:
        """Start the task in the owner's nursery, in a copy of `context` or of the caller's context."""
        assert isinstance(handle, TrioHandle)
        if self.nursery is None:
            copy = copy_context() if context is None else context.copy()
            self._early_starts.append(lambda: copy.run(self._start_soon, handle, fn, args))
        elif self.over:
            raise RuntimeError("this trio run has ended: nothing can be started in it any more")
        else:
            self._start_soon(handle, fn, args, context)

    def _start_soon(
        self,
        handle: TrioHandle,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        context: Context | None = None,
    ) -> None:
        assert self.nursery is not None
        nursery = self.nursery

        def start() -> None:
            nursery.start_soon(_child, handle, fn, args, name=handle.name)

        if context is None:
            start()
        else:
            context.copy().run(start)  # a copy, because `context` itself may be entered already

    async def wait_readable(self, fd: int) -> None:
        """Wait until `fd` can be read, or is about to be closed."""
        with suppress(trio.ClosedResourceError):
            await trio.lowlevel.wait_readable(fd)

    async def wait_writable(self, fd: int) -> None:
        """Wait until `fd` can be written, or is about to be closed."""
        with suppress(trio.ClosedResourceError):
            await trio.lowlevel.wait_writable(fd)

    def stop_waiting_for(self, fd: int) -> None:
        """Wake the tasks that wait for `fd`."""
        trio.lowlevel.notify_closing(fd)


class TrioBlockTask(BlockTask):
    """The task that runs the body of an `async with`, on trio: there is a cancel scope around the body."""

    def __init__(self, core: ScopeCore, entered_by: FrameType) -> None:
        self._core = core
        self.enter(core, entered_by)
        self.task = trio.lowlevel.current_task()
        self.body: trio.CancelScope | None = None
        # Not in a generator: trio forbids to yield inside a cancel scope, which would be the consumer's too.
        if self.generator is None:
            self.body = trio.CancelScope()
            self.body.__enter__()

    def is_current(self) -> bool:
        """Whether the calling code runs in this task."""
        return trio.lowlevel.current_task() is self.task

    def may_leave(self) -> bool:
        """False if the run has ended. Raises in a task other than the one that entered, as trio requires."""
        if not self._core.backend.is_current():
            return False
        if self.body is not None and not self.is_current():
            raise RuntimeError(
                f"{self._core.label!r} was entered with `async with` in another task; on trio it must be exited "
                "there too. To close from anywhere, open it with Scope.open() or own(...).open(), and use close()"
            )
        return True

    def cancel_body(self, reason: Reason) -> bool:
        """Cancel the cancel scope around the body. False in an async generator, which has none."""
        if self.body is None:
            return False
        self.body.cancel()
        return True

    async def leave(self, error: BaseException | None) -> BaseException | None:
        """Wait until the scope has settled or expired, and then exit the cancel scope around the body."""
        core = self._core
        self.begin_to_leave(error)
        if not core.is_over():
            late = await core.backend.wait_through(core.until_over(), core.waiters)
            if late is not None and (error is None or not has_cancelled(error)):
                error = late  # a cancel takes precedence over an error of the body
        return self._leave_body(error)

    def _leave_body(self, error: BaseException | None) -> BaseException | None:
        """Exit the cancel scope of the body; returns a cancellation that it does not catch: another's."""
        if self.body is not None:
            try:
                if self.body.__exit__(type(error) if error is not None else None, error, None):
                    return None
            except BaseException as remaining:
                error = remaining
        return error if error is not None and has_cancelled(error) else None


def has_cancelled(error: BaseException) -> bool:
    """Whether there is a trio cancellation in `error`."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[0] is not None
    return isinstance(error, trio.Cancelled)


_backend: trio.lowlevel.RunVar[TrioBackend] = trio.lowlevel.RunVar("quiesce")


def running_backend() -> TrioBackend | None:
    """The backend of the trio run that the caller is in, if it is in one."""
    try:
        return _backend.get()
    except LookupError:
        backend = TrioBackend()
        _backend.set(backend)
        return backend
    except RuntimeError:
        return None


TrioBackend.host_type = TrioBlockTask
