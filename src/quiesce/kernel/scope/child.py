"""One thing that a scope owns.

A child is anything with an end that a scope can ask for and wait for: a task (`Handle`), a thread, a
process tree. It moves one way through pending → running → finished | failed | cancelled, and tells its
scope exactly once, in the loop's own thread, when it has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NoReturn, TypeAlias, final

from quiesce.kernel.base import (
    CANCEL,
    TERMINATE,
    CancelToken,
    Leftover,
    Reason,
    Rung,
    Site,
    TokenHolder,
    as_reason,
    describe,
    label_of,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from quiesce.kernel.base import Timer

    from .lifecycle import ScopeCore

    T_co = TypeVar("T_co", covariant=True, default=Any)  # `Handle` alone is a `Handle[Any]`
else:
    from typing import TypeVar  # has defaults only from 3.13 on

    T_co = TypeVar("T_co", covariant=True)

ChildState: TypeAlias = Literal["pending", "running", "finished", "failed", "cancelled"]

PENDING: Final = "pending"
RUNNING: Final = "running"
FINISHED: Final = "finished"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"

_NOT_AWAITABLE = ("'await' expression", "can't be awaited")  # Python's words up to 3.13, and from 3.14 on


class ChildCancelled(Exception):
    """Raised by `Handle.result()` of a child that was cancelled; never mistaken for your own cancel."""

    def __init__(self, name: str, reason: Reason | None) -> None:
        super().__init__(f"{name!r} was cancelled ({reason or 'no reason given'})")
        self.reason = reason


def failure_below(cancelled: BaseException) -> BaseException | None:
    """What failed while a cancel was being dealt with: its cause, unless that is but more cancels."""
    cause = cancelled.__cause__
    if isinstance(cause, BaseExceptionGroup):
        return cause.split(type(cancelled))[1]
    return None if isinstance(cause, type(cancelled)) else cause


class Child(TokenHolder):
    """What a scope needs to know of the things it owns.

    One without a label is plumbing of something that has one: it is waited for, but not named in reports.

    Users hold a `Handle`, so every name that only the kernel uses begins with an underscore. Where code takes a child or a scope, those of
    `ScopeCore` are the same.
    """

    __slots__ = {
        "_at_end": None,
        "_core": None,
        "_label": None,
        "_site": None,
        "_token": None,
        "_value": None,
        "reason": "Why it was cancelled, or its scope stopped; None if it was not.",
        "state": 'How far it is: "pending", "running", "finished", "failed" or "cancelled".',
    }

    _kind: str = "task"

    def __init__(self, core: ScopeCore, label: object, site: Site | None) -> None:
        self._core = core
        self._label = label
        self._site = site
        self.state: ChildState = PENDING
        self.reason: Reason | None = None
        self._at_end: list[Callable[[], object]] | None = None
        self._token: CancelToken | None = None

    _value: Any  # the result when finished, the exception when failed; unset before

    def _above(self) -> CancelToken:
        """The token that this child's hangs below."""
        return self._core.token

    def _climb(self, rung: Rung) -> None:
        """Do what this rung of a stop means for this kind of child."""
        raise NotImplementedError  # abstract: each kind has its own ladder

    def _abandon(self) -> None:
        """Nobody will wait: signal at once what can be signalled."""

    def _stuck_at(self) -> str:
        """Where it is now."""
        return "unknown"

    @property
    def name(self) -> str:
        """What it is called in reports."""
        return label_of(self._label)

    def _is_cleaning_up(self) -> bool:
        """Whether its cancel was delivered. Python has no other sign: one that goes on regardless counts too."""
        return False

    def _leftovers(self) -> list[Leftover]:
        """This child, as something that a stop could not end."""
        if self._label is None:
            return []
        return [Leftover(self._kind, self.name, describe(self._site), self._stuck_at())]

    def _ended(self) -> None:
        """Tell the scope and whoever waits. The state has been set before."""
        core = self._core
        core.children.pop(self, None)
        core.child_ended(self)

    def _on_end(self, callback: Callable[[], object]) -> None:
        """Call `callback()` when this child has ended, in the loop's thread, before its scope makes anything of it.

        However it ends: a task on asyncio that is cancelled before its first step runs none of its own `finally`.
        """
        if self._at_end is None:
            self._at_end = [callback]
        else:
            self._at_end.append(callback)

    def _settle(self) -> None:
        """Ended: tell those who want to know."""
        callbacks, self._at_end = self._at_end, None
        for callback in callbacks or ():
            callback()


