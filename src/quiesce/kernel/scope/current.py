"""Whose work is this? One context variable answers for scopes and tokens alike.

It holds the child at hand, or the scope itself in an `async with` body. Tasks that other people start
copy it, as they copy every context variable, and so does `to_thread`: that is how a tool deep inside
somebody's library finds its token, and how `contain()` finds whose task it is.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from .child import Child
    from .lifecycle import ScopeCore

Node: TypeAlias = "Child | ScopeCore"

current_node: ContextVar[Node | None] = ContextVar("quiesce_current", default=None)
