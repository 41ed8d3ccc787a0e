"""All uses of trio's private attributes, in one place; `check_insides` verifies that they exist.

trio's public instruments show every step of every task. This module does what they cannot: it reads and replaces the
value that a task is about to be resumed with, finds the scopes around a task, fixes the order of steps, and reads the
next deadline. It was tested with trio 0.29, 0.32 and 0.35.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from quiesce.audit.model import Chain, await_chain, name_of
from quiesce.audit.watch import RefusedIO

try:
    import outcome
    import trio
    import trio.testing
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "trio is not installed; it comes with an extra: pip install 'quiesce[trio]'", name=missing.name
    ) from None

from trio._core import _run, _thread_cache

Task = trio.lowlevel.Task
_context: Any = _run.GLOBAL_RUN_CONTEXT

__all__ = [
    "CountedThreads",
    "Task",
    "UnknownTrio",
    "awaited_descriptors",
    "cancel_reaches",
    "check_insides",
    "could_fail",
    "counted_threads",
    "current_status",
    "disown_children",
    "fixed_order",
    "gets_cancelled",
    "has_callbacks",
    "innermost_scope",
    "is_resident",
    "make_next_step_fail",
    "next_deadline",
    "no_threads",
    "outcome",
    "trio",
]

_NEEDED: tuple[tuple[object, str], ...] = (
    (Task, "_next_send"),
    (Task, "_cancel_status"),
    (_run.CancelStatus, "_scope"),
    (_run.CancelStatus, "_parent"),
    (_run.CancelStatus, "effectively_cancelled"),
    (_run.Deadlines, "next_deadline"),
    (_run.Runner, "system_nursery"),
    (_run.Runner, "entry_queue"),
    (_run.Runner, "io_manager"),
    (_run, "GLOBAL_RUN_CONTEXT"),
    (_run, "_ALLOW_DETERMINISTIC_SCHEDULING"),
    (_run, "_r"),
    (_thread_cache, "THREAD_CACHE"),
    (trio.testing.MockClock, "_autojump"),
)


class UnknownTrio(RuntimeError):
    """This version of trio lacks a private attribute that the audit needs."""


def check_insides() -> None:
    """Raise `UnknownTrio` unless the installed trio has every private attribute that this module uses."""
    for owner, name in _NEEDED:
        if not hasattr(owner, name):
            where = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", "trio")
            raise UnknownTrio(
                f"the audit's trio world uses {where}.{name}, which trio {trio.__version__} does not have; "
                "it is known to work with trio 0.29 to 0.35"
            )


def next_deadline() -> float:
    """The earliest deadline of any scope; infinity if none is set."""
    deadline: float = _context.runner.deadlines.next_deadline()
    return deadline


def has_callbacks() -> bool:
    """Whether a callback of `run_sync_soon` has not been called yet."""
    return bool(_context.runner.entry_queue.size())


def awaited_descriptors() -> list[int]:
    """The descriptors that tasks wait for, without the socket by which trio wakes itself."""
    runner = _context.runner
    own = runner.entry_queue.wakeup.wakeup_sock.fileno()
    # The keys are descriptors with epoll, and pairs of descriptor and kind of event with kqueue.
    keys = (key[0] if isinstance(key, tuple) else key for key in runner.io_manager._registered)
    return [fd for fd in keys if fd != own]


# The value that a task is about to be resumed with


def gets_cancelled(task: Task) -> bool:
    """Whether the task's next step starts by raising Cancelled."""
    return isinstance(getattr(task._next_send, "error", None), trio.Cancelled)


def make_next_step_fail(task: Task, error: Exception) -> None:
    """Resume the task with an error instead of the value that it waited for."""
    task._next_send = outcome.Error(error)


def could_fail(task: Task, chain: Chain) -> bool:
    """Whether the operation that the task waited for could have failed, judging by its frames.

    Locks, channels, nurseries and bare checkpoints cannot fail. `trio.sleep` counts as an operation that can, because
    scenarios use it in place of real I/O; it ends by the deadline of a scope of its own.
    """
    names = {(code.co_filename.replace("\\", "/").rpartition("/trio/")[2], code.co_name) for code, _ in chain}
    if not chain or ("_core/_traps.py", "cancel_shielded_checkpoint") in names:
        return False
    if ("_timeouts.py", "sleep") in names:
        status = task._cancel_status
        return bool(status._scope.cancel_called and not _parent_is_cancelled(status))
    if any(file.startswith(_NEVER_FAIL) for file, _ in names):
        return False
    return not gets_cancelled(task)


_NEVER_FAIL = ("_sync.py", "_channel.py", "_timeouts.py", "_core/_parking_lot.py", "_core/_run.py")


