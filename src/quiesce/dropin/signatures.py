"""The arguments of an SDK's function, for a function of ours that passes them on, whatever they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


def with_arguments_of(theirs: Callable[P, Any]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Give a function the arguments of the SDK's, in the version that is installed, and what it says of itself."""

    def give(ours: Callable[..., T]) -> Callable[P, T]:
        return cast("Callable[P, T]", update_wrapper(ours, theirs))

    return give
