"""Describes an exception: its text in one line, where it was raised, and whether the closed world caused it."""

from __future__ import annotations

import re

from quiesce.audit.model import Chain, traceback_chain

from .no_io import RefusedIO

# Addresses of objects differ from run to run.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def text_of(error: BaseException) -> str:
    """The type of an error and the first line of its message; for a group, those of its members."""
    if isinstance(error, BaseExceptionGroup):
        inner = "; ".join(dict.fromkeys(text_of(each) for each in error.exceptions))
        return inner if inner.endswith("ExceptionGroup)") else f"{inner} (in {type(error).__name__})"
    line = _ADDRESS.sub("", str(error).partition("\n")[0])
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def refusal(error: BaseException) -> str:
    """The I/O that the closed world refused, if that is the cause of this error; otherwise ""."""
    # Chains of causes and contexts can be circular.
    seen: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue:
        each = queue.pop()
        if each is None or id(each) in seen:
            continue
        if isinstance(each, RefusedIO):
            return str(each)
        seen.add(id(each))
        queue.append(each.__context__ if each.__cause__ is None else each.__cause__)
        if isinstance(each, BaseExceptionGroup):
            queue += each.exceptions
    return ""


def where_raised(error: BaseException) -> Chain:
    """The frames of an error's traceback, from the outermost down to where it was raised."""
    return traceback_chain(error.__traceback__)
