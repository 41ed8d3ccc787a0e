"""Children that a stop does not simply cancel at once.

- `DelayedCancel` is for code of a library that must not be cancelled halfway and does not shield itself. The
  token of the child is cancelled at once. The second cancel is delayed as well: if the code does not respond
  to the token, the report names the child as still running when the grace is over.
- `ask_to_leave` is for a child that ends by itself when it is told to, such as one that writes what is left in
  a buffer. `insist` then delivers the cancel after all.
- `cancel_without_deadline` is for a child that has as much time as its scope.
"""

from __future__ import annotations

from collections.abc import Callable

from quiesce.kernel.base import CANCEL, Rung

from .child import Handle

CHECK_EVERY = 0.01  # seconds


class DelayedCancel:
    """Delays the cancel of `handle` while `is_busy(task)` is true, where `task` is the child's.

    There is no signal for the end of that, so it is checked every few milliseconds, and by each `check()`.
    """

    __slots__ = ("_handle", "_is_busy", "_is_due")

    def __init__(self, handle: Handle, is_busy: Callable[[object], bool]) -> None:
        self._handle = handle
        self._is_busy = is_busy
        self._is_due = False
        handle._on_stop = self._delay

    def _delay(self, rung: Rung) -> bool:
        if not self._is_busy(self._handle._task_at_work()):
            return False
        if not self._is_due:
            self._is_due = True
            self._check_later()
        return True

    def check(self) -> None:
        """Deliver a delayed cancel, if there is one and the child is not busy now."""
        handle = self._handle
        if self._is_due and not self._is_busy(handle._task_at_work()):
            self._is_due = False
            if not handle.done:
                handle._deliver_cancel()

    def _check_later(self) -> None:
        backend = self._handle._core.backend
        backend.call_at(backend.now() + CHECK_EVERY, self._check_again)

    def _check_again(self) -> None:
        self.check()
        if self._is_due:
            self._check_later()


def ask_to_leave(handle: Handle, leave: Callable[[], bool]) -> None:
    """When `handle` is stopped, call `leave()` instead of its first cancel; if that returns False, cancel it.

    For a child that ends by itself, in good order, once it is told to. If it does not, the second cancel is
    delivered as usual.
    """

    def on_stop(rung: Rung) -> bool:
        return rung is CANCEL and leave()

    handle._on_stop = on_stop


def insist(handle: Handle) -> None:
    """Deliver the cancel that `ask_to_leave` has replaced, if there was one."""
    if handle._asked == 1 and not handle.done:
        handle._deliver_cancel()


def cancel_without_deadline(handle: Handle) -> None:
    """Cancel it once, as the stop of its scope would; unlike `cancel()`, without a second cancel later."""
    if not handle.done:
        handle._climb(CANCEL)
