"""Where in the source something was made, and where it is stuck.

The place where a thing was made is kept as the caller's `(code, lasti)`: two references, which keep no frame
alive; the line number is computed when it is read. The place where a coroutine is suspended is found by
following the chain of what awaits what. Async generators stand behind helper objects without attributes, so
that one link is followed through the garbage collector's list of referents.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Iterator
from functools import partial
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any, TypeAlias

Site: TypeAlias = tuple[CodeType, int]

KERNEL_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OUR_FOLDER = os.path.dirname(KERNEL_FOLDER[:-1]) + os.sep
_MACHINERY = (
    os.path.dirname(asyncio.__file__) + os.sep,
    os.path.join("site-packages", "anyio") + os.sep,
    os.path.join("site-packages", "trio") + os.sep,
)
# How the names of our modules begin. `quiesce-chat` is another distribution, but what it makes on behalf of a
# program was made, for its user, where that program called it.
OUR_MODULES = ("quiesce.", "quiesce_chat.")
_HAS_FAST_LOCALS = 1  # `inspect.CO_OPTIMIZED`: the code of a function


def is_machinery(frame: FrameType) -> bool:
    """Whether `frame` belongs to the kernel or an event loop: it shows how something waits, not what does."""
    path = frame.f_code.co_filename
    return path.startswith(KERNEL_FOLDER) or any(part in path for part in _MACHINERY)


def site_of(frame: FrameType) -> Site:
    """The place that `frame` has reached."""
    return frame.f_code, frame.f_lasti


def caller_site() -> Site:
    """The place of the nearest caller outside the kernel."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(KERNEL_FOLDER):
        frame = frame.f_back
    return site_of(frame) if frame is not None else site_of(sys._getframe(1))


def users_site() -> Site:
    """The place of the nearest caller outside quiesce: in the user's own code."""
    frame = sys._getframe(1)
    # By path first: to ask for the name of the module takes three calls.
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_OUR_FOLDER)
        or str(frame.f_globals.get("__name__")).startswith(OUR_MODULES)
    ):
        frame = frame.f_back
    return site_of(frame)


def describe(site: Site | None) -> str:
    """`site` as `path/file.py:12 in function`."""
    if site is None:
        return "unknown"
    code, lasti = site
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= lasti < end and number is not None:
            line = number
            break
    return _place(code, line)


def _place(code: CodeType, line: int | None) -> str:
    path = code.co_filename
    try:
        shorter = os.path.relpath(path)
    except ValueError:  # another drive
        shorter = path
    if not shorter.startswith(".."):
        path = shorter
    return f"{path}:{line or code.co_firstlineno} in {code.co_qualname}"


def describe_frame(frame: FrameType) -> str:
    """Where `frame` is now, as `path/file.py:12 in function`."""
    return _place(frame.f_code, frame.f_lineno)


def variables_of(frame: FrameType) -> dict[str, Any]:
    """A copy of the local variables of a running function, perhaps of another thread."""
    # Up to 3.12 a frame keeps the dictionary that `f_locals` returns, and so keeps alive what the function
    # has deleted since: a worker of a pool would hold the arguments of its last call until the next one. So
    # that dictionary is emptied here. Not that of a traced frame, because a debugger writes it back into the
    # variables; nor that of a module or a class, where the dictionary *is* the variables.
    found = frame.f_locals
    if (
        sys.version_info >= (3, 13)
        or frame.f_trace is not None
        or not frame.f_code.co_flags & _HAS_FAST_LOCALS
    ):
        return dict(found)
    copy = dict(found)
    found.clear()
    return copy


def awaiting_frames(awaitable: object) -> Iterator[FrameType]:
    """The frames of a suspended coroutine, from the outermost to the one in which it waits."""
    seen: set[int] = set()
    link: Any = awaitable
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, CoroutineType):
            frame, link = link.cr_frame, link.cr_await
        elif isinstance(link, GeneratorType):
            frame, link = link.gi_frame, link.gi_yieldfrom
        elif isinstance(link, AsyncGeneratorType):
            frame, link = link.ag_frame, link.ag_await
        else:
            # What `asend()` of a generator or `__await__()` of a coroutine returns, for example. If such an
            # object refers to several, which one it awaits would be a guess, and no answer is better.
            behind = [
                found
                for found in gc.get_referents(link)
                if isinstance(found, (AsyncGeneratorType, CoroutineType, GeneratorType))
            ]
            frame, link = None, behind[0] if len(behind) == 1 else None
        if frame is not None:
            yield frame


def stuck_at(awaitable: object, thread: int | None = None) -> str:
    """Where a coroutine waits, or where `thread` is if it is running: the innermost frame of user code."""
    if getattr(awaitable, "cr_running", False):
        return thread_stuck_at(thread)
    frames = list(awaiting_frames(awaitable))
    for frame in reversed(frames):
        if not is_machinery(frame):
            return describe_frame(frame)
    return describe_frame(frames[-1]) if frames else "not started"


def thread_stuck_at(ident: int | None) -> str:
    """Where a thread is now: its innermost frame outside the kernel and the event loops."""
    frame = sys._current_frames().get(ident) if ident is not None else None
    innermost = frame
    while frame is not None:
        if not is_machinery(frame):
            return describe_frame(frame)
        frame = frame.f_back
    return describe_frame(innermost) if innermost is not None else "not started"


def label_of(fn: object) -> str:
    """The name of a function, of an object that is used as one, or the given name itself."""
    if isinstance(fn, str):
        return fn
    if fn is None:
        return "plumbing"
    inner = fn
    while isinstance(inner, partial):
        inner = inner.func
    return str(getattr(inner, "__qualname__", None) or type(inner).__qualname__)
