"""What other threads are busy with, and for whom: read off their stacks.

A thread of a pool serves anybody, so not the thread but the work that it is at belongs to somebody: to whom says the
context that the work runs in, or that its result is awaited in.

| thread | its work | whose it is |
|---|---|---|
| of an executor | the item of its queue that it is at | the context of `asyncio.to_thread`; for `run_in_executor`, which hands over none, that of who awaits it, until that is cancelled |
| of anyio | its `run`, with all that it was given | the context that anyio runs it in |
| of trio | the call of `trio.to_thread.run_sync` | the context that trio runs it in |
| of `quiesce.to_thread` | its `ThreadChild` | the context that it runs in; a scope owns it already |
| any other | itself | the context it was given (always from Python 3.14 on; before, `Thread(target=context.run)`) |

Idle threads of pools and those by which the kernel and asyncio watch things are not busy.
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

_NEVER_BUSY = (IDLE_NAME, "quiesce-watchdog")  # those of the kernel, while they are called so


class ThreadWork(NamedTuple):
    """What a thread is busy with."""

    thread: Thread
    what: object  # the same as long as it is the same work
    label: object
    pooled: bool
    context: Context | None  # None: nobody can say
    abandoned: bool = False  # who awaited it has been cancelled
    owned: bool = False  # by a scope, which waits for it

    @property
    def node(self) -> Node | None:
        """Whose it is, if the context is known."""
        return self.context.get(current_node) if self.context is not None else None


def all_work() -> list[ThreadWork]:
    """What each of the other threads is busy with."""
    us = get_ident()
    threads = [
        thread
        for thread in threading.enumerate()
        if thread.ident != us and not thread.name.startswith(_NEVER_BUSY)
    ]
    if not threads:
        return []
    _learn_of_libraries()
    stacks = sys._current_frames()
    try:
        return [work for thread in threads if (work := work_of(thread, stacks)) is not None]
    finally:
        del stacks  # it holds our own frame too


def still_at(work: ThreadWork) -> bool:
    """Whether the thread is at it still."""
    if not work.pooled:
        return work.thread.is_alive()
    now = work_of(work.thread, sys._current_frames())
    return now is not None and now.what is work.what


def work_of(thread: Thread, stacks: dict[int, FrameType]) -> ThreadWork | None:
    """What this thread is busy with; None if it is idle, or nobody's business."""
    frame = stacks.get(thread.ident or 0)
    if frame is None:
        return None
    found, kind, outermost = None, None, frame
    while frame is not None:  # the outermost one counts: work may use such things itself
        code = frame.f_code
        if id(code) in _kinds:
            found, kind = frame, _kinds[id(code)]
        elif code.co_filename != threading.__file__:
            outermost = frame
        frame = frame.f_back
    if found is not None and kind is not None:
        return kind(thread, found)
    first = outermost.f_code
    if first.co_filename.startswith(KERNEL_FOLDER) or first.co_name == "_do_waitpid":
        return None
    context = getattr(thread, "_context", None) or _bound_to(getattr(thread, "_target", None))
    return ThreadWork(thread, thread, thread.name, False, context)


def _of_quiesce(thread: Thread, frame: FrameType) -> ThreadWork | None:
    given = variables_of(frame)
    owned: ThreadChild = given["self"]
    return ThreadWork(thread, owned, owned._label, True, given["context"], owned=True)


def _of_anyio(thread: Thread, frame: FrameType) -> ThreadWork | None:
    given = variables_of(frame)
    future: Any = given.get("future")
    if future is None or (future.done() and not future.cancelled()):
        return None  # it waits for something to do, or will in a moment
    return ThreadWork(thread, future, given.get("func"), True, given.get("context"))


def _of_trio(thread: Thread, frame: FrameType) -> ThreadWork | None:
    given = variables_of(frame)
    return ThreadWork(thread, given.get("task_register"), given.get("sync_fn"), True, given.get("context"))


def _of_executor(thread: Thread, frame: FrameType) -> ThreadWork | None:
    item: Any = variables_of(frame).get("work_item")
    if item is None or item.future.done():
        return None  # it waits for something to do, or will in a moment
    # From Python 3.14 on the function and its arguments are one, `task`.
    fn = getattr(item, "fn", None) or next(iter(getattr(item, "task", ())), None)
    context = _bound_to(fn)
    label = fn.args[0] if context is not None and isinstance(fn, partial) and fn.args else fn
    abandoned = False
    if context is None:
        awaited = list(_awaiting(item.future))
        abandoned = any(future.cancelled() for future in awaited)
        contexts = [found for future in awaited for _, found in getattr(future, "_callbacks", None) or ()]
        context = contexts[0] if contexts else None
    return ThreadWork(thread, item, label_of(label), True, context, abandoned)


def holds(thread: Thread, pid: int) -> bool:
    """Whether what it is busy with has this process in its hands: as a `Popen` in some function's variable."""
    for frame in _frames_of(thread, sys._current_frames()):
        for value in variables_of(frame).values():
            if isinstance(value, Popen) and getattr(value, "pid", None) == pid:
                return True
    return False


def _frames_of(thread: Thread, stacks: dict[int, FrameType]) -> Iterator[FrameType]:
    frame = stacks.get(thread.ident or 0)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _bound_to(fn: object) -> Context | None:
    """The context whose `run` it is."""
    while isinstance(fn, partial):
        fn = fn.func
    owner = getattr(fn, "__self__", None)
    return owner if isinstance(owner, Context) else None


def _awaiting(future: Any) -> Iterator[Any]:
    """The asyncio futures that are chained to one of an executor: they are in the closures of its callbacks."""
    for callback in list(getattr(future, "_done_callbacks", ())):
        for cell in getattr(callback, "__closure__", None) or ():
            try:
                content = cell.cell_contents
            except ValueError:  # still empty
                continue
            if base_futures.isfuture(content):
                yield content


# By the address of the code: to compare the codes themselves takes longer than all the rest.
_kinds: dict[int, Callable[[Thread, FrameType], ThreadWork | None]] = {
    id(executor_threads._worker.__code__): _of_executor,
    id(ThreadChild._work.__code__): _of_quiesce,
}


def _learn_of_libraries() -> None:
    worker: Any = getattr(sys.modules.get("anyio._backends._asyncio"), "WorkerThread", None)
    if worker is not None:
        _kinds.setdefault(id(worker.run.__code__), _of_anyio)
    run_sync: Any = getattr(sys.modules.get("trio.to_thread"), "run_sync", None)
    if run_sync is not None:
        for inner in unwrap(run_sync).__code__.co_consts:
            if getattr(inner, "co_name", "") == "worker_fn":
                _kinds.setdefault(id(inner), _of_trio)
