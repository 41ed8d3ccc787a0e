"""Positions in code: the frames of a suspended coroutine, and of the code that created a task.

A spot is a code object and an offset in it: cheap to keep, without a frame that would stay alive, and without looking
up a line before a report needs it. A `Place` is a spot for people: file, line, function.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from contextvars import Context
from functools import lru_cache, partial
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType, TracebackType
from typing import Any, NamedTuple, TypeAlias

Spot: TypeAlias = tuple[CodeType, int]
Chain: TypeAlias = tuple[Spot, ...]

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def _folders(*names: str) -> tuple[str, ...]:
    return tuple({os.path.abspath(sysconfig.get_path(name)) + os.sep for name in names})


_STANDARD_LIBRARY = _folders("stdlib", "platstdlib")
_LIBRARIES = _STANDARD_LIBRARY + _folders("purelib", "platlib")
_MACHINERY = tuple(
    folder + name + os.sep for folder in _folders("purelib", "platlib") for name in ("anyio", "trio")
)
_PACKAGES = tuple(f"{os.sep}{name}-packages{os.sep}" for name in ("site", "dist"))

_TRAPS = os.path.join("trio", "_core", "_traps.py")

# The coroutines in which anyio's task groups wrap a user's coroutine: up to 4.13, and from 4.14 on.
_WRAPPERS = ("TaskGroup._run_wrapped_task", "TaskHandle._run_coro")
# trio's coroutine that closes a dropped generator.
_TRIO_CLOSER = "AsyncGenerators._finalize_one"


class Place(NamedTuple):
    """A line of source, for people to read."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{shorten(self.file)}:{self.line} in {self.function}"

    @property
    def in_library(self) -> bool:
        """Whether this is the standard library or an installed package."""
        return self.file.startswith(_LIBRARIES) or self.file.startswith("<")

    @property
    def in_machinery(self) -> bool:
        """Whether this is code that creates tasks on behalf of others: the standard library, anyio or trio."""
        return in_standard_library(self.file) or self.file.startswith(_MACHINERY)


def makers(made_at: Iterable[Place]) -> tuple[Place, ...]:
    """Drop the standard library, anyio and trio from the places where something was made, innermost first.

    If nothing else is left, the innermost place stays.
    """
    places = tuple(made_at)
    return tuple(place for place in places if not place.in_machinery) or places[:1]


def in_standard_library(file: str) -> bool:
    """Whether the file belongs to the interpreter's own library."""
    # Site-packages is often a folder inside that of the standard library, so the prefix alone does not decide.
    return file.startswith("<") or (
        file.startswith(_STANDARD_LIBRARY) and not any(name in file for name in _PACKAGES)
    )


def shorten(file: str) -> str:
    """Shorten a path to what readers know: relative to site-packages, to the library, or to the current directory."""
    for marker in _PACKAGES:
        _, found, tail = file.rpartition(marker)
        if found:
            return tail
    for library in _LIBRARIES:
        if file.startswith(library):
            return file[len(library) :]
    return file.removeprefix(os.getcwd() + os.sep)


def place(spot: Spot) -> Place:
    """The place of a spot."""
    return _place(spot, spot[0].co_filename)


@lru_cache(maxsize=4096)
def _place(spot: Spot, file: str) -> Place:
    # The file is part of the cache key: code objects of two files compare equal if they look the same.
    code, offset = spot
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= max(offset, 0) < end and number is not None:
            line = number
            break
    return Place(file, line, code.co_qualname)


def is_audit_code(code: CodeType) -> bool:
    """Whether reports leave this code out: the audit's own, and the trap in which every trio task waits."""
    return code.co_filename.startswith(_HERE) or code.co_filename.endswith(_TRAPS)


def places(spots: Iterable[Spot | Place]) -> tuple[Place, ...]:
    """Turn spots into places, without those of the audit's own code."""
    return tuple(
        spot if isinstance(spot, Place) else place(spot)
        for spot in spots
        if not (spot.file.startswith(_HERE) if isinstance(spot, Place) else is_audit_code(spot[0]))
    )


