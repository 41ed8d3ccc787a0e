"""Starting the command: a fork that leaves its signals, mask, descriptors and place at the terminal as they were."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

from .foreground import Foreground

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # the exit statuses of shells


def launch(
    argv: Sequence[str],
    mask: Collection[int],
    foreground: Foreground | None,
    fail: Callable[[OSError], object],
) -> int:
    """Start `argv` in a process group of its own, and return its pid, which is also the group's id.

    `mask` are the signals that were blocked when we were started. With `foreground`, its group is put into the
    foreground of the terminal. If it cannot be executed, `fail(error)` is called in the child.
    """
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _become(argv, mask, foreground, fail)
    _lead_group(pid, foreground)
    return pid


def _become(
    argv: Sequence[str],
    mask: Collection[int],
    foreground: Foreground | None,
    fail: Callable[[OSError], object],
) -> NoReturn:
    status = NOT_EXECUTABLE
    try:
        _lead_group(os.getpid(), foreground)
        # Python ignores these two from its start. What else was ignored stays so, as with `nohup`.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvp(argv[0], list(argv))
    except OSError as error:
        fail(error)
        status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    finally:
        os._exit(status)


def _lead_group(pid: int, foreground: Foreground | None) -> None:
    # In the child and in its parent, as shells do: whichever is first, neither goes on before it is done.
    try:
        os.setpgid(pid, pid)
    except OSError:
        pass  # done by the other one, and it has called exec by now, or exited
    if foreground is not None:
        foreground.give_to(pid)
