"""A process tree as a child of a scope: how a stop reaches it, and how its end becomes known.

Three things that are easily confused are kept apart: the exit of the leader (known by its pidfd, no matter
who has the pipes), the pipes (which a grandchild may keep open forever), and the tree (which may outlive the
leader).

The ladder is: close stdin, SIGTERM, SIGKILL, the signals to the whole tree. A step that cannot help is
skipped and takes no time: if no process reads its stdin from us, or the leader has exited, SIGTERM comes at
once. SIGKILL is repeated as long as a member is found, so that a process that forks while the tree is being
killed does not escape.

The leader stays a zombie until the rest of its tree has exited, so that its number, which is also the
group's, cannot be given to a stranger in between.

Each tree has two tasks for its plumbing: one watches it, one reads stderr, so that no child ever blocks on
its error messages. A stop does not cancel them; they end with the tree. On asyncio a cancel may still reach
them, from code that cancels every task: the end of `asyncio.run`, or a program's own sweep. That stops the
tree, as the end of the run does on trio, and the loop waits for it; but never longer than its ladder and
those of its owners last. A tree that is still dying then is left to `late_reaper`.
"""

from __future__ import annotations

import math
import os
import signal
import time
from asyncio import CancelledError
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quiesce._safe.printed import logger
from quiesce.kernel.base import EXPIRED, STOPPING, Grace, Leftover, Reason, Rung, Site, WaitQueue
from quiesce.kernel.scope import FINISHED, RUNNING, Child, Handle, ScopeCore, note_unseen

from . import procfs
from .late_reaper import reap_later
from .look_interval import LookInterval
from .pipe import CHUNK, Output, Pipe, Tail

if TYPE_CHECKING:
    from .process_tree import Tree


