"""Faults of the interpreter's own asyncio, so that they are not taken for the program's.

Each is recognised by the very object that it happened to, not by its looks: the wait that lost a cancellation, the socket
that was lost. What looks the same and is something else stays a finding of the program.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Iterable
from dataclasses import replace
from types import CodeType, CoroutineType, FrameType
from typing import Any

from quiesce.audit.model import Sighting, TaskRecord

# Up to 3.11, a cancellation that comes together with the result is dropped, and the result returned.
_WAIT_FOR: CodeType | None = asyncio.wait_for.__code__ if sys.version_info < (3, 12) else None
_LOSES_CANCEL = (
    "asyncio.wait_for of Python 3.11 returns its result instead of a cancellation that comes with it; "
    "asyncio.timeout does not, and neither does wait_for from 3.12 on"
)
_ACCEPTS: CodeType = BaseSelectorEventLoop._accept_connection2.__code__  # type: ignore[attr-defined]
_LOSES_SOCKET = (
    "asyncio hands each accepted connection over in a task of its own, which nothing waits for, and which loses the "
    "socket if it is cancelled before its first step"
)
_HANDLER_ENDED = "StreamReaderProtocol.connection_made.<locals>.callback"
_LOSES_HANDLER = (
    "asyncio.streams does not expect that the task which handles a connection is cancelled, up to Python 3.12"
)


class InterpreterFaults:
    """Those of one run."""

    def __init__(self) -> None:
        self._lost_cancel = False  # the last stop's
        self._lost_sockets: set[tuple[int, str]] = set()  # descriptors, and what they are open on

    def before_stop(self, root: asyncio.Task[Any] | None, lanes: Iterable[TaskRecord]) -> None:
        """To be called when a stop is about to be made."""
        self._lost_cancel = False
        if _WAIT_FOR is not None and root is not None:
            for waited in _waited_for(root):
                self._look_at(waited)
                # Or it ends before the task that waits takes its step, which is queued next.
                root.get_loop().call_soon(self._look_at, waited)
        for lane in lanes:
            if lane.number == 0 and lane.died is None:
                self._lost_sockets.update(_accepted(lane))

    def _look_at(self, waited: asyncio.Future[Any]) -> None:
        self._lost_cancel = self._lost_cancel or (waited.done() and not waited.cancelled())

    def named(self, seen: Iterable[Sighting]) -> list[Sighting]:
        """The same sightings, with those that are the interpreter's fault named so."""
        return [self._named(sighting) for sighting in seen]

    def _named(self, sighting: Sighting) -> Sighting:
        kind, what, detail = sighting.kind, sighting.what, sighting.detail
        if kind in ("swallowed", "replaced", "count") and self._lost_cancel:
            return replace(sighting, what=f"{what} in asyncio.wait_for", fault=_LOSES_CANCEL)
        if what == _ACCEPTS.co_qualname and kind in ("outlived", "late", "leaked", "destroyed"):
            return replace(sighting, fault=_LOSES_SOCKET)
        if kind == "callback" and what == _HANDLER_ENDED and "CancelledError" in detail:
            return replace(sighting, fault=_LOSES_HANDLER)
        for fd, target in self._lost_sockets:
            if (kind == "unclosed" and re.search(rf"\bfd={fd}\b", detail)) or (
                kind == "descriptor" and detail == f"fd {fd}: {target}"
            ):
                return replace(sighting, what=f"{what} accepted by asyncio", fault=_LOSES_SOCKET)
        return sighting


def _waited_for(task: asyncio.Task[Any]) -> list[asyncio.Future[Any]]:
    """What a task waits for with `wait_for`, itself or in a task that it awaits: a cancel goes down that way."""
    for _ in range(100):
        frame = _innermost(task.get_coro())
        if frame is not None and frame.f_code is _WAIT_FOR:
            waited = frame.f_locals.get("fut")
            return [waited] if isinstance(waited, asyncio.Future) else []
        waiter = getattr(task, "_fut_waiter", None)
        if not isinstance(waiter, asyncio.Task):
            break
        task = waiter
    return []


def _innermost(awaitable: object) -> FrameType | None:
    frame: FrameType | None = None
    while isinstance(awaitable, CoroutineType):
        frame, awaitable = awaitable.cr_frame, awaitable.cr_await
    return frame


def _accepted(lane: TaskRecord) -> list[tuple[int, str]]:
    """The socket of an accepted connection that was given to this task, which has not taken its first step."""
    task = lane.ref()
    coroutine = None if task is None else task.get_coro()
    frame = getattr(coroutine, "cr_frame", None)
    is_handler = any(code.co_qualname == "StreamReaderProtocol.connection_made" for code, _ in lane.made_at)
    if frame is None or not (frame.f_code is _ACCEPTS or is_handler):
        return []
    found: list[tuple[int, str]] = []
    for given in frame.f_locals.values():
        connection = given.get_extra_info("socket") if isinstance(given, asyncio.StreamWriter) else given
        if hasattr(connection, "getpeername") and (fd := connection.fileno()) >= 0:
            found.append((fd, _target(fd)))
    return found


def _target(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # not Linux: descriptors are not looked at there
        return ""
