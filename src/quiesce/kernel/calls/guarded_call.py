"""A primary function with guards that run at the same time.

Rules
-----
- All start together. The first failure of any kind stops all the others. It is raised, as itself and not in a
  group, when all of them have ended.
- There is no result before the last guard has returned. A guard that was cancelled has not returned: it has
  failed, and so has the whole call.
- A guard's verdict takes precedence over every other error. A verdict is an error that a guard raised on its
  own: before the stop, or after it but not while it was handling its cancellation.
- Every error that is not raised is a note on the one that is.

Why the stop comes one turn of the event loop after the failure: if the primary and a guard fail at the same
moment, both are ready to run. A cancel sent from the last step of the first would replace what the other was
about to raise. One turn later both have raised, and the verdict can take precedence. The caller's own task
does the stopping, and waking it takes exactly that one turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar, cast

from quiesce.kernel.base import (
    Grace,
    Reason,
    Site,
    TokenCancelled,
    caller_site,
    check_function,
    is_cancel,
    label_of,
)
from quiesce.kernel.scope import (
    CANCELLED,
    FINISHED,
    ChildCancelled,
    Handle,
    Scope,
    ScopeCore,
    current_backend,
)

from .calling_task import CallingTask, owner_of

T = TypeVar("T")
Function: TypeAlias = Callable[[], Awaitable[object]]


async def guarded(
    primary: Callable[[], Awaitable[T]],
    *guards: Callable[[], Awaitable[object]],
    scope: Scope | None = None,
    grace: Grace | None = None,
) -> T:
    """Run `primary` and `guards` together; return the result of `primary` when every guard has returned.

    ```python
    answer = await guarded(
        partial(model.generate, prompt),
        partial(check_topic, prompt),       # raises if the prompt is off topic
        partial(check_budget, user),
    )
    ```

    Any failure stops all the others, waits for their clean-up, and is raised as itself, never in a group. If
    several fail, the error of a guard is raised and the others are notes on it. If you are cancelled, all of
    them have been stopped when your cancellation is raised. A function that ignores its cancellation for
    longer than `grace` (by default the owner's) is logged by name and stays owned by `scope` (by default the
    current scope).

    Each is an async function without arguments; use `functools.partial` to supply some. What they start in
    `current_scope()` belongs to the call: it waits for those tasks too.
    """
    _check_functions(primary, *guards)
    name = f"guarded {label_of(primary)}"
    return cast(T, await GuardedCall.begin(name, primary, guards, scope, grace, caller_site()).result())


def _check_functions(*functions: Function) -> None:
    refused: TypeError | None = None
    for fn in functions:  # all of them: the check closes each coroutine that was passed by mistake
        try:
            check_function("guarded", fn)
        except TypeError as exc:
            refused = exc if refused is None else refused
    if refused is not None:
        refused.add_note("primary and guards take no arguments; use functools.partial to supply some")
        raise refused


class GuardedCall(CallingTask):
    """One call of `guarded`: its functions, and what has failed so far."""

    __slots__ = ("_functions", "cancelled_first", "handles", "primary", "ranks")

    @classmethod
    def begin(
        cls,
        name: str,
        primary: Function,
        guards: Sequence[Function],
        scope: Scope | None,
        grace: Grace | None,
        site: Site,
    ) -> GuardedCall:
        """A call with its scope, before anything has started."""
        backend = current_backend()
        owner = owner_of(backend, scope)
        core = backend.make_core(
            name=name, site=site, on_error="report", grace=grace or owner.grace, parent=owner
        )
        return cls(core, primary, guards, site)

    def __init__(self, core: ScopeCore, primary: Function, guards: Sequence[Function], site: Site) -> None:
        super().__init__(core)
        core.when_child_fails(self.child_failed)
        self._functions = (*guards, primary)
        make_handle = core.backend.make_handle
        # All handles exist before the first function starts: an eager one may fail in its first step.
        self.handles = [make_handle(core, fn, site) for fn in self._functions]
        self.primary = self.handles[-1]
        self.cancelled_first: Sequence[Handle] = ()  # those that were cancelled before we stopped anything
        # One for each of `failures`: 0 for a guard's verdict, 1 for another error, 2 for a failed clean-up.
        self.ranks: list[int] = []

    def child_failed(self, handle: Handle, error: BaseException) -> None:
        """Keep an error, with its rank."""
        # Ranked as it comes: later there is no way to find out whether the stop or the error was first.
        if not self.has_returned:
            in_clean_up = self._core.closed and is_aftermath(error)
            is_guard = handle is not self.primary and handle in self.handles
            self.ranks.append(2 if in_clean_up else 0 if is_guard else 1)
        super().child_failed(handle, error)

    def has_failed(self) -> bool:
        """Whether there was an error, or a function was cancelled that we did not stop."""
        if self.failures:
            return True
        for handle in self.handles:  # noqa: SIM110 - called at every turn
            if handle.state is CANCELLED:
                return True
        return False

    def has_succeeded(self) -> bool:
        """Whether all functions have returned, and nothing has failed."""
        if self.failures:
            return False
        for handle in self.handles:  # noqa: SIM110 - called once per call
            if handle.state is not FINISHED:
                return False
        return True

    def face(self) -> Scope:
        """Its scope, for code that stops it from elsewhere, or looks at it afterwards."""
        face = Scope(self._core.name)
        face._core = self._core
        return face

    async def result(self) -> object:
        """Run the call: returns the primary's result when every guard has returned, or raises the verdict."""
        error, value = await self.failure(), getattr(self.primary, "_value", None)
        if error is None:
            return value
        try:
            raise error
        finally:
            del error, value, self  # or the error would refer to itself, through this frame in its traceback

    async def failure(self) -> BaseException | None:
        """Run the call; returns the error to raise: the caller's own cancel, a verdict, or another one."""
        interrupted = await self.leave(await self._run())
        self.finish()
        if interrupted is not None:
            return self.annotated(interrupted)
        if self.has_succeeded():
            return None
        _, error = self.verdict()
        return None if error is None else self.annotated(error)

    async def _run(self) -> BaseException | None:
        """Start all, wait for the first failure or the last end, and stop those that are still running.

        Returns a cancellation, or another interrupt, that was raised in the caller meanwhile.
        """
        core = self._core
        if core.backend.name == "trio":  # a cancel of the caller may be pending: then start nothing
            cancelled = await self.wait_until(lambda: True)
            if cancelled is not None:
                return cancelled
        try:
            for handle, fn in zip(self.handles, self._functions, strict=True):
                self._start(handle, fn)
            while core.children and not core.closed and not self.has_failed():
                await core.waiters.wait()
        except BaseException as exc:
            if not core.backend.is_current():  # the loop has ended, and the garbage collector closes this
                raise
            return exc
        if self.has_failed() and not core.closed:
            # Before the stop: after it, every function that is still running will be cancelled as well.
            self.cancelled_first = [handle for handle in self.handles if handle.state == CANCELLED]
            who, error = self.verdict()
            core.stop(Reason("error", f"{who} failed: {error!r}", error))
        return None

    def _start(self, handle: Handle, fn: Function) -> None:
        if self._core.closed or self.has_failed():
            handle.state = CANCELLED  # an eager guard has failed: start nothing that would have to be stopped
        else:
            # A child that ends by a cancel from outside wakes no one by itself while others are running; here
            # it is a failure, and the caller has to stop the others.
            handle._on_end(self._core.wake)
            self._core.add(handle)
            self._core.start(handle, fn, ())

    def verdict(self) -> tuple[str, BaseException | None]:
        """The error to raise, if any, and the name of the function that it is from."""
        # In this order: a guard's verdict, another error, a function that was cancelled from outside, and
        # only then a clean-up that failed, because that is a consequence of the stop and not its cause.
        best = min(self.ranks, default=2)
        if best < 2:
            handle, error = self.failures[self.ranks.index(best)]
            return handle.name, error
        for handle in (*self.cancelled_first, *self.handles):
            if handle.state is not FINISHED and handle.error is None:
                return handle.name, ChildCancelled(handle.name, handle.reason)
        if self.failures:
            return self.failures[0][0].name, self.failures[0][1]
        return self.primary.name, None

    def annotated(self, error: BaseException) -> BaseException:
        """`error`, with a note for each of the others."""
        for handle, other in self.failures:
            if other is not error:
                error.add_note(f"{handle.name} also failed: {other!r}")
        return error


def is_aftermath(error: BaseException) -> bool:
    """Whether `error` was raised while a cancellation was being handled: by a clean-up that failed."""
    if isinstance(error, BaseExceptionGroup) and all(is_aftermath(member) for member in error.exceptions):
        return True
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        if is_cancel(link) or isinstance(link, TokenCancelled):
            return True
        seen.add(id(link))
        link = link.__context__
    return False