def _parent_is_cancelled(status: Any) -> bool:
    return status._parent is not None and not status._scope.shield and status._parent.effectively_cancelled


# The scopes around a task


def current_status() -> object:
    """The cancel status that represents the innermost scope of the current task."""
    return trio.lowlevel.current_task()._cancel_status


def cancel_reaches(task: Task, status: object) -> bool:
    """Whether a cancel of that scope reaches the task: it is inside the scope, with no shield in between."""
    inner: Any = task._cancel_status
    while inner is not None:
        if inner is status:
            return True
        if inner._scope.shield:
            return False
        inner = inner._parent
    return False


def innermost_scope(task: Task, outermost: trio.CancelScope) -> trio.CancelScope | None:
    """The program's innermost scope around the task; None if only `outermost` and trio's own are around it."""
    status: Any = task._cancel_status
    if any(
        code.co_filename.endswith(_TIMEOUTS) and code.co_name == "sleep" for code, _ in await_chain(task.coro)
    ):
        # `trio.sleep` is implemented with a scope of its own, which is not the program's.
        status = status._parent
    system = _context.runner.system_nursery
    if (
        status is None
        or status._scope is outermost
        or (system is not None and status._scope is system.cancel_scope)
    ):
        return None
    scope: trio.CancelScope = status._scope
    return scope


_TIMEOUTS = os.path.join("trio", "_timeouts.py")


# System tasks of quiesce's kernel that last as long as the run, on purpose: the file and the functions. The tasks in
# the nursery of `_own` are judged one by one.
_RESIDENT = os.path.join("quiesce", "kernel", "loops", "trio_loop.py")
_RESIDENTS = ("TrioBackend._own", "TrioBackend._watch_for_the_end")


def is_resident(code: Any) -> bool:
    """Whether a task that runs this code lasts as long as the run, on purpose, and is not the scenario's."""
    return code is not None and code.co_qualname in _RESIDENTS and code.co_filename.endswith(_RESIDENT)


# The whole process


@contextmanager
def fixed_order(seed: int) -> Iterator[None]:
    """Let the seed alone decide the order of steps in each round of the scheduler."""
    # If it may, trio sorts each round by the order of task creation. Then its random generator decides whether to
    # reverse the round.
    scheduler: Any = _run
    original = scheduler._r, scheduler._ALLOW_DETERMINISTIC_SCHEDULING
    scheduler._r, scheduler._ALLOW_DETERMINISTIC_SCHEDULING = random.Random(seed), True
    try:
        yield
    finally:
        scheduler._r, scheduler._ALLOW_DETERMINISTIC_SCHEDULING = original


class _NoThreads:
    """Replaces trio's thread cache and refuses to start threads."""

    def start_thread_soon(self, fn: Callable[[], object], deliver: object, name: str | None = None) -> None:
        # `to_thread.run_sync` names the thread "function from task"; the function here is a wrapper of trio's.
        job = name.partition(" from ")[0] if name else name_of(fn)
        raise RefusedIO(f"it runs {job} in a thread")


class CountedThreads:
    """Replaces trio's thread cache and counts the threads at work.

    The stack of a thread does not tell: one that has just been handed its job still looks idle.
    """

    def __init__(self, cache: Any) -> None:
        self.working = 0
        self._cache = cache
        self._lock = threading.Lock()

    def start_thread_soon(
        self, fn: Callable[[], object], deliver: Callable[[Any], object], name: str | None = None
    ) -> None:
        def deliver_and_count(result: object) -> None:
            try:
                deliver(result)
            except OSError:
                # The run was abandoned, and its wake-up socket is closed.
                pass
            finally:
                with self._lock:
                    self.working -= 1

        with self._lock:
            self.working += 1
        self._cache.start_thread_soon(fn, deliver_and_count, name)


@contextmanager
def _replaced_thread_cache(stand_in: Any) -> Iterator[Any]:
    original = _thread_cache.THREAD_CACHE
    _thread_cache.THREAD_CACHE = stand_in
    try:
        yield stand_in
    finally:
        _thread_cache.THREAD_CACHE = original


def no_threads() -> AbstractContextManager[None]:
    """Refuse worker threads inside the block."""
    return _replaced_thread_cache(_NoThreads())


def counted_threads() -> AbstractContextManager[CountedThreads]:
    """Count the worker threads that are at work inside the block."""
    return _replaced_thread_cache(CountedThreads(_thread_cache.THREAD_CACHE))


def disown_children(task: Task) -> None:
    """Empty the nurseries of a task in an abandoned run; trio asserts that a nursery is empty when it is destroyed."""
    for nursery in task.child_nurseries:
        nursery._children.clear()
