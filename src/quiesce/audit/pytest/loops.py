"""Observes event loops while a test runs, without replacing them: the loops belong to other plugins.

Inside `Observer.installed()`, the methods through which every task, generator and error of a loop passes are patched to
inform the observer and then do what they always did. Everything gets an *owner*: the running test, or the wider fixture
that is being created. What a task creates belongs to the owner of the task, so that a connection which a session-wide
server accepts during a test belongs to the server.

Pending tasks are examined just before their loop is closed, or at the end of the test if the loop lives on. Later would
be too late: closing a runner cancels all tasks, and then nothing is left to see. The observer never drives a loop:
whether a task would have ended by itself is derived from what it waits for.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import CoroutineType
from typing import Any

from quiesce.audit.model import (
    Chain,
    Sighting,
    await_chain,
    callers,
    coroutine_of,
    name_of,
    reporting_frames,
    steady_object,
)

# anyio's plugin runs all fixtures and tests of a runner in one task. What that task creates belongs to the current
# owner.
_SHARED_TASK = "TestRunner._run_tests_and_fixtures"


class Owner:
    """The test or fixture that tasks belong to; compared by identity. `file` is the file of a test."""

    def __init__(self, name: str, *, is_test: bool, file: str = "") -> None:
        self.name = name
        self.is_test = is_test
        self._file = file

    def handles_errors_of(self, loop: Any) -> bool:
        """Whether the test has set its own exception handler: a function from its file, a mock, a list's `append`."""
        handler = loop.get_exception_handler()
        function = getattr(handler, "__func__", handler)
        code = getattr(function, "__code__", None)
        if code is not None:
            return bool(code.co_filename == self._file)
        return handler is not None and not isinstance(handler, functools.partial)


@dataclass(slots=True)
class TaskRecord:
    """A task that was created while an owner was known."""

    # Weak, so that the observer does not keep alive a task that the test has dropped.
    ref: weakref.ref[asyncio.Task[Any]]
    owner: Owner | None
    name: str
    made_at: Chain
    is_reported: bool = False


@dataclass(slots=True)
class GeneratorRecord:
    """An async generator that was started while an owner was known."""

    ref: weakref.ref[Any]
    owner: Owner
    is_reported: bool = False


