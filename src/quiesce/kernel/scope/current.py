"""Which child or scope is the current one: one context variable.

It holds the current child, or the scope itself in the body of its `async with`. Tasks that a library starts
copy it, as they copy every context variable, and so does `to_thread`. That is how a tool deep inside a
library finds its token, and how `contain()` finds out to which block a task belongs.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from .child import Child
    from .lifecycle import ScopeCore

Node: TypeAlias = "Child | ScopeCore"

current_node: ContextVar[Node | None] = ContextVar("quiesce_current", default=None)
