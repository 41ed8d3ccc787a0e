"""A program on asyncio.

Not `asyncio.Runner`: that waits without bound for tasks, async generators and the default executor. The loop is run
here until main has ended, without any task of ours (a program may well wait for "all other tasks"); then a task of
ours settles the rest, each part within what is left of the time. What refuses is named, and dropped with the loop.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from quiesce.kernel.base import Grace, Leftover, Site, stuck_at, thread_stuck_at
from quiesce.kernel.loops import AsyncioHandle
from quiesce.kernel.scope import ScopeCore, current_backend

from .force_exit import GLANCE
from .program import Program

_dropped: list[asyncio.Task[Any]] = []  # collecting one would throw into it, and print what it makes of that


class AsyncioProgram(Program):
    """One run of an asyncio event loop."""

    loop: asyncio.AbstractEventLoop | None = None

    def __init__(
        self,
        main: Callable[..., Any],
        args: tuple[Any, ...],
        grace: Grace,
        site: Site,
        loop_factory: Callable[[], asyncio.AbstractEventLoop],
        debug: bool | None,
    ) -> None:
        super().__init__(main, args, grace, site)
        self._loop_factory = loop_factory
        self._debug = debug
        # The loop's own would be out of reach, and is shut down by waiting for it.
        self._executor = ThreadPoolExecutor(thread_name_prefix="asyncio")
        self._settling: asyncio.Task[None] | None = None

    def poke(self, fn: Callable[[], object]) -> None:
        """As `call_soon`, but it also wakes the selector."""
        if self.loop is not None:
            try:
                self.loop.call_soon_threadsafe(fn)
            except RuntimeError:  # closed: all is over
                pass

    def leave_main(self) -> None:
        """Out of `run_forever`."""
        assert self.loop is not None
        self.loop.stop()

    def drive(self) -> None:
        """Run main, then settle the rest."""
        loop = self.loop = self._loop_factory()
        try:
            with _woken_by_signals(loop):
                self._drive(loop)
        finally:
            self._drop(asyncio.all_tasks(loop))
            asyncio.set_event_loop(None)
            loop.close()

    def _drive(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        if self._debug is not None:
            loop.set_debug(self._debug)
        loop.set_default_executor(self._executor)
        loop.call_soon(self._start)
        self._until_interrupted(loop.run_forever)
        self._waits_for_main = False
        while True:
            self._settling = loop.create_task(self._settle(), name="quiesce.run settles")
            while not self._settling.done():
                self._until_interrupted(self._run_settling)
            if not self._settling.cancelled():  # before its first step, by a program that cancels all tasks
                break
        self._settling.result()

    def _start(self) -> None:
        try:
            self.start_main()
        except BaseException as exc:
            self.interrupt = exc
            self.wake()

    def _run_settling(self) -> None:
        loop, settling = self.loop, self._settling
        assert loop is not None
        assert settling is not None
        try:
            loop.run_until_complete(settling)
        except asyncio.CancelledError:
            pass
        except RuntimeError:
            if settling.done() or loop.is_closed():
                raise
            # Somebody called `loop.stop()`. We are stopping, and not done.

    def _until_interrupted(self, fn: Callable[[], object]) -> None:
        """KeyboardInterrupt and SystemExit of other people's tasks come straight out of the loop."""
        try:
            fn()
        except (KeyboardInterrupt, SystemExit) as exc:
            self.interrupt = exc if self.interrupt is None else self.interrupt

    # In the loop

    async def _settle(self) -> None:
        if self.root is None:
            return
        backend, root = current_backend(), self.root
        self.begin_stop()
        await backend.wait_through(root.is_over, root.waiters)
        self.report = root.report()
        self.root_over_at = time.monotonic()
        await self._end_foreign_tasks()
        await self._close_generators()
        await self._end_executor_threads()
        left = [_task_left(task) for task in self._foreign_tasks()]
        left += [_thread_left(thread) for thread in self._executor_threads()]
        self.add_leftovers(left)

    def _foreign_tasks(self) -> set[asyncio.Task[Any]]:
        """Everybody's who is not in our scopes: those are in the report already."""
        assert self.root is not None
        tasks = {task for task in asyncio.all_tasks() if not task.done()}
        return tasks - _tasks_in(self.root) - {self._settling}

    async def _end_foreign_tasks(self) -> None:
        asked: set[asyncio.Task[Any]] = set()
        while (foreign := self._foreign_tasks()) and (left := self.time_left()) > 0:
            for task in foreign - asked:  # once each; clean-up may start others
                task.cancel("the program is ending")
            asked |= foreign
            await _pause(foreign, min(left, GLANCE))
        loop = asyncio.get_running_loop()
        for task in asked:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                what = "unhandled exception while quiesce.run was ending"
                loop.call_exception_handler({"message": what, "exception": error, "task": task})

    async def _close_generators(self) -> None:
        loop = asyncio.get_running_loop()
        closing = loop.create_task(loop.shutdown_asyncgens(), name="close async generators")
        while not closing.done() and (left := self.time_left()) > 0:
            await _pause({closing}, min(left, GLANCE))
        closing.cancel()
        await _pause({closing}, 0)

    async def _end_executor_threads(self) -> None:
        """Work that is under way is waited for, as `asyncio.run` does, but not for ever."""
        self._executor.shutdown(wait=False, cancel_futures=bool(self.signals))
        while self._executor_threads() and self.time_left() > 0:
            await _pause(set(), 0.005)
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _executor_threads(self) -> list[Any]:
        return [thread for thread in list(self._executor._threads) if thread.is_alive()]

    def _drop(self, tasks: set[asyncio.Task[Any]]) -> None:
        """They are named in the report; Python need not complain about each when it is collected."""
        for task in tasks:
            if not task.done():
                with suppress(AttributeError):  # not every task factory makes asyncio's own
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                _dropped.append(task)


@contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let a signal end the loop's wait for events, whichever thread and moment it came in.

    Python runs a handler when the main thread next runs Python code. A signal that another thread was given, or
    that came just before the wait began, would leave the main thread waiting, with the handler still to run.
    uvloop has such a wake-up of its own.
    """
    if (
        not isinstance(loop, asyncio.BaseEventLoop)
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return
    woken, wakes = socket.socketpair()
    with woken, wakes:
        woken.setblocking(False)
        wakes.setblocking(False)
        loop.add_reader(woken, _discard, woken)
        before = signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(woken)


def _discard(woken: socket.socket) -> None:
    with suppress(BlockingIOError):
        woken.recv(4096)


async def _pause(tasks: set[asyncio.Task[Any]], seconds: float) -> None:
    """Until these tasks are done, or for that long; a program that cancels all tasks does not reach us."""
    try:
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        else:
            await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        pass


def _tasks_in(core: ScopeCore) -> set[asyncio.Task[Any]]:
    tasks = {
        child._task for child in core.children if isinstance(child, AsyncioHandle) and child._task is not None
    }
    for nested in core.nested:
        tasks |= _tasks_in(nested)
    return tasks


def _task_left(task: asyncio.Task[Any]) -> Leftover:
    return Leftover("task", task.get_name(), "unknown", stuck_at(task.get_coro()))


def _thread_left(thread: Any) -> Leftover:
    return Leftover("thread", thread.name, "unknown", thread_stuck_at(thread.ident))
