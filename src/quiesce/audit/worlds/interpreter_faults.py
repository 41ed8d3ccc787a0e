"""Recognises known faults of CPython's asyncio, so that the program is not blamed for them.

Each fault is recognised by the object that it happened to, not by similar symptoms: the wait that lost a cancellation,
the socket that was lost. A finding that merely looks the same remains a finding of the program.
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

# Up to 3.11, wait_for drops a cancellation that arrives together with the result, and returns the result.
_WAIT_FOR: CodeType | None = asyncio.wait_for.__code__ if sys.version_info < (3, 12) else None
_LOSES_CANCEL = (
    "asyncio.wait_for of Python 3.11 returns its result and drops a cancellation that arrives with it; "
    "asyncio.timeout does not, and neither does wait_for from 3.12 on"
)
_ACCEPTS: CodeType = BaseSelectorEventLoop._accept_connection2.__code__  # type: ignore[attr-defined]
_LOSES_SOCKET = (
    "asyncio hands each accepted connection over in a separate task that nothing awaits, and that loses the socket "
    "if it is cancelled before its first step"
)
_HANDLER_ENDED = "StreamReaderProtocol.connection_made.<locals>.callback"
_LOSES_HANDLER = (
    "up to Python 3.12, asyncio.streams does not expect the task that handles a connection to be cancelled"
)


class InterpreterFaults:
    """The faults that were observed in one run."""

    def __init__(self) -> None:
        # Whether `wait_for` dropped the cancel of the latest stop.
        self._lost_cancel = False
        # Descriptors and what they refer to.
        self._lost_sockets: set[tuple[int, str]] = set()

    def before_stop(self, root: asyncio.Task[Any] | None, lanes: Iterable[TaskRecord]) -> None:
        """Look for the conditions of each fault. Call it immediately before a stop is made."""
        self._lost_cancel = False
        if _WAIT_FOR is not None and root is not None:
            for waited in _waited_for(root):
                self._look_at(waited)
                # The awaited future may also finish after the stop, before the waiting task takes its next step. That
                # step is queued after this callback.
                root.get_loop().call_soon(self._look_at, waited)
        for lane in lanes:
            if lane.number == 0 and lane.ended_at is None:
                self._lost_sockets.update(_accepted(lane))

    def _look_at(self, waited: asyncio.Future[Any]) -> None:
        self._lost_cancel = self._lost_cancel or (waited.done() and not waited.cancelled())

    def named(self, seen: Iterable[Sighting]) -> list[Sighting]:
        """Return the sightings with `fault` filled in where the interpreter is to blame."""
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
    """The future that a task awaits through `wait_for`, directly or in a task that it awaits.

    A cancel of the task travels down the same way.
    """
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
    """The socket of the accepted connection that this task, which has not started, would handle: number and target."""
    task = lane.ref()
    coroutine = None if task is None else task.get_coro()
    frame = getattr(coroutine, "cr_frame", None)
    is_handler = any(code.co_qualname == "StreamReaderProtocol.connection_made" for code, _ in lane.made_at)
    if frame is None or not (frame.f_code is _ACCEPTS or is_handler):
        return []
    found: list[tuple[int, str]] = []
    for value in frame.f_locals.values():
        connection = value.get_extra_info("socket") if isinstance(value, asyncio.StreamWriter) else value
        if hasattr(connection, "getpeername") and (fd := connection.fileno()) >= 0:
            found.append((fd, _target(fd)))
    return found


def _target(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        # Not Linux: descriptors are not examined there.
        return ""
