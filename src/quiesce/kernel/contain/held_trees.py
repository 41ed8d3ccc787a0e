"""Process trees that other code holds, known by their pids: for what lives longer than a task or a block.

The terminals and servers that an SDK's conversation keeps are started in any thread, in event loops of the
SDK's own, or are daemons and not even our children. No context leads to their owner. So whoever knows the
pids holds them here: from then on the guard kills the trees if this program is killed, and `stop` stops them.

Everything is synchronous and works in any thread, without an event loop, and while the program exits.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from threading import Lock

from quiesce.kernel.base import Grace, Leftover
from quiesce.kernel.process import LookInterval, Proc, procfs

from .adopted_tree import AdoptedTree

UNKNOWN = "an unknown place, by other code"


class HeldTrees:
    """Trees that are held by the pids of their leaders."""

    def __init__(self) -> None:
        self._trees: dict[Proc, AdoptedTree] = {}
        # What takes note of a leader's exit: the object that the code which started it has for it.
        self._reapers: dict[Proc, Callable[[], object]] = {}
        self._lock = Lock()

    def __contains__(self, proc: object) -> bool:
        return proc in self._trees

    def __iter__(self) -> Iterator[AdoptedTree]:
        return iter(list(self._trees.values()))

    def hold(self, pid: int, reap: Callable[[], object] = lambda: None) -> None:
        """Hold the process `pid` with its descendants, if it is alive; `reap()` takes note of its exit."""
        from quiesce.kernel.process import guardian

        proc = procfs.look_up(pid)
        if proc is None or proc.zombie or not proc.starttime:
            return
        with self._lock:
            if proc in self._trees:
                return
            self._trees[proc], self._reapers[proc] = AdoptedTree(proc), reap
        guardian.register_tree(proc)

    def look(self) -> list[Proc]:
        """The living processes of all trees, which are remembered; a tree that has exited is let go of."""
        found: list[Proc] = []
        for tree in self:
            if members := tree.members():
                found += members
            else:
                self._let_go(tree)
        return found

    def commands(self) -> list[AdoptedTree]:
        """What the shells among them run in the foreground of their terminals; not the shells themselves."""
        members = self.look()
        by_pid = {proc.pid: proc for proc in members}
        found: list[AdoptedTree] = []
        for shell in members:
            group = _foreground_group(shell) if shell.pid == shell.session else 0
            for proc in members if group > 0 and group != shell.pgrp else ():
                parent = by_pid.get(proc.ppid)
                is_first = parent is None or parent.pgrp != group
                # `su` waits for the shell that it has started, which is not a command.
                if proc.pgrp == group and is_first and not (parent is not None and parent.comm == "su"):
                    found.append(AdoptedTree(proc))
        return found

    def stop(self, grace: Grace) -> list[Leftover]:
        """SIGTERM to the trees, then SIGKILL, and wait for their end: what is left. It blocks the thread."""
        for number, seconds in ((signal.SIGTERM, grace.terminate), (signal.SIGKILL, grace.kill)):
            for tree in self:
                tree.signal(number)
            give_up_at, interval = time.monotonic() + seconds, LookInterval()
            while self.look():
                if time.monotonic() > give_up_at:
                    break
                if number == signal.SIGKILL:  # again, for what was forked meanwhile
                    for tree in self:
                        tree.signal(number)
                time.sleep(interval.next(in_stop=True))
        return [Leftover("process", tree.name, UNKNOWN, tree.describe()) for tree in self]

    def _let_go(self, tree: AdoptedTree) -> None:
        from quiesce.kernel.process import guardian

        with self._lock:
            reap = self._reapers.pop(tree.leader, None)
            self._trees.pop(tree.leader, None)
        guardian.forget_tree(tree.leader)
        if reap is not None:
            reap()


def _foreground_group(shell: Proc) -> int:
    """The process group that has the terminal of `shell`, of which it is the session's leader; 0: none."""
    stat = procfs.read_if_there(f"/proc/{shell.pid}/stat") or b""
    fields = stat[stat.rfind(b")") + 2 :].split(None, 6)
    return int(fields[5]) if len(fields) > 5 else 0
