"""The worlds a test runs in: asyncio, asyncio with eager tasks, uvloop and trio.

A world runs one coroutine function as `asyncio.run` or `trio.run` would, and then says what that coroutine
left behind.

Time is virtual unless the test is marked `real_time`, or the world is uvloop, whose clock is out of reach:
an hour of sleep takes no time, and two timers fire in their order however loaded the machine is. The clock
moves only when nothing can run and no I/O is ready. It cannot see a thread or a process at work, so it may
jump while one is busy: tests with those want `real_time`, or `virtual_time(grace=...)`, which waits that
many real seconds for an event before each jump.

A world that has nothing to run, nothing scheduled and no I/O for `IDLE_LIMIT` real seconds is hung: the
test fails at once, with the stack of every task.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import selectors
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, Literal, TypeVar

import pytest
import trio
import trio.testing

if sys.platform != "win32":
    import uvloop

T = TypeVar("T")
Main = Callable[[], Coroutine[Any, Any, T]]

IDLE_LIMIT = 5.0

asyncio_only = pytest.mark.worlds("asyncio", "asyncio-eager", "uvloop")
trio_only = pytest.mark.worlds("trio")


def world_names() -> list[str]:
    """The worlds this interpreter has."""
    names = ["asyncio", "asyncio-eager", "uvloop", "trio"]
    if sys.version_info < (3, 12):
        names.remove("asyncio-eager")
    if sys.platform == "win32":
        names.remove("uvloop")
    return names


def make_world(name: str, *, virtual: bool = True, grace: float = 0.0) -> World:
    if name == "trio":
        return TrioWorld(name, virtual=virtual, grace=grace)
    return AsyncioWorld(name, virtual=virtual and name != "uvloop", grace=grace)


class LeftBehind(AssertionError):
    """The coroutine has returned, and something it started has not."""


class Hung(Exception):
    """Nothing runs, and nothing ever will."""


class World(ABC):
    """Where one test runs: `name`, `backend`, and whether its time is `virtual`."""

    backend: Literal["asyncio", "trio"]

    def __init__(self, name: str, *, virtual: bool, grace: float) -> None:
        self.name = name
        self.virtual = virtual
        self._grace = grace
        self._errors: list[str] = []

    def __repr__(self) -> str:
        return f"<World {self.name}, {'virtual' if self.virtual else 'real'} time>"

    def run(self, main: Main[T]) -> T:
        """Run `main` to its end; raise what it raised, or `LeftBehind` if tasks outlived it."""
        __tracebackhide__ = True
        left: list[str] = []
        try:
            result = self._run(main, left)
        except Hung:
            raise
        except BaseException as failure:
            for task in left:
                failure.add_note(f"The test also left behind {task}")
            raise
        if left:
            raise LeftBehind("the test left behind: " + "\n".join(left))
        return result

    def take_errors(self) -> list[str]:
        """What the event loop complained of since the last call, as text."""
        errors, self._errors = self._errors, []
        return errors

    @abstractmethod
    def _run(self, main: Main[T], left: list[str]) -> T: ...

    @abstractmethod
    def describe_tasks(self) -> str:
        """Every task of the run in progress and where it stands."""

    def ask_to_stop(self) -> bool:
        """Ask the run in progress to end, if this world can be asked. Callable from a signal handler."""
        return False


# asyncio ----------------------------------------------------------------------------------------------------


class AsyncioWorld(World):
    backend = "asyncio"
    _loop: asyncio.AbstractEventLoop | None = None

    def _run(self, main: Main[T], left: list[str]) -> T:
        __tracebackhide__ = True
        try:
            with asyncio.Runner(loop_factory=self._new_loop) as runner:
                self._loop = runner.get_loop()
                self._loop.set_exception_handler(self._record)
                try:
                    # The loop goes round once more after its main task is done. That is all the time a
                    # leftover gets to finish.
                    return runner.run(main())
                finally:
                    left += [
                        describe_asyncio_task(task)
                        for task in asyncio.all_tasks(self._loop)
                        if not task.done()
                    ]
        finally:
            self._loop = None

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        if self.name == "uvloop":
            return uvloop.new_event_loop()
        loop = (
            VirtualTimeLoop(self._grace, self.describe_tasks) if self.virtual else asyncio.SelectorEventLoop()
        )
        if self.name == "asyncio-eager" and sys.version_info >= (3, 12):
            loop.set_task_factory(asyncio.eager_task_factory)
        return loop

    def _record(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # Kept as text: a reference to the task or its exception would keep alive what the collector is to
        # judge.
        lines = [str(context["message"])]
        lines += [
            f"  {key}: {value!r}" for key, value in context.items() if key not in {"message", "exception"}
        ]
        if isinstance(error := context.get("exception"), BaseException):
            lines += ["  " + line for line in "".join(traceback.format_exception(error)).splitlines()]
        self._errors.append("\n".join(lines))

    def describe_tasks(self) -> str:
        if self._loop is None:
            return "(no event loop)"
        return (
            "\n".join(describe_asyncio_task(task) for task in asyncio.all_tasks(self._loop)) or "(no tasks)"
        )


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop with a clock that jumps to the next timer instead of waiting for it."""

    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, grace: float, describe_tasks: Callable[[], str]) -> None:
        self._clock = JumpingSelector(selectors.DefaultSelector(), grace, self._next_timer, describe_tasks)
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def _next_timer(self) -> float:
        return self._scheduled[0].when() if self._scheduled else math.inf


