"""The terminal's foreground: which process group gets Ctrl-C, Ctrl-Z and what is typed.

The command has a process group of its own, in our session. While our group is in the foreground, the command's
takes its place, as if a shell had started it. A shell notices nothing: it gave the terminal to our group, and
takes it back from whatever group has it.
"""

from __future__ import annotations

import os
import signal


class Foreground:
    """The controlling terminal of this process, if it has one."""

    def __init__(self) -> None:
        self._group = os.getpgrp()
        self._fd = -1
        try:
            self._fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            pass  # a service, a container, a pipeline of CI: there is no terminal

    def is_ours(self) -> bool:
        """Whether our own process group is in the foreground."""
        return self._fd >= 0 and self._current() == self._group

    def give_to(self, group: int) -> None:
        """Put another process group of our session into the foreground."""
        self._put(group)

    def take_back_from(self, group: int) -> None:
        """Put our own group into the foreground, unless somebody else than `group` has it by now."""
        if self._fd >= 0 and self._current() == group:
            self._put(self._group)

    def _current(self) -> int:
        try:
            return os.tcgetpgrp(self._fd)
        except OSError:  # hung up
            return -1

    def _put(self, group: int) -> None:
        # Otherwise the terminal stops a process of a background group that does this.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            os.tcsetpgrp(self._fd, group)
        except OSError:  # the group has exited, or the terminal has hung up
            pass
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
