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

from . import descendants

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


def reap_orphans(*keep: int) -> None:
    """Reap every child that has exited, except `keep`. For processes that start nothing but those."""
    try:
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid in keep:
                break
            os.waitpid(found.si_pid, os.WNOHANG)
        else:
            return
        # Its zombie would be found again and again, and hide the others.
        for pid in descendants.ours():
            if pid not in keep:
                os.waitpid(pid, os.WNOHANG)
    except (ChildProcessError, OSError):
        return


def signal_of(status: int) -> int:
    """The signal that ended a process, from its wait status; 0 if none did."""
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def exit_like(status: int) -> None:
    """End this process as another one ended: with its exit code, or by the same signal. Never returns."""
    number = signal_of(status)
    if number:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # its core dump must not be overwritten by ours
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
