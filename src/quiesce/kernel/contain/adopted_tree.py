"""A child process that other code started, with all its descendants, signalled as one.

It was started without a mark and usually in our own session, so less is known about it than about a tree of
ours (`process_tree`): its descendants now, its descendants at an earlier look, and the members of its session
if it has one of its own. So look early: once a parent has exited, its children can be found only if they were
seen before.

Nothing is reaped here. The code that started the process wants its exit status, and waits for it in its own
way.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from quiesce._safe.printed import printed_line
from quiesce.kernel.process import Proc, descendants, procfs

if TYPE_CHECKING:
    from collections.abc import Iterable

_NO_MARK = "no-mark"  # matches no tree
_CANNOT_FORK = ("T", "t", "X", "Z")  # the states of stopped and dead processes
_LOOKS = 10  # at a tree that is being frozen
# After so many looks, a process in state D counts as frozen too: most likely it waits in vfork for a child
# that we have stopped, and will stay in that state.
_LOOKS_AT_BLOCKED = 2
_LONGEST_STOP = 0.1  # seconds that a process may take to stop, on a busy machine, before the next look
# Seconds that a process which blocks a signal goes on for, one after the other, until it no longer does.
_GO_ON_FOR = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032)


class AdoptedTree:
    """A running process of other code, and its descendants."""

    __slots__ = ("_group", "_known_members", "leader", "name")

    def __init__(self, leader: Proc) -> None:
        self.leader = leader
        self.name = _name_of(leader)
        self._group: int | None = None
        self._known_members = [leader]

    def members(self) -> list[Proc]:
        """The living processes, parents before children. They are remembered: their parents may exit."""
        try:
            alive = self._find()
        except OSError:  # no descriptors left: that does not mean that no process is left
            return self._known_members
        self._known_members = alive
        return alive

    def _find(self) -> list[Proc]:
        leader = self.leader
        alive = descendants.below(self._known_members)
        if any(proc == leader and proc.pgrp == leader.pid for proc in alive):
            self._group = leader.pid
        if self._group is not None:
            groups = {self._group: leader.starttime}
            found = procfs.find(groups, _NO_MARK, since=leader.starttime, known=self._known_members)
            alive += [proc for proc in found if proc.starttime and proc not in alive]
        return alive

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the tree, and continue stopped ones, so that they act on it."""
        alive = self._freeze()
        if number != signal.SIGKILL and (blocking := self._go_on_until_unblocked(alive, number)):
            alive = self._freeze(stopped=blocking)
        as_group = self._is_group(alive)
        if as_group:
            assert self._group is not None
            procfs.signal_group(self._group, number)
        for proc in alive:
            if not (as_group and self._is_in_group(proc)):
                procfs.send_signal(proc, number)
            if proc.state == "T":
                procfs.send_signal(proc, signal.SIGCONT)

    def _go_on_until_unblocked(self, alive: list[Proc], number: int) -> set[Proc]:
        """Continue the frozen processes that block this signal, and freeze them when they no longer do.

        Returns those that were continued.
        """
        # Shells block all signals around a fork. Such a process would first make its child, and only then act
        # on the signal: nobody would have seen that child. It is over in a moment, unless the machine is busy.
        # But some programs always block a signal, and wait for it with sigwait: hence an end to this.
        continued = blocking = {
            proc for proc in alive if proc.state == "T" and procfs.blocks_signal(proc, number)
        }
        for seconds in _GO_ON_FOR:
            if not blocking:
                break
            for proc in blocking:
                procfs.send_signal(proc, signal.SIGCONT)
            time.sleep(seconds)
            for proc in blocking:
                procfs.send_signal(proc, signal.SIGSTOP)
            _wait_until_stopped(list(blocking))
            blocking = {proc for proc in blocking if procfs.blocks_signal(proc, number)}
        return continued

    def _freeze(self, stopped: Iterable[Proc] = ()) -> list[Proc]:
        """Stop all processes of the tree by SIGSTOP, and return them: from then on the list is complete.

        `stopped` were stopped by us before.
        """
        # Why: a process that forks while we signal it would leave a child that we have not seen, and that
        # cannot be found once the parent has exited. A look reads the state of a process before the list of
        # its children, so the list of a process that was stopped is complete. A process group need not be
        # frozen: the kernel signals it in one step.
        alive = self.members()
        stopped = set(stopped)
        refused: set[Proc] = set()
        for look in range(_LOOKS):
            alone = (
                [proc for proc in alive if not self._is_in_group(proc)] if self._is_group(alive) else alive
            )
            frozen_states = _CANNOT_FORK if look < _LOOKS_AT_BLOCKED else (*_CANNOT_FORK, "D")
            running = [proc for proc in alone if proc.state not in frozen_states and proc not in refused]
            if not running:
                break
            for proc in running:
                if proc not in stopped:
                    (stopped if procfs.send_signal(proc, signal.SIGSTOP) else refused).add(proc)
            _wait_until_stopped([proc for proc in running if proc in stopped])
            alive = self.members()
        for proc in alive:
            if proc in stopped:
                proc.state = "T"  # or it will be in a moment: `signal` has to continue it
        return alive

    def _is_group(self, alive: list[Proc]) -> bool:
        leader = next((proc for proc in alive if self._is_in_group(proc)), None)
        return leader is not None and procfs.still_alive(leader)

    def _is_in_group(self, proc: Proc) -> bool:
        return self._group is not None and proc.pgrp == self._group

    def describe(self) -> str:
        """The processes that are still alive."""
        return procfs.describe_all(self.members())


def _wait_until_stopped(procs: list[Proc]) -> None:
    # A process that got SIGSTOP may still be inside its fork until it is seen to have stopped.
    give_up_at = time.monotonic() + _LONGEST_STOP
    while True:
        procs = [
            now
            for proc in procs
            if (now := descendants.as_it_is_now(proc)) is not None and now.state not in _CANNOT_FORK
        ]
        if not procs or time.monotonic() > give_up_at:
            return
        time.sleep(0.0005)  # they may need this very processor


def _name_of(proc: Proc) -> str:
    command = procfs.read_if_there(f"/proc/{proc.pid}/cmdline") or b""
    program = command.partition(b"\0")[0].decode(errors="replace")
    return printed_line(os.path.basename(program) or proc.comm)
