"""Whether some work belongs to a block or to something held: by the scopes that its context descends from.

Every context that work is started in has a node (`current`), and every node a scope. From there the way leads up, by the
scopes' owners, or, where a scope has none, by who has opened it. What belongs to a block further in, which has not been
left, is that one's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakSet

from quiesce.kernel.scope import Node

if TYPE_CHECKING:
    from quiesce.kernel.scope import ScopeCore

open_blocks: WeakSet[ScopeCore] = WeakSet()  # the inner scopes of containments that have not been left


def descends(node: Node | None, top: ScopeCore, is_anothers: Callable[[ScopeCore], bool]) -> bool:
    """Whether the way up from `node` leads to `top`, and through no scope that is another's."""
    core = node._core if node is not None else None
    while core is not None and core is not top:
        if is_anothers(core):
            return False
        opener = core.opener
        core = core.parent or (opener._core if opener is not None else None)
    return core is not None


def leads_to(node: Node | None, ancestor: Node) -> bool:
    """Whether `ancestor` has started it: by itself, or by something else that it had started."""
    while node is not None and node is not ancestor:
        node = getattr(node, "opener", None) or node._core.opener
    return node is ancestor


def is_nobodys(core: ScopeCore) -> bool:
    """For a look that leaves nothing to those further in."""
    return False
