"""Event loops that know which task each of their callbacks steps.

Every step and every wake-up of an asyncio task goes through its loop's `call_soon`, as a callback whose `__self__` is
the task. A loop that runs its own queue can therefore see each step before and after it happens, for the interpreter's
own task class and without wrapping a coroutine. The pure loop has no selector and a virtual clock: an hour of sleep
takes no time, and if nothing can run and no timer is set, the loop knows at once that nothing ever will.

`_ready`, `_scheduled` and the fields of a handle are private to asyncio, and the same from 3.11 to 3.15.

A task class can start its tasks eagerly and bypass `create_task`. Up to 3.13 such a task is added to a registry of
asyncio when it first suspends. From 3.14 on it is not, so the loop finds it when the step that created it ends. Before
the task starts it asks its loop `is_running()`, and futures that are created in its first step ask `get_debug()`. In
that moment the stack still shows which code created the task.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import sys
import threading
from asyncio import events, tasks
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from functools import partial
from types import AsyncGeneratorType, BuiltinMethodType, FrameType, MethodType
from typing import TYPE_CHECKING, Any

from quiesce.audit.model import Chain, Schedule, await_chain, callers, is_audit_code, name_of, stack_of
from quiesce.audit.watch import RefusedIO

# The virtual clock starts here, not at zero, which some code takes for "not set".
START = 1_000.0


class _Handle(asyncio.Handle):
    """A handle whose constructor does not call `loop.get_debug()`.

    Handles are created at every step, and `get_debug` is overridden below and does more than return a flag.
    """

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: SteppingLoop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class OrderedTask(asyncio.Task[Any]):
    """A task that hashes by the order of creation, not by its address.

    Task groups keep their tasks in sets and cancel them in the order of the set. With hashes from addresses that order
    would differ from run to run.
    """

    def __init__(self, coro: Any, *, loop: SteppingLoop, **options: Any) -> None:
        self._order = loop.next_order()
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._order


class SteppingLoop(asyncio.BaseEventLoop):
    """The common base of the loops: reports steps to the schedule, tracks async generators, and has a virtual clock."""

    schedule: Schedule
    # With real I/O: the outside work that the clock jumped over.
    passed_over = ""
    _ready: deque[Any]
    _scheduled: list[Any]
    _thread_id: int | None
    _closed: bool
    _asyncgens: Any
    now = START
    # Set by the run to end `run_until_finished`.
    is_finished = False
    # Whether this loop looks for eager tasks after each step, and whether the current step may have created one.
    _finds_births = _may_have_births = False

    def prepare(self, schedule: Schedule, *, seed: int | None, eager: bool) -> None:
        """Attach the loop to a schedule. A seed shuffles the steps of each round."""
        self.schedule = schedule
        self.dropped: list[tuple[str, Chain]] = []
        self._lanes = schedule.lanes.by_id
        chance = None if seed is None else random.Random(seed)
        self._shuffle = None if chance is None else chance.shuffle
        self.next_order: Callable[[], int] = (
            itertools.count(1).__next__ if chance is None else partial(chance.randrange, 1 << 30)
        )
        self._is_eager = eager
        self._run_handle: Callable[[asyncio.Handle], None] = events.Handle._run
        # Where the eager tasks of the current step were created, as far as known, in their order.
        self._made_at: dict[asyncio.Task[Any], Chain] = {}
        if eager and not _HAS_REGISTRY:
            self._finds_births = True
            self._run_handle = self._run_and_find_births
        self._had_generators = False
        if eager and sys.version_info >= (3, 12):
            # The real factory, although `create_task` below does not call it: libraries recognise it by its identity or
            # its code and behave differently.
            self.set_task_factory(asyncio.eager_task_factory)

    def time(self) -> float:
        return self.now

    def enter(self) -> None:
        """Become the running loop of this thread.

        The audit drives the loop round by round, so this replaces the set-up part of `run_forever`.
        """
        self._hooks = sys.get_asyncgen_hooks()
        self._thread_id = threading.get_ident()
        sys.set_asyncgen_hooks(self._asyncgen_firstiter_hook, self._asyncgen_finalizer_hook)
        if self._is_eager and _HAS_REGISTRY:
            registry: Any = tasks._scheduled_tasks  # type: ignore[attr-defined]

            def add(task: Any) -> None:
                type(registry).add(registry, task)
                self._add_new_task(task)

            registry.add = add
        events._set_running_loop(self)

    def exit(self) -> None:
        """Undo `enter()`."""
        events._set_running_loop(None)
        if self._is_eager and _HAS_REGISTRY:
            del tasks._scheduled_tasks.add  # type: ignore[attr-defined]
        sys.set_asyncgen_hooks(*self._hooks)
        self._thread_id = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Look as if the loop were not running: `asyncio.run` cancels all tasks between two runs of its loop."""
        thread, self._thread_id = self._thread_id, None
        events._set_running_loop(None)
        try:
            yield
        finally:
            events._set_running_loop(self)
            self._thread_id = thread

    # Tasks and their steps

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        kind = type(callback)
        if kind is _StepWrapper or (kind is MethodType and callback.__name__ in _STEP_NAMES):
            task = callback.__self__
            lane = self._lanes.get(id(task))
            if lane is None or lane.ref() is not task:
                self._add_lane(task)
        return handle

    def _add_lane(self, task: Any, made_at: Chain | None = None) -> None:
        coroutine = task.get_coro()
        code = getattr(coroutine, "cr_code", None)
        # The first task is the root, which counts as the program's although the audit wraps it.
        is_internal = code is not None and is_audit_code(code) and bool(self._lanes)
        if made_at is None:
            made_at = callers(2, until=_RUNNER)
        self.schedule.add_task(task, coroutine, made_at, is_internal=is_internal)

    def create_task(self, coro: Any, **options: Any) -> Any:
        factory = self.get_task_factory()
        if factory is None:
            return OrderedTask(coro, loop=self, **options)
        if self._is_eager and factory is getattr(asyncio, "eager_task_factory", None):
            task: asyncio.Task[Any] = OrderedTask(coro, loop=self, eager_start=True, **options)
        else:
            task = super().create_task(coro, **options)
        if self._is_eager and not task.done():
            self._add_new_task(task)
        return task

    def is_running(self) -> bool:
        # An eager task calls this before it starts. Other callers do too; they only cost a search at the end of the
        # step.
        self._may_have_births = self._finds_births
        return super().is_running()

    def get_debug(self) -> bool:
        task = asyncio.current_task(self) if self._may_have_births else None
        # Every new future asks. If the current task has no lane yet, this is the first step of an eager task, and the
        # frames below its first one are those of the code that created it.
        if task is not None and id(task) not in self._lanes:
            first = getattr(task.get_coro(), "cr_frame", None)
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame is not first:
                frame = frame.f_back
            self._made_at.setdefault(task, stack_of(frame and frame.f_back, until=_RUNNER))
        return super().get_debug()

    def _run_and_find_births(self, handle: asyncio.Handle) -> None:
        handle._run()
        if self._may_have_births:
            self._may_have_births = False
            seen, self._made_at = self._made_at, {}
            others = sorted(asyncio.all_tasks(self) - seen.keys(), key=_by_age)
            for task in (*seen, *others):
                lane = self._lanes.get(id(task))
                if not task.done() and (lane is None or lane.ref() is not task):
                    self._add_new_task(task, seen.get(task, ()))

    def _add_new_task(self, task: Any, made_at: Chain | None = None) -> None:
        """Add a lane for a new task. An eager task has already run up to its first suspension."""
        coroutine = task.get_coro()
        if task.get_loop() is not self or not getattr(coroutine, "cr_suspended", True):
            return
        # If its first suspension was a bare yield, its next step went through `call_soon`, which added the lane.
        lane = self._lanes.get(id(task))
        if lane is None or lane.ref() is not task:
            self._add_lane(task, made_at)
            lane = self._lanes[id(task)]
        if not lane.is_eager:
            self.schedule.after_eager_start(lane, task, coroutine)

    def _run_batch(self) -> None:
        """Run the callbacks that are ready now, and report the steps of tasks to the schedule."""
        # The hot loop of every audit: the steps of lanes that are not the target are counted here, without a call.
        ready, lanes, schedule, run = self._ready, self._lanes, self.schedule, self._run_handle
        schedule.check_limit()
        if self._shuffle is not None:
            self._shuffle_steps()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            callback = handle._callback
            kind = type(callback)
            if kind is not _StepWrapper and (
                (kind is not BuiltinMethodType and kind is not MethodType)
                or callback.__name__ not in _STEP_NAMES
            ):
                run(handle)
                continue
            task = callback.__self__
            lane = lanes.get(id(task))
            if lane is None:
                run(handle)
                continue
            schedule.steps += 1
            if lane is schedule.target or (schedule.sees_all and not lane.is_internal):
                schedule.before_step(lane, task, handle)
                run(handle)
                if task.done():
                    schedule.after_end(lane)
                else:
                    schedule.after_suspension(lane, task, task.get_coro())
            else:
                schedule.current = lane
                run(handle)
                schedule.current = None
                if task.done():
                    lane.ended_at = schedule.steps
                else:
                    lane.number += 1
                if schedule.is_birth_stop_due:
                    schedule.make_stop_at_birth()

    def _shuffle_steps(self) -> None:
        """Shuffle the task steps of this round. Other callbacks keep their order, which asyncio guarantees."""
        ready = self._ready
        where = [i for i, handle in enumerate(ready) if is_step(handle._callback)]
        steps = [ready[i] for i in where]
        assert self._shuffle is not None
        self._shuffle(steps)
        for i, handle in zip(where, steps, strict=True):
            ready[i] = handle

    # Generators

    def _asyncgen_firstiter_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        self._had_generators = True
        super()._asyncgen_firstiter_hook(agen)  # type: ignore[misc]

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        assert isinstance(agen, AsyncGeneratorType)
        self.dropped.append((name_of(agen), await_chain(agen)))
        self._asyncgens.discard(agen)
        if not self.is_closed():
            self.call_soon_threadsafe(self.create_task, agen.aclose())

    def unfinished_generators(self) -> list[tuple[str, Chain]]:
        """The async generators that were started, are still referenced and have not ended: name and position."""
        if not self._had_generators:
            return []
        return [
            (name_of(agen), await_chain(agen))
            for agen in sorted(self._asyncgens, key=name_of)
            if agen.ag_frame is not None and not agen.ag_running
        ]

    # Time

    def _take_due(self) -> None:
        """Move the timers that are due to the ready queue."""
        scheduled = self._scheduled
        while scheduled and (scheduled[0]._cancelled or scheduled[0]._when <= self.now):
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                self._ready.append(handle)

    def _jump(self, until: float) -> None:
        """Move the clock to the next timer, unless that is later than `until`."""
        if self._scheduled and self._scheduled[0]._when <= until:
            self.now = self._scheduled[0]._when
            self._take_due()

    def run_until_finished(self) -> bool:
        """Run until `is_finished` is set; False if nothing can run any more before that."""
        while not self.is_finished:
            if not self._go_round(float("inf")):
                return False
        return True

    def settle(self) -> None:
        """Run everything that can run without moving the clock."""
        while self._go_round(None):
            pass

    def advance(self, seconds: float) -> None:
        """Run until nothing is left to run, but move the clock by `seconds` at most."""
        until = self.now + seconds
        while (self._ready or self._scheduled) and self._go_round(until):
            pass

    def _go_round(self, until: float | None) -> bool:
        """Run one round; False if nothing could run.

        If nothing is ready, the clock moves to the next timer, but not past `until`; with None it does not move.
        """
        raise NotImplementedError