class Handle(Child, Generic[T_co]):
    """One child task of a scope: what `spawn` returns.

    `state` is `"pending"` until its first step, then `"running"`, then `"finished"`, `"failed"`
    or `"cancelled"`.

    ```python
    handle = scope.spawn(fetch, url)  # a Handle[Page], if that is what fetch returns
    await handle.wait()              # never raises the child's error, never cancels the child
    if handle.state == "finished":
        page = handle.result()
    ```
    """

    __slots__ = ("_asked", "_deferred", "_hurry", "_on_stop", "_withheld")

    _asked: int
    _deferred: int
    _withheld: bool
    _on_stop: Callable[[Rung], bool] | None

    def __init__(self, core: ScopeCore, label: object, site: Site | None) -> None:
        super().__init__(core, label, site)
        self._asked = 0  # cancels of ours that were delivered
        self._deferred = 0  # closes of scopes around it that it is in: its cancel waits for them
        self._withheld = False  # a cancel that waits for that
        self._on_stop = None  # an owner's own way to leave; True if it dealt with the rung
        self._hurry: tuple[float, Timer] | None = None  # when it is cancelled again

    @property
    def done(self) -> bool:
        """Whether it has ended, in whichever way."""
        state = self.state
        return state != PENDING and state != RUNNING

    @property
    def made_at(self) -> str:
        """Where it was spawned."""
        return describe(self._site)

    @property
    def error(self) -> BaseException | None:
        """What it raised, if it failed."""
        error: BaseException | None = self._value if self.state == FAILED else None
        return error

    @final
    def cancel(self, reason: Reason | str | None = None) -> None:
        """Cancel this child once, with a reason; from any thread.

        It then has its grace to clean up. Asking again shortens that: at the end of it the child
        is cancelled once more.
        """
        reason = as_reason(reason, Reason("user"))
        self._note_reason(reason)
        self._core.backend.run_from_anywhere(self._cancel_here)

    def _cancel_here(self) -> None:
        if self.done:
            return
        grace, backend = self._core.grace, self._core.backend
        self._climb(CANCEL)
        due = backend.now() + grace.cancel
        if self._hurry is not None:  # asked before
            due = min(due, backend.now() + grace.terminate)
            if self._hurry[0] <= due:
                return
            self._hurry[1].cancel()
        self._hurry = due, backend.call_at(due, self._cancel_again)
        if self._at_end is None:
            self._at_end = []  # there is something to settle at its end

    def _cancel_again(self) -> None:
        self._hurry = None
        if not self.done:
            self._climb(TERMINATE)

    def _climb(self, rung: Rung) -> None:
        """One cancel for its clean-up, a second when its time is over."""
        reason = self._core.reason
        if reason is not None:
            self._note_reason(reason)
        if rung is CANCEL and self._asked == 0:
            self._asked = 1
            if self._on_stop is not None and self._on_stop(rung):
                return
            if self._deferred:
                self._withheld = True
            else:
                self._deliver_cancel()
        elif rung is TERMINATE and self._asked < 2:
            self._asked = 2
            if self._on_stop is None or not self._on_stop(rung):
                self._deliver_cancel()
            for scope in list(self._core.nested):
                if scope.clean_up and scope.opener is self:
                    scope.stop(self.reason or Reason("cancelled"))

    def _is_cleaning_up(self) -> bool:
        """Whether its cancel was delivered, or it was asked to leave."""
        return self._asked > 0 and not self._withheld

    def _asked_to_leave(self) -> None:
        """Its owner has asked it to end by itself: what it does from now on is clean-up."""
        self._asked = self._asked or 1

    def _runs_in(self, task: object) -> bool:
        """Whether `task` is this child's own."""
        raise NotImplementedError  # abstract: the backends' handles know

    def _fail(self, error: BaseException) -> None:
        """Keep what it raised, without the kernel's own frame (which would hold the handle in turn)."""
        self.state = FAILED
        self._value = error
        if error.__traceback__ is not None:
            error.__traceback__ = error.__traceback__.tb_next
        is_our_await = error.__traceback__ is None  # and none in the function itself
        if is_our_await and isinstance(error, TypeError) and str(error).endswith(_NOT_AWAITABLE):
            error.add_note(
                f"{self.name!r}, spawned at {describe(self._site)}, is not an async function; "
                "for a sync function use quiesce.to_thread"
            )

    def _end_cancelled(self, cancelled: BaseException) -> None:
        """It ended by a cancel; what failed in its clean-up below is the cause of that, and its error."""
        failure = failure_below(cancelled)
        if failure is not None:
            self.state = FAILED
            self._value = failure
        else:
            self.state = CANCELLED
        if self.reason is None:
            self._note_reason(Reason("cancelled", str(cancelled)))

    def _deliver_cancel(self) -> None:
        """Make the task's next await raise."""
        raise NotImplementedError  # abstract: the backends' handles do it

    def _hold(self) -> None:
        """It closes a scope that it runs in: its cancel waits until that has returned."""
        self._deferred += 1

    def _release(self, *, deliver: bool) -> None:
        """The close is over: what was held back arrives at its next await."""
        self._deferred -= 1
        if self._withheld and not self._deferred:
            self._withheld = False
            if deliver and not self.done:
                self._deliver_cancel()

    async def wait(self) -> None:
        """Wait until it has ended. Its error is not raised, your cancel is not forwarded to it."""
        while not self.done:
            self._core.check_loop("wait for a child of", "wait in the loop it was spawned in")
            waiter = self._core.backend.make_waiter()
            self._on_end(waiter.wake)
            try:
                await waiter.wait()
            finally:
                if self._at_end is not None and waiter.wake in self._at_end:
                    self._at_end.remove(waiter.wake)

    def __await__(self) -> NoReturn:
        raise TypeError(
            f"a Handle is not awaited itself: `await handle.wait()`, then `handle.result()` ({self.name!r})"
        )

    def result(self) -> T_co:
        """What it returned. A failed child's error is raised, a cancelled one is `ChildCancelled`."""
        state = self.state
        if state == FINISHED:
            value: T_co = self._value
            return value
        if state == FAILED:
            raise self._value
        if state == CANCELLED:
            raise ChildCancelled(self.name, self.reason)
        raise RuntimeError(f"{self.name!r} is still {state}: await its wait() before asking for the result")

    def _settle(self) -> None:
        """Ended: forget the timer too."""
        if self._hurry is not None:
            self._hurry[1].cancel()
            self._hurry = None
        super()._settle()

    def __repr__(self) -> str:
        return f"<Handle {self.name!r} {self.state}>"


def when_ended(child: Child, callback: Callable[[], object]) -> None:
    """Call `callback()` when `child` has ended, however it did; at once if it has already, as an eager task may."""
    if child.state == PENDING or child.state == RUNNING:
        child._on_end(callback)
    else:
        callback()
