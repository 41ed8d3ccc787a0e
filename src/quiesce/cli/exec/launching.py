"""Starting the command: a fork that leaves its signals, mask, descriptors and place at the terminal as they were."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, NoReturn

from .foreground import Foreground

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # the exit statuses of shells
_BY_PYTHON = ("C.UTF-8", "C.utf8", "UTF-8")


class Command(NamedTuple):
    """A command, and what it inherits."""

    argv: Sequence[str]
    mask: Collection[int]  # the signals that were blocked when we were started
    ignores_children: bool  # whether SIGCHLD was ignored
    own_group: bool  # whether it is to have a process group of its own
    leads: bool  # then: whether it leads it, which keeps it from making a session; otherwise its parent does
    foreground: Foreground | None  # then: the terminal, if its group is to be put into the foreground


def launch(command: Command, fail: Callable[[OSError], object]) -> int:
    """Start a command, and return its pid. If it leads a group of its own, that is also the group's id.

    If it cannot be executed, `fail(error)` is called in the child.
    """
    if sys.stdout is not None:
        sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _become(command, fail)
    _lead_group(pid, command)
    return pid


def restore_environment() -> None:
    """Undo what Python has done to the environment: in the locale "C" it sets LC_CTYPE, for programs that it starts."""
    if os.environ.get("LC_CTYPE") not in _BY_PYTHON:
        return
    try:
        with open("/proc/self/environ", "rb") as environment:  # as it was when we were started
            lines = environment.read().split(b"\0")
    except OSError:
        return
    if not any(line.startswith(b"LC_CTYPE=") for line in lines):
        del os.environ["LC_CTYPE"]


def _become(command: Command, fail: Callable[[OSError], object]) -> NoReturn:
    status = NOT_EXECUTABLE
    try:
        _lead_group(os.getpid(), command)
        # Python ignores these two from its start. What else was ignored stays so, as with `nohup`.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if command.ignores_children:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, command.mask)
        _execute(command.argv)
    except OSError as error:
        fail(error)
        status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    finally:
        os._exit(status)


def _execute(argv: Sequence[str]) -> None:
    """As `execvp` of C: `os.execvp` goes on past a script without an interpreter line, which shells run."""
    name, *arguments = argv
    problem: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    paths = [name] if "/" in name else [os.path.join(folder, name) for folder in os.get_exec_path()]
    for path in paths:
        try:
            os.execv(path, [name, *arguments])
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            problem = error
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            os.execv("/bin/sh", ["sh", path, *arguments])
    raise problem


def _lead_group(pid: int, command: Command) -> None:
    if not command.leads:
        return
    # In the child and in its parent, as shells do: whichever is first, neither goes on before it is done.
    try:
        os.setpgid(pid, pid)
    except OSError:
        pass  # done by the other one, and it has called exec by now, or exited
    if command.foreground is not None:
        command.foreground.give_to(pid)
