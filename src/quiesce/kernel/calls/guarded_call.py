"""A primary with guards beside it.

Rules
-----
- All start together. The first failure, of whatever kind, stops everybody else; it is raised, as itself, when
  all of them have ended.
- No result before the last guard has returned. A guard that was cancelled has not returned: its call has
  failed, and so has the whole.
- A guard's verdict beats every other error. A verdict is an error that a guard raised of its own accord:
  before the stop, or after it but not while it was handling its cancellation.
- What is not raised is a note on what is.

Why the stop comes one turn of the event loop after the failure: if a primary and its guard fail at the same
moment, both are ready to run, and a cancel sent from the first one's last step would take the place of what
the other was about to raise. One turn later both have spoken, and the verdict can win. The caller's own task
does the stopping, and waking it takes exactly that turn.
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
    """Run `primary` with `guards` beside it; return its result when every guard has returned.

    ```python
    answer = await guarded(
        partial(model.generate, prompt),
        partial(check_topic, prompt),       # raises if the prompt is off topic
        partial(check_budget, user),
    )
    ```

    Any failure stops all the others, waits for their clean-up, and is raised as itself, never in a group. If
    several fail, a guard's verdict comes first and the others are notes on it. Cancel the caller, and all of
    them are stopped before the cancellation goes on. What ignores its cancellation for longer than `grace`
    (the owner's, unless given) is logged by name and stays owned by `scope` (the current scope, unless given).

    Each is an async function without arguments; `functools.partial` supplies them. What they start in
    `current_scope()` belongs to the call: its result is held for those tasks too.
    """
    _check_functions(primary, *guards)
    name = f"guarded {label_of(primary)}"
    return cast(T, await GuardedCall.begin(name, primary, guards, scope, grace, caller_site()).result())


def _check_functions(*functions: Function) -> None:
    refused: TypeError | None = None
    for fn in functions:  # to the last: each coroutine passed by mistake wants to be closed
        try:
            check_function("guarded", fn)
        except TypeError as exc:
            refused = exc if refused is None else refused
    if refused is not None:
        refused.add_note("primary and guards take no arguments; use functools.partial to supply some")
        raise refused


class GuardedCall(CallingTask):
    """One call of `guarded`: who takes part, and what has gone wrong so far."""

    __slots__ = ("_functions", "primary", "quitters", "ranks", "taking_part")

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
        """The call with its scope, before anything has started."""
        backend = current_backend()
        owner = owner_of(backend, scope)
        core = backend.make_core(
            name=name, site=site, on_error="report", grace=grace or owner.grace, parent=owner
        )
        return cls(core, primary, guards, site)

    def __init__(self, core: ScopeCore, primary: Function, guards: Sequence[Function], site: Site) -> None:
        super().__init__(core)
        core.on_child_error = self.child_failed
        self._functions = (*guards, primary)
        make_handle = core.backend.make_handle
        # All are known before the first one starts: an eager one may fail in its first step.
        self.taking_part = [make_handle(core, fn, site) for fn in self._functions]  # who is waited for
        self.primary = self.taking_part[-1]
        self.quitters: Sequence[Handle] = ()  # cancelled, though we had not stopped them
        self.ranks: list[int] = []  # one a failure: 0 a guard's verdict, 1 an error, 2 an aftermath

    def child_failed(self, handle: Handle, error: BaseException) -> None:
        """Judge an error when it comes: later one cannot tell what was there first."""
        if not self.over:
            aftermath = self._core.closed and is_aftermath(error)
            is_guard = handle is not self.primary and handle in self.taking_part
            self.ranks.append(2 if aftermath else 0 if is_guard else 1)
        super().child_failed(handle, error)

    def has_failed(self) -> bool:
        """Whether there was an error, or somebody was cancelled whom we did not stop."""
        if self.failures:
            return True
        for handle in self.taking_part:  # noqa: SIM110 - asked for at every turn
            if handle.state is CANCELLED:
                return True
        return False

    def has_all_that_was_asked_for(self) -> bool:
        """Whether everybody has returned, and nothing has failed."""
        if self.failures:
            return False
        for handle in self.taking_part:  # noqa: SIM110 - asked for in every call
            if handle.state is not FINISHED:
                return False
        return True

    def face(self) -> Scope:
        """Its scope, for whoever wants to stop it from elsewhere, or look at it afterwards."""
        face = Scope(self._core.name)
        face._core = self._core
        return face

    async def result(self) -> object:
        """Do it: the primary's result when every guard has returned, or the error that counts."""
        error, value = await self.failure(), getattr(self.primary, "_value", None)
        if error is None:
            return value
        try:
            raise error
        finally:
            del error, value, self  # or it would hold itself, by way of this frame

    async def failure(self) -> BaseException | None:
        """Do it, and return the error that counts: the caller's own cancel, a verdict, whatever has failed."""
        interrupted = await self.leave(await self._run())
        self.go()
        if interrupted is not None:
            return self.annotated(interrupted)
        if self.has_all_that_was_asked_for():
            return None
        _, error = self.verdict()
        return None if error is None else self.annotated(error)

    async def _run(self) -> BaseException | None:
        """Start all, wait until the first failure or the last end, and stop who is left.

        Returns what came at the caller meanwhile.
        """
        core = self._core
        if core.backend.name == "trio":  # it may have a cancel pending: then start nothing
            cancelled = await self.wait_until(lambda: True)
            if cancelled is not None:
                return cancelled
        try:
            for handle, fn in zip(self.taking_part, self._functions, strict=True):
                self._start(handle, fn)
            while core.children and not core.closed and not self.has_failed():
                await core.waiters.wait()
        except BaseException as exc:
            if not core.backend.is_current():  # the loop is gone, and the collector closes what it left
                raise
            return exc
        if self.has_failed() and not core.closed:
            self.quitters = [handle for handle in self.taking_part if handle.state == CANCELLED]
            who, error = self.verdict()
            core.stop(Reason("error", f"{who} failed: {error!r}", error))
        return None

    def _start(self, handle: Handle, fn: Function) -> None:
        if self._core.closed or self.has_failed():
            handle.state = CANCELLED  # an eager guard has failed: begin nothing that would have to be stopped
        else:
            handle._on_end(self._core.wake)
            self._core.children[handle] = None
            self._core.start(handle, fn, ())

    def verdict(self) -> tuple[str, BaseException | None]:
        """The error to raise, if any, and whose it is."""
        best = min(self.ranks, default=2)
        if best < 2:
            handle, error = self.failures[self.ranks.index(best)]
            return handle.name, error
        for handle in (*self.quitters, *self.taking_part):
            if handle.state is not FINISHED and handle.error is None:
                return handle.name, ChildCancelled(handle.name, handle.reason)
        if self.failures:
            return self.failures[0][0].name, self.failures[0][1]
        return self.primary.name, None

    def annotated(self, error: BaseException) -> BaseException:
        """`error`, with a note for each other one."""
        for handle, other in self.failures:
            if other is not error:
                error.add_note(f"{handle.name} also failed: {other!r}")
        return error


def is_aftermath(error: BaseException) -> bool:
    """Whether it was raised while a cancellation was being handled: a clean-up that failed."""
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
