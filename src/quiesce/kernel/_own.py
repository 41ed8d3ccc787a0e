"""Somebody else's async context manager, held in an owner task.

Task groups, cancel scopes, `asyncio.timeout` and whatever is built of them must be left by the task that entered
them, in the reverse order of entering. So nobody but the owner touches the context manager: one task enters it,
waits until it is asked to leave, and leaves it. All others only ask, from any task and in any order.

Invariants
- The owner is the one child of a scope of its own. Closing is closing that scope: bounded, repeatable, from
  several tasks at once, through cancels, reported. Nothing of that is done here again.
- Entered means left: by asking nicely first (`__aexit__(None, None, None)`), by a cancel when the time for that is
  over. A context manager that is still being entered is cancelled, as its opener would be.
- The exception of an `async with` body is raised again inside the owner, the very object, so that transactions roll
  back and what the context manager suppresses is suppressed. Cancellations too: a cancelled transaction must not
  commit. But those are never suppressed for the body, whatever the context manager makes of them, and the owner
  itself is not cancelled by them, so that clean-up can await.
- If the owner's wait is cut short though nobody asked it to leave, the context manager has failed inside (a task group in
  it crashed, a timeout in it passed). Users are told at that moment, not when it has cleaned up.
- The owner refers to none of the objects that users hold, so that dropping those is noticed.
"""

from __future__ import annotations

import inspect
import logging
import sys
import warnings
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar, cast

from ._backend import Backend, Waiter, current_backend
from ._child import FINISHED
from ._core import SETTLED, ScopeCore
from ._grace import DEFAULT_GRACE, Grace, Rung
from ._reason import Reason, as_reason
from ._scope import Scope, current_core
from ._site import Site, describe, site_of

if TYPE_CHECKING:
    from ._host import Host
    from ._report import StopReport
    from ._token import CancelToken

T = TypeVar("T")

logger = logging.getLogger("quiesce")


