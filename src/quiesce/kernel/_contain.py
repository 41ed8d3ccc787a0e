"""Containment: at the end of a block, the tasks that other people's code started inside it.

Two scopes, one in the other. The inner one is in the context of the body, so that what is opened in the block
hangs below it, and tasks of others can be told by it. The outer one belongs to the owner. From the
beginning it has one child, the block itself (`_Block`): whoever stops the owner stops the body by it, and waits
until the block has been left. At the end of the block the tasks that are found become its children too, and
from there on the ladder, the waiting and the report are those of every scope.

- Each task is cancelled once, by us or by another task that hands its own cancel on (see `_foreign`), and
  once more when its time is over.
- When those that were found are gone, there may be new ones: it is over when a look finds none.
- Tasks of the kernel's own belong to their scopes. Those that a predicate keeps are not touched; a
  containment further out will find them, and also whatever could not be ended here.
- A cancel of the body's task that code inside has swallowed is still counted by the task
  (`Task.cancelling`): it is raised again at the end.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import CancelledError
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ._backend import current_backend
from ._caller import owner_of
from ._child import RUNNING, Child
from ._core import EXPIRED, OPEN, SETTLED, ScopeCore, logger
from ._current import current_node
from ._grace import Grace, Rung
from ._reason import Reason
from ._site import Site, site_of, stuck_at

if TYPE_CHECKING:
    from ._asyncio import AsyncioHost
    from ._foreign import Births
    from ._report import StopReport
    from ._scope import Scope

Task: TypeAlias = "asyncio.Task[Any]"  # Any: other people's results


def contain(
    *,
    keep: Callable[[asyncio.Task[Any]], bool] | None = None,
    grace: Grace | None = None,
    scope: Scope | None = None,
    name: str | None = None,
) -> Containment:
    """A block that no task outlives, whoever started it; for asyncio.

    ```python
    async with contain() as box:
        await some_library.do_things()      # leaves its background tasks behind
    print(box.report)                       # they have been cancelled and have cleaned up
    ```

    At the end of the block, every task that was started inside it, at any depth, is cancelled once and has its
    `grace` (the owner's, unless given) to clean up; what is left after that is in `box.report`, and stays owned
    by `scope` (the current scope, unless given). `keep(task)` says True for tasks to leave alone. If code inside
    has swallowed a cancellation of the task at hand, it is raised at the end of the block.

    A task belongs to the block if its context descends from it. That misses tasks made with a context from
    elsewhere, `create_task(..., context=Context())`; on Python 3.11 also those made by `asyncio.Task(...)`
    instead of `create_task`, and those made after somebody has replaced the loop's task factory.
    """
    return Containment(keep, grace, scope, name)


class Containment:
    """What `async with contain() as box` gives: its `report`, when the block has been left."""

    __slots__ = ("_births", "_block", "_core", "_inner", "_kept", "_options", "report")

    def __init__(
        self,
        keep: Callable[[Task], bool] | None,
        grace: Grace | None,
        scope: Scope | None,
        name: str | None,
    ) -> None:
        if keep is not None and not callable(keep):
            raise TypeError(f"keep must be a function of a task, not {keep!r}")
        self._options = (keep, grace, scope, name or "containment")
        self._core: ScopeCore | None = None
        self._kept: set[Task] = set()
        self.report: StopReport | None = None

    async def __aenter__(self) -> Containment:
        backend = current_backend()
        _, grace, scope, name = self._options
        if backend.name != "asyncio":
            raise RuntimeError(
                "contain() is for asyncio, where anybody can start a task that nobody owns. On trio that cannot "
                "happen: every task lives in a nursery, which waits for it. Use a nursery, or a Scope"
            )
        if self._core is not None:
            raise RuntimeError(f"containment {name!r} was used before: make a new one with contain()")
        from ._foreign import Births

        owner, site = owner_of(backend, scope), site_of(sys._getframe(1))
        self._core = core = backend.make_core(
            name=name, site=site, on_error="report", grace=grace or owner.grace, parent=owner
        )
        self._inner = inner = backend.make_core(
            name=name, site=site, on_error="report", grace=core.grace, parent=core
        )
        inner.host = backend.make_host(inner)
        if inner.host.generator is not None:
            inner.settle()
            core.settle()
            raise RuntimeError(
                "contain() cannot stand inside an async generator: it runs in its consumer's context, and the "
                "consumer's tasks would be taken for its own. Put contain() around the loop that consumes it"
            )
        self._block = _Block(core, inner, site)
        self._births: Births | None = Births.begin(cast(Any, backend).loop)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        inner = self._inner
        host = cast("AsyncioHost", inner.host)
        try:
            late = await self._drain(error)
            cancelled = await host.leave(error if late is None or isinstance(error, CancelledError) else late)
            self._finish()
        finally:
            host.restore_context()
            inner.host = None
            if self._births is not None:
                self._births.end(cast(Any, inner.backend).loop)
        if cancelled is None and error is None and host.is_current():
            cancelled = await _swallowed_cancel(host)
        if cancelled is not None and cancelled is not error:
            raise cancelled
        # A cancel that is not to be raised was our own, sent because the owner stopped the block.
        return cancelled is None and isinstance(error, CancelledError)

    # The end of the block

    async def _drain(self, error: BaseException | None) -> BaseException | None:
        """Stop all that is inside, however often we are cancelled; returns the first of those cancels."""
        core, inner, block = self._core, self._inner, self._block
        assert core is not None
        assert inner.host is not None
        reason = inner.host.reason_of(error) if error else Reason("parent", f"the block of {core.label!r} ended")
        block.leaving = True
        core.closers[block] = 1  # it waits for the others, not they for it
        found = self._adopt()
        if core.state is EXPIRED:
            core.resume(core.grace)
        core.stop(reason)
        inner.stop(core.reason or reason, body=False)
        self._cancel(found)
        cancelled: BaseException | None = None
        while not core.is_over():
            ended = core.ended
            late = await core.backend.wait_through(
                lambda seen=ended: core.ended != seen or core.only_closers_left(),  # type: ignore[misc]
                core.waiters,
            )
            cancelled = cancelled or late
            if core.only_closers_left():
                found = self._adopt()
                if not found:
                    break
            self._cancel([child for child in core.children if isinstance(child, Adopted)])
        return cancelled
