"""Whether some work belongs to a block or to an owner task: by the scopes that its context descends from.

Every context in which work is started has a node (`current_node`), and every node a scope. From there the way
leads up: from a scope to its owner, or, where it has none, to the node that opened it. Work of an inner block
that has not been exited belongs to that block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakSet

from quiesce.kernel.scope import Node

if TYPE_CHECKING:
    from quiesce.kernel.scope import ScopeCore

open_blocks: WeakSet[ScopeCore] = WeakSet()  # the inner scopes of containments that have not been exited


def descends(node: Node | None, top: ScopeCore, is_foreign: Callable[[ScopeCore], bool]) -> bool:
    """Whether the way up from `node` leads to `top`, and through no scope that `is_foreign`."""
    core = node._core if node is not None else None
    while core is not None and core is not top:
        if is_foreign(core):
            return False
        opener = core.opener
        core = core.parent or (opener._core if opener is not None else None)
    return core is not None


def leads_to(node: Node | None, ancestor: Node) -> bool:
    """Whether `ancestor` started it: by itself, or by something that it started."""
    while node is not None and node is not ancestor:
        node = getattr(node, "opener", None) or node._core.opener
    return node is ancestor


def never_foreign(core: ScopeCore) -> bool:
    """For `descends`: inner blocks claim nothing."""
    return False
