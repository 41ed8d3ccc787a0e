"""What still runs: looked up, not remembered."""

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
class Survivors:
    """Something that still runs though control is back."""

    kind: Kind
    name: str
    at: str  # the line where it is; nothing for a process

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}" + (f", at {self.at}" if self.at else "")


def look(before: set[asyncio.Task[Any]], lanes: Iterable[Lane]) -> list[Survivors]:
    """The tasks of this loop that were not there `before`, and the threads and processes of these lanes."""
    return [*_tasks(before), *_threads(lanes), *_processes(lanes)]


def _tasks(before: set[asyncio.Task[Any]]) -> Iterator[Survivors]:
    tasks = asyncio.all_tasks() - before
    for task in sorted(tasks, key=lambda task: task.get_name()):
        yield Survivors("task", _name(task), _place_of(task))


def _name(task: asyncio.Task[Any]) -> str:
    name = task.get_name()
    if not name.startswith("Task-"):  # asyncio's own, which says nothing
        return name
    return str(getattr(task.get_coro(), "__qualname__", name))


def _place_of(task: asyncio.Task[Any]) -> str:
    """The innermost line of the tour's programs, or of whatever it runs."""
    frames: list[FrameType] = []
    awaited: Any = task.get_coro()
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        frames.append(frame)
        awaited = awaited.cr_await
    ours = [frame for frame in frames if _is_ours(frame)]
    return _place((ours or frames)[-1]) if frames else ""


def _threads(lanes: Iterable[Lane]) -> Iterator[Survivors]:
    frames = sys._current_frames()
    for lane in lanes:
        if lane.kind != "thread" or lane.thread is None or not lane.is_running:
            continue
        frame = frames.get(lane.thread)
        while frame is not None and not _is_ours(frame):
            frame = frame.f_back
        if frame is not None:
            yield Survivors("thread", lane.name, _place(frame))


def _is_ours(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(_TOUR) and os.path.basename(file) != "stage.py"  # which is where they rest


def _processes(lanes: Iterable[Lane]) -> Iterator[Survivors]:
    for lane in lanes:
        if lane.process is not None and is_alive(lane.process):
            yield Survivors("process", lane.name, "")


def is_alive(pid: int) -> bool:
    """Whether this process, a child of ours, still runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b") ")[2][:1] not in (b"Z", b"X")
    except FileNotFoundError:
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
