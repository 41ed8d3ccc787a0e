"""A process tree as a child of a scope: how a stop reaches it, and how its end is learnt.

Three things that are easily confused are kept apart: the exit of the leader (known by its pidfd, whoever holds
the pipes), the pipes (which a grandchild may hold open for ever), and the tree (which may outlive the leader).

The ladder is: close stdin, SIGTERM, SIGKILL, the signals to the whole tree. A step that cannot help is skipped and
takes no time: without a stdin that somebody reads, or without a leader to notice, SIGTERM comes at once. SIGKILL is
repeated as long as anybody is found: whoever forks while the tree is being killed does not get away.

The leader stays a zombie until the rest of its tree is gone, so that its number, which is also the group's, cannot
be given to a stranger in between.

Two tasks are its plumbing: one watches, one reads stderr, so that no child ever blocks on what it has to complain of.
A stop does not cancel them; they end with the tree. On asyncio a cancel may reach them all the same, from somebody who
cancels everything: `asyncio.run` at its end, or a program's own sweep over all tasks. That stops the tree, as the
end of the run does on trio, and the loop waits for it; but never longer than its ladder and those of its owners last. One
that is still dying then is left to `late_reaper`.
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

from .late_reaper import reap_later
from .pipe import CHUNK, Output, Pipe, Tail

if TYPE_CHECKING:
    from .process_tree import Tree


# Seconds between two looks at a tree whose leader is gone: at first, while it is being stopped, and when that was in vain.
_LOOK_SOON, _LOOK_AGAIN, _LOOK_SELDOM = 0.001, 0.02, 0.25


class TreeChild(Child):
    """A running tree, with our ends of its pipes."""

    __slots__ = (
        "_complained",
        "_exit",
        "_nap",
        "_pause",
        "_swept",
        "_terminated_early",
        "_watch_begun",
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
        self.watched = False
        self._watch_begun = WaitQueue()
        self._exit = WaitQueue()
        self._nap = WaitQueue()
        self._pause = _LOOK_SOON
        self._terminated_early = False
        self._swept = False  # somebody has cancelled all tasks
        self._complained = False

    # Starting

    async def start(self) -> BaseException | None:
        """Until somebody watches it. Returns the caller's own cancellation, if there was one.

        A task that is cancelled before its first step never takes it, and the end of `asyncio.run` may come at
        any moment: hence the wait, and hence another watcher if the first one met with that.
        """
        core = self._core
        core.children[self] = None
        core.on_settled = self.close_pipes
        self.state = RUNNING
        if self.stderr is not None:
            self._plumb(self._drain)
        cancelled: BaseException | None = None
        while not self.watched:
            watcher = self._plumb(self._watch)
            late = await self._wait_for_first_step(watcher)
            cancelled = late if cancelled is None else cancelled
        return cancelled

    async def _wait_for_first_step(self, watcher: Handle) -> BaseException | None:
        if self.watched:  # an eager one
            return None
        watcher._on_end(self._watch_begun.wake_all)
        return await self._core.backend.wait_through(lambda: self.watched or watcher.done, self._watch_begun)

    def _plumb(self, fn: Callable[[Handle], Any]) -> Handle:
        core = self._core
        handle = core.backend.make_handle(core, None, self._site)

        def stay(rung: Rung) -> bool:
            # Not asked to leave, so that the sweep at the end of `asyncio.run` does reach it: that is how it learns.
            handle._asked = 0
            return True

        handle._on_stop = stay
        core.children[handle] = None
        core.start(handle, fn, (handle,))
        return handle

    # Watching

    async def _watch(self, handle: Handle) -> None:
        core = self._core
        self.watched = True
        self._watch_begun.wake_all()
        try:
            while self.state == RUNNING and not (self._loop_is_ending() and self._time_is_over()):
                try:
                    await self._look()
                except CancelledError:
                    self._swept = True
                    core.stop(handle.reason or Reason("shutdown", "all tasks are being cancelled"))
        except GeneratorExit:  # the loop is gone, with no time for more than this
            self._signal(signal.SIGKILL)
            raise
        finally:
            if self.state == RUNNING:
                self.close_pipes()  # or whoever waits there would keep the loop from ending
                if os.getpid() == self.our_pid:
                    reap_later(self.tree)

    def _loop_is_ending(self) -> bool:
        return self._swept or getattr(self._core.backend, "ending", False)

    def _time_is_over(self) -> bool:
        """Whether nobody waits for it any more. Its owners may have more time than it has: its ladder fits into theirs."""
        core: ScopeCore | None = self._core
        if self._core.state is not EXPIRED:
            return False
        while core is not None and core.state is not STOPPING:
            core = core.parent
        return core is None

    async def _look(self) -> None:
        """See how far it is, and wait for what is next: the leader's exit, then the end of its tree."""
        core, tree = self._core, self.tree
        if self.returncode is None:
            status = tree.exit_status()
            if status is None:
                exit_fd = tree.exit_fd()
                # On the last rung it has to look by itself: that the ladder comes to its end wakes nobody here.
                if exit_fd is None or core.rung >= Rung.KILL:
                    await self._rest(self._next_pause())
                else:
                    await core.backend.wait_readable(exit_fd)
                return
            self._exited(status)
        if not tree.members():
            self._gone()
        elif not core.closed:
            await self._rest(None)
        else:
            if core.rung >= Rung.KILL:
                self._signal(signal.SIGKILL)
            elif core.rung is Rung.CANCEL:
                self._terminate_early()
            await self._rest(self._next_pause())

    def _next_pause(self) -> float:
        pause = self._pause
        self._pause = min(pause * 2, _LOOK_AGAIN if self._core.state is STOPPING else _LOOK_SELDOM)
        return pause

    async def _rest(self, seconds: float | None) -> None:
        """Until the stop begins or climbs, or for some seconds."""
        backend, nap = self._core.backend, self._nap
        timer = backend.call_at(backend.now() + seconds, nap.wake_all) if seconds is not None else None
        try:
            await nap.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _exited(self, status: int) -> None:
        self.returncode = status
        self._pause = _LOOK_SOON
        self._exit.wake_all()

    def _gone(self) -> None:
        """Nobody of the tree is left: take in its last words, and let go of its number."""
        self._say_what_is_unseen()
        self.tree.reap()
        if self.stderr is not None:
            for data in self.stderr.rest():
                self._heard(data)
        self.state = FINISHED
        self._value = self.returncode
        self._ended()

    async def wait_for_exit(self) -> int:
        """The leader's exit status."""
        await self._exit.wait_until(lambda: self.returncode is not None)
        assert self.returncode is not None
        return self.returncode

    # stderr

    async def _drain(self, handle: Handle) -> None:
        pipe = self.stderr
        assert pipe is not None
        while not pipe.closed:
            try:
                self._heard(await pipe.read(CHUNK))
            except CancelledError:  # see `_watch`: that is not for us to end by
                continue

    def _heard(self, data: bytes) -> None:
        self.tail.add(data)
        if data and self.on_stderr is not None:
            try:
                self.on_stderr(data)
            except (Exception, SystemExit):
                if not self._complained:
                    self._complained = True  # it may be called thousands of times
                    logger.exception(
                        "on_stderr of process %r failed; it is called again all the same", self.name
                    )

    # Stopping

    def _climb(self, rung: Rung) -> None:
        """End of input, SIGTERM, SIGKILL."""
        if rung is Rung.CANCEL:
            if self.stdin is None or self.stdin.nobody_reads() or self.tree.exit_status() is not None:
                self._terminate_early()
            else:
                self.stdin.close()
                if self.stdout is not None:
                    self.stdout.pipe.make_room()  # blocked on a full pipe, it would not see the end of its input
        elif rung is Rung.TERMINATE:
            if not self._terminated_early:
                self._signal(signal.SIGTERM)
            self._terminated_early = False
        elif rung is Rung.KILL:
            self._signal(signal.SIGKILL)
        self._look_again()

    def _look_again(self) -> None:
        self._pause = _LOOK_SOON
        exit_fd = self.tree.exit_fd()
        if self._nap:
            self._nap.wake_all()
        elif exit_fd is not None and self.returncode is None:
            self._core.backend.stop_waiting_for(exit_fd)

    def _abandon(self) -> None:
        """Nobody waits, and somebody may be about to drop the loop: SIGTERM at once."""
        if self.state == RUNNING:
            self._terminate_early()

    def _terminate_early(self) -> None:
        """This rung has nothing to offer. The signal goes at once, the ladder follows in a moment: it may be climbing now."""
        core = self._core
        if self._terminated_early or core.rung >= Rung.TERMINATE:
            return
        self._terminated_early = True
        self._signal(signal.SIGTERM)
        core.backend.call_at(core.backend.now(), self._leave_this_rung)

    def _leave_this_rung(self) -> None:
        core = self._core
        if core.reason is None or core.rung >= Rung.TERMINATE:
            return
        ends = core.ends
        finite = ends[1] < math.inf
        terminate = ends[2] - ends[1] if finite else core.grace.terminate
        kill = ends[3] - ends[2] if finite and ends[2] < math.inf else core.grace.kill
        core.stop(core.reason, Grace(cancel=0.0, terminate=terminate, kill=kill))

    def _signal(self, number: int) -> None:
        if self.state == RUNNING and os.getpid() == self.our_pid:
            self.tree.signal(number)

    def signal(self, number: int) -> None:
        """Send a signal to the whole tree; from any thread. Nothing happens if it is gone."""
        self._core.backend.run_from_anywhere(lambda: self._signal(number))

    def undo(self) -> None:
        """Nobody can watch it here: end it on the spot."""
        give_up_at = time.monotonic() + self._core.grace.kill
        self._signal(signal.SIGKILL)
        while (self.tree.members() or not self.tree.reap()) and time.monotonic() < give_up_at:
            time.sleep(0.001)
            self._signal(signal.SIGKILL)  # whoever was forked since the last one
        reap_later(self.tree)
        self._core.children.clear()
        self._core.settle()

    def close_pipes(self) -> None:
        """Close our ends; whoever reads or writes there is woken."""
        if self.stdout is not None:
            self.stdout.finish()
        for pipe in (self.stdin, self.stderr):
            if pipe is not None:
                pipe.close()

    def _stuck_at(self) -> str:
        """Who is still there."""
        alive = self.tree.members()
        return "; ".join(f"{proc.describe()} (state {proc.state})" for proc in alive) or "exiting"

    def _leftovers(self) -> list[Leftover]:
        """The tree, with what could not be seen of it."""
        left = super()._leftovers()
        self._say_what_is_unseen()
        return left

    def _say_what_is_unseen(self) -> None:
        if self.tree.unseen:
            note_unseen(self._core, f"descendants of process {self.name!r}", self.tree.unseen)
