"""Which of our child processes belong to a block: those whose starter's context descends from it.

The starter is known by what an event loop has kept (`process_starters`), or, for a plain `subprocess` in a sync tool, by the
thread that it runs in: the kernel tells which thread has started a process, the thread's stack whose work that
thread does now (`busy_threads`), and a variable there that the work has this very process in its hands.

Where none of it says anything, the process may be anybody's. It is then named, not ended, unless the block was opened with
`processes="all"`. Nobody's business at all are processes that were there before the block, those of the kernel's own trees, the
guard, and the servers that `multiprocessing` keeps for the whole program.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any, Final, Literal, TypeAlias

from quiesce.kernel.base import Leftover, Reason
from quiesce.kernel.process import Proc, descendants, procfs
from quiesce.kernel.scope import Node, ScopeCore

from .adopted_process import AdoptedProcess, watched
from .adopted_thread import PERHAPS, BlockThreads
from .adopted_tree import AdoptedTree
from .busy_threads import holds, work_of
from .process_starters import Start, known_starts

Choice: TypeAlias = Literal["known", "all", "none"]
CHOICES: Final[tuple[Choice, ...]] = ("known", "all", "none")
Contains: TypeAlias = "Callable[[Node | None], bool]"

_HAS_BOOT_TIME = hasattr(time, "CLOCK_BOOTTIME")
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class BlockProcesses:
    """The processes of one block."""

    __slots__ = ("_before", "_began", "_blind", "_choice", "_loop", "_threads", "_unsure", "adopted")

    def __init__(
        self,
        choice: Choice,
        loop: asyncio.AbstractEventLoop,
        threads: BlockThreads | None = None,
        since: int | None = None,
    ) -> None:
        """`since` when it is about, in clock ticks since boot; now, unless it is said."""
        self._blind = "" if choice == "none" else cannot_look()
        self._choice = "none" if self._blind else choice
        self._loop = loop
        self._threads = threads
        self._unsure: list[AdoptedTree] = []
        self.adopted: list[AdoptedProcess] = []
        self._before: frozenset[int] = frozenset()
        self._began = since if since is not None else ticks_since_boot()
        if self._choice == "none" or since is not None:
            return
        try:
            self._before = frozenset(descendants.ours())
        except OSError as error:
            self.give_up(error)

    def adopt(self, core: ScopeCore, contains: Contains) -> None:
        """Take for children what the block has started, and note what it may have started. Nothing is done to them yet."""
        self._unsure = []
        if self._choice == "none":
            return
        try:
            for proc, start, is_ours in self._judged(contains):
                if is_ours or (is_ours is None and self._choice == "all"):
                    _, transport, site = start or Start(None, None)
                    self.adopted.append(AdoptedProcess(core, AdoptedTree(proc), transport, site))
                elif is_ours is None:
                    self._unsure.append(AdoptedTree(proc))
            for child in self.adopted:
                child.tree.members()  # see them while their parents live
            if self.adopted or self._unsure:
                self._blind = self._blind or procfs.hidden()
        except OSError as error:
            self.give_up(error)

    def known(self, contains: Contains) -> list[Proc]:
        """Those that are the block's beyond doubt, and in nobody's hands. Nothing is done to them."""
        if self._choice == "none":
            return []
        try:
            return [proc for proc, _, is_ours in self._judged(contains) if is_ours]
        except OSError as error:
            self.give_up(error)
            return []

    def _judged(self, contains: Contains) -> list[tuple[Proc, Start | None, bool | None]]:
        """Each new process, what is known of its start, and whether it is ours; None if nobody can say."""
        new = self._new()
        starts = known_starts(self._loop) if new else {}
        judged: list[tuple[Proc, Start | None, bool | None]] = []
        for proc, thread in new:
            start = starts.get(proc.pid)
            is_ours = contains(start.node) if start is not None else self._by_thread(proc, thread, contains)
            judged.append((proc, start, is_ours))
        return judged

    def _new(self) -> list[tuple[Proc, int]]:
        """The living among our children that were not there before and are in nobody's hands; each with its thread."""
        # An older one is an orphan that was given to us, if we are the first process of a container.
        pids = {
            pid: thread for pid, thread in descendants.since(self._began).items() if pid not in self._before
        }
        if not pids:
            return []
        taken = {child.tree.leader for child in watched}
        procs = [(proc, thread) for pid, thread in pids.items() if (proc := procfs.look_up(pid)) is not None]
        if len(procs) < len(pids):  # gone since they were listed, or not shown to us
            self._blind = self._blind or procfs.hidden()
        return [
            (proc, thread)
            for proc, thread in procs
            if not (proc.zombie or not proc.starttime or proc in taken)
        ]

    def give_up(self, error: Exception) -> None:
        """Look no more; the report will say so."""
        self._choice = "none"
        self._blind = f"they could not be looked for: {error}"

    def _by_thread(self, proc: Proc, number: int, contains: Contains) -> bool | None:
        """Whether a process that no loop knows of is ours; None if nobody can say."""
        if _is_of_the_program(proc):
            return False
        if number in (descendants.NO_THREAD, threading.main_thread().native_id, threading.get_native_id()):
            return None
        thread = next((one for one in threading.enumerate() if one.native_id == number), None)
        if thread is None:
            return None
        work = work_of(thread, sys._current_frames())
        if work is None:
            return None
        if work.context is not None:
            return contains(work.node) if not work.pooled or holds(thread, proc.pid) else None
        if not work.pooled and self._threads is not None and self._threads.was_there_before(thread):
            return False
        return None

    def unseen(self) -> str:
        """Why some may be left of which nobody knows; empty if all were looked at, or none were to be."""
        return self._blind if self._blind and descendants.have_any() else ""

    # Ending them

    def tell_to_go(self, reason: Reason) -> list[AdoptedProcess]:
        """End those that are still there; returns those that were not told before."""
        told: list[AdoptedProcess] = []
        for child in list(self.adopted):
            if child._core.closed:
                continue
            if child.is_gone():
                self.adopted.remove(child)
                child.dismiss()
            else:
                told.append(child)
        for child in told:
            child.tell_to_go(reason)
        return told

    def perhaps_left(self) -> list[Leftover]:
        """What still runs and may have been started by the block."""
        return [
            Leftover("process", tree.name, PERHAPS, tree.describe())
            for tree in self._unsure
            if tree.members()
        ]


def ticks_since_boot() -> int:
    """Now, as start times of processes are counted; 0 where that is not known."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS) if _HAS_BOOT_TIME else 0


@cache
def cannot_look() -> str:
    """Why this system does not show its processes; empty if it does, as Linux in /proc."""
    return procfs.unavailable() or ("" if _HAS_BOOT_TIME else "it cannot be known when a process was started")


def _is_of_the_program(proc: Proc) -> bool:
    """Whether it belongs to the kernel, or to `multiprocessing`, which keeps two servers for everybody."""
    guardian: Any = sys.modules.get("quiesce.kernel.process.guardian")
    if guardian is not None:
        tags = procfs._tags(proc.pid)
        program = guardian.program_id()
        if procfs.GUARD_TAG in tags or any(tag.startswith(f"{program}.") for tag in tags):
            return True
    tracker: Any = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    server: Any = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    servers = {getattr(tracker, "_pid", None), getattr(server, "_forkserver_pid", None)}
    return proc.pid in servers
