"""Which of our child processes belong to a block: those whose starter's context descends from it.

The starter is known from what an event loop has kept (`process_starters`). For a plain `subprocess` in a sync
tool, it is known from the thread: Linux tells which thread started a process, the thread's stack shows whose
work that thread is doing now (`busy_threads`), and a variable there shows that this work has this very
process.

Where none of these is conclusive, the process may be the block's or not. It is then named and not stopped,
unless the block was opened with `processes="all"`. Never considered are processes that are older than the
block, those of the kernel's own trees, the guard, and the servers that `multiprocessing` keeps for the whole
program.
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

from .adopted_process import AdoptedProcess, adopted_processes
from .adopted_thread import UNKNOWN_PLACE, BlockThreads
from .adopted_tree import AdoptedTree
from .busy_threads import has_in_variable, work_of
from .process_starters import Start, known_starts

Choice: TypeAlias = Literal["known", "all", "none"]
CHOICES: Final[tuple[Choice, ...]] = ("known", "all", "none")
Contains: TypeAlias = "Callable[[Node | None], bool]"

_HAS_BOOT_TIME = hasattr(time, "CLOCK_BOOTTIME")
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class BlockProcesses:
    """The processes of one block."""

    __slots__ = (
        "_began",
        "_choice",
        "_doubtful_trees",
        "_leaves",
        "_loop",
        "_older",
        "_threads",
        "_unseen",
        "adopted",
    )

    def __init__(
        self,
        choice: Choice,
        loop: asyncio.AbstractEventLoop,
        threads: BlockThreads | None = None,
        since: int | None = None,
        leaves: Callable[[Proc], bool] | None = None,
    ) -> None:
        """Older processes than `since`, in clock ticks since boot, do not count (default: now).

        Nor do those for which `leaves(proc)` is true: they belong to something that outlives the block.
        """
        self._unseen = "" if choice == "none" else cannot_look()
        self._choice = "none" if self._unseen else choice
        self._loop = loop
        self._threads = threads
        self._leaves = leaves
        self._doubtful_trees: list[AdoptedTree] = []
        self.adopted: list[AdoptedProcess] = []
        self._older: frozenset[int] = frozenset()
        self._began = since if since is not None else ticks_since_boot()
        if self._choice == "none" or since is not None:
            return
        # A start time is only as exact as a clock tick: so also note the processes that exist now.
        try:
            self._older = frozenset(descendants.ours())
        except OSError as error:
            self.stop_looking(error)

    def adopt(self, core: ScopeCore, contains: Contains) -> None:
        """Adopt the processes that the block started, and note those that it may have started. Stops none."""
        self._doubtful_trees = []
        if self._choice == "none":
            return
        try:
            for proc, start, is_ours in self._attribute(contains):
                if is_ours or (is_ours is None and self._choice == "all"):
                    _, transport, site = start or Start(None, None)
                    self.adopted.append(AdoptedProcess(core, AdoptedTree(proc), transport, site))
                elif is_ours is None:
                    self._doubtful_trees.append(AdoptedTree(proc))
            for child in self.adopted:
                child.tree.members()  # to have seen its descendants while their parents live
            if self.adopted or self._doubtful_trees:
                self._unseen = self._unseen or procfs.hidden()
        except OSError as error:
            self.stop_looking(error)

    def known(self, contains: Contains) -> list[Proc]:
        """The processes that are the block's for certain and were not adopted. Nothing is done to them."""
        if self._choice == "none":
            return []
        try:
            return [proc for proc, _, is_ours in self._attribute(contains) if is_ours]
        except OSError as error:
            self.stop_looking(error)
            return []

    def _attribute(self, contains: Contains) -> list[tuple[Proc, Start | None, bool | None]]:
        """Each new process, what is known about its start, and whether it is ours (None: unknown)."""
        new = self._new()
        starts = known_starts(self._loop) if new else {}
        attributed: list[tuple[Proc, Start | None, bool | None]] = []
        for proc, thread in new:
            start = starts.get(proc.pid)
            is_ours = contains(start.node) if start is not None else self._by_thread(proc, thread, contains)
            attributed.append((proc, start, is_ours))
        return attributed

    def _new(self) -> list[tuple[Proc, int]]:
        """Our living children that are younger than the block and not adopted; each with its thread."""
        # By start time too: an orphan that we get as pid 1 of a container may be older than the block.
        pids = {
            pid: thread for pid, thread in descendants.since(self._began).items() if pid not in self._older
        }
        if not pids:
            return []
        adopted = {child.tree.leader for child in adopted_processes}
        procs = [(proc, thread) for pid, thread in pids.items() if (proc := procfs.look_up(pid)) is not None]
        if len(procs) < len(pids):  # some have exited since they were listed, or are hidden from us
            self._unseen = self._unseen or procfs.hidden()
        return [
            (proc, thread)
            for proc, thread in procs
            if not (proc.zombie or not proc.starttime or proc in adopted)
            and not (self._leaves is not None and self._leaves(proc))
        ]

    def stop_looking(self, error: Exception) -> None:
        """Look for no more processes; the report will say so."""
        self._choice = "none"
        self._unseen = f"they could not be looked for: {error}"

    def _by_thread(self, proc: Proc, number: int, contains: Contains) -> bool | None:
        """Whether a process that no event loop knows is ours; None if that cannot be determined."""
        if _is_of_the_program(proc):
            return False
        # The main thread inherits the children of threads that have ended, and ours runs every task of the
        # loop: that one of them has the process proves nothing.
        if number in (descendants.NO_THREAD, threading.main_thread().native_id, threading.get_native_id()):
            return None
        thread = next((one for one in threading.enumerate() if one.native_id == number), None)
        if thread is None:
            return None
        work = work_of(thread, sys._current_frames())
        if work is None:
            return None
        # A pooled thread may have started it for an earlier caller, unless its work now has it in a variable.
        if work.context is not None:
            return contains(work.node) if not work.pooled or has_in_variable(thread, proc.pid) else None
        if not work.pooled and self._threads is not None and self._threads.was_there_before(thread):
            return False
        return None

    def unseen(self) -> str:
        """Why there may be more processes than were found; empty if all were seen, or none looked for."""
        return self._unseen if self._unseen and descendants.have_any() else ""

    # Stopping

    def stop(self, reason: Reason) -> list[AdoptedProcess]:
        """Stop the adopted processes that still run; returns those that were not being stopped already."""
        stopped: list[AdoptedProcess] = []
        for child in list(self.adopted):
            if child._core.closed:
                continue
            if child.is_gone():
                self.adopted.remove(child)
                child.dismiss()
            else:
                stopped.append(child)
        for child in stopped:
            child.stop(reason)
        return stopped

    def possible_leftovers(self) -> list[Leftover]:
        """The processes that still run and may have been started by the block."""
        return [
            Leftover("process", tree.name, UNKNOWN_PLACE, tree.describe())
            for tree in self._doubtful_trees
            if tree.members()
        ]


def ticks_since_boot() -> int:
    """The present time in the unit of process start times; 0 where that is unknown."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS) if _HAS_BOOT_TIME else 0


@cache
def cannot_look() -> str:
    """Why this system does not show its processes; empty if it does, as Linux does in /proc."""
    return procfs.unavailable() or ("" if _HAS_BOOT_TIME else "it cannot be known when a process was started")


def _is_of_the_program(proc: Proc) -> bool:
    """Whether it belongs to the kernel, or is one of the two servers of `multiprocessing`."""
    guardian: Any = sys.modules.get("quiesce.kernel.process.guardian")
    if guardian is not None:
        tags = procfs.tags_of(proc.pid)
        program = guardian.program_id()
        if procfs.GUARD_TAG in tags or any(tag.startswith(f"{program}.") for tag in tags):
            return True
    tracker: Any = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    server: Any = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    servers = {getattr(tracker, "_pid", None), getattr(server, "_forkserver_pid", None)}
    return proc.pid in servers
