"""Closing a scope: who waits for whom.

A closer outside the scope waits until the scope has settled or expired. A closer that runs inside the scope
cannot wait for itself, nor for anything that waits for it: the task whose block it runs in, a task that is
closing a scope that it runs in, and so on. It waits for everything else. Two such closers, or a circle of
scopes whose children close each other, are resolved by the same rule.

What waits for a closer goes on when the closer has returned, and may then need scopes that it has itself
opened here: to send the closer's last answer, for example. The closer neither stops those nor waits for them
(`needed_later`).

The cancel of a closer that runs inside is held back until its `close()` has returned. It asked for the stop,
so it gets the report; the cancel arrives at its next await. If it were delivered at once, `close()` would
raise it instead of returning the report.
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
    check_grace,
    describe,
    is_cancel,
)

from .child import Child, Handle
from .current import Node, current_node

if TYPE_CHECKING:
    from .lifecycle import ScopeCore


class _CancelTarget(Protocol):
    """A child or the body of a block: its cancel can be held back while it closes a scope that it runs in."""

    def _hold_cancel(self) -> None: ...

    def _release_cancel(self, *, deliver: bool) -> None: ...


async def close(scope: ScopeCore, reason: Reason, grace: Grace | None) -> StopReport:
    """Stop, wait and report; then raise the closer's own cancellation if there was one."""
    node = current_node.get()
    if node is not None:
        return await _close_from(node, scope, reason, grace)
    if scope.host is None and scope.state is not EXPIRED:
        scope.stop(reason, grace)
    else:
        _begin(scope, reason, grace)
    if scope.state is STOPPING:
        cancelled = await scope.backend.wait_through(scope.until_over(), scope.waiters)
        if cancelled is not None:
            scope.report()  # kept in `last_report`, where the cancelled closer's owner finds it
            raise cancelled
    return scope.report()


async def _close_from(node: Node, scope: ScopeCore, reason: Reason, grace: Grace | None) -> StopReport:
    """The same, for a closer that is a child or the body of a block: it may be inside what it closes."""
    inside = bool(who_waits_for(scope, (node,)) - {scope})
    targets = _hold_cancels(scope, node) if inside else ()
    _begin(scope, reason, grace)
    cancelled: BaseException | None = None
    waiting: Collection[Child | ScopeCore] = ()
    try:
        if scope.state is not SETTLED:
            enter_as_closer(scope, node)
            over = scope.until_over()
            ready = (lambda: over() or only_closers_left(scope)) if inside else over
            try:
                if scope.state is STOPPING:
                    cancelled = await scope.backend.wait_through(ready, scope.waiters)
                if inside:
                    # Still running, but not left over: the report lists them as "closing".
                    waiting = who_waits_for(scope, scope.closers)
                    waiting |= needed_later(scope, waiting)
            finally:
                leave_as_closer(scope, node)
        report = scope.report(waiting)
    finally:
        # If the closer was cancelled while it waited, it raises that below; a second one would be too many.
        for target in targets:
            target._release_cancel(deliver=cancelled is None)
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

    If the scope itself is among them, the body of its own block is meant.
    """
    # Walk up from each node to `scope`. On the way, whatever hosts the block of a scope, or closes that
    # scope, waits for the node too, and is walked up from in turn.
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
    """Whether everything that is left in the scope waits for a closer that runs inside it."""
    waiting = who_waits_for(scope, scope.closers)
    if not waiting.issuperset(scope.children):
        return False
    return waiting.issuperset(scope.nested) or (waiting | needed_later(scope, waiting)).issuperset(
        scope.nested
    )


def needed_later(scope: ScopeCore, waiting: Collection[Child | ScopeCore]) -> set[Child | ScopeCore]:
    """The nested scopes opened by what is in `waiting` for a closer, except those that wait themselves."""
    return {
        nested
        for nested in scope.nested
        if nested.opener in waiting and nested.opener not in scope.closers and nested not in waiting
    }


def _hold_cancels(scope: ScopeCore, closer: Node) -> list[_CancelTarget]:
    """Hold back the cancels of the closer's task, and of the blocks that it is in; returns all of these."""
    task = scope.backend.current_task()
    targets: list[_CancelTarget] = []
    node: Node | None = closer
    while node is not None and not isinstance(node, Child) and node is not scope:
        if node.host is not None and node.host.is_current():
            targets.append(node.host)
        node = node.opener
    if isinstance(node, Handle) and node._runs_in(task):
        targets.append(node)
    for target in targets:
        target._hold_cancel()
    return targets


def enter_as_closer(scope: ScopeCore, node: Node) -> None:
    """Register `node` as one that waits for `scope`. Leave with `leave_as_closer`."""
    scope.closers[node] = scope.closers.get(node, 0) + 1
    scope.progress()
    above = scope.parent
    while above is not None:  # a closer of an outer scope may have been waiting for this very task
        if above.closers:
            above.progress()
        above = above.parent


def leave_as_closer(scope: ScopeCore, node: Node) -> None:
    """The wait that `enter_as_closer` registered is over."""
    scope.closers[node] -= 1
    if not scope.closers[node]:
        del scope.closers[node]


async def wait_settled(scope: ScopeCore) -> None:
    """Wait until `scope` has settled or expired, from a task inside it or outside. A cancel ends the wait."""
    # The owner task of a connection waits like this for its handlers. One of them may close the connection:
    # it then waits for the owner task, which waits for it. The handler must go on first, because it has an
    # answer to send. If both called `close()`, it would be the other way round, or chance would decide.
    # Waiting here counts as closing, so the handler's `close()` knows that the owner waits for it, and does
    # not wait back.
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
    """Close the scope of a resource for a user: with the checks, the defaults and the messages for that."""
    if not core.backend.is_current():
        raise RuntimeError(
            f"{core.label!r}, made at {describe(core._site)}, belongs to another event loop: close it there"
        )
    check_grace(grace)
    if deadline is not None:
        grace = (grace or core.grace).within(deadline)
    return await core.close(as_reason(reason, Reason("user", "closed")), grace)


def reason_of_cancel(core: ScopeCore, cancelled: BaseException) -> Reason:
    """Why a task that waited for `core` was cancelled."""
    above = core._above()
    inherited = above.reason if above is not None else None
    if inherited is not None:
        return inherited
    if getattr(cancelled, "source", None) == "deadline":  # trio says where a cancel came from
        return Reason("timeout", "a deadline passed")
    return Reason("cancelled", str(cancelled))


def reason_of_block(core: ScopeCore, error: BaseException | None) -> Reason:
    """Why the end of an `async with` block closes its resource: `error` is what the body raised."""
    if isinstance(error, Exception):
        return Reason("error", f"the body raised {error!r}", error)
    if error is not None and is_cancel(error):
        return reason_of_cancel(core, error)
    return Reason("parent", "its block ended")
