"""What an error says: in one line, where it was raised, and whether it came of the closed world."""

from __future__ import annotations

import re

from quiesce.audit.model import Chain, traceback_chain

from .no_io import RefusedIO

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of objects: another one in every run


def text_of(error: BaseException) -> str:
    """Its type and the first line of its message; of a group, those of what is in it."""
    if isinstance(error, BaseExceptionGroup):
        inner = "; ".join(dict.fromkeys(text_of(each) for each in error.exceptions))
        return inner if inner.endswith("ExceptionGroup)") else f"{inner} (in {type(error).__name__})"
    line = without_addresses(str(error).partition("\n")[0])
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def without_addresses(text: str) -> str:
    """The same text in every run, as far as objects are shown in it."""
    return _ADDRESS.sub("", text)


def refusal(error: BaseException) -> str:
    """What of the outside world the scenario asked for, if that is why it failed."""
    seen: set[int] = set()  # chains of errors can go round in a circle
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
    """From whoever let it pass last down to where it was raised."""
    return traceback_chain(error.__traceback__)
