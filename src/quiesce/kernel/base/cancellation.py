"""What the owners of other people's code have in common: errors that cross from one task into another."""

from __future__ import annotations

import sys
from asyncio import CancelledError
from collections.abc import Sequence
from types import CodeType
from typing import TYPE_CHECKING, NoReturn, cast

if TYPE_CHECKING:
    pass


def is_cancel(error: BaseException) -> bool:
    """Whether `error` is a backend's cancellation. Other people's exceptions may be no `Exception` either: those of pytest are not."""
    if isinstance(error, (Exception, BaseExceptionGroup)):
        return False
    if isinstance(error, CancelledError):
        return True
    trio = sys.modules.get("trio")
    return trio is not None and isinstance(error, trio.Cancelled)


def without_cancels(error: BaseException) -> BaseException | None:
    """What remains of `error`, or of the group that it is, without cancellations."""
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).split(is_cancel)[1]
    return None if is_cancel(error) else error


LEAVES_PROGRAM = (SystemExit, KeyboardInterrupt)
"""What a child raises to end the program: handed on as itself, so that the exit status is the child's."""


def raise_leaving(leaving: BaseException, scope: str, failures: Sequence[BaseException]) -> NoReturn:
    """End the program with what a child raised; what else has failed is a note on it."""
    for failure in failures:
        if failure is not leaving:
            leaving.add_note(f"also failed in scope {scope!r}: {failure!r}")
    raise_unchanged(leaving)


def raise_unchanged(error: BaseException, context: BaseException | None = None) -> NoReturn:
    """Raise an exception of another task without making what happens here its context."""
    context = context if error.__context__ is None else error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
        del error, context  # or the error would hold itself, by way of this frame


def hide_frame(error: BaseException, code: CodeType) -> None:
    """Take an owner's frame off the top of a traceback: it says nothing to who will read that."""
    while error.__traceback__ is not None and error.__traceback__.tb_frame.f_code is code:
        error.__traceback__ = error.__traceback__.tb_next