class TreeChild(Child):
    """A running tree, with our ends of its pipes."""

    __slots__ = (
        "_all_tasks_cancelled",
        "_exit_queue",
        "_interval",
        "_nap",
        "_start_queue",
        "_stderr_failure_logged",
        "_terminated_early",
        "on_stderr",
        "our_pid",
        "returncode",
        "stderr",
        "stdin",
        "stdout",
        "tail",
        "tree",
        "watched",
    )

    _kind = "process"

    def __init__(
        self,
        core: ScopeCore,
        name: str,
        site: Site,
        tree: Tree,
        tail: Tail,
        on_stderr: Callable[[bytes], object] | None,
    ) -> None:
        super().__init__(core, name, site)
        self.tree = tree
        self.tail = tail
        self.on_stderr = on_stderr
        self.our_pid = os.getpid()
        self.returncode: int | None = None
        backend = core.backend
        self.stdin = Pipe(backend, tree.stdin, f"stdin of {name!r}") if tree.stdin is not None else None
        self.stdout = (
            Output(Pipe(backend, tree.stdout, f"stdout of {name!r}")) if tree.stdout is not None else None
        )
        self.stderr = Pipe(backend, tree.stderr, f"stderr of {name!r}") if tree.stderr is not None else None
        self.watched = False  # the watcher has taken its first step
        self._start_queue = WaitQueue()
        self._exit_queue = WaitQueue()
        self._nap = WaitQueue()
        self._interval = LookInterval()
        self._terminated_early = False
        self._all_tasks_cancelled = False
        self._stderr_failure_logged = False

    # Starting

    async def start(self) -> BaseException | None:
        """Return when the tree is watched: the caller's own cancellation, if there was one meanwhile."""
        core = self._core
        core.add(self)
        core.when_settled(self.close_pipes)
        self.state = RUNNING
        if self.stderr is not None:
            self._start_plumbing(self._read_stderr)
        cancelled: BaseException | None = None
        # On asyncio a task that is cancelled before its first step never takes it, and the end of
        # `asyncio.run` may come at any moment. So wait for that step, and start another watcher if the first
        # one was cancelled too early.
        while not self.watched:
            watcher = self._start_plumbing(self._watch)
            late = await self._wait_for_first_step(watcher)
            cancelled = late if cancelled is None else cancelled
        return cancelled

    async def _wait_for_first_step(self, watcher: Handle) -> BaseException | None:
        if self.watched:  # it was started eagerly
            return None
        watcher._on_end(self._start_queue.wake_all)
        return await self._core.backend.wait_through(lambda: self.watched or watcher.done, self._start_queue)

    def _start_plumbing(self, fn: Callable[[Handle], Any]) -> Handle:
        core = self._core
        handle = core.backend.make_handle(core, None, self._site)

        def stay(rung: Rung) -> bool:
            # The sweep at the end of `asyncio.run` spares a handle that has had its cancel. But that sweep is
            # how the watcher learns that the loop is ending: so this one has had none.
            handle._asked = 0
            return True

        handle._on_stop = stay
        core.add(handle)
        core.start(handle, fn, (handle,))
        return handle

    # Watching

    async def _watch(self, handle: Handle) -> None:
        core = self._core
        self.watched = True
        self._start_queue.wake_all()
        try:
            while self.state == RUNNING and not (self._loop_is_ending() and self._is_out_of_time()):
                try:
                    await self._advance()
                except CancelledError:
                    self._all_tasks_cancelled = True
                    core.stop(handle.reason or Reason("shutdown", "all tasks are being cancelled"))
        except GeneratorExit:  # the loop has been dropped: there is no time for anything but this
            self._signal(signal.SIGKILL)
            raise
        finally:
            if self.state == RUNNING:
                self.close_pipes()  # a task that waits at a pipe would keep the loop from ending
                if os.getpid() == self.our_pid:
                    reap_later(self.tree)

    def _loop_is_ending(self) -> bool:
        return self._all_tasks_cancelled or getattr(self._core.backend, "ending", False)

    def _is_out_of_time(self) -> bool:
        """Whether no stop waits for the tree any more: neither its own nor one of its owners."""
        core: ScopeCore | None = self._core
        if self._core.state is not EXPIRED:
            return False
        # Its ladder fits into those of its owners, so they may have time left when it has none.
        while core is not None and core.state is not STOPPING:
            core = core.parent
        return core is None

    async def _advance(self) -> None:
        """Act on the state of the tree, then wait for the next: the leader's exit, the end of the tree."""
        core, tree = self._core, self.tree
        if self.returncode is None:
            status = tree.exit_status()
            if status is None:
                exit_fd = tree.exit_fd()
                # On the last rung it has to wake by itself: nothing wakes it when the ladder is at its end.
                if exit_fd is None or core.rung >= Rung.KILL:
                    await self._sleep(self._next_pause())
                else:
                    await core.backend.wait_readable(exit_fd)
                return
            self._note_exit(status)
        if not tree.members():
            self._finish()
        elif not core.closed:
            await self._sleep(None)
        else:
            if core.rung >= Rung.KILL:
                self._signal(signal.SIGKILL)
            elif core.rung is Rung.CANCEL:
                self._terminate_early()
            await self._sleep(self._next_pause())

    def _next_pause(self) -> float:
        return self._interval.next(in_stop=self._core.state is STOPPING)

    async def _sleep(self, seconds: float | None) -> None:
        """Wait until the stop begins or climbs, or for `seconds`."""
        backend, nap = self._core.backend, self._nap
        timer = backend.call_at(backend.now() + seconds, nap.wake_all) if seconds is not None else None
        try:
            await nap.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _note_exit(self, status: int) -> None:
        self.returncode = status
        self._interval.restart()
        self._exit_queue.wake_all()

    def _finish(self) -> None:
        """All of the tree has exited: read the rest of stderr, and give its number back."""
        self._note_unseen()
        self.tree.reap()
        self.read_rest_of_stderr()
        self.state = FINISHED
        self._value = self.returncode
        self._ended()

    def read_rest_of_stderr(self) -> None:
        """Read what is in the pipe, without waiting."""
        if self.stderr is not None:
            for data in self.stderr.drain():
                self._take_stderr(data)

    async def wait_for_exit(self) -> int:
        """Wait for the leader's exit; returns its status."""
        await self._exit_queue.wait_until(lambda: self.returncode is not None)
        assert self.returncode is not None
        return self.returncode

    # stderr

    async def _read_stderr(self, handle: Handle) -> None:
        pipe = self.stderr
        assert pipe is not None
        while not pipe.closed:
            try:
                self._take_stderr(await pipe.read(CHUNK))
            except CancelledError:  # such a sweep is for the watcher to act on: it will close the pipe
                continue

    def _take_stderr(self, data: bytes) -> None:
        self.tail.add(data)
        if data and self.on_stderr is not None:
            try:
                self.on_stderr(data)
            except (Exception, SystemExit):
                if not self._stderr_failure_logged:
                    self._stderr_failure_logged = True  # once: it may fail thousands of times
                    logger.exception("on_stderr of process %r failed; it will still be called", self.name)

    # Stopping

    def _climb(self, rung: Rung) -> None:
        """Close stdin, send SIGTERM, send SIGKILL: one per rung."""
        if rung is Rung.CANCEL:
            if self.stdin is None or self.stdin.has_no_reader() or self.tree.exit_status() is not None:
                self._terminate_early()
            else:
                self.stdin.close()
                # A process that is blocked on a full stdout would never notice the end of its input.
                if self.stdout is not None:
                    self.stdout.pipe.enlarge()
        elif rung is Rung.TERMINATE:
            if not self._terminated_early:
                self._signal(signal.SIGTERM)
            self._terminated_early = False
        elif rung is Rung.KILL:
            self._signal(signal.SIGKILL)
        self._wake_watcher()

    def _wake_watcher(self) -> None:
        self._interval.restart()
        exit_fd = self.tree.exit_fd()
        if self._nap:
            self._nap.wake_all()
        elif exit_fd is not None and self.returncode is None:
            self._core.backend.stop_waiting_for(exit_fd)

    def _abandon(self) -> None:
        """Send SIGTERM at once: no task waits for it, and the loop may be about to be dropped."""
        if self.state == RUNNING:
            self._terminate_early()

    def _terminate_early(self) -> None:
        """Skip the rest of the first rung, which cannot help here: send SIGTERM now."""
        core = self._core
        if self._terminated_early or core.rung >= Rung.TERMINATE:
            return
        self._terminated_early = True
        self._signal(signal.SIGTERM)
        # The ladder follows in the next turn of the loop: it may just be climbing to this very rung.
        core.backend.call_at(core.backend.now(), self._skip_rung)

    def _skip_rung(self) -> None:
        core = self._core
        if core.reason is None or core.stop_state is None or core.rung >= Rung.TERMINATE:
            return
        # What is left of the ladder keeps its own length: a deadline may have made it shorter than the grace.
        ends = core.stop_state.ends
        finite = ends[1] < math.inf
        terminate = ends[2] - ends[1] if finite else core.grace.terminate
        kill = ends[3] - ends[2] if finite and ends[2] < math.inf else core.grace.kill
        core.stop(core.reason, Grace(cancel=0.0, terminate=terminate, kill=kill))

    def _signal(self, number: int) -> None:
        if self.state == RUNNING and os.getpid() == self.our_pid:
            self.tree.signal(number)

    def signal(self, number: int) -> None:
        """Send a signal to the whole tree; from any thread. Does nothing if it has exited."""
        self._core.backend.run_from_anywhere(lambda: self._signal(number))

    def terminate_without_loop(self) -> None:
        """Send SIGTERM to the tree: its event loop is gone, and with it whatever would do more."""
        self._signal(signal.SIGTERM)

    def undo(self) -> None:
        """Kill the tree on the spot, blocking: its start failed before a watcher could run."""
        give_up_at = time.monotonic() + self._core.grace.kill
        self._signal(signal.SIGKILL)
        while (self.tree.members() or not self.tree.reap()) and time.monotonic() < give_up_at:
            time.sleep(0.001)
            self._signal(signal.SIGKILL)  # again: processes may have been forked since the last one
        reap_later(self.tree)
        self._core.forget_children()
        self._core.settle()

    def close_pipes(self) -> None:
        """Close our ends of the pipes, and wake the tasks that read or write there."""
        if self.stdout is not None:
            self.stdout.finish()
        for pipe in (self.stdin, self.stderr):
            if pipe is not None:
                pipe.close()

    def _stuck_at(self) -> str:
        """The processes that are still alive."""
        return procfs.describe_all(self.tree.members())

    def _leftovers(self) -> list[Leftover]:
        """The tree; its scope's report also gets what could not be seen of it."""
        left = super()._leftovers()
        self._note_unseen()
        return left

    def _note_unseen(self) -> None:
        if self.tree.unseen:
            note_unseen(self._core, f"descendants of process {self.name!r}", self.tree.unseen)
