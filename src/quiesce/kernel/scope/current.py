"""Which child or scope is the current one: one context variable.

It holds the current child, or the scope itself in the body of its `async with`. Tasks that a library starts
copy it, as they copy every context variable, and so does `to_thread`. That is how a tool deep inside a
library finds its token, and how `contain()` finds out to which block a task belongs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from quiesce.kernel.base import CancelToken

    from .child import Child
    from .lifecycle import ScopeCore

Node: TypeAlias = "Child | ScopeCore"

current_node: ContextVar[Node | None] = ContextVar("quiesce_current", default=None)

# The token of sync work that no scope runs, and the node it runs in: what is opened further in has its own.
sync_token: ContextVar[tuple[Node | None, CancelToken] | None] = ContextVar(
    "quiesce_sync_token", default=None
)


@contextmanager
def work_with(token: CancelToken) -> Iterator[None]:
    """Have `current_token()` return `token` in a block of sync code, and in threads that copy its context."""
    before = sync_token.set((current_node.get(), token))
    try:
        yield
    finally:
        sync_token.reset(before)