class PureLoop(SteppingLoop):
    """The loop of the closed world: no selector, and every kind of I/O is refused."""

    def _go_round(self, until: float | None) -> bool:
        ready = self._ready
        if self._scheduled:
            self._take_due()
            if not ready and until is not None:
                self._jump(until)
        if not ready:
            return False
        self._run_batch()
        return True

    # `call_soon_threadsafe` from another thread takes effect in the next round. The loop never blocks, so there is
    # nothing to wake up.
    def _write_to_self(self) -> None:
        pass

    def _process_events(self, event_list: object) -> None:
        pass

    # Hidden from type checkers, which would want the full signature of every method that only refuses.
    if not TYPE_CHECKING:

        def run_in_executor(self, executor, func, *args):
            raise RefusedIO(f"it runs {name_of(func)} in a thread")

        def _refuse(self, *args, **kwargs):
            raise RefusedIO("it opens a connection, a pipe or a process")

        create_connection = create_server = create_datagram_endpoint = _refuse
        connect_read_pipe = connect_write_pipe = subprocess_exec = subprocess_shell = _refuse
        sock_connect = sock_accept = sock_recv = sock_recv_into = sock_sendall = _refuse
        add_reader = add_writer = getaddrinfo = getnameinfo = _refuse
        create_unix_connection = create_unix_server = _refuse

        def add_signal_handler(self, sig, callback, *args):
            """Accept the handler and never call it: no signals arrive in a closed world."""

        def remove_signal_handler(self, sig):
            return True