class JumpingSelector(selectors.BaseSelector):
    """A selector for which waiting means moving the clock.

    The loop asks to wait exactly when it has nothing to run, and for as long as its next timer is away, so
    this is the one place that knows both that time may pass and how much. Only a sleep without end has to
    be told from a long one: the loop waits a day at a time.
    """

    def __init__(
        self,
        real: selectors.BaseSelector,
        grace: float,
        next_timer: Callable[[], float],
        describe_tasks: Callable[[], str],
    ) -> None:
        self.now = 1000.0
        self._real = real
        self._grace = grace
        self._next_timer = next_timer
        self._describe_tasks = describe_tasks

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or (timeout > 0 and self._next_timer() == math.inf):
            events = self._real.select(IDLE_LIMIT)
            if not events:
                raise Hung(
                    f"nothing happened for {IDLE_LIMIT:g} s and nothing is scheduled:\n{self._describe_tasks()}"
                )
            return events
        events = self._real.select(min(timeout, self._grace))
        if not events:
            self.now += timeout
        return events

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.get_key(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


def describe_asyncio_task(task: asyncio.Task[Any]) -> str:
    return describe_task(task.get_name(), task.get_coro())


# trio -------------------------------------------------------------------------------------------------------


class TrioWorld(World):
    backend = "trio"
    _token: trio.lowlevel.TrioToken | None = None
    _escape: trio.CancelScope

    def _run(self, main: Main[T], left: list[str]) -> T:
        __tracebackhide__ = True
        self._escape = trio.CancelScope()
        idle = IdleWatch(self.describe_tasks, self._escape)

        async def supervise() -> T:
            __tracebackhide__ = True
            self._token = trio.lowlevel.current_trio_token()
            known = set(all_trio_tasks())
            try:
                with self._escape:
                    return await main()
            finally:
                self._token = None
                with trio.CancelScope(shield=True):
                    await trio.lowlevel.checkpoint()
                left.extend(
                    describe_trio_task(task)
                    for task in all_trio_tasks()
                    if task not in known and not is_owner(task)
                )
            raise Hung(idle.verdict)

        if self.virtual:
            clock = trio.testing.MockClock(autojump_threshold=self._grace)
            return trio.run(supervise, clock=clock, instruments=[idle])
        return trio.run(supervise)

    def describe_tasks(self) -> str:
        return (
            "\n".join(describe_trio_task(task) for task in all_trio_tasks() if not is_trios_own(task))
            or "(no tasks)"
        )

    def ask_to_stop(self) -> bool:
        # An exception out of the run loop itself would leave trio in pieces, for the collector to find in a
        # later test.
        if self._token is None:
            return False
        self._token.run_sync_soon(self._escape.cancel)
        return True


class IdleWatch(trio.abc.Instrument):
    """Notices a run whose mock clock has nowhere to jump. trio itself would poll for ever, at full speed."""

    def __init__(self, describe_tasks: Callable[[], str], escape: trio.CancelScope) -> None:
        self.verdict = ""
        self._describe_tasks = describe_tasks
        self._escape = escape
        self._idle_since = math.inf

    def before_io_wait(self, timeout: float) -> None:
        now = trio.lowlevel.current_statistics()
        if now.tasks_runnable or now.seconds_to_next_deadline < math.inf:
            self._idle_since = math.inf
            return
        self._idle_since = min(self._idle_since, time.monotonic())
        if time.monotonic() - self._idle_since < IDLE_LIMIT:
            time.sleep(0.0005)
        elif not self.verdict:
            self.verdict = (
                f"nothing happened for {IDLE_LIMIT:g} s and nothing is scheduled:\n{self._describe_tasks()}"
            )
            self._escape.cancel()


def all_trio_tasks() -> Iterator[trio.lowlevel.Task]:
    root = None
    with contextlib.suppress(RuntimeError):
        root = trio.lowlevel.current_root_task()
    return descend([root] if root is not None else [])


def descend(tasks: Iterable[trio.lowlevel.Task]) -> Iterator[trio.lowlevel.Task]:
    for task in tasks:
        yield task
        for nursery in task.child_nurseries:
            yield from descend(nursery.child_tasks)


def is_trios_own(task: trio.lowlevel.Task) -> bool:
    return task.parent_nursery is None or task.name == "<TrioToken.run_sync_soon task>"


def is_owner(task: trio.lowlevel.Task) -> bool:
    """A scope's own system task. It ends with the run; what it owns is judged on its own."""
    return task.name.startswith("quiesce owner")


def describe_trio_task(task: trio.lowlevel.Task) -> str:
    return describe_task(task.name, task.coro)


# both -------------------------------------------------------------------------------------------------------


def describe_task(name: str, coroutine: object) -> str:
    """A task and its stack, outermost call first, down to the await it stands at."""
    lines = [f"task {name!r}, running {getattr(coroutine, '__qualname__', coroutine)}"]
    lines += [
        f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_qualname}'
        for frame in frames(coroutine)
    ]
    return "\n".join(lines)


def frames(awaitable: object) -> Iterator[FrameType]:
    while awaitable is not None:
        for frame_name, next_name in (
            ("cr_frame", "cr_await"),
            ("gi_frame", "gi_yieldfrom"),
            ("ag_frame", "ag_await"),
        ):
            if hasattr(awaitable, frame_name):
                if frame := getattr(awaitable, frame_name):
                    yield frame
                awaitable = getattr(awaitable, next_name)
                break
        else:
            # One step of an async generator, or a wrapper. Only the collector knows whose step it is.
            inside = gc.get_referents(awaitable)
            awaitable = next(
                (it for it in inside if hasattr(it, "ag_frame") or hasattr(it, "cr_frame")), None
            )
