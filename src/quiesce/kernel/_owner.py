"""What the owners of other people's code have in common: errors that cross from one task into another."""

from __future__ import annotations

import sys
from asyncio import CancelledError
from collections.abc import Sequence
from types import CodeType
from typing import TYPE_CHECKING, NoReturn, cast

from ._core import ScopeCore
from ._grace import Grace
from ._reason import Reason, as_reason
from ._site import describe

if TYPE_CHECKING:
    from ._report import StopReport


async def close_core(
    core: ScopeCore, deadline: float | None, grace: Grace | None, reason: Reason | str | None
) -> StopReport:
    """Close the scope of an owned thing on behalf of a user."""
    if not core.backend.is_current():
        raise RuntimeError(
            f"{core.label!r}, made at {describe(core._site)}, belongs to another event loop: close it there"
        )
    if deadline is not None:
        grace = (grace or core.grace).within(deadline)
    return await core.close(as_reason(reason, Reason("user", "closed")), grace)


def reason_of_cancel(core: ScopeCore, cancelled: BaseException) -> Reason:
    """Why somebody who waited was cancelled."""
    above = core._above()
    inherited = above.reason if above is not None else None
    if inherited is not None:
        return inherited
    if getattr(cancelled, "source", None) == "deadline":  # trio says where a cancel came from
        return Reason("timeout", "a deadline passed")
    return Reason("cancelled", str(cancelled))


def reason_of_block(core: ScopeCore, error: BaseException | None) -> Reason:
    """Why what is held by a block is closed at its end."""
    if isinstance(error, Exception):
        return Reason("error", f"the body raised {error!r}", error)
    if error is not None and is_cancel(error):
        return reason_of_cancel(core, error)
    return Reason("parent", "its block ended")


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
