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

import sys
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from ._backend import current_backend
from ._caller import Caller, owner_of
from ._child import CANCELLED, FINISHED, ChildCancelled, Handle
from ._core import ScopeCore
from ._grace import Grace
from ._misuse import check_function
from ._reason import Reason
from ._site import Site, caller_site, label_of
from ._token import TokenCancelled

if TYPE_CHECKING:
    from ._scope import Scope

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
    backend = current_backend()
    owner = owner_of(backend, scope)
    site = caller_site()
    core = backend.make_core(
        name=f"guarded {label_of(primary)}",
        site=site,
        on_error="report",
        grace=grace or owner.grace,
        parent=owner,
    )
    call = _GuardedCall(core, primary, guards, site)
    interrupted = await call.leave(await call.run(primary, guards))
    call.go()
    if interrupted is not None:
        raise call.annotated(interrupted)
    _, error = call.verdict()
    if error is not None:
        raise call.annotated(error)
    result: T = call.primary.value
    return result


def _check_functions(*functions: Function) -> None:
    refused: TypeError | None = None
    for fn in functions:  # to the last: each coroutine passed by mistake wants to be closed
        try:
            check_function("guarded", fn)
        except TypeError as exc:
            refused = refused or exc
    if refused is not None:
        refused.add_note("primary and guards take no arguments; use functools.partial to supply some")
        raise refused


class _GuardedCall(Caller):
    """One call of `guarded`: who takes part, and what has gone wrong so far."""

    __slots__ = ("guards", "primary", "quitters", "ranks")

    def __init__(self, core: ScopeCore, primary: Function, guards: tuple[Function, ...], site: Site) -> None:
        super().__init__(core)
        core.on_child_error = self.child_failed
        make_handle = core.backend.make_handle
        # All are known before the first one starts: an eager one may fail in its first step.
        self.guards = [make_handle(core, guard, site) for guard in guards]
        self.primary = make_handle(core, primary, site)
        self.quitters: list[Handle] = []  # cancelled, though we had not stopped them
        self.ranks: list[int] = []  # one a failure: 0 a guard's verdict, 1 an error, 2 an aftermath

    @property
    def taking_part(self) -> list[Handle]:
        """Everybody whose return is waited for."""
        return [*self.guards, self.primary]

    def child_failed(self, handle: Handle, error: BaseException) -> None:
        """Judge an error when it comes: later one cannot tell what was there first."""
        if not self.over:
            aftermath = self.core.closed and is_aftermath(error)
            self.ranks.append(2 if aftermath else 0 if handle in self.guards else 1)
        super().child_failed(handle, error)

    def has_failed(self) -> bool:
        """Whether there was an error, or somebody was cancelled whom we did not stop."""
        return bool(self.failures) or any(handle.state == CANCELLED for handle in self.taking_part)

    async def run(self, primary: Function, guards: tuple[Function, ...]) -> BaseException | None:
        """Start all, wait until the first failure or the last end, and stop who is left.

        Returns what came at the caller meanwhile.
        """
        core = self.core
        cancelled = await self.wait_until(lambda: True)
        if cancelled is not None:  # trio has had one pending: start nothing
            return cancelled
        try:
            for handle, fn in zip(self.taking_part, (*guards, primary), strict=True):
                self._start(handle, fn)
            while core.children and not core.closed and not self.has_failed():
                await self._next_event()
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
        if self.core.closed or self.has_failed():
            handle.state = CANCELLED  # an eager guard has failed: begin nothing that would have to be stopped
        else:
            self.core.children[handle] = None
            self.core.start(handle, fn, ())

    async def _next_event(self) -> None:
        """Until one of those who take part has ended, or anything has failed, or all is over."""
        waiter = self.core.backend.make_waiter()
        lists = [self.core.waiters]
        for handle in self.taking_part:
            if not handle.done:
                if handle.waiters is None:
                    handle.waiters = []
                lists.append(handle.waiters)
        for waiters in lists:
            waiters.append(waiter)
        try:
            await waiter
        finally:
            for waiters in lists:
                if waiter in waiters:
                    waiters.remove(waiter)

    def verdict(self) -> tuple[str, BaseException | None]:
        """The error to raise, if any, and whose it is."""
        best = min(self.ranks, default=2)
        if best < 2:
            handle, error = self.failures[self.ranks.index(best)]
            return handle.name, error
        for handle in (*self.quitters, *self.taking_part):
            if handle.state != FINISHED and handle.error is None:
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
        if is_cancellation(link) or isinstance(link, TokenCancelled):
            return True
        seen.add(id(link))
        link = link.__context__
    return False


def is_cancellation(error: BaseException) -> bool:
    """Whether it is an event loop's own way to say "cancelled"."""
    trio = sys.modules.get("trio")
    return isinstance(error, CancelledError) or (trio is not None and isinstance(error, trio.Cancelled))
