"""Being the parent of orphans, and noticing the death of one's own parent: what Linux offers for both.

A process whose parent has exited becomes a child of the nearest ancestor that is a *subreaper*, else of pid 1.
So below a subreaper nothing escapes: a daemon that forked twice, made a session of its own and cleared its
environment is still found by walking down the lists of children (`descendants`).

A parent of orphans has to reap them. Only a process that starts nothing else may do that by waiting for any
child: in a program, that takes exit statuses from the code that waits for them.

Imported by programs that must start quickly: import only small modules of the standard library here.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> bool:
    """Have orphaned descendants become children of this process. False where the system has no such thing."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def signal_when_parent_exits(number: int) -> bool:
    """Have this process get a signal when the thread that forked it exits, for whatever reason.

    The parent may have exited before the call: look at `os.getppid()` afterwards.
    """
    return _prctl(_PR_SET_PDEATHSIG, number)


def child_changes() -> Iterator[tuple[int, int]]:
    """The children that have exited, stopped or continued since the last call: pid and status, as from `os.waitpid`.

    Reaps those that have exited, after what the caller does with the news: if it is killed meanwhile, who
    becomes the parent after it learns the status again. For processes that start nothing but what they wait
    for here.
    """
    while found := _first_change():
        code, value = found.si_code, found.si_status
        kind = os.WEXITED
        if code in (os.CLD_STOPPED, os.CLD_TRAPPED):
            kind, status = os.WSTOPPED, value << 8 | 0x7F
        elif code == os.CLD_CONTINUED:
            kind, status = os.WCONTINUED, 0xFFFF
        else:
            status = value << 8 if code == os.CLD_EXITED else value
        yield found.si_pid, status
        try:
            os.waitid(
                os.P_PID, found.si_pid, os.WNOHANG | kind
            )  # not more: it may have been killed since it stopped
        except ChildProcessError:
            continue


def _first_change() -> os.waitid_result | None:
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None


def signal_of(status: int) -> int:
    """The signal that ended a process, from its wait status; 0 if none did."""
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def exit_like(status: int) -> NoReturn:
    """End this process as another one ended: with its exit code, or by the same signal."""
    number = signal_of(status)
    if number:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # its core dump must not be overwritten by ours
        if number in signal.valid_signals():  # 32 and 33 are the C library's, and have their default here
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        # Still here: pid 1 of a container is not ended by its own signals.
    os._exit(128 + number if number else os.waitstatus_to_exitcode(status))


def _prctl(option: int, value: int) -> bool:
    import ctypes

    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)
    except (AttributeError, OSError):  # not Linux
        return False
