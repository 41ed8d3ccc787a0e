"""What the interpreter says about objects that a test dropped: heard on its way, and never kept from whoever it was for.

Warnings. Which of them arrive anywhere is decided by `warnings.filters`, and nothing is called for one that is ignored,
as `ResourceWarning` is by default. So the listener is a filter itself: the first one, which is asked about every warning
and never applies. The filters behind it decide as if it were not there: a warning is shown, recorded, raised or ignored as
before, with the same text at the same line.

A filter that a test puts in front (`pytest.warns`, `simplefilter`) hides a warning from the listener, and so does a test
that records warnings. That is on purpose: what a test expects, catches or silences is not a finding.

Errors that Python could not raise go through `sys.unraisablehook`, which passes them on to the hook before it. Where pytest would
make an error of one that a collection for a verdict has brought to light, it is passed on at the end of the session: the next
test has no part in it.
"""

from __future__ import annotations

import copyreg
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from quiesce.audit.model import Chain, Sighting, stack_of, steady_object
from quiesce.audit.watch import unraisable_sighting

_UNAWAITED = re.compile(r"coroutine (?:method '(?P<method>\w+)' of )?'(?P<name>.+?)' was never awaited")
_NEAR = 16  # frames, in which the call is looked for that made a coroutine


class Listener:
    """`see` gets what is wrong; `see_unclosed` gets the text of each `ResourceWarning`."""

    def __init__(
        self,
        see: Callable[[Sighting], None],
        see_unclosed: Callable[[Sighting], None],
        is_collecting: Callable[[], bool],
    ) -> None:
        self._see = see
        self._see_unclosed = see_unclosed
        self._is_collecting = is_collecting
        self._text = ""
        self._next_hook: Callable[[Any], object] | None = None
        self._for_the_end: list[Any] = []
        self._taker: object = None
        self._filter: Any = ("ignore", self, _category_that_asks(self._hear), None, 0)

    def install(self) -> None:
        """Hear of errors that could not be raised, from now on."""
        self._next_hook = sys.unraisablehook
        sys.unraisablehook = self._on_unraisable

    def undo(self) -> None:
        """Pass on what was kept for the end, and hear no more."""
        for error in self._for_the_end:
            if self._next_hook is not None:
                self._next_hook(error)
        self._for_the_end.clear()
        if self._next_hook is not None and sys.unraisablehook == self._on_unraisable:
            sys.unraisablehook = self._next_hook

    def begin(self) -> None:
        """Hear of warnings; to be called where pytest records those of the test that begins."""
        self._taker = _taker()
        # Without telling the `warnings` module: it would show again what it has shown already.
        warnings.filters.insert(0, self._filter)  # type: ignore[attr-defined]

    def end(self) -> None:
        filters: list[Any] = warnings.filters  # type: ignore[assignment]
        if self._filter in filters:
            filters.remove(self._filter)

    # A filter is a message to match, and then a category to be a subclass of.

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()  # in another process it is no message at all

    pattern = ""  # as that of a regular expression, for whoever looks at the filters

    def match(self, text: str) -> bool:
        self._text = text
        return True

    def _hear(self, category: type) -> None:
        text = self._text
        if _taker() != self._taker:
            return
        if issubclass(category, ResourceWarning):
            self._see_unclosed(Sighting("unclosed", steady_object(text), detail=text))
        elif found := _UNAWAITED.match(text):
            name, method = found["name"], found["method"]
            made_at = () if method else _maker(name.rpartition(".")[2])
            self._see(Sighting("unawaited", f"{name}.{method}" if method else name, made_at))

    def _on_unraisable(self, error: Any) -> None:
        try:
            if not isinstance(error.exc_value, Warning):  # a warning that is an error was heard as a warning
                self._see(unraisable_sighting(error))
        finally:
            if self._is_collecting() and _fails_a_test():
                self._for_the_end.append(error)
            elif self._next_hook is not None:
                self._next_hook(error)


def _fails_a_test() -> bool:
    """Whether pytest, with the filters of now, makes an error of what could not be raised."""
    filters: list[Any] = warnings.filters  # type: ignore[assignment]
    warning = pytest.PytestUnraisableExceptionWarning
    return any(action == "error" and issubclass(warning, category) for action, _, category, *_ in filters)


class _Asking(type):
    """The type of a category that no warning belongs to, and that tells `hear` each time it is asked."""

    hear: Callable[[type], None]

    def __subclasscheck__(cls, subclass: type) -> bool:
        cls.hear(subclass)
        return False


class NoWarning(Warning):
    """What the listener's category is in another process, which gets the filters by a pickle."""


def _category_that_asks(hear: Callable[[type], None]) -> type:
    return _Asking("HeardByQuiesce", (Warning,), {"hear": staticmethod(hear)})


copyreg.pickle(_Asking, lambda category: (_no_warning, ()))  # type: ignore[arg-type, return-value]


def _no_warning() -> type[Warning]:
    return NoWarning


def _taker() -> object:
    """Who gets the warnings that are shown now. `catch_warnings(record=True)` changes it."""
    module: Any = warnings
    context = module._get_context() if hasattr(module, "_get_context") else None  # from 3.14 on
    return (
        module.showwarning,
        module._showwarnmsg_impl,
        getattr(context, "log", None) is not None and id(context),
    )


def _maker(function: str) -> Chain:
    """Where a coroutine of this function was made: the nearest caller that names the function, if there is one.

    A coroutine that nobody awaits is mostly dropped by the function that made it, or soon after. One that the collector finds
    is dropped anywhere; then no caller names its function, and it is not known who made it.
    """
    frame = sys._getframe(2)
    for _ in range(_NEAR):
        code = frame.f_code
        if function in (*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars):
            return stack_of(frame, _NEAR)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ()
