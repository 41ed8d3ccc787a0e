"""One thing that a scope owns.

A child is anything that a scope can stop and wait for: a task (`Handle`), a thread, a process tree. It moves
in one direction through pending → running → finished | failed | cancelled, and calls `child_ended` of its
scope exactly once, in the loop's own thread.
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
    """What failed in the clean-up after a cancel: its cause, without further cancellations."""
    cause = cancelled.__cause__
    if isinstance(cause, BaseExceptionGroup):
        return cause.split(type(cancelled))[1]
    return None if isinstance(cause, type(cancelled)) else cause


class Child(TokenHolder):
    """What a scope knows of each thing it owns.

    A child without a label is a helper of something that has one: it is waited for, but reports do not name
    it.

    Users hold a `Handle`, so names that only the kernel uses begin with an underscore. Where code takes a
    child or a scope, `ScopeCore` has the same names.
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

    def _holder_above(self) -> TokenHolder:
        return self._core

    def _climb(self, rung: Rung) -> None:
        """Do what this rung of a stop means for this kind of child."""
        raise NotImplementedError  # abstract: a task is cancelled, a process gets a signal

    def _abandon(self) -> None:
        """Signal at once whatever can be signalled: no one will wait while the ladder is climbed."""

    def _stuck_at(self) -> str:
        """Where in the source it is now."""
        return "unknown"

    def _is_at_work(self, *, loop_goes_on: bool) -> bool:
        """Whether it is still running; callable from any thread. A task ends with its event loop."""
        return loop_goes_on

    @property
    def name(self) -> str:
        """Its name in reports."""
        return label_of(self._label)

    def _is_cleaning_up(self) -> bool:
        """Whether its cancel was delivered."""
        # Python has no better sign of a clean-up. A child that ignores its cancel counts as well.
        return False

    def _leftovers(self) -> list[Leftover]:
        """This child as a leftover of a stop; nothing if it has no label."""
        if self._label is None:
            return []
        return [Leftover(self._kind, self.name, describe(self._site), self._stuck_at())]

    def _ended(self) -> None:
        """Leave the scope, which then calls the callbacks of `_on_end`. Set the state before."""
        core = self._core
        core.children.pop(self, None)
        core.child_ended(self)

    def _on_end(self, callback: Callable[[], object]) -> None:
        """Call `callback()` when this child has ended, in the loop's thread, before its scope reacts to it.

        It is called however the child ends. A `finally` in the child itself is not enough: on asyncio, a task
        that is cancelled before its first step does not run any of its code.
        """
        if self._at_end is None:
            self._at_end = [callback]
        else:
            self._at_end.append(callback)

    def _settle(self) -> None:
        """Call the callbacks of `_on_end`."""
        callbacks, self._at_end = self._at_end, None
        for callback in callbacks or ():
            callback()


