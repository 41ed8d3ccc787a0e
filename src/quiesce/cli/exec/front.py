"""We: the process that was started in the command's place. Signals reach us, and our exit is the command's.

Life cycle
- *running*: signals are passed on to the command. What happens at the terminal is between it and the command,
  which is in the foreground.
- *stopping*: a signal that asks us to end (SIGTERM, SIGINT, SIGHUP), the third Ctrl-C in a row, or the end of
  our client. The command gets the signal; after three fifths of the grace, or as soon as the command has
  exited, the rest of its tree gets SIGTERM; at the end of the grace everything left gets SIGKILL. A second
  signal is passed on too and halves what is left of the grace; a third means SIGKILL now. The same signal twice
  within a tenth of a second counts once.
- *ending*: the command has exited by itself. What it left running gets SIGTERM, and after the grace SIGKILL.

At a terminal, Ctrl-C, Ctrl-\\ and Ctrl-Z come to the command directly. What comes to us from the terminal too is
counted, and not passed on a second time.

The command is told to stop once. SIGTERM after SIGINT is for those that ignore SIGINT; who has had a SIGTERM
gets no other, which many programs would take as "now".

One thread, one `poll`: on signals (`SignalReader`), on the guard's messages, and, with `--stop-on-eof`, on the other
end of our standard input, of which nothing is read.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from quiesce.kernel.inner import (
    FROM_TERMINAL,
    OURS_ALONE,
    SignalReader,
    become_subreaper,
    child_changes,
    descendants,
    procfs,
)

from .foreground import Foreground
from .guard import STOP_HAS_BEGUN, Parent, fork_guard, release_descriptors, reserve_standard_descriptors
from .launching import Command, restore_environment
from .tree import Tree

STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_STOPPED_BY_TERMINAL: Final = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_SHARE_BEFORE_TERM = 0.6  # of the grace: how long the rest of the tree waits for the command to end it
_NEWS_WITHIN = 0.5  # seconds until the guard has told that what was killed has exited
_NEWS_OF_UNSEEN_WITHIN = 3.0  # and if nothing can be seen that has not
_ONE_WISH_WITHIN = 0.1  # seconds: `timeout` signals us, and then its whole group, in which we are
_LONGEST_WAIT = 3600.0  # `poll` counts milliseconds in 32 bits
_CTRL_C_IN_A_ROW = 3


class NotStarted(Exception):
    """The command could not be executed; or we could not fork (`is_ours`), or the guard was killed (no number)."""

    def __init__(self, number: int, *, is_ours: bool = False) -> None:
        self.number = number
        self.is_ours = is_ours


class Front:
    """Runs one command, until its tree has ended."""

    def __init__(
        self, argv: Sequence[str], *, grace: float, guarded: bool, stop_on_eof: bool, forwarded: Sequence[int]
    ) -> None:
        reserve_standard_descriptors()
        self._argv = argv
        self._grace = grace
        self._guarded = guarded
        self._stop_on_eof = stop_on_eof
        self._forwarded = forwarded
        self._foreground = Foreground()
        self._guard = 0
        self._command = 0
        self._pidfd = -1
        self._known_by_start: procfs.Proc | None = None  # where there are no pidfds
        self.tree = Tree(self._root, self._signal_group)
        self._messages = -1
        self._partial_line = b""
        self._own_group = True
        self._leads = True  # whether the command leads it
        self._ignored: set[int] = set()  # when we were started
        self._is_empty = False  # nothing of the tree is left
        self._stop_began = self._ending_began = 0.0
        self._terminate_at = self._kill_at = float("inf")
        self._hurries = 0
        self._ctrl_c: list[float] = []
        self._was_signalled = self._signalled_with_term = False
        self._last_wish = (0, 0.0)  # the last signal that asked us to stop, and when it came
        self.status: int | None = None  # of the command, as `os.wait` gives it
        self.reason: tuple[str, str] | None = None  # kind and message, if we were asked to stop
        self.left: list[procfs.Proc] = []
        self.killed: list[str] = []
        self.seconds = 0.0
        self.unseen = ""  # why something may be left that is not in `left`

    # Starting

    def run(self) -> None:
        """Start the command, and return when nothing of it is left, or nothing more can be done.

        Raises NotStarted.
        """
        try:
            self._run()
        except NotStarted as failure:
            self._dismiss()
            if not failure.number:
                Tree(os.getpid).kill()  # without its guard, it may run all the same
            self._foreground.recover()
            raise
        except BaseException:  # a fault of ours, or no descriptor is left
            if not self._guard:  # the guard stops the tree when we exit
                self._signal_command(signal.SIGKILL)
                self.tree.kill()
            self._foreground.recover()
            raise
        self._dismiss()
        self._foreground.take_back_from(self._command)

    def _run(self) -> None:
        numbers = signal.valid_signals()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        self._ignored = {number for number in numbers if signal.getsignal(number) is signal.SIG_IGN}
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, there is no exit status
        if not become_subreaper():  # for pid 1 too: then it changes nothing
            self.unseen = "the system does not let quiesce adopt processes that have lost their parent"
        self._own_group = not self._foreground.is_shared()
        foreground = self._foreground if self._own_group and self._foreground.is_ours() else None
        restore_environment()
        # A leader cannot make a session: `setsid` would fork, and exit at once. So it is one if we are.
        self._leads = self._own_group and (os.getpgrp() == os.getpid() or not self._guarded)
        command = Command(
            self._argv, mask, signal.SIGCHLD in self._ignored, self._own_group, self._leads, foreground
        )
        if self._guarded:
            try:
                self._guard, self._messages = fork_guard(command, self._grace)
            except OSError as error:
                raise NotStarted(error.errno or 0, is_ours=True) from error
        else:
            self._messages, theirs = os.pipe()
            Parent(lambda message: os.write(theirs, f"{message}\n".encode())).start(command)
            os.close(theirs)
        while not self._command:  # before any signal, which could not be passed on
            if not self._read_messages():
                raise NotStarted(0)
        os.set_blocking(self._messages, False)
        # What was blocked or ignored when we were started is so in the command too: `nohup` goes on working.
        taken = numbers - self._ignored - mask - OURS_ALONE | {signal.SIGCHLD}
        if not self._own_group:
            taken -= set(_STOPPED_BY_TERMINAL)  # it stops us with all others of our group
        signals = SignalReader(taken)
        release_descriptors(*self._kept_descriptors())
        signal.pthread_sigmask(signal.SIG_SETMASK, mask | taken)
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

    # The loop

    def _drive(self, signals: SignalReader) -> None:
        poll = select.poll()
        poll.register(signals.descriptor, select.POLLIN)
        poll.register(self._messages, select.POLLIN)
        if self._stop_on_eof:
            poll.register(0, select.POLLRDHUP)
        self._reap()
        while not self._is_over():
            for descriptor, event in poll.poll(self._milliseconds()):
                if descriptor == signals.descriptor:
                    for number, from_kernel in signals.read():
                        self._handle(number, from_kernel)
                elif descriptor == self._messages:
                    if not self._read_messages():
                        poll.unregister(descriptor)  # there is no guard, or it was killed: SIGCHLD follows
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
            left = self.tree.kill()
            self._learn_end(_NEWS_WITHIN if left else _NEWS_OF_UNSEEN_WITHIN)
            if not self._is_empty:
                self.left = left
                self.unseen = self.tree.unseen or (
                    self.unseen if left else "a process that cannot be seen did not exit"
                )
            return True
        return self._is_empty

    def _learn_end(self, seconds: float) -> None:
        """Everything was killed: wait a moment for the news that it has exited."""
        if self._guard:
            os.kill(self._guard, signal.SIGCONT)  # whoever has stopped it
        give_up_at = time.monotonic() + seconds
        while not (self._is_empty and self.status is not None) and time.monotonic() < give_up_at:
            self._reap()
            self._read_messages()
            time.sleep(0.001)

    def _milliseconds(self) -> float | None:
        until = min(self._terminate_at, self._kill_at)
        seconds = max(0.0, until - time.monotonic())
        return None if seconds == float("inf") else 1000 * min(seconds, _LONGEST_WAIT)

    # Signals

    def _handle(self, number: int, from_kernel: bool) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif number == signal.SIGCONT:
            self._continue()
        elif from_kernel and number in FROM_TERMINAL:
            self._hear_terminal(number)
        elif number == signal.SIGTSTP:
            self._signal_group(signal.SIGTSTP)  # when it has stopped, we do
        elif number in STOPPING and number not in self._forwarded:
            self._stop_by(number)
        else:
            self._signal_command(number)

    def _stop_by(self, number: int) -> None:
        now = time.monotonic()
        last, since = self._last_wish
        if number == last and now - since < _ONE_WISH_WITHIN:
            return
        self._last_wish = number, now
        kind = {signal.SIGINT: "user", signal.SIGTERM: "shutdown"}.get(signal.Signals(number), "disconnect")
        self._signal_command(number)
        if not self._stop_began:
            self._begin_stop(kind, signal.Signals(number).name)
        elif self._was_signalled and number != signal.SIGHUP:  # one closed terminal may send several
            self._hurry()
        # A client that has closed our input sends SIGTERM if it sees nothing happen: that is its first wish.
        self._was_signalled = True

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
        if self.status is not None:
            return
        self._signalled_with_term |= number == signal.SIGTERM
        if self._known_by_start is not None:
            procfs.send_signal(self._known_by_start, number)
        elif self._pidfd >= 0:
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except OSError:  # it has just exited, or runs as another user
                pass

    def _signal_group(self, number: int) -> None:
        if not self._own_group or (not self._leads and not self._is_in_guards_group()):
            self._signal_command(number)
        elif self._command and (self.status is None or self._guard):
            # Either of the two is in the group: its number is nobody else's.
            procfs.signal_group(self._command if self._leads else self._guard, number)

    def _is_in_guards_group(self) -> bool:
        """Whether the guard leads the command's group: it lives, and the command has made no session."""
        try:
            return bool(self._guard) and os.getpgid(self._command) == self._guard
        except ProcessLookupError:  # the command was reaped, and some of its group may still run
            return True

    # The terminal

    def _hear_terminal(self, number: int) -> None:
        """The terminal has sent this to our own group."""
        if self._own_group:  # our group is in the foreground: a shell's `fg` has put it there
            self._foreground.give_to(self._command)
            self._signal_group(number)
        if number == signal.SIGINT:
            self._count_ctrl_c()

    def _hear_guard_of_terminal(self, number: int) -> None:
        """The terminal has sent this to the command's group."""
        if number in self._ignored:
            return
        if number == signal.SIGINT:
            self._count_ctrl_c()
        elif number not in self._forwarded:
            self._begin_stop("disconnect", "the terminal was closed")

    def _count_ctrl_c(self) -> None:
        now = time.monotonic()
        self._ctrl_c = [*(at for at in self._ctrl_c if now - at < self._grace), now]
        if self._stop_began or self.status is not None:
            self._hurry()
        elif len(self._ctrl_c) >= _CTRL_C_IN_A_ROW and signal.SIGINT not in self._forwarded:
            self._begin_stop("user", f"{_CTRL_C_IN_A_ROW} times Ctrl-C")

    def _stop_like(self, number: int) -> None:
        """The command has stopped (Ctrl-Z, for example): stop too, for our shell to notice."""
        is_from_terminal = number in _STOPPED_BY_TERMINAL
        if self._stop_began:
            self._signal_group(signal.SIGCONT)
        elif not self._foreground.exists():
            return  # there is no job control: whoever has stopped it will continue it
        elif not self._own_group:
            if not is_from_terminal:  # otherwise all of our group has stopped, and was continued
                os.kill(os.getpid(), signal.SIGSTOP)
        elif number in (signal.SIGTTIN, signal.SIGTTOU) and self._foreground.is_ours():
            self._continue()  # a shell's `fg` has put us into the foreground
        elif self._stop_ourselves(number if is_from_terminal else signal.SIGSTOP):
            self._continue()
        else:
            # No shell controls us. Linux does the same to a stopped group whose shell exits.
            if number in (signal.SIGTTIN, signal.SIGTTOU):
                self._signal_group(signal.SIGHUP)
            self._signal_group(signal.SIGCONT)

    def _stop_ourselves(self, number: int) -> bool:
        """Return when we are continued; False if we cannot be stopped by this signal."""
        self._foreground.take_back_from(self._command)
        before = signal.signal(number, signal.SIG_DFL) if number != signal.SIGSTOP else None
        mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if number != signal.SIGSTOP:
            signal.signal(number, before)
        return signal.SIGCONT in signal.sigpending()

    def _continue(self) -> None:
        if self._own_group and self._foreground.is_ours():
            self._foreground.give_to(self._command)
        self._signal_group(signal.SIGCONT)

    # The guard

    def _read_messages(self) -> bool:
        """Act on the guard's messages; False if it has exited."""
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
            "unable": self._fail_ourselves,
            "exited": self._set_status,
            "stopped": self._stop_like,
            "continued": lambda _: None,
            "tty": self._hear_guard_of_terminal,
            "empty": self._end,
        }
        handlers[kind](int(value or 0))

    def _set_command(self, pid: int) -> None:
        self._command = pid
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            pass  # it was reaped before we have heard of it
        except OSError:  # an old Linux, or a sandbox that has no pidfds
            self._known_by_start = procfs.look_up(pid)

    def _fail(self, number: int) -> None:
        raise NotStarted(number)

    def _fail_ourselves(self, number: int) -> None:
        raise NotStarted(number, is_ours=True)

    def _set_status(self, status: int) -> None:
        if self.status is not None:  # known from the guard, which was killed before it reaped the command
            return
        self.status = status
        now = time.monotonic()
        self._ending_began = now
        self._terminate_at = now
        self._kill_at = min(self._kill_at, now + self._grace)

    def _end(self, _: int) -> None:
        self._is_empty = True

    def _reap(self) -> None:
        """Our children: the guard, and strangers if we are pid 1. Once the guard was killed: the command's tree."""
        self._read_messages()  # first, if the command could not be executed, and has exited
        for pid, status in child_changes():
            if pid == self._guard:
                if os.WIFSTOPPED(
                    status
                ):  # by a signal to the whole group: it will tell of the command's stop
                    os.kill(self._guard, signal.SIGCONT)
                elif not os.WIFCONTINUED(status):
                    self._read_messages()  # the last ones
                    self._guard = 0
            elif pid == self._command:
                if os.WIFSTOPPED(status):
                    self._stop_like(os.WSTOPSIG(status))
                elif not os.WIFCONTINUED(status):
                    self._set_status(status)
        if not self._guard and not descendants.have_any():
            self._is_empty = True

    def _dismiss(self) -> None:
        if self._stop_began or self._ending_began:
            self.seconds = time.monotonic() - (self._stop_began or self._ending_began)
        if self._guard:
            os.kill(self._guard, signal.SIGKILL)
            os.waitpid(self._guard, 0)
