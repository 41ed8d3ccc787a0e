"""Commands for the tests of `quiesce exec`, and how they are started: directly, and by it.

In a session of their own, unless a test wants otherwise: then there is no terminal, wherever the tests run.
"""

from __future__ import annotations

import errno
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quiesce.kernel.process import procfs
from tests.kernel.processes import running, wait_until

EXEC = (sys.executable, "-m", "quiesce", "exec")

# A program of Python's that starts in 10 ms.
PYTHON = (sys.executable, "-I", "-S", "-c")

# It does not care: neither about signals that can be ignored, nor about the end of its input.
DEAF = """
import signal, sys, time
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGCONT}:
    signal.signal(number, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(300)
"""

# It forks twice, makes a session of its own, clears its environment, lets go of all descriptors, and is deaf if asked.
DAEMON = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 100)
        if "deaf" in sys.argv:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.execve("/bin/sleep", ["sleep", sys.argv[1]], {})
    os._exit(0)
os.wait()
"""

# It writes down each signal that it gets, and goes on, until it gets the last one.
LISTENER = """
import os, signal, sys
last = int(sys.argv[1])
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
print("ready", flush=True)
while True:
    number = signal.sigwait(signal.valid_signals() - {signal.SIGCHLD, signal.SIGCONT})
    print("got", int(number), flush=True)
    if number == last:
        os._exit(0)
"""


def exec_(*command: str, options: Sequence[str] = ()) -> list[str]:
    """The command line that runs this command by `quiesce exec`."""
    return [*EXEC, *options, "--", *command]


def python(program: str, *arguments: str) -> list[str]:
    return [*PYTHON, program, *arguments]


def run(command: Sequence[str | bytes], **settings: Any) -> subprocess.CompletedProcess[bytes]:
    defaults: dict[str, Any] = {"capture_output": True, "timeout": 15, "start_new_session": True}
    ended: subprocess.CompletedProcess[bytes] = subprocess.run(command, check=False, **(defaults | settings))
    return ended


@contextmanager
def started(command: Sequence[str], **settings: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A running command, which is killed at the end if it still runs."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process: subprocess.Popen[bytes] = subprocess.Popen(
        command, **(pipes | {"bufsize": 0, "start_new_session": True} | settings)
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def line_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def end_of(process: subprocess.Popen[bytes], seconds: float = 10.0) -> int:
    return process.wait(seconds)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def guard_of(front: int) -> int:
    """The guard of this `quiesce exec`, once it has settled down."""

    def settled() -> list[int]:
        return [pid for pid in children_of(front) if name_of(pid) == "quiesce-guard"]

    assert wait_until(settled)
    return settled()[0]


def name_of(pid: int) -> str:
    proc = procfs.look_up(pid)
    return proc.comm if proc is not None else ""


def state_of(pid: int) -> str:
    proc = procfs.look_up(pid)
    return proc.state if proc is not None else ""


def sleepers(token: str) -> list[int]:
    """The processes of the test that have become `sleep`."""
    return [pid for pid in running(token) if name_of(pid) == "sleep"]


def wait_for_sleepers(token: str, number: int = 1) -> list[int]:
    assert wait_until(lambda: len(sleepers(token)) == number), sleepers(token)
    return sleepers(token)


def all_end(token: str, seconds: float = 10.0) -> bool:
    return wait_until(lambda: not running(token), seconds)


# It prepares what the command inherits, and becomes the command. (`preexec_fn` would run Python in a fork of ours.)
_PREPARED = """
import fcntl, os, signal, sys, termios
exec(sys.argv[1])
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def prepared(statement: str, command: Sequence[str]) -> list[str]:
    """The command, started after this statement of Python."""
    return python(_PREPARED, statement, *command)


def with_ignored(number: int, command: Sequence[str]) -> list[str]:
    return prepared(f"signal.signal({int(number)}, signal.SIG_IGN)", command)


def with_blocked(number: int, command: Sequence[str]) -> list[str]:
    return prepared(f"signal.pthread_sigmask(signal.SIG_BLOCK, [{int(number)}])", command)


def without_descriptors(numbers: Sequence[int], command: Sequence[str]) -> list[str]:
    return prepared(f"[os.close(number) for number in {list(numbers)}]", command)


# A filter of system calls, as sandboxes have one: an error for the one with this number and first argument.
_REFUSING = """
import ctypes, struct
number, argument, error = {}
steps = [(0x20, 0, 0, 0), (0x15, 0, 3, number), (0x20, 0, 0, 16), (0x15, 0, 1, argument)]
if argument is None:
    steps[1:] = [(0x15, 0, 1, number)]
steps += [(6, 0, 0, 0x50000 | error), (6, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
for option, value, where in [(38, 1, 0), (22, 2, program)]:
    assert ctypes.CDLL(None).prctl(option, value, where, 0, 0) == 0
"""
_PIDFD_OPEN = 434  # on every machine
_PRCTL = {"x86_64": 157, "aarch64": 167}.get(platform.machine(), 0)
_SET_CHILD_SUBREAPER = 36


def without_pidfds(command: Sequence[str]) -> list[str]:
    return prepared(_REFUSING.format((_PIDFD_OPEN, None, errno.ENOSYS)), command)


def without_subreapers(command: Sequence[str]) -> list[str]:
    assert _PRCTL, "the number of this system call is not known here"
    return prepared(_REFUSING.format((_PRCTL, _SET_CHILD_SUBREAPER, errno.EPERM)), command)