class Observer:
    """Attributes tasks and generators to owners. `owner` is the current one; `see` is called for each sighting."""

    def __init__(self, see: Callable[[Sighting], None]) -> None:
        self.owner: Owner | None = None
        self._see = see
        self._tasks: dict[int, TaskRecord] = {}
        self._generators: dict[int, GeneratorRecord] = {}
        # trio's system tasks: runner, task, owner, and where the task was created.
        self._system_tasks: list[tuple[Any, Any, Owner, Chain]] = []
        self._libuv: weakref.WeakSet[Any] = weakref.WeakSet()
        self._undo = ExitStack()
        self._patched: set[type] = set()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Observe all event loops inside the block."""
        with self._undo:
            self._patch_loop(asyncio.BaseEventLoop)
            self._patch(asyncio.Runner, "close", self._patched_runner_close)
            self.notice_imports()
            yield

    def notice_imports(self) -> None:
        """Patch the loops of libraries that have been imported since the last call."""
        uvloop, trio = sys.modules.get("uvloop"), sys.modules.get("trio")
        if uvloop is not None and uvloop.Loop not in self._patched:
            self._patch_loop(uvloop.Loop)
        if trio is not None and trio._core._run.Runner not in self._patched:
            self._patch(trio._core._run.Runner, "spawn_system_task", self._patched_spawn_system_task)
            self._patch(trio._core._run.Runner, "task_exited", self._patched_task_exited)

    def _patch_loop(self, loop: type) -> None:
        self._patch(loop, "create_task", self._patched_create_task)
        self._patch(loop, "call_exception_handler", self._patched_call_exception_handler)
        self._patch(loop, "_asyncgen_firstiter_hook", self._patched_firstiter)
        self._patch(loop, "_asyncgen_finalizer_hook", self._patched_finalizer)
        self._patch(loop, "close", self._patched_loop_close)

    def _patch(
        self, owner: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        # An inherited method is restored by deleting the patch, or the class would get a method of its own.
        is_own = name in vars(owner)
        original = getattr(owner, name)
        setattr(owner, name, functools.wraps(original)(make(original)))
        self._undo.callback(setattr, owner, name, original) if is_own else self._undo.callback(
            delattr, owner, name
        )
        self._patched.add(owner)

    # The patched methods

    def _patched_create_task(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_task(loop: Any, coro: Any, **options: Any) -> Any:
            if not isinstance(loop, asyncio.BaseEventLoop):
                self._libuv.add(loop)
            task = original(loop, coro, **options)
            if trace := getattr(task, "_source_traceback", None):
                # In debug mode a task shows the stack that created it. This function does not belong there.
                trace[:] = [frame for frame in trace if frame.filename != __file__]
            if self.owner is not None and isinstance(task, asyncio.Task):
                owner = self._owner_of_current(loop)
                self._tasks[id(task)] = TaskRecord(weakref.ref(task), owner, name_of(coro), callers(1, 16))
            return task

        return create_task

    def _owner_of_current(self, loop: Any) -> Owner | None:
        current = asyncio.current_task(loop) if asyncio._get_running_loop() is loop else None
        if current is None:
            return self.owner
        record = self._find(current)
        if record is None:
            return None  # a task from before the first test
        return self.owner if record.name == _SHARED_TASK else record.owner

    def _find(self, task: object) -> TaskRecord | None:
        record = self._tasks.get(id(task))
        # When a task is reported from its finaliser, weak references to it are dead already.
        return record if record is not None and record.ref() in (task, None) else None

    def _patched_call_exception_handler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call_exception_handler(loop: Any, context: dict[str, Any]) -> Any:
            if self.owner is not None and self.owner.is_test and not self.owner.handles_errors_of(loop):
                self._report_complaint(context, reporting_frames(sys._getframe(1)))
            return original(loop, context)

        return call_exception_handler

    def _report_complaint(self, context: dict[str, Any], reported_at: Chain) -> None:
        message: str = context.get("message", "")
        error = context.get("exception")
        task = context.get("task") or context.get("future")
        text = f"{type(error).__name__}: {error}" if error is not None else message
        if reported_at and not ("destroyed" in message or "never retrieved" in message):
            self._see(
                Sighting("reported", steady_object(message) or type(error).__name__, reported_at, detail=text)
            )
        elif isinstance(task, asyncio.Task):
            record = self._find(task)
            if record is not None and (record.owner is not self.owner or record.is_reported):
                return
            coroutine = coroutine_of(task)
            what, made_at = name_of(coroutine), record.made_at if record is not None else ()
            if "destroyed" in message:
                self._see(Sighting("destroyed", what, made_at, await_chain(coroutine)))
            elif "never retrieved" in message:
                self._see(Sighting("unretrieved", what, made_at, detail=text))
            else:
                self._see(Sighting("callback", what, made_at, detail=f"{message}: {text}"))
        elif "never retrieved" in message:
            self._see(Sighting("unretrieved", f"a future with {type(error).__name__}", detail=text))
        elif "asynchronous generator" in message:
            self._see(
                Sighting("generator", name_of(context.get("asyncgen")), detail=f"closing it failed: {text}")
            )
        else:
            callback = getattr(context.get("handle"), "_callback", None)
            what = name_of(callback) if callback is not None else message
            self._see(Sighting("callback", what, detail=f"{message}: {text}"))

    def _patched_firstiter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def firstiter(loop: Any, agen: AsyncGenerator[Any, Any]) -> Any:
            if self.owner is not None and (owner := self._owner_of_current(loop)) is not None:
                self._generators[id(agen)] = GeneratorRecord(weakref.ref(agen), owner)
            return original(loop, agen)

        return firstiter

    def _patched_finalizer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def finalizer(loop: Any, agen: AsyncGenerator[Any, Any]) -> Any:
            record = self._generators.pop(id(agen), None)
            if record is not None and self._is_current(record.owner) and not record.is_reported:
                detail = "dropped; the garbage collector closed it"
                self._see(Sighting("generator", name_of(agen), stuck_at=await_chain(agen), detail=detail))
            return original(loop, agen)

        return finalizer

    def _is_current(self, owner: Owner | None) -> bool:
        return owner is not None and owner.is_test and owner is self.owner

    @property
    def has_libuv(self) -> bool:
        """Whether a uvloop loop is open, which may keep a spare descriptor for itself."""
        return any(not loop.is_closed() for loop in self._libuv)

    # Leftovers

    def _patched_runner_close(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def close(runner: Any) -> Any:
            loop = getattr(runner, "_loop", None)
            if loop is not None and not loop.is_closed():
                self._look_at(loop)
                self._look_at_generators()
            return original(runner)

        return close

    def _patched_loop_close(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def close(loop: Any) -> Any:
            if not loop.is_closed():
                self._look_at(loop)
            return original(loop)

        return close

    def may_find(self) -> bool:
        """Whether the running test has left something: still referenced, or garbage that has not been collected yet."""
        for record in self._tasks.values():
            task = record.ref()
            if task is None or record.is_reported or not self._is_current(record.owner):
                continue
            if record.name != _SHARED_TASK and (not task.done() or getattr(task, "_log_traceback", False)):
                return True
        if any(entry[2] is self.owner for entry in self._system_tasks):
            return True
        return any(
            not record.is_reported and self._is_current(record.owner) and _is_open(record.ref())
            for record in self._generators.values()
        )

    def look(self) -> None:
        """Report what the running test has left in loops that live on."""
        loops = {id(task.get_loop()): task.get_loop() for _, task in self._pending(None)}
        for loop in loops.values():
            self._look_at(loop)
        self._look_at_generators()
        for runner, *_ in list(self._system_tasks):
            self._look_at_trio(runner)

    def forget(self, owner: Owner) -> None:
        """Drop the finished records of a test that has ended.

        The records of what is still alive keep their owner, so that no other test is blamed for it.
        """
        for key in [
            key for key, record in self._tasks.items() if record.owner is owner or record.ref() is None
        ]:
            task = self._tasks[key].ref()
            if task is None or task.done():
                del self._tasks[key]
        for key in [key for key, record in self._generators.items() if record.ref() is None]:
            del self._generators[key]
        self._system_tasks = [entry for entry in self._system_tasks if entry[1] in entry[0].tasks]

    def _pending(self, loop: Any) -> list[tuple[TaskRecord, asyncio.Task[Any]]]:
        found: list[tuple[TaskRecord, asyncio.Task[Any]]] = []
        for record in list(self._tasks.values()):
            task = record.ref()
            if task is None or task.done() or record.is_reported or not self._is_current(record.owner):
                continue
            if record.name != _SHARED_TASK and (loop is None or task.get_loop() is loop):
                found.append((record, task))
        return found

    def _look_at(self, loop: Any) -> None:
        for record, task in self._pending(loop):
            record.is_reported = True
            is_about_to_step = _is_about_to_step(task)
            if is_about_to_step and record.name.endswith(".aclose"):
                continue  # a dropped generator, reported as such
            detail = "it was cancelled, and nothing awaited it" if task.cancelling() else ""
            kind = "outlived" if task.cancelling() or (is_about_to_step and _has_begun(task)) else "leaked"
            self._see(Sighting(kind, record.name, record.made_at, await_chain(task.get_coro()), detail))

    def _look_at_generators(self) -> None:
        if any(record.is_reported and record.owner is self.owner for record in self._tasks.values()):
            return  # a leaked task may be inside the generator, and is reported
        for record in list(self._generators.values()):
            agen = record.ref()
            if not record.is_reported and self._is_current(record.owner) and _is_open(agen):
                record.is_reported = True
                detail = "still referenced, and not closed"
                self._see(Sighting("generator", name_of(agen), stuck_at=await_chain(agen), detail=detail))

    # trio: nurseries do not leave tasks behind. Only system tasks can be left over, until the end of the run cancels
    # them.

    def _patched_spawn_system_task(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def spawn_system_task(runner: Any, async_fn: Any, *args: Any, **options: Any) -> Any:
            task = original(runner, async_fn, *args, **options)
            if self.owner is not None and not _is_resident(task):
                self._system_tasks.append((runner, task, self.owner, callers(1, 16)))
            return task

        return spawn_system_task

    def _patched_task_exited(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def task_exited(runner: Any, task: Any, outcome: Any) -> Any:
            if task is runner.main_task:
                self._look_at_trio(runner)
            return original(runner, task, outcome)

        return task_exited

    def _look_at_trio(self, runner: Any) -> None:
        for entry in [entry for entry in self._system_tasks if entry[0] is runner]:
            _, task, owner, made_at = entry
            if task in runner.tasks and self._is_current(owner):
                self._system_tasks.remove(entry)
                detail = "a system task, which only the end of trio's run cancels"
                self._see(Sighting("leaked", name_of(task.coro), made_at, await_chain(task.coro), detail))


def _is_open(agen: Any) -> bool:
    return agen is not None and agen.ag_frame is not None and not agen.ag_running


def _is_about_to_step(task: Any) -> bool:
    """Whether a task waits for nothing but its next step."""
    waiter = getattr(task, "_fut_waiter", None)
    return waiter is None or waiter.done()


def _has_begun(task: asyncio.Task[Any]) -> bool:
    coroutine = task.get_coro()
    return not isinstance(coroutine, CoroutineType) or coroutine.cr_suspended


def _is_resident(task: Any) -> bool:
    from quiesce.audit.trio import is_resident

    return is_resident(getattr(task.coro, "cr_code", None))
