"""The judge of one cell: `python -m peers.judge PYTHON MODULE SCENARIO SIDE STOP`, prints a line of JSON.

It shares nothing with what it judges but a pipe. It is the subreaper of all that the cell starts, so that a
process which loses its parent falls to it, whatever it has done to its session, its group or its environment.
That is Linux's; there is no such thing elsewhere.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PR_SET_CHILD_SUBREAPER = 36

START = 45.0  # seconds for a cell to import its SDK and get under way
CELL = 40.0  # and from then on to say how a stop went
GAP = 0.3  # between one Ctrl-C and the next
EXIT = 15.0  # for the program to end after the second, until it counts as a hang
PATIENCE = 1.0  # for processes that are on their way out
LOOK = 0.02  # between one look for them and the next
AFTER_KILL = 6.0  # a program that is killed stops nothing itself: who notices needs a moment

NAMES = {
    "mcp_stdio.py": "the server",
    "claude_cli.py": "the CLI",
    "acp_agent.py": "the agent",
    "child.py": "its child",
}
GUARD = "guardian_main.py"  # the guard process of quiesce, which lives as long as the program


class Found(NamedTuple):
    pid: int
    parent: int
    state: str
    command: str


def main(python: str, *cell: str) -> int:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    how = cell[3]
    control, theirs = os.pipe()
    said = subprocess.Popen(
        [python, "-m", "peers.cell", *cell],
        cwd=ROOT,
        env={**os.environ, "PEERS_CONTROL": str(theirs)},
        pass_fds=[theirs],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=None if "--show" in sys.argv else subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(theirs)
    lines = _Lines(control)
    try:
        verdict = (
            _from_outside(said, lines, how) if how in ("ctrl-c-2", "killed") else _from_inside(said, lines)
        )
    finally:
        _kill_all()
    print(json.dumps(verdict))
    return 0


def _from_inside(cell: subprocess.Popen[bytes], lines: _Lines) -> dict[str, Any]:
    message = lines.next(START + CELL)
    if message is None:
        return {"not run": "the cell died" if cell.poll() is not None else "the cell said nothing in time"}
    if message["at"] != "stopped":
        return {"not run": message["why"]}
    return {**message, "processes": _processes(cell, PATIENCE)}


def _from_outside(cell: subprocess.Popen[bytes], lines: _Lines, how: str) -> dict[str, Any]:
    message = lines.next(START)
    if message is None or message["at"] != "ready":
        return {"not run": "it was not under way in time"}
    faults = []
    began = time.monotonic()
    if how == "killed":
        cell.kill()
        cell.wait()
    else:
        for _ in range(2):
            if cell.poll() is None:
                cell.send_signal(signal.SIGINT)
            try:
                cell.wait(GAP)
            except subprocess.TimeoutExpired:
                pass
        try:
            cell.wait(EXIT)
        except subprocess.TimeoutExpired:
            faults.append("hang")
    seconds = time.monotonic() - began
    patience = AFTER_KILL if how == "killed" else PATIENCE
    return {"faults": faults, "seconds": seconds, "processes": _processes(cell, patience)}


class _Lines:
    """Messages of the cell, each within a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = b""

    def next(self, limit: float) -> dict[str, Any] | None:
        """The next one; None if the cell has ended or the time is over."""
        until = time.monotonic() + limit
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, until - time.monotonic()))
            chunk = os.read(self._descriptor, 65536) if ready else b""
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


def _processes(cell: subprocess.Popen[bytes], patience: float) -> list[str]:
    """What is still there of the processes that the cell has started, after `patience`, in words.

    It is so many looks and not so many seconds: while the machine stands still, nothing can go.
    """
    looks = round(patience / LOOK)
    while True:
        is_over = cell.poll() is not None
        found = [
            process
            for process in _descendants()
            if process.pid != cell.pid
            # Nobody but us has not taken note of the death of an orphan: that is our affair.
            and (process.state != "Z" or process.parent == cell.pid)
            and (is_over or GUARD not in process.command)
        ]
        if not found or not looks:
            return sorted(map(_describe, found))
        looks -= 1
        time.sleep(LOOK)


def _describe(process: Found) -> str:
    words = process.command.split("\0")
    name = next((NAMES[base] for word in words if (base := os.path.basename(word)) in NAMES), None)
    if GUARD in process.command:
        name = "the guard process"
    if process.state == "Z":
        return "zombie process"
    return f"process: {name or os.path.basename(words[0])}"


def _descendants() -> Iterator[Found]:
    children: dict[int, list[Found]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            command = (path / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue  # gone meanwhile
        found = Found(int(path.name), int(fields[1]), fields[0], command)
        children.setdefault(found.parent, []).append(found)
    unseen = [os.getpid()]
    while unseen:
        for found in children.get(unseen.pop(), ()):
            unseen.append(found.pid)
            yield found


def _kill_all() -> None:
    """End what the cell has left, and the cell; each by its id, until a look finds none."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        living = [process for process in _descendants() if process.state != "Z"]
        if not living:
            return
        for process in living:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main(*(word for word in sys.argv[1:] if word != "--show")))
