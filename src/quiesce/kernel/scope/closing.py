"""Closing a scope: who waits for whom.

A closer from outside waits until the scope is settled, or out of time. One that itself runs inside cannot
wait for itself, nor for anybody who waits for it: who hosts the block it runs in, who is closing a scope
that it runs in, and so on. It waits for the others. Two such closers, or a circle of scopes whose children
close each other, resolve in the same way.

Who waits for a closer goes on when that has returned, and may then need what it has itself opened in the scope: to
send the closer's last answer, for example. That is neither stopped before nor waited for (`needed_later`).

The cancel of a closer from inside is held back until its `close()` has returned: it has asked for the stop
and is owed the report; the cancel arrives at its next await.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Protocol

from quiesce.kernel.base import (
    EXPIRED,
    SETTLED,
    STOPPING,
    Grace,
    Reason,
    StopReport,
    as_reason,
    describe,
    is_cancel,
)

from .child import Child, Handle
from .current import Node, current_node

if TYPE_CHECKING:
    from .lifecycle import ScopeCore


class Holdable(Protocol):
    """Whose cancel can be held back while it closes a scope that it runs in."""

    def _hold(self) -> None: ...

    def _release(self, *, deliver: bool) -> None: ...


async def close(scope: ScopeCore, reason: Reason, grace: Grace | None) -> StopReport:
    """Stop, wait, report; then raise the closer's own cancellation if there was one."""
    node = current_node.get()
    if node is not None:
        return await _close_from(node, scope, reason, grace)
    _begin(scope, reason, grace)
    if scope.state is STOPPING:
        cancelled = await scope.backend.wait_through(scope.until_over(), scope.waiters)
        if cancelled is not None:
            scope.report()
            raise cancelled
    return scope.report()


async def _close_from(node: Node, scope: ScopeCore, reason: Reason, grace: Grace | None) -> StopReport:
    """The same, for a closer that is somebody's child or body: it may be inside what it closes."""
    inside = bool(who_waits_for(scope, (node,)) - {scope})
    held = _hold_back(scope, node) if inside else ()
    _begin(scope, reason, grace)
    cancelled: BaseException | None = None
    excused: Collection[Child | ScopeCore] = ()
    try:
        if scope.state is not SETTLED:
            enter_as_closer(scope, node)
            over = scope.until_over()
            ready = (lambda: over() or only_closers_left(scope)) if inside else over
            try:
                if scope.state is STOPPING:
                    cancelled = await scope.backend.wait_through(ready, scope.waiters)
                if inside:
                    excused = who_waits_for(scope, scope.closers)
                    excused |= needed_later(scope, excused)
            finally:
                leave_as_closer(scope, node)
        report = scope.report(excused)
    finally:
        for holder in held:
            holder._release(deliver=cancelled is None)
    if cancelled is not None:
        raise cancelled
    return report


def _begin(scope: ScopeCore, reason: Reason, grace: Grace | None) -> None:
    if scope.state is EXPIRED:
        scope.resume(grace or scope.grace)
    else:
        scope.stop(reason, grace, body=scope.host is None or not scope.host.is_current())


def who_waits_for(scope: ScopeCore, nodes: Iterable[Node]) -> set[Child | ScopeCore]:
    """Which of the scope's children and nested scopes contain one of `nodes`, or wait for one of them.

    The scope itself among them means: the body of its own block does.
    """
    found: set[Child | ScopeCore] = set()
    seen: set[Node] = set()
    queue: list[Node] = list(nodes)
    while queue:
        node = queue.pop()
        core: ScopeCore | None = node._core
        if core is scope:
            found.add(node)
        while core is not None and core is not scope and core not in seen:
            seen.add(core)
            if core.host is not None and core.opener is not None:
                queue.append(core.opener)
            queue += [closer for closer in core.closers if closer not in seen]
            if core.parent is scope:
                found.add(core)
            core = core.parent
        seen.add(node)
    return found


def only_closers_left(scope: ScopeCore) -> bool:
    """Whether nobody is left but those who wait for a closer that runs inside."""
    excused = who_waits_for(scope, scope.closers)
    if not excused.issuperset(scope.children):
        return False
    return excused.issuperset(scope.nested) or (excused | needed_later(scope, excused)).issuperset(
        scope.nested
    )


def needed_later(scope: ScopeCore, excused: Collection[Child | ScopeCore]) -> set[Child | ScopeCore]:
    """The nested scopes that were opened by one of those who wait for a closer, and do not wait for it themselves."""
    return {
        nested
        for nested in scope.nested
        if nested.opener in excused and nested.opener not in scope.closers and nested not in excused
    }


def _hold_back(scope: ScopeCore, closer: Node) -> list[Holdable]:
    """Hold the cancels of the blocks that the closer is in, and of its task."""
    task = scope.backend.current_task()
    held: list[Holdable] = []
    node: Node | None = closer
    while node is not None and not isinstance(node, Child) and node is not scope:
        if node.host is not None and node.host.is_current():
            held.append(node.host)
        node = node.opener
    if isinstance(node, Handle) and node._runs_in(task):
        held.append(node)
    for holder in held:
        holder._hold()
    return held


def enter_as_closer(scope: ScopeCore, node: Node) -> None:
    scope.closers[node] = scope.closers.get(node, 0) + 1
    scope.progress()
    above = scope.parent
    while above is not None:  # closers further up may be waiting for this very task
        if above.closers:
            above.progress()
        above = above.parent


def leave_as_closer(scope: ScopeCore, node: Node) -> None:
    scope.closers[node] -= 1
    if not scope.closers[node]:
        del scope.closers[node]


async def wait_settled(scope: ScopeCore) -> None:
    """Wait, as a task inside `scope` or beside it, until the stop of `scope` is over. A cancel ends the wait.

    The owner task of a connection waits so for its handlers. One of them may close that connection: it then waits for the owner task,
    which waits for it. One of the two must go on first, and that is the handler, which has an answer to give. With two `close()` it would be
    the other way round, or left to chance. So the owner waits here: it is seen as one who waits, and nobody waits for it in vain.
    """
    node = current_node.get()
    if node is not None:
        enter_as_closer(scope, node)
    try:
        await scope.waiters.wait_until(scope.is_over)
    finally:
        if node is not None:
            leave_as_closer(scope, node)


async def close_core(
    core: ScopeCore, deadline: float | None, grace: Grace | None, reason: Reason | str | None
) -> StopReport:
    """Close the scope of an owned thing on behalf of a user."""
    if not core.backend.is_current():
        raise RuntimeError(
            f"{core.label!r}, made at {describe(core._site)}, belongs to another event loop: close it there"
        )
    if deadline is not None:
        grace = (grace or core.grace).within(deadline)
    return await core.close(as_reason(reason, Reason("user", "closed")), grace)


def reason_of_cancel(core: ScopeCore, cancelled: BaseException) -> Reason:
    """Why somebody who waited was cancelled."""
    above = core._above()
    inherited = above.reason if above is not None else None
    if inherited is not None:
        return inherited
    if getattr(cancelled, "source", None) == "deadline":  # trio says where a cancel came from
        return Reason("timeout", "a deadline passed")
    return Reason("cancelled", str(cancelled))


def reason_of_block(core: ScopeCore, error: BaseException | None) -> Reason:
    """Why what is held by a block is closed at its end."""
    if isinstance(error, Exception):
        return Reason("error", f"the body raised {error!r}", error)
    if error is not None and is_cancel(error):
        return reason_of_cancel(core, error)
    return Reason("parent", "its block ended")
