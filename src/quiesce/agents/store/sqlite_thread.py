"""The one thread that works for a SQLite store.

Invariants
- One thread at a time: it takes all jobs that were given since it last looked, does the writes among them in one transaction, and tells
  those who wait when the commit has returned. So many conversations share one sync of the disk, and no event loop waits for the file.
- With nothing to do there is no thread: it comes from the kernel's idle ones, and goes back to them. Nothing has to be joined.
- A job that was given is done. Its caller waits for its end however often it is cancelled, or Ctrl-C is pressed, and then has that.
- One job that fails takes no other with it: if a transaction fails, its jobs are done again one by one.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Generic, TypeVar

from quiesce.kernel.inner import Backend, Delivery, WaitQueue, current_backend, run_in_thread

from .events import StoreClosed, StoreConflict, StoreError
from .sqlite_file import SQLiteFile

T = TypeVar("T")


class Job(Generic[T]):
    """Something to do in the writer's thread, and who waits for it."""

    __slots__ = ("_backend", "_ended", "_gate", "_value", "_work", "error", "over", "writes")

    def __init__(self, work: Callable[[], T], *, writes: bool = False) -> None:
        self.writes = writes
        self.over = False
        self.error: BaseException | None = None
        self._work = work
        self._value: Any = None
        self._backend: Backend | None = None  # whose caller waits; None: a plain thread, at the gate
        self._ended = WaitQueue()
        self._gate: threading.Event | None = None

    def run(self) -> None:
        """Do it, in the writer's thread; raises what it raises."""
        self._value = self._work()

    def undo(self) -> None:
        """What it did was rolled back."""

    def tell(self) -> None:
        """It is over: let who waits know."""
        if self._gate is not None:
            self.over = True
            self._gate.set()
        elif self._backend is not None:
            self._backend.run_from_anywhere(self._wake)

    def _wake(self) -> None:
        self.over = True
        self._ended.wake_all()

    async def wait(self, backend: Backend, give: Callable[[], None]) -> T:
        """Give it, and wait for its end, in an event loop."""
        self._backend = backend
        give()
        cancelled = await backend.wait_through(self._is_over, self._ended)
        if cancelled is not None:
            cancelled.__cause__, self.error = self.error, None
        try:
            await backend.reraise(cancelled)
            return self._result()
        finally:
            del cancelled  # its traceback leads back to this frame

    def wait_sync(self, give: Callable[[], None]) -> T:
        """Give it, and wait for its end, in a plain thread."""
        gate = self._gate = threading.Event()
        give()
        interrupted: KeyboardInterrupt | None = None
        while not self.over:
            try:
                gate.wait()
            except KeyboardInterrupt as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted from self.error
        return self._result()

    def _is_over(self) -> bool:
        return self.over

    def _result(self) -> T:
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
            value: T = self._value
            return value
        finally:
            del error


class Writer:
    """Does jobs in the order in which they were given."""

    def __init__(self, file: SQLiteFile) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._jobs: deque[Job[Any]] = deque()
        self._busy = False
        self._closed = False
        self._pid = os.getpid()

    def check_open(self) -> None:
        """StoreClosed if it is not."""
        if self._closed:
            raise StoreClosed(
                f"the store {self._file.path!r} was closed: make a new SQLiteStore of that path"
            )

    async def do(self, job: Job[T]) -> T:
        """Do it. A caller who is cancelled meanwhile gets that when the job is over."""
        backend = current_backend()
        # On trio, a caller that is already cancelled starts nothing.
        await backend.checkpoint_if_cancelled()
        return await job.wait(backend, lambda: self._give(job))

    def do_sync(self, job: Job[T]) -> T:
        """The same in a plain thread."""
        return job.wait_sync(lambda: self._give(job))

    async def close(self) -> None:
        """Do what was given before, then close the file. However often it is called, and cancelled."""
        self._closed = True
        closing = Job(self._file.close)
        await closing.wait(current_backend(), lambda: self._give(closing, last=True))

    def close_sync(self) -> None:
        """The same in a plain thread."""
        self._closed = True
        closing = Job(self._file.close)
        closing.wait_sync(lambda: self._give(closing, last=True))

    def drop(self) -> None:
        """The store is gone without a close, or the program ends: nobody waits for anything any more."""
        if os.getpid() != self._pid:  # a copy in a forked child: the file is the parent's
            return
        self._closed = True
        with self._lock:
            if self._busy:
                self._jobs.append(Job(self._file.close))
                return
            self._file.close()

    def _give(self, job: Job[Any], *, last: bool = False) -> None:
        if os.getpid() != self._pid:
            raise StoreError(
                f"the store {self._file.path!r} was made before a fork, and SQLite does not survive one: "
                "make a new SQLiteStore in the child"
            )
        with self._lock:
            if not last:
                self.check_open()
            self._jobs.append(job)
            if self._busy:
                return
            self._busy = True
        try:
            run_in_thread("quiesce-store", self._work)
        except RuntimeError:  # no more threads, or the interpreter is at its end: rather here than not at all
            self._work()()

    # In the thread

    def _work(self) -> Delivery:
        """Returns what tells the last ones: a thread is idle again before anybody hears that its work is done."""
        done: list[Job[Any]] = []
        while True:
            with self._lock:
                jobs = list(self._jobs)
                self._jobs.clear()
                if not jobs:
                    self._busy = False
                    return partial(_tell, done)
            _tell(done)
            for writes, group in groupby(jobs, attrgetter("writes")):
                if writes:
                    self._write(list(group))
                else:
                    for job in group:
                        self._do(job)
            done = jobs

    def _do(self, job: Job[Any]) -> None:
        try:
            job.run()
        except BaseException as error:
            self._file.roll_back(error)
            job.error = self._file.explain(error)

    def _write(self, jobs: list[Job[Any]]) -> None:
        written: list[Job[Any]] = []
        try:
            self._file.begin()
            for job in jobs:
                try:
                    job.run()
                    written.append(job)
                except StoreConflict as refused:  # found before anything was written
                    job.error = refused
            self._file.commit()
        except BaseException as error:
            for job in reversed(written):
                job.undo()
            self._file.roll_back(error)
            if len(jobs) == 1:
                jobs[0].error = self._file.explain(error)
                return
            for job in jobs:
                job.error = None
                self._write([job])


def _tell(jobs: list[Job[Any]]) -> None:
    for job in jobs:
        job.tell()