class NotHeld(RuntimeError):
    """Raised where a context manager is used that is no longer held: it failed (see the cause) or was left."""


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

    `scope` is its owner, the current scope unless another is given.
    """
    check_context_manager(cm)
    return Owned(cm, scope, name or name_of(cm), grace or DEFAULT_GRACE, site_of(sys._getframe(1)))


class Keeper(Generic[T]):
    """What the owner task and those who ask it share."""

    value: T

    def __init__(self, cm: AbstractAsyncContextManager[T], core: ScopeCore, name: str, site: Site) -> None:
        self.cm = cm
        self.core = core
        self.name = name
        self.entered = False
        self.leaving = False
        self.thrown: BaseException | None = None  # what the body raised
        self.passed_on = False  # and whether the context manager let it pass
        self.broke = False
        self.told = False  # whether anybody has seen the failure
        self._nap: Waiter | None = None
        self.handle = core.backend.make_handle(core, name, site)
        self.handle.on_stop = self._on_stop

    # In the owner task

    async def hold(self) -> None:
        """Enter, wait, leave: the whole life of the owner."""
        try:
            async with self.cm as self.value:
                self.entered = True
                self.leaving = self.core.closed  # it was asked to stop, and entered all the same
                self.core.wake()
                await self._until_asked_to_leave()
                if self.thrown is not None:
                    raise self.thrown
        except BaseException as error:
            failure = self._judge(error)
            if failure is error:
                raise
            if failure is not None:
                raise failure from None
        finally:
            self.leaving = True
            self.handle.on_stop = None
            self.__dict__.pop("value", None)
            self.core.wake()

    async def _until_asked_to_leave(self) -> None:
        while not self.leaving:
            self._nap = self.core.backend.make_waiter()
            try:
                await self._nap
            except BaseException:
                self._broken()
                raise

    def _broken(self) -> None:
        if not self.leaving:
            self.leaving = self.broke = True
            default = Reason("error", f"{self.name} was ended from inside")
            self.core.stop(self.handle.reason or default)

    def _judge(self, error: BaseException) -> BaseException | None:
        """What of `error` is a failure of the context manager, and not the body's own coming back."""
        thrown = self.thrown
        if error is thrown:
            self.passed_on = True
            error.__traceback__ = _without_our_frame(error.__traceback__)
            return None
        if thrown is not None and without_cancels(thrown) is None:
            # Cancel scopes inside may have made another cancellation of it, or a group with one in it.
            return without_cancels(error)
        return error

    # From outside

    def start(self) -> None:
        """Start the owner. With eager tasks it may have entered, and even left, when this returns."""
        self.core.children[self.handle] = None
        self.core.start(self.handle, self.hold, ())

    def leave(self, thrown: BaseException | None = None) -> None:
        """Ask the owner to leave; only the first to ask says how."""
        if not self.leaving:
            self.leaving = True
            self.thrown = thrown
        if self._nap is not None:
            self._nap.wake()

    def _on_stop(self, rung: Rung) -> bool:
        if rung is Rung.CANCEL and self.entered:
            self.leave()
            return True
        return False

    async def wait_until_entered(self) -> None:
        """Until it can be used; an error or a cancellation meanwhile leaves nothing half entered."""
        core = self.core
        backend = core.backend
        while not (self.entered or self.handle.done or core.is_over()):
            waiter = backend.make_waiter()
            core.waiters.append(waiter)
            try:
                await waiter
            except BaseException as mine:
                if waiter in core.waiters:
                    core.waiters.remove(waiter)
                core.stop(reason_of_cancel(core, mine))
                await backend.wait_through(core.is_over, core.waiters)
                self.attach_failure(mine)
                raise
        if self.entered and not self.leaving:
            return
        core.stop(Reason("error", f"{self.name} could not be entered"))
        await backend.reraise(await backend.wait_through(core.is_over, core.waiters))
        self.raise_failure()
        raise self.not_held()

    # How it went

    @property
    def failure(self) -> BaseException | None:
        """What it raised, if it failed."""
        failures = self.core.failures
        return failures[0][1] if failures else None

    def raise_failure(self, context: BaseException | None = None) -> None:
        """Raise what it raised, if it failed."""
        failure = self.failure
        if failure is not None:
            self.told = True
            raise_unchanged(failure, context)

    def attach_failure(self, cancelled: BaseException) -> None:
        """Somebody's cancellation goes first; let it carry what it raised, if it failed."""
        if self.failure is not None:
            self.told = True
            cancelled.__cause__ = self.failure

    def not_held(self) -> NotHeld:
        """The error for somebody who uses it after its end."""
        failure, core = self.failure, self.core
        if failure is not None:
            how = f"it failed: {failure!r}"
        elif self.broke:
            how = "it ended by itself"
        elif not self.entered:
            how = f"it was stopped while it was being entered ({core.reason or 'cancelled from inside'})"
        else:
            how = f"it was left ({core.reason})"
        error = NotHeld(
            f"context manager {self.name!r}, made at {describe(core.site)}, is not held any more: {how}"
        )
        if failure is not None:
            self.told = True
            error.__cause__ = failure
        return error

    def dropped(self, user: object) -> None:
        """Its users have let go of it."""
        core = self.core
        if self.handle.done or core.closed:
            if self.failure is not None and not self.told:
                logger.error(
                    "context manager %r, made at %s, failed, and nobody has looked",
                    self.name,
                    describe(core.site),
                    exc_info=self.failure,
                )
            return
        why = Reason("parent", "dropped without close()")
        core.backend.run_from_anywhere(lambda: core.stop(why))
        warnings.warn(
            f"context manager {self.name!r}, made at {describe(core.site)}, was dropped without close(): "
            "it is being left",
            ResourceWarning,
            source=user,
            stacklevel=2,
        )


