"""The type of what a user passes to a run as `context`; any, where nothing says which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    C = TypeVar("C", default=Any)
else:
    from typing import TypeVar

    C = TypeVar("C")  # a default is only for type checkers, until Python 3.13 is the oldest

__all__ = ["C"]
