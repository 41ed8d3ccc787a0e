"""`own`: an async context manager of any library, in an owner task (see `context_manager_owner`)."""

from __future__ import annotations

import inspect
import sys
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from quiesce.kernel.base import (
    SETTLED,
    Grace,
    Reason,
    Site,
    describe,
    is_cancel,
    raise_unchanged,
    site_of,
    without_cancels,
)
from quiesce.kernel.scope import Backend, Closable, Scope, current_backend, current_core, log_report

from .context_manager_owner import ContextManagerOwner

if TYPE_CHECKING:
    from quiesce.kernel.base import CancelToken, StopReport
    from quiesce.kernel.scope import BlockTask, ScopeCore

T = TypeVar("T")


def own(
    cm: AbstractAsyncContextManager[T],
    *,
    scope: Scope | None = None,
    name: str | None = None,
    grace: Grace | None = None,
) -> Owned[T]:
    """Hold an async context manager of any library, so that it can be closed from anywhere and always ends.

    ```python
    async with own(client.connect()) as session:        # as a block
        ...

    held = await own(client.connect()).open()           # or opened here
    held.value.send("hello")                            # used from any task
    report = await held.close()                         # and closed from any other
    ```

    It is entered and exited in one task of its own, in a copy of the caller's context: context variables that
    it sets do not reach its users.

    Exiting is a stop, bounded by `grace`: the context manager is exited, cancelled if it has not finished
    after `grace.cooperate + grace.cancel` seconds, and named in the report if it is still running at the end.
    If it waits on purpose, as a task group does, give it the time: `grace=Grace(cancel=math.inf)`.

    A process that it has started and does not end itself is ended with its whole tree (asyncio, Linux): by
    SIGTERM when the context manager has exited or its time for that is over, then by SIGKILL.

    `scope` is its owner: by default, the current scope.
    """
    check_context_manager(cm)
    return Owned(cm, scope, name or name_of(cm), grace, site_of(sys._getframe(1)))


class Owned(Generic[T]):
    """What `own` returns: a context manager to be held. Use `async with`, or `await` its `open()`."""

    def __init__(
        self,
        cm: AbstractAsyncContextManager[T],
        scope: Scope | None,
        name: str,
        grace: Grace | None,
        site: Site,
    ) -> None:
        self._options = (cm, scope, name, grace, site)
        self._keeper: ContextManagerOwner[T] | None = None
        self._host: BlockTask | None = None

    @property
    def report(self) -> StopReport | None:
        """What the end of the block has reported; None before."""
        return self._keeper.core.last_report if self._keeper is not None else None

    def _start(self, backend: Backend) -> ContextManagerOwner[T]:
        owner = self._prepare(backend)
        owner.begin()
        return owner

    def _prepare(self, backend: Backend) -> ContextManagerOwner[T]:
        cm, scope, name, grace, site = self._options
        if self._keeper is not None:
            raise RuntimeError(
                f"context manager {name!r}, made at {describe(site)}, was opened before; "
                "it is used once: call own() with a new one"
            )
        parent = scope._opened() if scope is not None else current_core(backend)
        parent.check_takes(f"open {name!r} in")
        core = backend.make_core(name=name, site=site, grace=grace, parent=parent)
        self._keeper = owner = ContextManagerOwner(cm, core, name, site)
        return owner

    async def open(self) -> Held[T]:
        """Enter it. Close what this returns yourself, from any task.

        If entering fails, that error is raised. If you are cancelled meanwhile, the context manager has ended
        when your cancellation is raised.
        """
        owner = self._start(current_backend())
        await owner.wait_until_entered()
        return Held(owner)

    async def __aenter__(self) -> T:
        backend = current_backend()
        owner = self._start(backend)
        await owner.wait_until_entered()
        self._host = host = backend.make_host(owner.core)
        owner.core.enter_block(host)
        if host.generator is None:
            # The scope of an owned resource is not for the body's tasks: what the body spawns belongs to the
            # scope that the body runs in, as with a plain `async with`.
            host.restore_context()
        return owner.value

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        owner, host = self._keeper, self._host
        assert owner is not None
        assert host is not None
        core = owner.core
        if not host.may_leave():
            return False
        self._host = None
        if not core.closed:
            # First the owner, then the stop: the stop alone would exit the context manager without the error
            # of the body, and a transaction would be committed.
            owner.leave(error)
            ended = Reason("parent", "its block ended")
            core.stop(host.reason_of(error) if error is not None else ended, body=False)
        try:
            cancelled = await host.leave(error)
        finally:
            core.leave_block()
        report = core.report()
        if core.state is not SETTLED:
            log_report(report)
        if cancelled is not None:
            owner.attach_failure(cancelled)
            if cancelled is error:
                return False
            raise cancelled
        interrupted = error is not None and without_cancels(error) is None
        failure = owner.take_failure()
        if failure is not None:
            raise_unchanged(failure, None if interrupted else error)
        if interrupted and owner.has_ended_itself:
            return True  # it cancelled the body and suppressed that, as `move_on_after` does
        if interrupted:
            # Only our own stop has cancelled the body, because the context manager ended before it. That
            # cancellation must not go further: no code outside has cancelled this task.
            raise owner.not_held() from None
        return error is not None and error is owner.body_error and owner.has_suppressed

    def __del__(self) -> None:
        if getattr(self, "_host", None) is not None and self._keeper is not None:
            self._keeper.dropped(self)

    def __repr__(self) -> str:
        return f"<Owned {self._options[2]!r}>"


