"""What other threads are busy with, and for whom: read from their stacks.

A thread of a pool serves every caller. So it is not the thread that belongs to a block, but the work that it
is doing: by the context in which the work runs, or in which its result is awaited.

| thread of | its work | the context that says whose it is |
|---|---|---|
| an executor | the item of the queue | that of `asyncio.to_thread`, or of the awaiting task (a) |
| anyio | the call of its `run` | the one that anyio runs it in |
| trio | the call of `trio.to_thread.run_sync` | the one that trio runs it in |
| `quiesce.to_thread` | its `ThreadChild` | the one that it runs in; a scope owns it already |
| any other code | the thread itself | the one that it was given (b) |

(a) For `run_in_executor`, which passes on no context; known until the awaiting task is cancelled.
(b) From Python 3.14 on every thread has one; before, only `Thread(target=context.run)`.

Idle threads of pools, and threads by which the kernel and asyncio watch things, are not busy. Nor is a thread
that a library starts once and keeps for the whole program (`serves_the_program`).
"""

from __future__ import annotations

import sys
import threading
from asyncio import base_futures
from collections.abc import Callable, Iterator
from concurrent.futures import thread as executor_threads
from contextvars import Context
from functools import partial
from inspect import unwrap
from subprocess import Popen
from threading import Thread, get_ident
from types import FrameType
from typing import Any, NamedTuple

from quiesce.kernel.base import KERNEL_FOLDER, label_of, variables_of
from quiesce.kernel.scope import Node, current_node
from quiesce.kernel.threads import IDLE_NAME, ThreadChild

from .await_graph import closure_of

# How the names of the kernel's own threads begin; a pooled one has another name while it works.
_NEVER_BUSY = (IDLE_NAME, "quiesce-watchdog")


_services: set[str] = set()  # modules


def serves_the_program(module: str) -> None:
    """Have no block blamed for threads whose function is of `module`: it starts one when it is first used."""
    _services.add(module)


class ThreadWork(NamedTuple):
    """What a thread is busy with."""

    thread: Thread
    item: object  # the identity of the work: the same object as long as it is the same work
    label: object
    pooled: bool
    context: Context | None  # None: unknown
    abandoned: bool = False  # the task that awaited it was cancelled
    owned: bool = False  # by a scope, which waits for it

    @property
    def node(self) -> Node | None:
        """The node that it belongs to, if the context is known."""
        return self.context.get(current_node) if self.context is not None else None


def all_work() -> list[ThreadWork]:
    """What the other threads are busy with."""
    us = get_ident()
    threads = [
        thread
        for thread in threading.enumerate()
        if thread.ident != us and not thread.name.startswith(_NEVER_BUSY)
    ]
    if not threads:
        return []
    _add_library_readers()
    stacks = sys._current_frames()
    try:
        return [work for thread in threads if (work := work_of(thread, stacks)) is not None]
    finally:
        del stacks  # it contains our own frame: a cycle


def still_at(work: ThreadWork) -> bool:
    """Whether the thread is still doing this work."""
    if not work.pooled:
        return work.thread.is_alive()
    now = work_of(work.thread, sys._current_frames())
    return now is not None and now.item is work.item


def work_of(thread: Thread, stacks: dict[int, FrameType]) -> ThreadWork | None:
    """What this thread is busy with; None if it is idle, or one of the kernel's or asyncio's own."""
    frame = stacks.get(thread.ident or 0)
    if frame is None:
        return None
    found, reader, outermost = None, None, frame
    # The outermost match counts: the work itself may use a pool's functions further in.
    while frame is not None:
        code = frame.f_code
        if id(code) in _readers:
            found, reader = frame, _readers[id(code)]
        elif code.co_filename != threading.__file__:
            outermost = frame
        frame = frame.f_back
    if found is not None and reader is not None:
        return reader(thread, found)
    first = outermost.f_code
    if first.co_filename.startswith(KERNEL_FOLDER) or first.co_name == "_do_waitpid":
        return None
    target = getattr(thread, "_target", None)
    if getattr(target, "__module__", None) in _services:
        return None
    context = getattr(thread, "_context", None) or _bound_to(target)
    return ThreadWork(thread, thread, thread.name, False, context)


def _read_quiesce(thread: Thread, frame: FrameType) -> ThreadWork | None:
    variables = variables_of(frame)
    child: ThreadChild = variables["self"]
    return ThreadWork(thread, child, child._label, True, variables["context"], owned=True)


def _read_anyio(thread: Thread, frame: FrameType) -> ThreadWork | None:
    variables = variables_of(frame)
    future: Any = variables.get("future")
    if future is None or (future.done() and not future.cancelled()):
        return None  # it waits for work, or is about to
    return ThreadWork(thread, future, variables.get("func"), True, variables.get("context"))


def _read_trio(thread: Thread, frame: FrameType) -> ThreadWork | None:
    call, fn, context = map(variables_of(frame).get, ("task_register", "sync_fn", "context"))
    return ThreadWork(thread, call, fn, True, context)


def _read_executor(thread: Thread, frame: FrameType) -> ThreadWork | None:
    item: Any = variables_of(frame).get("work_item")
    if item is None or item.future.done():
        return None  # it waits for work, or is about to
    # From Python 3.14 on the function and its arguments are one tuple, `task`.
    fn = getattr(item, "fn", None) or next(iter(getattr(item, "task", ())), None)
    context = _bound_to(fn)
    label = fn.args[0] if context is not None and isinstance(fn, partial) and fn.args else fn
    abandoned = False
    if context is None:
        futures = list(_chained_futures(item.future))
        abandoned = any(future.cancelled() for future in futures)
        # The task that awaits such a future has registered its wake-up there, together with its own context.
        contexts = [found for future in futures for _, found in getattr(future, "_callbacks", None) or ()]
        context = contexts[0] if contexts else None
    return ThreadWork(thread, item, label_of(label), True, context, abandoned)


def has_in_variable(thread: Thread, pid: int) -> bool:
    """Whether a function that runs in this thread has the process `pid` in a variable, as a `Popen`."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        for value in variables_of(frame).values():
            if isinstance(value, Popen) and getattr(value, "pid", None) == pid:
                return True
        frame = frame.f_back
    return False


def _bound_to(fn: object) -> Context | None:
    """The context of `fn`, if that is `context.run`, or a partial of it."""
    while isinstance(fn, partial):
        fn = fn.func
    owner = getattr(fn, "__self__", None)
    return owner if isinstance(owner, Context) else None


def _chained_futures(future: Any) -> Iterator[Any]:
    """The asyncio futures that wait for one of an executor: they are in the closures of its callbacks."""
    for callback in list(getattr(future, "_done_callbacks", ())):
        yield from filter(base_futures.isfuture, closure_of(callback))


# By the address of the code object: comparing code objects by value would take longer than all the rest.
_readers: dict[int, Callable[[Thread, FrameType], ThreadWork | None]] = {
    id(executor_threads._worker.__code__): _read_executor,
    id(ThreadChild._work.__code__): _read_quiesce,
}


def _add_library_readers() -> None:
    # Only for libraries that the program has imported: without them there is no such thread.
    worker: Any = getattr(sys.modules.get("anyio._backends._asyncio"), "WorkerThread", None)
    if worker is not None:
        _readers.setdefault(id(worker.run.__code__), _read_anyio)
    run_sync: Any = getattr(sys.modules.get("trio.to_thread"), "run_sync", None)
    if run_sync is not None:
        for inner in unwrap(run_sync).__code__.co_consts:
            if getattr(inner, "co_name", "") == "worker_fn":
                _readers.setdefault(id(inner), _read_trio)
