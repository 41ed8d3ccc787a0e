"""Cancellations and other errors that cross from one task into another.

Owner tasks run code of any library, and pass its errors on to the task that uses it. Those errors arrive as
they were raised: the same object, with its own context and without frames of the kernel on top.
"""

from __future__ import annotations

import sys
from asyncio import CancelledError
from collections.abc import Sequence
from types import CodeType
from typing import NoReturn, cast


def is_cancel(error: BaseException) -> bool:
    """Whether `error` is the cancellation of asyncio or trio. A group is not one, whatever it contains."""
    # `not isinstance(error, Exception)` would be shorter, and wrong: pytest's `Failed` is not one either.
    if isinstance(error, (Exception, BaseExceptionGroup)):
        return False
    if isinstance(error, CancelledError):
        return True
    trio = sys.modules.get("trio")  # if nothing has imported it, `error` cannot be its cancellation
    return trio is not None and isinstance(error, trio.Cancelled)


def without_cancels(error: BaseException) -> BaseException | None:
    """`error` without cancellations, which may be a smaller group; None if nothing else is in it."""
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).split(is_cancel)[1]
    return None if is_cancel(error) else error


LEAVES_PROGRAM = (SystemExit, KeyboardInterrupt)
"""What a child raises to end the program. It is passed on unchanged, so that its exit status is kept."""


def raise_leaving(leaving: BaseException, scope: str, failures: Sequence[BaseException]) -> NoReturn:
    """Raise `leaving`, with which a child ends the program; the other failures are notes on it."""
    for failure in failures:
        if failure is not leaving:
            leaving.add_note(f"also failed in scope {scope!r}: {failure!r}")
    raise_unchanged(leaving)


def raise_unchanged(error: BaseException, context: BaseException | None = None) -> NoReturn:
    """Raise an exception of another task with its own context, or `context` if it has none."""
    # A plain `raise` would set `__context__` to whatever is being handled here, and a reader of the traceback
    # would take our clean-up for the cause.
    context = context if error.__context__ is None else error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
        del error, context  # or the error would refer to itself, through this frame in its traceback


def hide_frame(error: BaseException, code: CodeType) -> None:
    """Remove the frames of `code` from the top of the traceback: those of an owner task explain nothing."""
    while error.__traceback__ is not None and error.__traceback__.tb_frame.f_code is code:
        error.__traceback__ = error.__traceback__.tb_next
