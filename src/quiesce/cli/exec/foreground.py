"""The terminal's foreground: which process group gets Ctrl-C, Ctrl-Z and what is typed.

If we are alone in our process group, as is what a shell with job control starts, the command gets a group of its
own, in our session. While our group is in the foreground, the command's takes its place, as if the shell had
started it. The shell notices nothing: it gave the terminal to our group, and takes it back from whatever group
has it.

In a pipeline, a script or a recipe of `make`, others are in our group too, and would lose the terminal: `less`
could not read the keyboard any more. Then the command is one more member of the group, as it would be without
us, and the terminal does the rest.
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
        self._was_ours = self.is_ours()

    def exists(self) -> bool:
        """Whether there is a controlling terminal."""
        return self._fd >= 0

    def is_shared(self) -> bool:
        """Whether we share the terminal with other processes of our group."""
        if self._fd < 0:
            return False
        ours = os.getpid()
        if self._group != ours:
            return True
        try:
            names = os.listdir("/proc")
        except OSError:  # nobody knows
            return True
        for name in names:
            try:
                if name.isdigit() and os.getpgid(int(name)) == self._group and int(name) != ours:
                    return True
            except OSError:  # it has exited
                continue
        return False

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

    def recover(self) -> None:
        """Put our own group into the foreground if it was there at first: whoever took its place is not alive."""
        if self._was_ours:
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
