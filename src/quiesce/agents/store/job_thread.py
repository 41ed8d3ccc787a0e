"""The one thread that works for a store: it does jobs, and many writes at once in one transaction.

Where they are done, a SQLite file or a PostgreSQL database, is a `Place`.

Invariants
- One thread at a time. It takes all jobs that came since it last looked, does the writes among them in one
  transaction, and wakes their callers when the commit has returned. So many conversations share one sync of
  the disk, and no event loop waits for it.
- With nothing to do there is no thread: it comes from the idle ones of the kernel and returns to them, and
  never has to be joined.
- A job that was added is done. Its caller waits for its end however often it is cancelled, or Ctrl-C is
  pressed, and gets that afterwards.
- A job that fails does not affect others: if a transaction fails, its jobs are done again one by one. That is
  not done if each of them would fail in the same way (the place cannot be reached), and never if the
  transaction may have been committed (`StoreInDoubt`): done again, its events could be written twice.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from quiesce.kernel.inner import Backend, WaitQueue, current_backend, run_in_thread

from .contract import StoreClosed, StoreConflict, StoreError, StoreHeld

T = TypeVar("T")


class Place(Protocol):
    """Where jobs are done. Used in the writer's thread only."""

    def closed_text(self) -> str:
        """What to tell a caller who comes after the close."""
        ...

    def forked_text(self) -> str:
        """What to tell a caller in a forked child."""
        ...

    def prepare(self, waiting_since: float) -> None:
        """A read, or writes of one transaction, come next; the first of their callers has waited since then."""
        ...

    def begin(self) -> None:
        """Begin a transaction."""
        ...

    def commit(self) -> None:
        """Make everything since `begin` durable. A job that has its `error` by then has written nothing."""
        ...

    def roll_back(self, error: BaseException) -> None:
        """Undo everything since `begin`, because of `error`."""
        ...

    def explain(self, error: BaseException) -> BaseException:
        """Return what to raise for `error`."""
        ...

    def concerns_all(self, error: BaseException) -> bool:
        """Whether the jobs of a transaction that has failed with `error` must not, or need not, be tried one by one."""
        ...

    def has_hints(self, busy: bool) -> bool:
        """Whether something is to be sent for which no caller waits; `busy`: there are further jobs."""
        ...

    def send_hints(self) -> None:
        """Send it. Must not raise."""
        ...


