"""Errors and warnings for people who use the kernel in a way that cannot work."""

from __future__ import annotations

import sys
import warnings
from types import TracebackType
from typing import Any, NamedTuple

from ._site import label_of


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
