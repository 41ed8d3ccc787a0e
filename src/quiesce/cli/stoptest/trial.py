"""One run of the program: start it, stop it in one way, and look at what is left."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from quiesce._safe.printed import printed_line
from quiesce.cli.exec import Tree, name_of_signal
from quiesce.kernel.inner import child_changes, explain_failed_start, procfs, signal_of

from . import left
from .starter import CLOSE_STDIN, Starter, start, wait_for_input
from .ways import GAP, Way

_TAIL: Final = 4096  # bytes of output that are kept
_LOOK_EVERY: Final = 0.02


class NotStarted(Exception):
    """There is no such program, or it cannot be executed: it cannot be stopped in any way."""


class NotTested(Exception):
    """The program could not be stopped, because it did not run or was not ready. The message says why."""


@dataclass(frozen=True)
class Timing:
    """When the program is stopped, and how long it may take, in seconds."""

    after: float  # from its start, or from the line that matches `ready`
    ready: re.Pattern[str] | None
    start_within: float
    exit_within: float  # from the first signal until it counts as still running
    patience: float  # from its exit until its processes count as left


@dataclass(frozen=True)
class Result:
    """What came of it. `status` is as `os.wait` gives it, None if it did not exit."""

    way: Way
    seconds: float
    status: int | None
    processes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    said: str = ""
    untested: str = ""  # why it could not be stopped in this way

    @property
    def is_clean(self) -> bool:
        """Whether it was stopped, has exited, and has left nothing."""
        return self.status is not None and not self.untested and not self.has_left

    @property
    def has_left(self) -> bool:
        """Whether it has left a process or a file."""
        return bool(self.processes or self.files)

    @property
    def ended(self) -> str:
        """How it ended, in a word or two."""
        if self.status is None:
            return "still running"
        number = signal_of(self.status)
        return name_of_signal(number) if number else f"exit {os.waitstatus_to_exitcode(self.status)}"


class Trial:
    """One run of one program. We must be a subreaper, with no other children."""

    def __init__(self, argv: Sequence[str], way: Way, timing: Timing) -> None:
        self._argv = argv
        self._way = way
        self._timing = timing
        self._status: int | None = None
        self._exited_at = 0.0
        self._pid = 0
        self._output = b""
        self._start_error = 0
        self._partial_message = b""
        self._tree = Tree(os.getpid)

    def run(self, show: Callable[[str], object], environment: Mapping[str, str]) -> Result:
        """Run it. `show` gets what is being done. Raises NotStarted."""
        with tempfile.TemporaryDirectory(prefix="stoptest-", ignore_cleanup_errors=True) as folder:
            show("starting")
            starter = start(self._argv, {**environment, "TMPDIR": folder}, at_terminal=self._way.at_terminal)
            untested = said = ""
            try:
                began = time.monotonic()
                try:
                    self._wait_until_ready(starter)
                except NotTested as failure:
                    untested = str(failure)
                else:
                    show("stopping")
                    said, self._output = self._last_line(), b""
                    began = time.monotonic()
                    self._stop(starter)
                    self._wait(starter, began + self._timing.exit_within, lambda: self._status is not None)
                show("looking")
                # What is running, and could not be stopped, is not left over.
                remaining = self._wait_until_gone(starter) if self._status is not None or not untested else []
                exited = self._exited_at if self._status is not None else time.monotonic()
                return Result(
                    self._way,
                    exited - began,
                    self._status,
                    left.processes(remaining),
                    left.files(Path(folder)) if not untested else [],
                    self._last_line() or said,
                    untested or (self._tree.unseen and f"what is left cannot be seen: {self._tree.unseen}"),
                )
            finally:
                self._end(starter)

    def _wait_until_ready(self, starter: Starter) -> None:
        timing = self._timing
        began = time.monotonic()
        self._wait(starter, began + timing.start_within, lambda: bool(self._pid) or self._has_ended())
        if (ready := timing.ready) is not None:
            self._wait(
                starter,
                began + timing.start_within,
                lambda: self._has_ended() or self._has_line(ready),
            )
            if not self._has_ended() and not self._has_line(ready):
                raise NotTested(
                    f"no line of its output matched {ready.pattern!r} in {timing.start_within:g} s"
                    f"{self._it_said()}"
                )
        self._wait(starter, time.monotonic() + timing.after, self._has_ended)
        if self._start_error:
            error = OSError(self._start_error, os.strerror(self._start_error))
            raise NotStarted(
                explain_failed_start(error, self._argv[0], None, os.environ.get("PATH"), None).args[1]
            )
        if not self._pid:
            raise NotTested("the process that was to start it has died")
        if self._status is not None:
            result = Result(self._way, 0.0, self._status)
            raise NotTested(
                f"it ended by itself ({result.ended}) {self._exited_at - began:.1f} s after its start, before it "
                f"could be stopped{self._it_said()}"
            )

    def _has_ended(self) -> bool:
        return self._status is not None or self._start_error != 0

    def _stop(self, starter: Starter) -> None:
        for number in range(self._way.times):
            if number:
                self._wait(starter, time.monotonic() + GAP, lambda: self._status is not None)
            if self._status is None:
                self._act(starter)

    def _act(self, starter: Starter) -> None:
        match self._way.action:
            case "ctrl-c":
                os.write(starter.output, b"\x03")
            case "hang-up":
                starter.hang_up()
            case "close-stdin":
                os.kill(starter.pid, CLOSE_STDIN)
            case "kill-client":
                os.kill(starter.pid, signal.SIGKILL)
            case "sigterm":
                os.kill(self._pid, signal.SIGTERM)
            case "sigkill":
                os.kill(self._pid, signal.SIGKILL)

    def _wait_until_gone(self, starter: Starter) -> list[procfs.Proc]:
        """What is left of it after the patience that it has."""
        give_up_at = time.monotonic() + (self._timing.patience if self._status is not None else 0.0)
        while (found := self._find(starter)) and time.monotonic() < give_up_at:
            self._read(starter, _LOOK_EVERY)
        return found

    def _find(self, starter: Starter) -> list[procfs.Proc]:
        return [proc for proc in self._tree.members() if proc.pid != starter.pid]

    def _wait(self, starter: Starter, until: float, condition: Callable[[], bool]) -> None:
        while not condition() and time.monotonic() < until:
            self._read(starter, min(_LOOK_EVERY, until - time.monotonic()))

    def _read(self, starter: Starter, seconds: float) -> None:
        for descriptor in wait_for_input([starter.messages, starter.output], seconds):
            try:
                data = os.read(descriptor, 65536)
            except OSError:  # the terminal's other side is closed, or there is nothing to read after all
                data = b""
            if descriptor == starter.messages:
                self._take_messages(data)
                if not data:  # it has died: what is at its end can always be read, and we would never wait
                    starter.stop_listening()
            elif data:
                self._output = (self._output + data)[-_TAIL * 16 :]
        if not wait_for_input([starter.messages], 0):
            time.sleep(0.001)
        self._reap()

    def _take_messages(self, data: bytes) -> None:
        *lines, self._partial_message = (self._partial_message + data).split(b"\n")
        for line in lines:
            kind, _, value = line.decode().partition(" ")
            if kind == "pid":
                self._pid = int(value)
            elif kind == "failed":
                self._start_error = int(value)
            else:
                self._set_status(int(value))

    def _reap(self) -> None:
        """Reap orphans. If its starter has died, the program itself is one."""
        for pid, status in child_changes():
            if pid == self._pid and (os.WIFEXITED(status) or os.WIFSIGNALED(status)):
                self._set_status(status)

    def _set_status(self, status: int) -> None:
        if self._status is None:
            self._status = status
            self._exited_at = time.monotonic()

    def _has_line(self, pattern: re.Pattern[str]) -> bool:
        return any(pattern.search(line) for line in self._lines())

    def _lines(self) -> list[str]:
        return self._output.decode(errors="replace").replace("\r", "").split("\n")

    def _last_line(self) -> str:
        lines = [line for line in self._lines() if line.strip()]
        return printed_line(lines[-1].strip())[:200] if lines else ""

    def _it_said(self) -> str:
        return f"; it said: {self._last_line()}" if self._last_line() else ""

    def _end(self, starter: Starter) -> None:
        """Kill what is left, the starter too, and take back the terminal or the pipes."""
        starter.close()
        self._tree.kill()
        self._reap()