class Held(Closable, Generic[T]):
    """A context manager that has been entered and is held by its owner task.

    ```python
    held = await own(pool()).open()
    await held.value.query("select 1")      # from any task
    report = await held.close()             # from any task, as often as you like
    ```
    """

    def __init__(self, owner: ContextManagerOwner[T]) -> None:
        self._keeper = owner

    def _find_core(self) -> ScopeCore:
        return self._keeper.core

    @property
    def value(self) -> T:
        """What `__aenter__` returned. Raises `NotHeld` if it has failed (with the cause) or was exited."""
        if self._keeper.leaving:
            raise self._keeper.not_held()
        return self._keeper.value

    @property
    def token(self) -> CancelToken:
        """A token that is cancelled, with the reason, as soon as it is being closed or has failed."""
        return self._keeper.core.token

    @property
    def failed(self) -> bool:
        """Whether it failed, or ended by itself without being closed."""
        return self._keeper.broke_down or self._keeper.failure is not None

    @property
    def error(self) -> BaseException | None:
        """What it raised, if it failed and has cleaned up."""
        return self._keeper.failure

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """Exit it, wait until it has cleaned up, and report.

        Bounded by `deadline` seconds, or its `Grace`; what is still running then is named in the report, and
        can be closed again. If the context manager failed, in use or at its exit, each `close()` raises that
        error when everything has settled; the report is then in `held.report`. If you are cancelled
        meanwhile, the exit goes on and your cancellation is raised after it.
        """
        owner = self._keeper
        try:
            report = await super().close(deadline=deadline, grace=grace, reason=reason)
        except BaseException as mine:
            if is_cancel(mine):
                owner.attach_failure(mine)
            raise
        failure = owner.take_failure()
        if failure is not None:
            raise_unchanged(failure)
        return report

    def __del__(self) -> None:
        self._keeper.dropped(self)

    def __repr__(self) -> str:
        owner = self._keeper
        state = "failed" if self.failed else owner.core.state if owner.leaving else "held"
        return f"<Held {owner.name!r} {state}>"


def name_of(cm: object) -> str:
    """The name of the function behind `@asynccontextmanager`, or else of the class."""
    generator = inspect.getattr_static(cm, "gen", None)
    if inspect.isasyncgen(generator):
        return generator.__qualname__
    return type(cm).__qualname__


def check_context_manager(cm: object) -> None:
    """Raise a `TypeError` that says what to write, if `cm` is not an async context manager."""
    if hasattr(type(cm), "__aenter__") and hasattr(type(cm), "__aexit__"):
        return
    what = type(cm).__name__
    if inspect.iscoroutine(cm):
        cm.close()  # or Python warns, besides this error, that it was never awaited
        hint = "await it first, if it returns one: own(await connect())"
    elif inspect.isasyncgen(cm) or inspect.isasyncgenfunction(cm):
        hint = "decorate the generator function with contextlib.asynccontextmanager and call it"
    elif isinstance(cm, type) or inspect.isroutine(cm):
        what = f"{what} {getattr(cm, '__qualname__', cm)!r}"
        hint = "call it, and pass what it returns"
    elif hasattr(type(cm), "__enter__"):
        hint = "it is a sync context manager: a plain `with` does for it, in any task"
    else:
        hint = "it has no __aenter__ and __aexit__"
    raise TypeError(f"own takes an async context manager, not {what}: {hint}")
