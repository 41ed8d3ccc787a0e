"""Somebody else's child process with all its descendants, signalled as one.

It was started without a mark and, as a rule, in our own session, so that it is known by less than a tree of ours (`_tree`):
who is below it, who was below it at an earlier look, and who is in its session if it has one of its own. Looking early
counts: once a parent is gone, its children cannot be found any more unless they were seen before.

Nothing is reaped here. Whoever has started it will want to know how it ended, and waits for it in its own way.
"""

from __future__ import annotations

import os
import signal

from . import _offspring, _procfs
from ._procfs import Proc

_NO_MARK = "no-mark"  # which no tree has


class ForeignTree:
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
        alive = _offspring.below(self._seen)
        if any(proc == leader and proc.pgrp == leader.pid for proc in alive):
            self._group = leader.pid
        if self._group is not None:
            groups = {self._group: leader.starttime}
            found = _procfs.find(groups, _NO_MARK, since=leader.starttime, known=self._seen)
            alive += [proc for proc in found if proc.starttime and proc not in alive]
        return alive

    def signal(self, number: int) -> None:
        """Send a signal to all of them. Stopped ones are woken, to act on it."""
        alive = self.members()
        # As a group where it is one: there the kernel leaves no gap through which a fork could slip.
        grouped = [proc for proc in alive if proc.pgrp == self._group]
        if self._group is not None and grouped and _procfs.still_alive(grouped[0]):
            _procfs._signal_group(self._group, number)
        else:
            grouped = []
        for proc in alive:
            if proc not in grouped:
                _procfs.send_signal(proc, number)
            if proc.state == "T":
                _procfs.send_signal(proc, signal.SIGCONT)

    def describe(self) -> str:
        """Who is still there."""
        alive = self.members()
        return "; ".join(f"{proc.describe()} (state {proc.state})" for proc in alive) or "exiting"


def _name_of(proc: Proc) -> str:
    command = _procfs._read_if_there(f"/proc/{proc.pid}/cmdline") or b""
    program = command.partition(b"\0")[0].decode(errors="replace")
    return os.path.basename(program) or proc.comm
