"""What is still running: looked up in the interpreter and the process table, not remembered."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from .lanes import Kind, Lane

_TOUR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@dataclass(frozen=True, slots=True)
class Survivor:
    """Something that is still running after the stop has returned."""

    kind: Kind
    name: str
    at: str  # the line of code where it is; empty for a process

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}" + (f", at {self.at}" if self.at else "")


def look(before: set[asyncio.Task[Any]], lanes: Iterable[Lane]) -> list[Survivor]:
    """Find the tasks of this loop that are not in `before`, and the running threads and processes of these lanes."""
    return [*_tasks(before), *_threads(lanes), *_processes(lanes)]


def _tasks(before: set[asyncio.Task[Any]]) -> Iterator[Survivor]:
    tasks = asyncio.all_tasks() - before
    for task in sorted(tasks, key=lambda task: task.get_name()):
        yield Survivor("task", _name(task), _place_of(task))


def _name(task: asyncio.Task[Any]) -> str:
    name = task.get_name()
    # Unnamed tasks are called Task-1, Task-2 and so on, which says nothing.
    if not name.startswith("Task-"):
        return name
    return str(getattr(task.get_coro(), "__qualname__", name))


def _place_of(task: asyncio.Task[Any]) -> str:
    """The innermost line that belongs to the tour's programs; the innermost line of all if none does."""
    frames: list[FrameType] = []
    awaited: Any = task.get_coro()
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        frames.append(frame)
        awaited = awaited.cr_await
    ours = [frame for frame in frames if _is_ours(frame)]
    return _place((ours or frames)[-1]) if frames else ""


def _threads(lanes: Iterable[Lane]) -> Iterator[Survivor]:
    frames = sys._current_frames()
    for lane in lanes:
        if lane.kind != "thread" or lane.thread is None or not lane.is_running:
            continue
        frame = frames.get(lane.thread)
        while frame is not None and not _is_ours(frame):
            frame = frame.f_back
        if frame is not None:
            yield Survivor("thread", lane.name, _place(frame))


def _is_ours(frame: FrameType) -> bool:
    # Programs wait in `Stage.rest`; the line that calls it says more.
    file = frame.f_code.co_filename
    return file.startswith(_TOUR) and os.path.basename(file) != "stage.py"


def _processes(lanes: Iterable[Lane]) -> Iterator[Survivor]:
    for lane in lanes:
        if lane.process is not None and is_alive(lane.process):
            yield Survivor("process", lane.name, "")


def is_alive(pid: int) -> bool:
    """Whether a child process of ours is still running; a zombie is not."""
    try:
        # The state is the first field after the command, which may itself contain spaces and parentheses.
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b") ")[2][:1] not in (b"Z", b"X")
    except FileNotFoundError:
        # No such process: or no /proc, as on macOS. Then a signal has to do, though it also reaches zombies.
        if os.path.exists("/proc/self"):
            return False
    except OSError:
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
