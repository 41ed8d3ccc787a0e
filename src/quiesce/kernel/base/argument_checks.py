"""Errors and warnings for people who use the kernel in a way that cannot work."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from inspect import CO_COROUTINE, isasyncgen, isawaitable, iscoroutinefunction
from types import TracebackType
from typing import Any, NamedTuple

from .source_places import label_of


def warn_of_leak(message: str) -> None:
    """A ResourceWarning from a callback; where warnings are errors it is unraisable, as in `__del__`."""
    try:
        warnings.warn(message, ResourceWarning, stacklevel=2)
    except ResourceWarning as error:
        args: Any = _Unraisable(ResourceWarning, error, error.__traceback__, message, None)
        sys.unraisablehook(args)


class _Unraisable(NamedTuple):
    """What `sys.unraisablehook` takes; Python has no way to make one."""

    exc_type: type[BaseException]
    exc_value: BaseException
    exc_traceback: TracebackType | None
    err_msg: str
    object: object


def is_async(fn: object) -> bool:
    """Whether a call of `fn` gives a coroutine, as far as one can see without calling it."""
    code = getattr(fn, "__code__", None)  # a function's, or that of a bound method
    if code is not None:
        return bool(code.co_flags & CO_COROUTINE)
    return iscoroutinefunction(fn) or (callable(fn) and iscoroutinefunction(type(fn).__call__))


class Begun:
    """A function that was called to see whether it is async: it gives what that call gave."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.__qualname__ = label_of(fn)
        self._awaitable = awaitable = fn(*args)
        if not isawaitable(awaitable):
            self._awaitable = None
            what_to_do = "for a sync function use quiesce.to_thread"
            if isasyncgen(awaitable):
                what_to_do = "iterate it in an async function, with quiesce.stream"
            raise TypeError(
                f"an async function is wanted here, and {label_of(fn)} is not one: a call of it gave "
                f"{type(awaitable).__name__}; {what_to_do}"
            )

    def __call__(self) -> Any:
        awaitable, self._awaitable = self._awaitable, None
        return awaitable

    def __del__(self) -> None:
        close = getattr(getattr(self, "_awaitable", None), "close", None)
        if close is not None:
            close()  # its task was cancelled before its first step


def check_function(verb: str, fn: object) -> None:
    """An error that explains, where a coroutine was passed instead of a function."""
    if callable(fn):
        return
    close = getattr(fn, "close", None)
    if hasattr(fn, "cr_code") and close is not None:
        close()  # nobody will await it now; without this Python warns about that too
        raise TypeError(
            f"{verb} takes an async function and its arguments, not a coroutine: write "
            f"{verb}({label_of(fn)}, ...) instead of {verb}({label_of(fn)}(...))"
        )
    raise TypeError(f"{verb} takes an async function, not {type(fn).__name__}")
