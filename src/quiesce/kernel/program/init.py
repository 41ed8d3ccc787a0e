"""A program that is pid 1, as in a container: another process takes that place.

Pid 1 becomes the parent of every orphan, and has to reap it; else zombies fill the table of processes. A program
cannot do that itself. To wait for any child takes exit statuses from the code that waits for them, and to look
for orphans only, among the children that a program has, is a guess: it cannot know which one somebody else is
about to wait for.

So `run` forks. The child runs the program, and has only the children that it starts. The parent stays as pid 1:
it reaps, passes signals on, and exits as the program does; then Linux ends everything else in the container.

A fork takes nothing along but the thread that calls it, and children stay with the parent. So there is no fork
if the program has other threads or children: then a warning says what to do instead.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Collection
from typing import NoReturn

from quiesce._safe.printed import logger
from quiesce.kernel.process import (
    FROM_TERMINAL,
    OURS_ALONE,
    SignalReader,
    child_changes,
    descendants,
    exit_like,
)

_OBSTACLE = (
    "this program is pid 1, and has %s: so it cannot be run as a child of a process that reaps orphans, and "
    "zombies may pile up. Call run() earlier, or start the program with `quiesce exec --` (as ENTRYPOINT of the "
    "container), or with `docker run --init`"
)


def run_as_child_of_init() -> None:
    """For pid 1: go on as a child of it. If that cannot be, warn, and do nothing."""
    if obstacle := _obstacle():
        logger.warning(_OBSTACLE, obstacle)
        return
    _flush()
    numbers = signal.valid_signals()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    program = os.fork()
    if program:
        _be_init(program, numbers - OURS_ALONE - mask | {signal.SIGCHLD})
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _obstacle() -> str:
    if threading.current_thread() is not threading.main_thread() or _number_of_threads() > 1:
        return "more than one thread"
    if descendants.have_any():
        return "started other processes already"
    return ""


def _number_of_threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))  # those of libraries too
    except OSError:
        return threading.active_count()


def _be_init(program: int, numbers: Collection[int]) -> NoReturn:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, there is no exit status
        _release_descriptors()
        try:
            with open("/proc/self/comm", "wb", buffering=0) as name:  # the name that `top` shows
                name.write(b"quiesce-init")
        except OSError:  # there is no /proc
            pass
        signals = SignalReader(numbers)
        poll = select.poll()
        poll.register(signals.descriptor, select.POLLIN)
        _reap(program)  # if it has ended already, its SIGCHLD may be lost
        while True:
            poll.poll()
            for number, from_kernel in signals.read():
                if number == signal.SIGCHLD:
                    _reap(program)
                elif not (from_kernel and number in FROM_TERMINAL):  # that has reached the program, too
                    os.kill(program, number)
    finally:
        os._exit(1)  # nothing of the program may run here


def _reap(program: int) -> None:
    for pid, status in child_changes():
        if pid == program and not os.WIFSTOPPED(status) and not os.WIFCONTINUED(status):
            exit_like(status)


def _release_descriptors() -> None:
    # Whoever reads what the program writes sees its end, and a port is free when the program has closed it.
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    try:
        most = max(map(int, os.listdir("/proc/self/fd")))
    except OSError:  # there is no /proc
        most = min(os.sysconf("SC_OPEN_MAX"), 65536)
    os.closerange(3, most + 1)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # there is none, or it is closed
            continue