def await_chain(awaitable: object) -> Chain:
    """The frames of a suspended coroutine, from its own down to the one that it waits in."""
    chain: list[Spot] = []
    while awaitable is not None and len(chain) < 100:
        frame: FrameType | None
        if isinstance(awaitable, CoroutineType):
            frame, inner = awaitable.cr_frame, awaitable.cr_await
        elif isinstance(awaitable, GeneratorType):
            frame, inner = awaitable.gi_frame, awaitable.gi_yieldfrom
        elif isinstance(awaitable, AsyncGeneratorType):
            frame, inner = awaitable.ag_frame, awaitable.ag_await
        else:
            frame, inner = None, wrapped(awaitable)
        if frame is not None:
            chain.append((frame.f_code, frame.f_lasti))
        awaitable = inner
    return tuple(chain)


def wrapped(awaitable: object) -> object | None:
    """The coroutine or generator inside a built-in awaitable such as `agen.__anext__()`; None if there is none."""
    # Those objects have no attribute for what they wrap. The garbage collector's references are the only way in.
    if type(awaitable).__module__ != "builtins":
        return None
    for inner in gc.get_referents(awaitable):
        if isinstance(inner, CoroutineType | AsyncGeneratorType):
            return inner
    return None


def callers(skip: int, count: int = 10, until: CodeType | None = None) -> Chain:
    """The frames of the caller, innermost first, up to `until`, after `skip` frames of the audit's own."""
    return stack_of(sys._getframe(skip + 1), count, until)


def stack_of(frame: FrameType | None, count: int = 8, until: CodeType | None = None) -> Chain:
    """At most `count` frames from this one outwards, innermost first, up to but without `until`."""
    chain: list[Spot] = []
    while frame is not None and len(chain) < count and frame.f_code is not until:
        chain.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(chain)


def traceback_chain(trace: TracebackType | None) -> Chain:
    """The frames of a traceback, from the outermost down to where the error was raised."""
    chain: list[Spot] = []
    while trace is not None:
        chain.append((trace.tb_frame.f_code, trace.tb_lasti))
        trace = trace.tb_next
    return tuple(chain)


def coroutine_of(task: asyncio.Task[Any]) -> Any:
    """What the task runs; None if it has ended in its eager start."""
    # Not `get_coro()`: up to Python 3.12.4 it crashes for a task that has none any more (CPython issue 122332).
    return getattr(task, "_coro", None)


def name_of(coroutine: object) -> str:
    """The name under which people know a coroutine, generator or function: its qualified name, without wrappers."""
    if isinstance(coroutine, partial):
        # asyncio.to_thread runs `partial(context.run, function, ...)`: the function is what people know.
        is_context = isinstance(getattr(coroutine.func, "__self__", None), Context)
        return name_of(coroutine.args[0] if is_context and coroutine.args else coroutine.func)
    name = getattr(coroutine, "__qualname__", None) or getattr(coroutine, "__name__", None)
    if name == _TRIO_CLOSER and (agen := _inside(coroutine)) is not None:
        return f"{name_of(agen)}.aclose"
    if isinstance(name, str):
        return name_of(_inside(coroutine)) if name in _WRAPPERS and _inside(coroutine) is not None else name
    inner = wrapped(coroutine)
    if inner is not None:
        verb = "aclose" if "athrow" in type(coroutine).__name__ else "anext"
        return f"{name_of(inner)}.{verb}"
    return type(coroutine).__qualname__


def _inside(wrapper: object) -> object | None:
    """The user's coroutine inside a wrapper of anyio's, or the user's generator inside a wrapper of trio's."""
    # Not by `f_locals`: up to 3.12 a frame keeps that dictionary, and with it every local that the function has
    # deleted since, so that looking would itself leak.
    if not isinstance(wrapper, CoroutineType):
        return None
    for referent in gc.get_referents(wrapper):
        if isinstance(referent, CoroutineType | AsyncGeneratorType):
            return referent
        if type(referent).__qualname__ == "TaskHandle":
            return getattr(referent, "_coro", None)
    return None


def digest(chain: Sequence[Spot]) -> str:
    """A short fingerprint of a chain, the same in every process, that changes when its code changes."""
    hasher = hashlib.blake2b(digest_size=4)
    for code, offset in chain:
        if not is_audit_code(code):
            hasher.update(f"{code.co_qualname}:{offset}:".encode())
            hasher.update(code.co_code)
    return hasher.hexdigest()