class Owned(Generic[T]):
    """A context manager to be held: what `own` returns. Enter it with `async with`, or `await` its `open()`."""

    def __init__(
        self,
        cm: AbstractAsyncContextManager[T],
        scope: Scope | None,
        name: str,
        grace: Grace,
        site: Site,
    ) -> None:
        self._options = (cm, scope, name, grace, site)
        self._keeper: Keeper[T] | None = None
        self._host: Host | None = None

    @property
    def report(self) -> StopReport | None:
        """What the end of the block reported; None before."""
        return self._keeper.core.last_report if self._keeper is not None else None

    def _start(self, backend: Backend) -> Keeper[T]:
        cm, scope, name, grace, site = self._options
        if self._keeper is not None:
            raise RuntimeError(
                f"context manager {name!r}, made at {describe(site)}, was opened before; "
                "it is used once: call own() with a new one"
            )
        parent = scope._opened() if scope is not None else current_core(backend)
        if parent.closed:
            raise parent.refusal(f"open {name!r} in")
        core = backend.make_core(name=name, site=site, grace=grace, parent=parent)
        self._keeper = keeper = Keeper(cm, core, name, site)
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
            logger.warning("%s", report)
        return _finish(keeper, error, cancelled)

    def __del__(self) -> None:
        if getattr(self, "_host", None) is not None and self._keeper is not None:
            self._keeper.dropped(self)

    def __repr__(self) -> str:
        return f"<Owned {self._options[2]!r}>"


def _finish(keeper: Keeper[T], error: BaseException | None, cancelled: BaseException | None) -> bool:
    """The end of a block, as `async with` on the context manager itself would have it."""
    if cancelled is not None:
        keeper.attach_failure(cancelled)
        if cancelled is error:
            return False
        raise cancelled
    interrupted = error is not None and without_cancels(error) is None
    keeper.raise_failure(context=None if interrupted else error)
    if interrupted:
        if keeper.broke and keeper.handle.state == FINISHED:
            return True  # it cancelled the body and caught that itself, as `move_on_after` does
        raise keeper.not_held() from None
    return error is not None and error is keeper.thrown and keeper.handle.done and not keeper.passed_on


class Held(Generic[T]):
    """A context manager that has been entered and is held by its owner task.

    ```python
    held = await own(pool()).open()
    await held.value.query("select 1")      # from any task
    report = await held.close()             # from any task, as often as you like
    ```
    """

    def __init__(self, keeper: Keeper[T]) -> None:
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
        keeper.raise_failure()
        return report

    def __del__(self) -> None:
        self._keeper.dropped(self)

    def __repr__(self) -> str:
        keeper = self._keeper
        state = "failed" if self.failed else keeper.core.state if keeper.leaving else "held"
        return f"<Held {keeper.name!r} {state}>"


# Shared with streams


async def close_core(
    core: ScopeCore, deadline: float | None, grace: Grace | None, reason: Reason | str | None
) -> StopReport:
    """Close the scope of an owned thing on behalf of a user."""
    if not core.backend.is_current():
        raise RuntimeError(
            f"{core.label!r}, made at {describe(core.site)}, belongs to another event loop: close it there"
        )
    if deadline is not None:
        grace = (grace or core.grace).within(deadline)
    return await core.close(as_reason(reason, Reason("user", "closed")), grace)


def reason_of_cancel(core: ScopeCore, cancelled: BaseException) -> Reason:
    """Why somebody who waited was cancelled."""
    above = core.above()
    inherited = above.reason if above is not None else None
    if inherited is not None:
        return inherited
    if getattr(cancelled, "source", None) == "deadline":  # trio says where a cancel came from
        return Reason("timeout", "a deadline passed")
    return Reason("cancelled", str(cancelled))


def is_cancel(error: BaseException) -> bool:
    """Whether `error` is a backend's cancellation."""
    return not isinstance(
        error, (Exception, BaseExceptionGroup, GeneratorExit, KeyboardInterrupt, SystemExit)
    )


def without_cancels(error: BaseException) -> BaseException | None:
    """What remains of `error`, or of the group that it is, without cancellations."""
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).split(is_cancel)[1]
    return None if is_cancel(error) else error


def raise_unchanged(error: BaseException, context: BaseException | None = None) -> NoReturn:
    """Raise an exception of another task without making what happens here its context."""
    context = error.__context__ or context
    try:
        raise error
    finally:
        error.__context__ = context
        del error, context


def _without_our_frame(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code is Keeper.hold.__code__:
        traceback = traceback.tb_next
    return traceback


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