class Job(Generic[T]):
    """Something to do in the writer's thread, and the caller who waits for it."""

    __slots__ = ("_backend", "_gate", "_value", "_waiting", "_work", "added_at", "ended", "error", "writes")

    def __init__(self, work: Callable[[], T], *, writes: bool = False) -> None:
        self.writes = writes
        self.added_at = 0.0
        self.ended = False
        self.error: BaseException | None = None
        self._work = work
        self._value: Any = None
        # A caller in an event loop waits in the queue, one in a plain thread at the gate.
        self._backend: Backend | None = None
        self._waiting = WaitQueue()
        self._gate: threading.Event | None = None

    def run(self) -> None:
        """Do it, in the writer's thread."""
        self._value = self._work()

    def undo(self) -> None:
        """React to a rollback of what it did."""

    def committed(self) -> None:
        """React to the commit of what it did."""

    def end(self) -> None:
        """Wake the caller."""
        # Often a method of this very object: the cycle would keep what the job holds until the next collection.
        del self._work
        if self._gate is not None:
            self.ended = True
            self._gate.set()
        elif self._backend is not None:
            self._backend.run_from_anywhere(self._wake)

    def _wake(self) -> None:
        self.ended = True
        self._waiting.wake_all()

    async def wait(self, backend: Backend, add: Callable[[], None]) -> T:
        """`add` it to the writer, and wait for its end in an event loop."""
        self._backend = backend
        add()
        cancelled = await backend.wait_through(self._has_ended, self._waiting)
        if cancelled is not None:
            # The caller gets its cancel, and what failed meanwhile as its cause, so that nothing is hidden.
            cancelled.__cause__, self.error = self.error, None
        try:
            await backend.reraise(cancelled)
            return self._result()
        finally:
            del cancelled  # its traceback leads back to this frame

    def wait_sync(self, add: Callable[[], None]) -> T:
        """`add` it to the writer, and block this thread until its end."""
        gate = self._gate = threading.Event()
        add()
        interrupted: KeyboardInterrupt | None = None
        while not self.ended:
            try:
                gate.wait()
            except KeyboardInterrupt as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted from self.error
        return self._result()

    def _has_ended(self) -> bool:
        return self.ended

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
    """Does jobs in the order in which they were added."""

    def __init__(self, place: Place, close: Callable[[bool], object]) -> None:
        self._place = place
        # Called in the writer's thread after all jobs, with True; or by a finalizer, which must not wait,
        # with False.
        self._close_place = close
        #: So many writes at most are done in one transaction.
        self.at_once = 10_000
        self._lock = threading.Lock()
        self._jobs: deque[Job[Any]] = deque()
        self._busy = False
        self._closed = False
        self._pid = os.getpid()

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more jobs."""
        return self._closed

    def check_open(self) -> None:
        """Raise StoreClosed if it was closed."""
        if self._closed:
            raise StoreClosed(self._place.closed_text())

    async def do(self, job: Job[T]) -> T:
        """Do a job. A caller who is cancelled meanwhile gets the cancel when the job has ended."""
        backend = current_backend()
        # On trio, a caller that is already cancelled starts nothing.
        await backend.checkpoint_if_cancelled()
        return await job.wait(backend, lambda: self._add(job))

    def do_sync(self, job: Job[T]) -> T:
        """`do` for plain threads."""
        return job.wait_sync(lambda: self._add(job))

    def add_unwaited(self, job: Job[Any], *, blocking: bool = True) -> None:
        """Do a job that no caller waits for, unless this is closed.

        A finalizer may run in the middle of anything, also of what holds the lock: it must not block, and its
        job may be left out.
        """
        if self._closed or os.getpid() != self._pid or not self._lock.acquire(blocking):
            return
        try:
            job.added_at = time.monotonic()
            self._jobs.append(job)
            is_first, self._busy = not self._busy, True
        finally:
            self._lock.release()
        if is_first:
            self._start()

    async def close(self) -> None:
        """Do the jobs that were added before, then close the place. May be called again."""
        self._closed = True
        closing = Job(partial(self._close_place, True))
        await closing.wait(current_backend(), lambda: self._add(closing, last=True))

    def close_sync(self) -> None:
        """`close` for plain threads."""
        self._closed = True
        closing = Job(partial(self._close_place, True))
        closing.wait_sync(lambda: self._add(closing, last=True))

    def drop(self) -> None:
        """Close the place without waiting: the store was dropped without a close, or the program ends."""
        if os.getpid() != self._pid:  # a copy in a forked child: the place is the parent's
            return
        self._closed = True
        # The thread must not take up work between this look at it and the close.
        with self._lock:
            if self._busy:
                self._jobs.append(Job(partial(self._close_place, False)))
                return
            self._close_place(False)

    def _add(self, job: Job[Any], *, last: bool = False) -> None:
        if os.getpid() != self._pid:
            raise StoreError(self._place.forked_text())
        job.added_at = time.monotonic()
        with self._lock:
            if not last:
                self.check_open()
            self._jobs.append(job)
            if self._busy:
                return
            self._busy = True
        self._start()

    def _start(self) -> None:
        try:
            run_in_thread("quiesce-store", self._work)
        except RuntimeError:
            # No more threads, or the interpreter is shutting down: better in this thread than not at all.
            self._work()()

    # In the thread

    def _work(self) -> Callable[[], object]:
        """Do jobs until there are none. Returns what wakes the last callers.

        The kernel calls that when the thread is idle again, so that a caller who closes everything next does
        not find a busy thread.
        """
        done: list[Job[Any]] = []
        while True:
            # To find no job and to be idle is one step: `_add` starts a thread only if none is busy.
            with self._lock:
                jobs = list(self._jobs)
                self._jobs.clear()
                if not jobs:
                    self._busy = False
                    return partial(_end, done)
            _end(done)
            for writes, group in groupby(jobs, attrgetter("writes")):
                if writes:
                    waiting = list(group)
                    for first in range(0, len(waiting), self.at_once):
                        self._write(waiting[first : first + self.at_once])
                else:
                    for job in group:
                        self._do(job)
            done = jobs
            if self._place.has_hints(bool(self._jobs)):
                _end(done)
                done = []
                self._place.send_hints()

    def _do(self, job: Job[Any]) -> None:
        try:
            self._place.prepare(job.added_at)
            job.run()
        except BaseException as error:
            self._place.roll_back(error)
            job.error = self._place.explain(error)

    def _write(self, jobs: list[Job[Any]]) -> None:
        written: list[Job[Any]] = []
        try:
            self._place.prepare(jobs[0].added_at)
            self._place.begin()
            for job in jobs:
                try:
                    job.run()
                    written.append(job)
                except (StoreConflict, StoreHeld) as refused:  # it wrote nothing, so the others can go on
                    job.error = refused
            self._place.commit()
            for job in written:
                if job.error is None:
                    job.committed()
        except BaseException as error:
            for job in reversed(written):
                job.undo()
            self._place.roll_back(error)
            if len(jobs) == 1 or self._place.concerns_all(error):
                for job in jobs:
                    if job.error is None:
                        job.error = self._place.explain(error)  # one for each: it is raised there
                return
            # One by one, each in a transaction of its own: only the job that is at fault fails.
            for job in jobs:
                job.error = None
                self._write([job])


def _end(jobs: list[Job[Any]]) -> None:
    for job in jobs:
        job.end()
