"""A program on asyncio.

Not `asyncio.Runner`: that waits without limit for tasks, async generators and the default executor. The loop
runs here until main has ended, without any task of ours (a program may wait for "all other tasks"). Then a
task of ours ends the rest, each part within the time that is left. What refuses to end is named, and dropped
with the loop.
"""

from __future__ import annotations

import asyncio
import os
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

from .force_exit import POLL_SECONDS
from .program import Program

# Kept until the process ends: collecting an unfinished task would throw GeneratorExit into it, and its
# clean-up would then run outside any loop and print its errors.
_dropped_tasks: list[asyncio.Task[Any]] = []


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
        # Not the one that the loop would make: it is not accessible, and its shutdown waits without limit.
        self._executor = ThreadPoolExecutor(thread_name_prefix="asyncio")
        self._last_task: asyncio.Task[None] | None = None

    def call_soon(self, fn: Callable[[], object]) -> None:
        """By the thread-safe way, which also wakes the selector."""
        if self.loop is not None:
            try:
                self.loop.call_soon_threadsafe(fn)
            except RuntimeError:  # the loop is closed: there is nothing left to stop
                pass

    def leave_main(self) -> None:
        """Return from `run_forever`."""
        assert self.loop is not None
        self.loop.stop()

    def drive(self) -> None:
        """Run main, then end the rest."""
        loop = self.loop = self._loop_factory()
        try:
            with woken_by_signals(loop):
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
            self._last_task = loop.create_task(self._end_the_rest(), name="quiesce.run settles")
            while not self._last_task.done():
                self._until_interrupted(self._run_last_task)
            # A program that cancels all tasks may have hit it before its first step: then make another one.
            if not self._last_task.cancelled():
                break
        self._last_task.result()

    def _start(self) -> None:
        try:
            self.start_main()
        except BaseException as exc:
            self.interrupt = exc
            self.wake()

    def _run_last_task(self) -> None:
        loop, task = self.loop, self._last_task
        assert loop is not None
        assert task is not None
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass
        except RuntimeError:
            # Otherwise the program called `loop.stop()`. It is being stopped anyway: run the loop again.
            if task.done() or loop.is_closed():
                raise

    def _until_interrupted(self, fn: Callable[[], object]) -> None:
        # A KeyboardInterrupt or SystemExit in a task of other code comes straight out of the loop.
        try:
            fn()
        except (KeyboardInterrupt, SystemExit) as exc:
            self.interrupt = exc if self.interrupt is None else self.interrupt

    # In the loop

    async def _end_the_rest(self) -> None:
        if self.root is None:
            return
        backend, root = current_backend(), self.root
        self.begin_stop()
        await backend.wait_through(root.is_over, root.waiters)
        self.report = root.report()
        self.root_ended_at = time.monotonic()
        await self._end_foreign_tasks()
        await self._close_generators()
        await self._end_executor_threads()
        tasks, threads = self._foreign_tasks(), self._executor_threads()
        left = [Leftover("task", task.get_name(), "unknown", stuck_at(task.get_coro())) for task in tasks]
        left += [Leftover("thread", one.name, "unknown", thread_stuck_at(one.ident)) for one in threads]
        self.add_leftovers(left)

    def _foreign_tasks(self) -> set[asyncio.Task[Any]]:
        """The tasks of other code: those outside our scopes, whose report does not name them."""
        assert self.root is not None
        tasks = {task for task in asyncio.all_tasks() if not task.done()}
        return tasks - _tasks_in(self.root) - {self._last_task}

    async def _end_foreign_tasks(self) -> None:
        cancelled: set[asyncio.Task[Any]] = set()
        while (foreign := self._foreign_tasks()) and (left := self.time_left()) > 0:
            # Once each: a second cancel would interrupt its clean-up. That may start tasks: hence the loop.
            for task in foreign - cancelled:
                task.cancel("the program is ending")
            cancelled |= foreign
            await _pause(foreign, min(left, POLL_SECONDS))
        loop = asyncio.get_running_loop()
        for task in cancelled:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                what = "unhandled exception while quiesce.run was ending"
                loop.call_exception_handler({"message": what, "exception": error, "task": task})

    async def _close_generators(self) -> None:
        loop = asyncio.get_running_loop()
        closing = loop.create_task(loop.shutdown_asyncgens(), name="close async generators")
        while not closing.done() and (left := self.time_left()) > 0:
            await _pause({closing}, min(left, POLL_SECONDS))
        closing.cancel()
        await _pause({closing}, 0)

    async def _end_executor_threads(self) -> None:
        # Calls in progress are waited for, as `asyncio.run` does, but not without limit. Queued ones are run
        # too, unless a signal came: then the program is to end soon.
        self._executor.shutdown(wait=False, cancel_futures=bool(self.signals))
        while self._executor_threads() and self.time_left() > 0:
            await _pause(set(), 0.005)
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _executor_threads(self) -> list[Any]:
        return [thread for thread in list(self._executor._threads) if thread.is_alive()]

    def _drop(self, tasks: set[asyncio.Task[Any]]) -> None:
        """Leave unfinished tasks behind, without a complaint from asyncio: the report names them."""
        for task in tasks:
            if not task.done():
                with suppress(AttributeError):  # a task factory may make tasks of its own class
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                _dropped_tasks.append(task)


@contextmanager
def woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let a signal end the loop's wait for events, in whichever thread and at whatever moment it arrives."""
    # Python runs a handler when the main thread next runs Python code. A signal that the system delivered to
    # another thread, or just before the wait began, would leave the main thread waiting, and the handler
    # would not run. uvloop has such a wake-up of its own.
    if (
        not isinstance(loop, asyncio.BaseEventLoop)
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            loop.add_reader(reader, _pass_on, reader, before)
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(reader)


def _pass_on(reader: socket.socket, before: int) -> None:
    """Take what the signals have written, and give it to those whom they woke before: a loop has handlers by it."""
    with suppress(BlockingIOError):
        numbers = reader.recv(4096)
        if before != -1:
            os.write(before, numbers)


async def _pause(tasks: set[asyncio.Task[Any]], seconds: float) -> None:
    """Wait until these tasks are done, or for `seconds`; ignore a program that cancels all tasks."""
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
