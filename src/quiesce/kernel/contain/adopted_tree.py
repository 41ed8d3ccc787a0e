"""Somebody else's child process with all its descendants, signalled as one.

It was started without a mark and, as a rule, in our own session, so that it is known by less than a tree of ours (`process_tree`):
who is below it, who was below it at an earlier look, and who is in its session if it has one of its own. Looking early
counts: once a parent is gone, its children cannot be found any more unless they were seen before.

Nothing is reaped here. Whoever has started it will want to know how it ended, and waits for it in its own way.
"""

from __future__ import annotations

import os
import signal
import time

from quiesce._safe.printed import printed_line
from quiesce.kernel.process import Proc, descendants, procfs

_NO_MARK = "no-mark"  # which no tree has
_STOPPED = ("T", "t", "X", "Z")  # or dead: who does not fork
_LOOKS = 10  # at a tree that is being held still
_LOOKS_AT_WAITING = (
    2  # then one in state D is left at that: most likely it is in a vfork, whose child we have stopped
)
_STOPS_WITHIN = 0.1  # seconds until the next look, on a machine that has much else to do


class AdoptedTree:
    """A process that is there already, and whoever is below it."""

    __slots__ = ("_group", "_seen", "leader", "name")

    def __init__(self, leader: Proc) -> None:
        self.leader = leader
        self.name = _name_of(leader)
        self._group: int | None = None
        self._seen = [leader]

    def members(self) -> list[Proc]:
        """Who is alive now, parents before children. Remembers them: some may lose their parent before the next look."""
        try:
            alive = self._find()
        except OSError:  # no descriptor left to look with: that is not to be taken for nobody there
            return self._seen
        self._seen = alive
        return alive

    def _find(self) -> list[Proc]:
        leader = self.leader
        alive = descendants.below(self._seen)
        if any(proc == leader and proc.pgrp == leader.pid for proc in alive):
            self._group = leader.pid
        if self._group is not None:
            groups = {self._group: leader.starttime}
            found = procfs.find(groups, _NO_MARK, since=leader.starttime, known=self._seen)
            alive += [proc for proc in found if proc.starttime and proc not in alive]
        return alive

    def signal(self, number: int) -> None:
        """Send a signal to all of them. Stopped ones are woken, to act on it."""
        alive = self._held_still()
        as_group = self._is_group(alive)
        if as_group:
            assert self._group is not None
            procfs._signal_group(self._group, number)
        for proc in alive:
            if not (as_group and self._is_in_group(proc)):
                procfs.send_signal(proc, number)
            if proc.state == "T":
                procfs.send_signal(proc, signal.SIGCONT)

    def _held_still(self) -> list[Proc]:
        """All of them, stopped: who is seen to fork in this very moment would leave a child that nobody has seen, and that nobody finds once it is gone.

        A look reads the state of a process before the list of its children: the list of one that had stopped is complete. A group of
        its own need not be stopped: the kernel signals that as one, and leaves no gap.
        """
        alive = self.members()
        told: set[Proc] = set()
        refused: set[Proc] = set()
        for look in range(_LOOKS):
            alone = (
                [proc for proc in alive if not self._is_in_group(proc)] if self._is_group(alive) else alive
            )
            still = _STOPPED if look < _LOOKS_AT_WAITING else (*_STOPPED, "D")
            restless = [proc for proc in alone if proc.state not in still and proc not in refused]
            if not restless:
                break
            for proc in restless:
                if proc not in told:
                    (told if procfs.send_signal(proc, signal.SIGSTOP) else refused).add(proc)
            _wait_until_stopped([proc for proc in restless if proc in told])
            alive = self.members()
        for proc in alive:
            if proc in told:
                proc.state = "T"  # or about to be
        return alive

    def _is_group(self, alive: list[Proc]) -> bool:
        leader = next((proc for proc in alive if self._is_in_group(proc)), None)
        return leader is not None and procfs.still_alive(leader)

    def _is_in_group(self, proc: Proc) -> bool:
        return self._group is not None and proc.pgrp == self._group

    def describe(self) -> str:
        """Who is still there."""
        alive = self.members()
        return "; ".join(f"{proc.describe()} (state {proc.state})" for proc in alive) or "exiting"


def _wait_until_stopped(told: list[Proc]) -> None:
    """One that was told to stop may be inside its fork until it is seen to have stopped."""
    give_up_at = time.monotonic() + _STOPS_WITHIN
    while True:
        told = [
            now
            for proc in told
            if (now := descendants.as_it_is_now(proc)) is not None and now.state not in _STOPPED
        ]
        if not told or time.monotonic() > give_up_at:
            return
        time.sleep(0.0005)  # they may need this very processor


def _name_of(proc: Proc) -> str:
    command = procfs._read_if_there(f"/proc/{proc.pid}/cmdline") or b""
    program = command.partition(b"\0")[0].decode(errors="replace")
    return printed_line(os.path.basename(program) or proc.comm)