def is_step(callback: Any) -> bool:
    """Whether a callback is a step or a wake-up of a task; its `__self__` is then the task."""
    kind = type(callback)
    return kind is _StepWrapper or (
        (kind is BuiltinMethodType or kind is MethodType) and callback.__name__ in _STEP_NAMES
    )


# Tasks written in C wake up by the built-in method `task_wakeup`, tasks written in Python by their private methods.
_STEP_NAMES = frozenset({"task_wakeup", "__step", "__wakeup"})
# Frames outside of this one belong to the loop.
_RUNNER = events.Handle._run.__code__
_HAS_REGISTRY = sys.version_info < (3, 14)


def _by_age(task: asyncio.Task[Any]) -> tuple[int, str]:
    """A sort key for tasks by age: default names (`Task-9`, `Task-10`) end in a growing number."""
    return len(task.get_name()), task.get_name()


def _find_step_wrapper() -> type:
    """The type of the callback that makes the first step of a task. It cannot be imported, as no module exports it."""
    loop = PureLoop()
    found: list[type] = []

    def note_type(callback: Any, *args: Any, context: Context | None = None) -> None:
        found.append(type(callback))

    loop.call_soon = note_type  # type: ignore[method-assign, assignment]

    async def nothing() -> None:
        pass

    coroutine = nothing()
    task = asyncio.Task(coroutine, loop=loop)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine.close()
    loop.close()
    return found[0]


_StepWrapper = _find_step_wrapper()
