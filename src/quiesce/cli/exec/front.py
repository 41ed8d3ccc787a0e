"""We: the process that was started in the command's place. Signals reach us, and our exit is the command's.

Life cycle
- *running*: signals are passed on to the command. What happens at the terminal is between it and the command,
  which is in the foreground.
- *stopping*: a signal that asks us to end (SIGTERM, SIGINT, SIGHUP), the third Ctrl-C in a row, or the end of
  our client. The command gets the signal; after three fifths of the grace, or as soon as the command has
  exited, the rest of its tree gets SIGTERM; at the end of the grace everything left gets SIGKILL. A second
  signal is passed on too and halves what is left of the grace; a third means SIGKILL now.
- *ending*: the command has exited by itself. What it left running gets SIGTERM, and after the grace SIGKILL.

The command is told to stop once. SIGTERM after SIGINT is for those that ignore SIGINT; who has had a SIGTERM
gets no other, which many programs would take as "now".

One thread, one `poll`: on signals (Python writes their numbers to a pipe), on the guard's messages, and, with
`--stop-on-eof`, on the other end of our standard input, of which nothing is read.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from quiesce.kernel.inner import become_subreaper, procfs, reap_orphans

from .foreground import Foreground
from .guard import STOP_HAS_BEGUN, Parent, fork_guard, release_descriptors
from .tree import Tree

STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# A fault is ours alone; the last two ask a background process not to touch the terminal.
_NOT_PASSED_ON: Final = (
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE),
    *(
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGTRAP,
        signal.SIGABRT,
        signal.SIGSYS,
    ),
    *(signal.SIGTTIN, signal.SIGTTOU),
)
_SHARE_BEFORE_TERM = 0.6  # of the grace: how long the rest of the tree waits for the command to end it
_LOOK_EVERY = 0.02
_NEWS_WITHIN = 0.5
_CTRL_C_IN_A_ROW = 3


class NotStarted(Exception):
    """The command could not be executed."""

    def __init__(self, number: int) -> None:
        self.number = number


class Front:
    """Runs one command, until its tree has ended."""

    def __init__(
        self, argv: Sequence[str], *, grace: float, guarded: bool, stop_on_eof: bool, forwarded: Sequence[int]
    ) -> None:
        self._argv = argv
        self._grace = grace
        self._guarded = guarded
        self._stop_on_eof = stop_on_eof
        self._forwarded = forwarded
        self._foreground = Foreground()
        self._guard = 0
        self._command = 0
        self._pidfd = -1
        self.tree = Tree(self._root)
        self._messages = -1
        self._partial_line = b""
        self._parent: Parent | None = None  # that is us, if there is no guard
        self._stop_began = self._ending_began = 0.0
        self._terminate_at = self._kill_at = float("inf")
        self._hurries = 0
        self._ctrl_c: list[float] = []
        self._signalled_with_term = False
        self.status: int | None = None  # of the command, as `os.wait` gives it
        self.reason: tuple[str, str] | None = None  # kind and message, if we were asked to stop
        self.left: list[procfs.Proc] = []
        self.killed: list[str] = []
        self.seconds = 0.0

    # Starting

    def run(self) -> None:
        """Start the command, and return when nothing of it is left, or nothing more can be done.

        Raises NotStarted.
        """
        try:
            self._run()
        finally:
            self._foreground.take_back_from(self._command)
            self._dismiss()

    def _run(self) -> None:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        become_subreaper()  # for pid 1 too: then it changes nothing
        foreground = self._foreground if self._foreground.is_ours() else None
        if self._guarded:
            self._guard, self._messages = fork_guard(self._argv, mask, foreground, self._grace)
        else:
            self._messages, ours = os.pipe()
            self._parent = Parent(lambda message: os.write(ours, f"{message}\n".encode()))
            self._parent.start(self._argv, mask, foreground)
        while not self._command:  # before any signal, which could not be passed on
            if not self._read_messages():
                raise NotStarted(0)
        os.set_blocking(self._messages, False)
        signals = self._take_signals()
        release_descriptors(*self._kept_descriptors())
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._drive(signals)

    def _root(self) -> int:
        """The command's parent. If we are pid 1, we have children that are none of its tree."""
        guard = procfs.look_up(self._guard) if self._guard else None
        return self._guard if guard is not None and not guard.zombie else os.getpid()

    def _kept_descriptors(self) -> Iterator[int]:
        yield self._messages
        yield 2  # for the one line that we may have to print
        if self._stop_on_eof:
            yield 0

    def _take_signals(self) -> int:
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        os.set_blocking(theirs, False)
        signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
        for number in signal.valid_signals():
            # What was ignored when we were started is ignored by the command too: `nohup` goes on working.
            if number not in _NOT_PASSED_ON and signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, frame: None)
        return ours

    # The loop

    def _drive(self, signals: int) -> None:
        poll = select.poll()
        poll.register(signals, select.POLLIN)
        if self._messages >= 0:
            poll.register(self._messages, select.POLLIN)
        if self._stop_on_eof:
            poll.register(0, select.POLLRDHUP)
        self._reap()
        while not self._is_over():
            for descriptor, event in poll.poll(self._milliseconds()):
                if descriptor == signals:
                    for number in os.read(signals, 4096):
                        self._handle(number)
                elif descriptor == self._messages:
                    if not self._read_messages():
                        poll.unregister(descriptor)
                        self._take_over()
                elif event & (select.POLLHUP | select.POLLRDHUP | select.POLLERR):
                    poll.unregister(descriptor)
                    self._begin_stop("disconnect", "end of input")

    def _is_over(self) -> bool:
        now = time.monotonic()
        if now >= self._terminate_at:
            self._terminate_at = float("inf")
            self.tree.terminate(but=[self._command] if self._signalled_with_term else [])
        if now >= self._kill_at:
            self.killed = [proc.describe() for proc in self.tree.members()]
            self.left = self.tree.kill()
            self._learn_status()
            return True
        return self.status is not None and not self.tree.members()

    def _learn_status(self) -> None:
        """Everything was killed: wait a moment for the news that the command has exited."""
        give_up_at = time.monotonic() + _NEWS_WITHIN
        while self.status is None and time.monotonic() < give_up_at:
            self._reap()
            if not self._read_messages():
                self._take_over()
            time.sleep(0.001)

    def _milliseconds(self) -> float | None:
        until = min(self._terminate_at, self._kill_at)
        if until == float("inf"):
            return None
        pause = max(0.0, until - time.monotonic())
        return 1000 * (min(pause, _LOOK_EVERY) if self.status is not None else pause)

    # Signals

    def _handle(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif number == signal.SIGCONT:
            self._continue()
        elif number == signal.SIGTSTP:
            self._signal_group(signal.SIGTSTP)  # when it has stopped, we do
        elif number in STOPPING and number not in self._forwarded:
            self._stop_by(number)
        else:
            self._signal_command(number)

    def _stop_by(self, number: int) -> None:
        kind = {signal.SIGINT: "user", signal.SIGTERM: "shutdown"}.get(signal.Signals(number), "disconnect")
        self._signal_command(number)
        if not self._stop_began:
            self._begin_stop(kind, signal.Signals(number).name)
        elif number != signal.SIGHUP:  # one closed terminal may send several
            self._hurry()

    def _hurry(self) -> None:
        """One more wish to stop: half of the remaining grace, then none."""
        now = time.monotonic()
        self._hurries += 1
        rest = 0.0 if self._hurries > 1 else max((self._kill_at - now) / 2, 0.0)
        self._kill_at = now + rest
        self._terminate_at = min(self._terminate_at, now + _SHARE_BEFORE_TERM * rest)

    def _begin_stop(self, kind: str, message: str) -> None:
        if self._stop_began:
            return
        now = self._stop_began = time.monotonic()
        self.reason = self.reason or (kind, message)
        self._kill_at = min(self._kill_at, now + self._grace)
        self._terminate_at = now + (_SHARE_BEFORE_TERM * self._grace if self.status is None else 0.0)
        if self._guard:
            os.kill(self._guard, STOP_HAS_BEGUN)
        if self._command:
            self._signal_command(signal.SIGCONT)  # a stopped one would not hear of it

    def _signal_command(self, number: int) -> None:
        if self._pidfd < 0 or self.status is not None:
            return
        self._signalled_with_term |= number == signal.SIGTERM
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except OSError:  # it has just exited, or runs as another user
            pass

    def _signal_group(self, number: int) -> None:
        # Its id is taken as long as the guard is a member of it, or the command is not reaped.
        if self._command:
            try:
                os.killpg(self._command, number)
            except OSError:
                pass

    # The terminal

    def _pass_on_from_terminal(self, number: int) -> None:
        """The terminal has sent this to the command's group: whoever is in ours would have got it, too."""
        if number == signal.SIGHUP:
            self._begin_stop("disconnect", "the terminal was closed")
        before = signal.signal(number, signal.SIG_IGN)
        try:
            os.killpg(0, number)
        finally:
            signal.signal(number, before)
        if number == signal.SIGINT:
            now = time.monotonic()
            self._ctrl_c = [*(at for at in self._ctrl_c if now - at < self._grace), now]
            if self._stop_began or self.status is not None:
                self._hurry()
            elif len(self._ctrl_c) >= _CTRL_C_IN_A_ROW:
                self._begin_stop("user", f"{_CTRL_C_IN_A_ROW} times Ctrl-C")

    def _stop_like(self, number: int) -> None:
        """The command has stopped (Ctrl-Z, for example): stop too, for our shell to notice."""
        if self._stop_began:
            self._signal_group(signal.SIGCONT)
            return
        self._foreground.take_back_from(self._command)
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        # All of our group, if a shell watches it: a pipeline, or a script, stops as one.
        os.killpg(0, signal.SIGTSTP)
        if number == signal.SIGSTOP:
            os.kill(os.getpid(), signal.SIGSTOP)
        # We were continued, or nobody controls our job, and nothing was stopped.
        signal.signal(signal.SIGTSTP, before)
        self._continue()

    def _continue(self) -> None:
        if self._foreground.is_ours():
            self._foreground.give_to(self._command)
        self._signal_group(signal.SIGCONT)

    # The guard

    def _read_messages(self) -> bool:
        """Act on the guard's messages; False if it has exited."""
        if self._messages < 0:
            return True
        try:
            data = os.read(self._messages, 4096)
        except BlockingIOError:
            return True
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in lines:
            self._take(line.decode())
        return bool(data)

    def _take(self, message: str) -> None:
        kind, _, value = message.partition(" ")
        handlers: dict[str, Callable[[int], object]] = {
            "pid": self._set_command,
            "failed": self._fail,
            "exited": self._set_status,
            "stopped": self._stop_like,
            "tty": self._pass_on_from_terminal,
        }
        handlers[kind](int(value))

    def _set_command(self, pid: int) -> None:
        self._command = pid
        self._pidfd = os.pidfd_open(pid)  # its parent keeps the zombie: the number is still its own

    def _fail(self, number: int) -> None:
        raise NotStarted(number)

    def _set_status(self, status: int) -> None:
        self.status = status
        now = time.monotonic()
        self._ending_began = now
        self._terminate_at = now
        self._kill_at = min(self._kill_at, now + self._grace)

    def _take_over(self) -> None:
        """The guard was killed: the command is our child now."""
        self._guard, self._messages = 0, -1
        if not self._command:
            raise NotStarted(0)
        self._parent = Parent(self._take)
        self._parent.adopt(self._command)
        self._parent.has_exited = self.status is not None
        self._reap()

    def _reap(self) -> None:
        if self._parent is not None:
            self._parent.wait()
            return
        reap_orphans(self._guard, self._command)  # the command becomes our child when the guard is killed
        if self._guard and os.waitid(os.P_PID, self._guard, os.WSTOPPED | os.WNOHANG):
            self._stop_like(signal.SIGSTOP)  # sent to the whole group of the command

    def _dismiss(self) -> None:
        if self._stop_began or self._ending_began:
            self.seconds = time.monotonic() - (self._stop_began or self._ending_began)
        if self._guard:
            os.kill(self._guard, signal.SIGKILL)
            os.waitpid(self._guard, 0)
