"""Whole programs in processes of their own: started, sent real signals, and watched until they are gone."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tests.kernel.processes import wait_until

# What every program begins with. `go(main)` runs it on the chosen event loop with a grace of half a second.
PREAMBLE = """
import os, signal, sys, threading, time
from quiesce import Grace, Reason, Scope, current_scope, current_token
from quiesce.kernel.program.entry_point import Stopped, run
from quiesce.kernel.threads.thread_call import to_thread

FLAVOUR = sys.argv[1]
if FLAVOUR == "trio":
    import trio
    Cancelled, OPTIONS = trio.Cancelled, {"backend": "trio"}
    async def sleep(seconds):
        await trio.sleep(seconds)
    async def tidy(seconds):
        with trio.CancelScope(shield=True):
            await trio.sleep(seconds)
else:
    import asyncio
    Cancelled, OPTIONS = asyncio.CancelledError, {"uvloop": FLAVOUR == "uvloop"}
    sleep = tidy = asyncio.sleep

def go(main, **options):
    return run(main, **({"grace": Grace(cancel=0.3, terminate=0.1, kill=0.1)} | OPTIONS | options))

def ready():
    print("ready", flush=True)

async def refuses():
    while True:
        try:
            await sleep(0.01)
        except BaseException:
            pass
"""


@dataclass
class Ended:
    """How a program has ended."""

    status: int
    seconds: float  # since the first signal; without one, since it was ready
    stdout: str
    stderr: str


class RunningProgram:
    """A program that has said it is ready."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._since = time.monotonic()
        self._signalled = False

    def send(self, *numbers: signal.Signals, gap: float = 0.1) -> None:
        """Send signals, each when the program has said something about the last: two that meet on the way become one."""
        if not self._signalled:
            self._signalled = True
            self._since = time.monotonic()
        for position, number in enumerate(numbers):
            if position:
                time.sleep(gap)
            said = self._said()
            self._process.send_signal(number)
            if position + 1 < len(numbers):
                assert wait_until(lambda said=said: self._said() > said), "no word about the signal"  # type: ignore[misc]

    @property
    def pid(self) -> int:
        return self._process.pid

    def _said(self) -> int:
        """The bytes on stderr that nobody has read."""
        assert self._process.stderr is not None
        return int.from_bytes(fcntl.ioctl(self._process.stderr, termios.FIONREAD, bytes(4)), sys.byteorder)

    def wait_for_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()

    def wait(self) -> Ended:
        stdout, stderr = self._process.communicate(timeout=15)
        seconds = time.monotonic() - self._since
        assert nothing_in_group(self._process.pid), "it left processes behind"
        return Ended(self._process.returncode, seconds, stdout.decode(), stderr.decode())


def nothing_in_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@contextmanager
def program(flavour: str, text: str, *, by: Sequence[str] = ()) -> Iterator[RunningProgram]:
    """Start a program, `by` this command if given, and wait until it has printed "ready"."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(
        [*by, sys.executable, "-c", PREAMBLE + textwrap.dedent(text), flavour],
        bufsize=0,  # or `readline` would keep what comes after the line from `communicate`
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        if (line := process.stdout.readline()) != b"ready\n":
            process.kill()
            raise AssertionError(f"not ready, but {line!r}\n{process.communicate(timeout=15)[1].decode()}")
        yield RunningProgram(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process.stderr.close()