class Handle(Child, Generic[T_co]):
    """One child task of a scope: what `spawn` returns.

    `state` is `"pending"` until its first step, then `"running"`, and at last `"finished"`, `"failed"` or
    `"cancelled"`.

    ```python
    handle = scope.spawn(fetch, url)  # a Handle[Page], if that is what fetch returns
    await handle.wait()              # never raises the child's error, never cancels the child
    if handle.state == "finished":
        page = handle.result()
    ```
    """

    __slots__ = ("_asked", "_cancel_holds", "_has_held_cancel", "_on_stop", "_second_cancel")

    # Set by the constructors of the event loops' handles, which are written out flat.
    _asked: int  # how often it was cancelled by the kernel: 0, 1 or 2
    # How many calls of `close()` it is in that close a scope around it. Its cancel waits for them.
    _cancel_holds: int
    _has_held_cancel: bool  # a cancel is waiting for that
    # An owner's way to end it without a cancel; returns True if it has dealt with the rung.
    _on_stop: Callable[[Rung], bool] | None
    _second_cancel: tuple[float, Timer] | None  # when it is due, and its timer

    @property
    def done(self) -> bool:
        """Whether it has ended: finished, failed or cancelled."""
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

        It then has the `cancel` seconds of its scope's grace to clean up, and is cancelled once more after
        that. Calling this again shortens the time.
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
        if self._second_cancel is not None:  # not the first call of `cancel()`
            due = min(due, backend.now() + grace.terminate)
            if self._second_cancel[0] <= due:
                return
            self._second_cancel[1].cancel()
        self._second_cancel = due, backend.call_at(due, self._cancel_again)
        if self._at_end is None:
            self._at_end = []  # so that the scope calls `_settle`, which cancels the timer

    def _cancel_again(self) -> None:
        self._second_cancel = None
        if not self.done:
            self._climb(TERMINATE)

    def _climb(self, rung: Rung) -> None:
        """Cancel the task at CANCEL, and once more at TERMINATE when its time to clean up is over."""
        reason = self._core.reason
        if reason is not None:
            self._note_reason(reason)
        if rung is CANCEL and self._asked == 0:
            self._asked = 1
            if self._on_stop is not None and self._on_stop(rung):
                return
            if self._cancel_holds:
                self._has_held_cancel = True
            else:
                self._deliver_cancel()
        elif rung is TERMINATE and self._asked < 2:
            # Never held back: the child has had its time, whatever it is closing.
            self._asked = 2
            if self._on_stop is None or not self._on_stop(rung):
                self._deliver_cancel()
            for scope in list(self._core.nested):
                if scope.in_clean_up and scope.opener is self:
                    scope.stop(self.reason or Reason("cancelled"))

    def _is_cleaning_up(self) -> bool:
        """Whether its cancel was delivered, or its owner has told it to end."""
        return self._asked > 0 and not self._has_held_cancel

    def _asked_to_leave(self) -> None:
        """Its owner has told it to end by itself: whatever it does from now on is clean-up."""
        self._asked = self._asked or 1

    def _task_at_work(self) -> object:
        """The event loop's task that runs it; None before it has started and after it has ended."""
        raise NotImplementedError  # abstract: see the handles of the event loops

    def _runs_in(self, task: object) -> bool:
        """Whether `task` is the one that runs this child."""
        return self._task_at_work() is task

    def _fail(self, error: BaseException) -> None:
        """Keep what it raised, without the frame of the kernel, which would refer back to this handle."""
        self.state = FAILED
        self._value = error
        if error.__traceback__ is not None:
            error.__traceback__ = error.__traceback__.tb_next
        # No frame is left: the error comes from the kernel's `await` of what the function returned.
        is_our_await = error.__traceback__ is None
        if is_our_await and isinstance(error, TypeError) and str(error).endswith(_NOT_AWAITABLE):
            error.add_note(
                f"{self.name!r}, spawned at {describe(self._site)}, is not an async function; "
                "for a sync function use quiesce.to_thread"
            )

    def _end_cancelled(self, cancelled: BaseException) -> None:
        """It ended by a cancel. If a clean-up in it failed (the cause of the cancel), it counts as failed."""
        failure = failure_below(cancelled)
        if failure is not None:
            self.state = FAILED
            self._value = failure
        else:
            self.state = CANCELLED
        if self.reason is None:
            self._note_reason(Reason("cancelled", str(cancelled)))

    def _deliver_cancel(self) -> None:
        """Make the next await of the task raise its cancellation."""
        raise NotImplementedError  # abstract: see the handles of the event loops

    def _hold_cancel(self) -> None:
        """It is closing a scope that it runs in: hold its cancel back until that call has returned."""
        self._cancel_holds += 1

    def _release_cancel(self, *, deliver: bool) -> None:
        """That `close()` returns: a cancel that was held back arrives at the next await, if `deliver`."""
        self._cancel_holds -= 1
        if self._has_held_cancel and not self._cancel_holds:
            self._has_held_cancel = False
            if deliver and not self.done:
                self._deliver_cancel()

    async def wait(self) -> None:
        """Wait until it has ended. Its error is not raised, and your own cancel is not passed on to it."""
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
        """What it returned. Raises its error if it failed, and `ChildCancelled` if it was cancelled."""
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
        """Cancel the timer of the second cancel, and call the callbacks."""
        if self._second_cancel is not None:
            self._second_cancel[1].cancel()
            self._second_cancel = None
        super()._settle()

    def __repr__(self) -> str:
        return f"<Handle {self.name!r} {self.state}>"


#: What to call instead of cancelling a child when the event loop ends. Whoever adds a child removes it.
at_loop_end: dict[Child, Callable[[], object]] = {}


def when_ended(child: Child, callback: Callable[[], object]) -> None:
    """Call `callback()` when `child` has ended, however it ends; at once if it has, as an eager task may."""
    if child.state == PENDING or child.state == RUNNING:
        child._on_end(callback)
    else:
        callback()
