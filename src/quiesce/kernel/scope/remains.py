"""What is left over of a scope, seen from any thread, and even if its event loop has ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from quiesce.kernel.base import SETTLED

from .closing import who_waits_for
from .current import current_node

if TYPE_CHECKING:
    from quiesce.kernel.base import Leftover

    from .child import Child
    from .lifecycle import ScopeCore
    from .scope import Scope


def runs_inside(scope: Scope) -> bool:
    """Whether the caller runs inside `scope`, and so cannot wait for its end."""
    node = current_node.get()
    return node is not None and bool(who_waits_for(scope._opened(), (node,)))


def has_lost_its_loop(scope: Scope) -> bool:
    """Whether the event loop of `scope` was closed under it."""
    # Never on trio: a run of trio ends only when everything in it has ended.
    return _has_lost_its_loop(scope._opened())


def _has_lost_its_loop(core: ScopeCore) -> bool:
    loop = getattr(core.backend, "loop", None)
    return loop is not None and loop.is_closed()


def children_left(scope: Scope) -> list[Child]:
    """The children that are still running in `scope` and in all nested scopes."""
    core = scope._opened()
    return [] if core.state is SETTLED else list(_left_in(core))


def leftovers_in(scope: Scope) -> list[Leftover]:
    """Those children, as a report would name them."""
    return [leftover for child in children_left(scope) for leftover in child._leftovers()]


def _left_in(core: ScopeCore) -> Iterator[Child]:
    loop_goes_on = not _has_lost_its_loop(core)
    for child in list(core.children):
        if child._is_at_work(loop_goes_on=loop_goes_on):
            yield child
    for nested in list(core.nested):
        yield from _left_in(nested)
