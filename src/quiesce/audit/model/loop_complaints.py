"""Turns calls of the event loop's exception handler into sightings.

The handler has two kinds of caller. asyncio calls it with errors that it cannot raise anywhere else: a callback that
failed, a task whose exception was never retrieved. A program calls it on purpose with an error that it has handled:
that becomes a sighting of the kind `reported`, which is shown but is not a finding against the program.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from types import FrameType
from typing import Any

from .run_record import Sighting
from .source_places import (
    Chain,
    await_chain,
    coroutine_of,
    in_standard_library,
    is_audit_code,
    name_of,
    stack_of,
)
from .steady_names import steady_object
from .task_records import TaskRecord, TaskRecords

_CALLBACK = re.compile(r"callback <(?:function|bound method|built-in method) (\S+)")


def classify_complaint(
    context: dict[str, Any], lanes: TaskRecords, pending: Iterable[TaskRecord], caller: FrameType | None
) -> Sighting | None:
    """Classify one call of the exception handler; None if another sighting covers it.

    `caller` is the frame that called the handler, and `pending` are the lanes that are reported as leaked anyway.
    """
    message: str = context.get("message", "")
    error = context.get("exception")
    task = context.get("task") or context.get("future")
    text = f"{type(error).__name__}: {error}" if error is not None else message
    coroutine = coroutine_of(task) if isinstance(task, asyncio.Task) else None
    lane = lanes.by_id.get(id(task))
    made_at = lane.made_at if lane is not None else ()
    # The interpreter reports these two from a finaliser: the frame below is whatever code happened to be running, so
    # they have to be recognised before the caller is looked at.
    if coroutine is not None and "destroyed" in message:
        if any(lane is each for each in pending):
            return None  # reported as leaked
        return Sighting("destroyed", name_of(coroutine), made_at, await_chain(coroutine))
    if "never retrieved" in message:
        what = name_of(coroutine) if coroutine is not None else f"a future with {type(error).__name__}"
        return Sighting("unretrieved", what, made_at, detail=text)
    if reported_at := reporting_frames(caller):
        what = steady_object(message) or type(error).__name__
        return Sighting("reported", what, reported_at, detail=text)
    if coroutine is not None:
        return Sighting("callback", name_of(coroutine), made_at, detail=f"{message}: {text}")
    if "asynchronous generator" in message:
        return Sighting("generator", name_of(context.get("asyncgen")), detail=f"closing it failed: {text}")
    callback = getattr(context.get("handle"), "_callback", None)
    if callback is not None:
        what = name_of(callback)
    else:
        # uvloop's handles have no `_callback`; its message has the repr of the function.
        named = _CALLBACK.search(message)
        what = named[1] if named is not None else steady_object(message)
    return Sighting("callback", what, detail=f"{message}: {text}")


def reporting_frames(caller: FrameType | None) -> Chain:
    """Return the program's frames that called `call_exception_handler`; empty if asyncio or uvloop called it."""
    if caller is not None and caller.f_code is asyncio.BaseEventLoop.call_exception_handler.__code__:
        caller = caller.f_back
    if caller is None or is_audit_code(caller.f_code) or in_standard_library(caller.f_code.co_filename):
        return ()
    return stack_of(caller)
