"""`own`: anybody's async context manager, entered and left by an owner task (see `context_manager_owner`)."""

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
from quiesce.kernel.scope import Backend, Scope, close_core, current_backend, current_core, log_report

from .context_manager_owner import ContextManagerOwner

if TYPE_CHECKING:
    from quiesce.kernel.base import CancelToken, StopReport
    from quiesce.kernel.scope import BlockTask

T = TypeVar("T")


def own(
    cm: AbstractAsyncContextManager[T],
    *,
    scope: Scope | None = None,
    name: str | None = None,
    grace: Grace | None = None,
) -> Owned[T]:
    """Hold anybody's async context manager, so that it can be closed from anywhere and always ends.

    ```python
    async with own(client.connect()) as session:        # as a block
        ...

    held = await own(client.connect()).open()           # or opened here
    held.value.send("hello")                            # used from any task
    report = await held.close()                         # and closed from any other
    ```

    It is entered and left in one task of its own, in a copy of the context of whoever opens it: context variables
    that it sets do not reach its users.

    Leaving is a stop and takes its time from `grace`: the context manager is asked to leave, cancelled if it has
    not when `grace.cooperate + grace.cancel` seconds are over, and named in the report if it is still there at the
    end. For one that waits on purpose, such as a task group, give it the time: `grace=Grace(cancel=math.inf)`.

    A process that it has started, and does not end itself, is ended with its whole tree (asyncio, Linux): SIGTERM when it has
    left or its time to leave is over, then SIGKILL.

    `scope` is its owner, the current scope unless another is given.
    """
    check_context_manager(cm)
    return Owned(cm, scope, name or name_of(cm), grace, site_of(sys._getframe(1)))


class Owned(Generic[T]):
    """A context manager to be held: what `own` returns. Enter it with `async with`, or `await` its `open()`."""

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
        """What the end of the block reported; None before."""
        return self._keeper.core.last_report if self._keeper is not None else None

    def _start(self, backend: Backend) -> ContextManagerOwner[T]:
        cm, scope, name, grace, site = self._options
        if self._keeper is not None:
            raise RuntimeError(
                f"context manager {name!r}, made at {describe(site)}, was opened before; "
                "it is used once: call own() with a new one"
            )
        parent = scope._opened() if scope is not None else current_core(backend)
        parent.check_takes(f"open {name!r} in")
        core = backend.make_core(name=name, site=site, grace=grace, parent=parent)
        self._keeper = keeper = ContextManagerOwner(cm, core, name, site)
        try:
            keeper.start()
        except BaseException:
            core.settle()
            raise
        return keeper

    async def open(self) -> Held[T]:
        """Enter it; whoever holds the result closes it, from any task.

        If entering fails, that error is raised. If you are cancelled meanwhile, it is stopped and drained first.
        """
        keeper = self._start(current_backend())
        await keeper.wait_until_entered()
        return Held(keeper)

    async def __aenter__(self) -> T:
        backend = current_backend()
        keeper = self._start(backend)
        await keeper.wait_until_entered()
        self._host = host = keeper.core.host = backend.make_host(keeper.core)
        if host.generator is None:
            host.restore_context()  # what the body spawns belongs to the body's scope, not in here
        return keeper.value

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        keeper, host = self._keeper, self._host
        assert keeper is not None
        assert host is not None
        core = keeper.core
        if not host.may_leave():
            return False
        self._host = None
        if not core.closed:
            keeper.leave(error)
            ended = Reason("parent", "its block ended")
            core.stop(host.reason_of(error) if error is not None else ended, body=False)
        try:
            cancelled = await host.leave(error)
        finally:
            core.host = None
        report = core.report()
        if core.state is not SETTLED:
            log_report(report)
        if cancelled is not None:
            keeper.attach_failure(cancelled)
            if cancelled is error:
                return False
            raise cancelled
        interrupted = error is not None and without_cancels(error) is None
        failure = keeper.take_failure()
        if failure is not None:
            raise_unchanged(failure, None if interrupted else error)
        if interrupted and keeper.has_ended_itself:
            return True  # it cancelled the body and caught that, as `move_on_after` does
        if interrupted:
            raise keeper.not_held() from None
        return error is not None and error is keeper.thrown and keeper.has_suppressed

    def __del__(self) -> None:
        if getattr(self, "_host", None) is not None and self._keeper is not None:
            self._keeper.dropped(self)

    def __repr__(self) -> str:
        return f"<Owned {self._options[2]!r}>"


class Held(Generic[T]):
    """A context manager that has been entered and is held by its owner task.

    ```python
    held = await own(pool()).open()
    await held.value.query("select 1")      # from any task
    report = await held.close()             # from any task, as often as you like
    ```
    """

    def __init__(self, keeper: ContextManagerOwner[T]) -> None:
        self._keeper = keeper

    @property
    def value(self) -> T:
        """What the context manager gave; `NotHeld` if it has failed (with the cause) or was left."""
        if self._keeper.leaving:
            raise self._keeper.not_held()
        return self._keeper.value

    @property
    def token(self) -> CancelToken:
        """Cancelled, with the reason, as soon as it is being left or has failed."""
        return self._keeper.core.token

    @property
    def failed(self) -> bool:
        """Whether it failed, or ended by itself, instead of being asked to leave."""
        return self._keeper.broke or self._keeper.failure is not None

    @property
    def error(self) -> BaseException | None:
        """What it raised, if it failed and has cleaned up."""
        return self._keeper.failure

    @property
    def report(self) -> StopReport | None:
        """What the last `close()` reported, also one that raised; None before."""
        return self._keeper.core.last_report

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """Leave it, wait until it has cleaned up, and report.

        Bounded by `deadline` seconds, or its `Grace`; what is still there then is named in the report, and can
        be closed again. If the context manager failed, in use or while leaving, that error is raised once
        all is settled, to everybody who closes; the report is then in `held.report`. If you are
        cancelled meanwhile, leaving goes on and your cancellation is raised after it.
        """
        keeper = self._keeper
        try:
            report = await close_core(keeper.core, deadline, grace, reason)
        except BaseException as mine:
            if is_cancel(mine):
                keeper.attach_failure(mine)
            raise
        failure = keeper.take_failure()
        if failure is not None:
            raise_unchanged(failure)
        return report

    def __del__(self) -> None:
        self._keeper.dropped(self)

    def __repr__(self) -> str:
        keeper = self._keeper
        state = "failed" if self.failed else keeper.core.state if keeper.leaving else "held"
        return f"<Held {keeper.name!r} {state}>"


def name_of(cm: object) -> str:
    """The function behind `@asynccontextmanager`, else the class."""
    generator = inspect.getattr_static(cm, "gen", None)
    if inspect.isasyncgen(generator):
        return generator.__qualname__
    return type(cm).__qualname__


def check_context_manager(cm: object) -> None:
    """An error that explains, where `cm` is no async context manager."""
    if hasattr(type(cm), "__aenter__") and hasattr(type(cm), "__aexit__"):
        return
    what = type(cm).__name__
    if inspect.iscoroutine(cm):
        cm.close()  # nobody will await it now; without this Python warns about that too
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
