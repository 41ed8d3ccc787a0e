"""Errors and warnings for calls of the kernel that cannot work: what is wrong, and what to write instead."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from inspect import CO_COROUTINE, isasyncgen, isawaitable, iscoroutinefunction
from types import TracebackType
from typing import Any, NamedTuple

from .source_places import label_of


def warn_of_leak(message: str) -> None:
    """Issue a `ResourceWarning` from a callback. Never raises: an error is reported as unraisable."""
    # With `-W error` the warning is an exception, and no caller is there to catch it. Raised in a callback of
    # the event loop it would end a stop halfway, so it takes the way that Python has for errors in `__del__`.
    try:
        warnings.warn(message, ResourceWarning, stacklevel=2)
    except ResourceWarning as error:
        args: Any = _Unraisable(ResourceWarning, error, error.__traceback__, message, None)
        sys.unraisablehook(args)


class _Unraisable(NamedTuple):
    """The argument of `sys.unraisablehook`: Python's own class for it cannot be instantiated."""

    exc_type: type[BaseException]
    exc_value: BaseException
    exc_traceback: TracebackType | None
    err_msg: str
    object: object


def is_async(fn: object) -> bool:
    """Whether `fn(...)` returns a coroutine, as far as that is visible without a call."""
    # Called for every spawn, so the usual case reads the flag itself: `iscoroutinefunction` first unwraps
    # methods and partials. Bound methods have `__code__` too.
    code = getattr(fn, "__code__", None)
    if code is not None:
        return bool(code.co_flags & CO_COROUTINE)
    return iscoroutinefunction(fn) or (callable(fn) and iscoroutinefunction(type(fn).__call__))


class StartedCall:
    """A call made early, to see whether the function is async; calling this object returns its awaitable.

    A wrapper, a `partial` or an object with `__call__` does not show whether it returns an awaitable. Calling
    it right away turns the mistake into an error where `spawn` stands, instead of one in a child.
    """

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
            close()  # the task was cancelled before its first step, so nothing ever awaited it


def check_function(verb: str, fn: object) -> None:
    """Raise a `TypeError` that says what to write, if `fn` is a coroutine or anything else but a function."""
    if callable(fn):
        return
    close = getattr(fn, "close", None)
    if hasattr(fn, "cr_code") and close is not None:
        close()  # or Python warns, besides this error, that it was never awaited
        raise TypeError(
            f"{verb} takes an async function and its arguments, not a coroutine: write "
            f"{verb}({label_of(fn)}, ...) instead of {verb}({label_of(fn)}(...))"
        )
    raise TypeError(f"{verb} takes an async function, not {type(fn).__name__}")
