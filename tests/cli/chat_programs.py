"""`quiesce` as a real process: with pipes, or at a terminal of its own (a pty)."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from quiesce.cli import main

from .chat_screen import Screen

LONGEST = 15.0  # seconds until something is there, on a busy machine


@dataclass(frozen=True)
class Ended:
    """How a program has ended."""

    code: int
    out: str
    err: str


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    return (
        kept | {"XDG_DATA_HOME": str(tmp_path / "data"), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"} | more
    )


def run(tmp_path: Path, *words: str, typed: str | bytes = "", **more: str) -> Ended:
    """Run `quiesce` with pipes, to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "quiesce", *words],
        input=typed.encode() if isinstance(typed, str) else typed,
        capture_output=True,
        env=environment(tmp_path, **more),
        timeout=60,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


class Here:
    """`quiesce` in this very process, which is much quicker: with pipes for its standard streams."""

    def __init__(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def run(self, *words: str, typed: str | bytes = "") -> Ended:
        """To its end. What is typed has to fit into a pipe."""
        reads, writes = os.pipe()
        with os.fdopen(writes, "wb") as to:
            to.write(typed.encode() if isinstance(typed, str) else typed)
        with os.fdopen(reads) as stdin, self._monkeypatch.context() as patched:
            patched.setattr(sys, "stdin", stdin)
            code = main(words)
        out, err = self._capsys.readouterr()
        return Ended(code, out, err)


@contextmanager
def started(tmp_path: Path, *words: str, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """`quiesce` with pipes, killed at the end if it is still there."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-m", "quiesce", *words],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=environment(tmp_path, **more),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


class AtTerminal:
    """`quiesce` at a terminal that we hold the other end of."""

    def __init__(
        self,
        words: Sequence[str],
        given: Mapping[str, str],
        rows: int = 40,
        columns: int = 100,
        program: Sequence[str] = ("-m", "quiesce"),
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.seen = b""
        self.screen = Screen(columns)
        self.process = subprocess.Popen(
            # The terminal becomes the one that its Ctrl-C comes from.
            [sys.executable, "-c", _TAKE_TERMINAL, sys.executable, *program, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=given,
            start_new_session=True,
        )
        os.close(theirs)

    @property
    def text(self) -> str:
        """All that is to be seen, with what has scrolled away."""
        return self.screen.text

    def type(self, text: str | bytes) -> None:
        os.write(self._ours, text.encode() if isinstance(text, str) else text)

    def until(self, words: str, *, times: int = 1) -> None:
        """Read until that is to be seen, so many times."""
        self.wait_for(lambda: self.text.count(words) >= times, f"{words!r} is not shown {times} times")

    def until_last(self, words: str) -> None:
        """Read until that is in the last line."""
        self.wait_for(lambda: words in self.screen.last, f"{words!r} is not in the last line")

    def wait_for(self, holds: Callable[[], bool], otherwise: str) -> None:
        ends = time.monotonic() + LONGEST
        while not holds():
            left = ends - time.monotonic()
            assert left > 0, f"{otherwise}:\n{self.text}"
            self._read(left)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._ours], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # its end is closed
            data = b""
        self.seen += data
        self.screen.feed(data)
        return bool(data)

    def ended(self) -> int:
        """Its exit status, when it has ended by itself."""
        ends = time.monotonic() + LONGEST
        while self.process.poll() is None:
            assert time.monotonic() < ends, f"it does not end:\n{self.text}"
            self._read(0.05)
        while select.select([self._ours], [], [], 0)[0] and self._read(0.0):
            pass
        return self.process.returncode

    def hang_up(self) -> int:
        """Close the terminal's window; the exit status."""
        os.close(self._ours)
        self._ours = os.open(os.devnull, os.O_RDWR)
        return self.process.wait(LONGEST)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)


_TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


# A chat that gives what it stops so much time to end that nobody has to hurry with the next key.
_PATIENT = """
from quiesce import Grace
from quiesce.cli import main
from quiesce_chat.tools import programs as _programs; from quiesce_chat.session import session as _session
_programs.GRACE = _session.GRACE = Grace(cancel=60, terminate=60, kill=60)
raise SystemExit(main())
"""


@contextmanager
def at_terminal(tmp_path: Path, *words: str, patient: bool = False, **more: str) -> Iterator[AtTerminal]:
    program = AtTerminal(
        words, environment(tmp_path, **more), program=("-c", _PATIENT) if patient else ("-m", "quiesce")
    )
    try:
        yield program
    finally:
        program.close()


def processes_with(words: str) -> list[int]:
    """Who has these words in its command line, once whoever is ending has had time to."""
    ends = time.monotonic() + LONGEST
    while found := [pid for pid in _pids() if words in _command(pid)]:
        if time.monotonic() > ends:
            return found
        time.sleep(0.02)
    return []


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid()]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


SIGINT, SIGTERM = signal.SIGINT, signal.SIGTERM
