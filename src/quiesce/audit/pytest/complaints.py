"""Listens to what the interpreter reports about objects that a test dropped, without keeping it from its receivers.

Warnings. `warnings.filters` decides which of them arrive anywhere, and no hook is called for an ignored warning, as
`ResourceWarning` is by default. So the listener is itself a filter: the first one, which is consulted about every
warning and never applies. The filters behind it decide as if it did not exist: a warning is shown, recorded, raised or
ignored as before, with the same text at the same line.

A filter that a test puts in front (`pytest.warns`, `simplefilter`) hides a warning from the listener, and so does a
test that records warnings. That is on purpose: a warning that a test expects, catches or silences is not a finding.

Errors that Python could not raise go to `sys.unraisablehook`; the listener's hook passes them on to the previous one.
If pytest would turn such an error into a failure, and a collection for a verdict has brought it up, the listener passes
it on at the end of the session: the test that happens to be next is not to blame.
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
# How many frames to search for the call that created a coroutine.
_MOST_FRAMES = 16


class Listener:
    """Calls `see_unclosed` for each `ResourceWarning`, and `see` for everything else that is wrong."""

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
        self._held_back: list[Any] = []
        self._receiver: object = None
        self._filter: Any = ("ignore", self, _listening_category(self._hear), None, 0)

    def install(self) -> None:
        """Install the hook for errors that Python could not raise."""
        self._next_hook = sys.unraisablehook
        sys.unraisablehook = self._on_unraisable

    def undo(self) -> None:
        """Pass on the errors that were held back, and remove the hook."""
        for error in self._held_back:
            if self._next_hook is not None:
                self._next_hook(error)
        self._held_back.clear()
        if self._next_hook is not None and sys.unraisablehook == self._on_unraisable:
            sys.unraisablehook = self._next_hook

    def begin(self) -> None:
        """Start to listen for warnings. Call it when pytest has begun to record the warnings of a test."""
        self._receiver = _receiver()
        # Inserted directly: `warnings.filterwarnings` would invalidate the registries of warnings that have been shown,
        # and these would be shown again.
        warnings.filters.insert(0, self._filter)  # type: ignore[attr-defined]

    def end(self) -> None:
        """Stop listening for warnings."""
        filters: list[Any] = warnings.filters  # type: ignore[assignment]
        if self._filter in filters:
            filters.remove(self._filter)

    # A filter consists of a compiled pattern for the message and a category. The `warnings` module first calls `match`
    # of the pattern, then `issubclass` for the category. The listener uses both: `match` keeps the text, and the check
    # of the category calls `_hear`.

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()  # in another process the filter has no pattern

    # A compiled pattern has this attribute, and code that prints the filters reads it.
    pattern = ""

    def match(self, text: str) -> bool:
        self._text = text
        return True

    def _hear(self, category: type) -> None:
        text = self._text
        if _receiver() != self._receiver:
            return
        if issubclass(category, ResourceWarning):
            self._see_unclosed(Sighting("unclosed", steady_object(text), detail=text))
        elif found := _UNAWAITED.match(text):
            name, method = found["name"], found["method"]
            made_at = () if method else _creation_frames(name.rpartition(".")[2])
            self._see(Sighting("unawaited", f"{name}.{method}" if method else name, made_at))

    def _on_unraisable(self, error: Any) -> None:
        try:
            # A warning that a filter turned into an error has been heard as a warning.
            if not isinstance(error.exc_value, Warning):
                self._see(unraisable_sighting(error))
        finally:
            if self._is_collecting() and _would_fail_a_test():
                self._held_back.append(error)
            elif self._next_hook is not None:
                self._next_hook(error)


def _would_fail_a_test() -> bool:
    """Whether pytest, with the current filters, turns an error that could not be raised into a failure."""
    filters: list[Any] = warnings.filters  # type: ignore[assignment]
    warning = pytest.PytestUnraisableExceptionWarning
    return any(action == "error" and issubclass(warning, category) for action, _, category, *_ in filters)


class _ListeningType(type):
    """The type of a category that matches no warning, and that calls `hear` for each warning it is compared with."""

    hear: Callable[[type], None]

    def __subclasscheck__(cls, subclass: type) -> bool:
        cls.hear(subclass)
        return False


class NoWarning(Warning):
    """Replaces the listener's category in another process, which receives the filters as a pickle."""


def _listening_category(hear: Callable[[type], None]) -> type:
    return _ListeningType("HeardByQuiesce", (Warning,), {"hear": staticmethod(hear)})


copyreg.pickle(_ListeningType, lambda category: (_no_warning, ()))  # type: ignore[arg-type, return-value]


def _no_warning() -> type[Warning]:
    return NoWarning


def _receiver() -> object:
    """Identifies the current receiver of warnings, which `catch_warnings(record=True)` changes."""
    module: Any = warnings
    # From 3.14 on the receiver can also be in a context variable.
    context = module._get_context() if hasattr(module, "_get_context") else None
    return (
        module.showwarning,
        module._showwarnmsg_impl,
        getattr(context, "log", None) is not None and id(context),
    )


def _creation_frames(function: str) -> Chain:
    """Where a coroutine of this function was created: the nearest caller that names the function; empty if unknown.

    A coroutine that is never awaited is usually dropped by the function that created it, or soon after. If the garbage
    collector finds it, it can be dropped anywhere. Then no caller names its function, and its origin is unknown.
    """
    frame = sys._getframe(2)
    for _ in range(_MOST_FRAMES):
        code = frame.f_code
        if function in (*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars):
            return stack_of(frame, _MOST_FRAMES)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ()
