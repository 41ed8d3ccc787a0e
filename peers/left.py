"""What a stop has left inside its process: tasks, threads, sockets, and errors that nobody caught.

What was there before does not count, nor a thread that waits for work in the pool of asyncio or anyio: pools
keep them by design, in both columns alike.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

IDLE = (
    ("concurrent/futures/thread.py", "_worker"),
    ("anyio/_backends/_asyncio.py", "run"),
)
WAITING = ("threading.py", "queue.py")
STDLIB = os.path.dirname(os.__file__)


class Inside:
    """Looks before, and again after the stop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._tasks = asyncio.all_tasks(loop)
        self._threads = set(threading.enumerate())
        self._sockets = set(_sockets())
        self._loop = loop
        self.stray: list[str] = []
        self.named: list[str] = []
        loop.set_exception_handler(self._note_stray)
        logging.getLogger("quiesce").addHandler(_Reports(self.named))

    def _note_stray(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = context["message"] if error is None else f"{type(error).__name__}: {error}"
        self.stray.append(str(text).splitlines()[0])

    def left(self) -> list[str]:
        """Each thing that was not there before, in words."""
        tasks = asyncio.all_tasks(self._loop) - self._tasks
        threads = set(threading.enumerate()) - self._threads
        return [
            *sorted(f"task {_name_of(task)}" for task in tasks),
            *sorted(filter(None, (_describe(thread) for thread in threads))),
            *sorted(f"socket to {peer}" for _, peer in set(_sockets()) - self._sockets),
        ]


class _Reports(logging.Handler):
    """Collects what the reports of quiesce name as left."""

    def __init__(self, named: list[str]) -> None:
        super().__init__()
        self._named = named

    def emit(self, record: logging.LogRecord) -> None:
        self._named += re.findall(r"left: (\w+ '[^']*')", record.getMessage())


def _name_of(task: asyncio.Task[Any]) -> str:
    coro = task.get_coro()
    return getattr(coro, "__qualname__", None) or type(coro).__name__


def _describe(thread: threading.Thread) -> str | None:
    frame = sys._current_frames().get(thread.ident or 0)
    # A thread of asyncio that waits for a process to end (Python 3.11) says nothing that the process does not.
    if frame is None or thread.name.startswith(("quiesce", "asyncio-waitpid-")) or _is_idle(frame):
        return None
    while frame.f_back is not None and frame.f_code.co_filename.startswith((STDLIB, sys.prefix)):
        frame = frame.f_back
    return f"thread in {frame.f_code.co_name}"


def _is_idle(frame: FrameType) -> bool:
    here: FrameType | None = frame
    while here is not None and here.f_code.co_filename.endswith(WAITING):
        here = here.f_back
    return here is not None and any(
        here.f_code.co_filename.endswith(file) and here.f_code.co_name == name for file, name in IDLE
    )


def _sockets() -> Iterator[tuple[str, str]]:
    """This process's TCP connections: inode, and whom they lead to."""
    peers: dict[str, str] = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            port = int(fields[2].rpartition(":")[2], 16)
            if port:  # not one that listens
                peers[fields[9]] = f"port {port}"
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        inode = target.removeprefix("socket:[").removesuffix("]")
        if inode in peers:
            yield inode, "the server"
