"""The cancel signal that stays.

A token is written once and read from anywhere: other threads, signal handlers, `__del__`.
Any of those may interrupt a half-finished operation of the same thread, so there is no lock
here at all. Three operations that CPython makes atomic carry the whole design:

- the first `append` to `_fired` decides the reason; it is never removed (monotonic);
- each callback sits in a list of one, and whoever pops it runs it (exactly once);
- a callback is registered first and only then checks `_fired`, while the canceller first
  fires and only then reads the registrations: one of the two sees the other.

A child asks its parents when it is read, and subscribes to them only once somebody waits on
it. So tokens that nobody waits on cost their parent nothing, however many there were. A parent does not
keep its children: one that nobody holds any more is gone, with what was registered on it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import TIMEOUT_MAX, Lock, RLock
from typing import TypeAlias
from weakref import ref

from quiesce._safe.printed import logger

from .event_loop import current_event_loop
from .grace import check_seconds
from .reason import Reason, as_reason

_Cell: TypeAlias = list[Callable[[], object]]


class TokenCancelled(Exception):
    """Raised by `CancelToken.raise_if_cancelled()`; `reason` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


class CancelToken:
    """A thread-safe signal that, once cancelled, stays cancelled with its reason.

    Tokens form a tree: cancelling one cancels its children, never its parent. In a task or a
    tool thread `current_token()` gives the token of the work at hand.

    ```python
    def tool(path: str) -> int:
        token = current_token()
        count = 0
        for line in open(path):
            token.raise_if_cancelled()
            count += 1
        return count
    ```
    """

    __slots__ = ("__weakref__", "_cells", "_fired", "_parent", "_subscribed")

    def __init__(self, *, parent: CancelToken | None = None) -> None:
        self._parent = parent
        self._fired: list[Reason] = []
        self._cells: dict[int, _Cell] = {}
        self._subscribed: Callable[[], None] | None = None

    # Reading

    @property
    def reason(self) -> Reason | None:
        """Why it was cancelled; None while it is not."""
        token: CancelToken | None = self
        while token is not None and not token._fired:
            token = token._parent
        if token is None:
            return None
        if token is not self:
            self._fired.append(token._fired[0])
        return self._fired[0]

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled, or any token above it. Never goes back to False."""
        return self.reason is not None

    def raise_if_cancelled(self) -> None:
        """Raise `TokenCancelled` if the token is cancelled; for loops in sync code."""
        reason = self.reason
        if reason is not None:
            raise TokenCancelled(reason)

    def child(self) -> CancelToken:
        """A token that is cancelled with this one, and can be cancelled by itself."""
        return CancelToken(parent=self)

    # Cancelling

    def cancel(self, reason: Reason | str | None = None) -> bool:
        """Cancel for good, from any thread; False if it already was.

        The first reason stays. Waiters wake at once; callbacks run here, in this thread.
        """
        reason = as_reason(reason, Reason("user"))
        first = not self._fired and (self._parent is None or self._parent.reason is None)
        if first:
            self._fired.append(reason)
            first = self._fired[0] is reason
        self._run_callbacks()
        return first

    def _run_callbacks(self) -> None:
        _ = self.reason  # latch what is inherited before anybody looks
        interrupt: BaseException | None = None
        while self._cells:
            try:
                key = next(iter(self._cells))
                cell = self._cells.pop(key, [])
            except (StopIteration, RuntimeError):  # another thread is at the same dict
                continue
            try:
                _run_cell(cell)
            except BaseException as exc:
                interrupt = exc
        unsubscribe, self._subscribed = self._subscribed, None
        if unsubscribe is not None:
            unsubscribe()
        if interrupt is not None:
            raise interrupt

    # Waiting

    def on_cancel(self, fn: Callable[[], object]) -> Callable[[], None]:
        """Call `fn()` once when the token is cancelled; returns a function that takes it back.

        It runs in the thread that cancels, in order of registration, and at once if the token
        is cancelled already. Its errors are logged, never raised. Take it back when the work that it
        would stop is over: the token may live, and be cancelled, long after. Hold the token, or what this
        returns: a `child()` that nobody holds any more is gone, and its callbacks with it.
        """
        if not callable(fn):
            raise TypeError(f"on_cancel needs a function, not {type(fn).__name__}")
        cell: _Cell = [fn]
        key = id(cell)
        if isinstance(fn, _Heard):
            fn.place = key
        self._cells[key] = cell
        if self._parent is not None and self._subscribed is None:
            self._subscribe(self._parent)
        if self.reason is not None:
            self._cells.pop(key, None)
            _run_cell(cell)
        return partial(self._take_back, key, cell)

    def _take_back(self, key: int, cell: _Cell) -> None:
        cell.clear()
        self._cells.pop(key, None)
        if not self._cells:
            unsubscribe, self._subscribed = self._subscribed, None
            if unsubscribe is not None:
                unsubscribe()
            if self._cells and self._parent is not None and self._subscribed is None:
                # Somebody registered in between and relied on the subscription just dropped.
                self._subscribe(self._parent)

    def _subscribe(self, parent: CancelToken) -> None:
        self._subscribed = parent.on_cancel(_Heard(self, parent))

    async def wait(self) -> Reason:
        """Wait until the token is cancelled; returns the reason."""
        while (reason := self.reason) is None:
            loop = current_event_loop()
            waiter = loop.make_waiter()
            take_back = self.on_cancel(partial(loop.run_from_anywhere, waiter.wake))
            try:
                await waiter.wait()
            finally:
                take_back()
        return reason

    def wait_sync(self, timeout: float | None = None) -> bool:
        """Block this thread until the token is cancelled; False if `timeout` came first."""
        if timeout is not None:
            check_seconds("timeout", timeout)
        if self.reason is not None:
            return True
        gate = Lock()
        gate.acquire()
        take_back = self.on_cancel(gate.release)
        try:
            gate.acquire(timeout=-1 if timeout is None or timeout > TIMEOUT_MAX else timeout)
        finally:
            take_back()
        return self.reason is not None

    def __repr__(self) -> str:
        reason = self.reason
        return f"<CancelToken {'active' if reason is None else f'cancelled, {reason}'}>"


class _Heard:
    """How a child hears of its parent's cancel, without being kept by it. Only the parent holds this, in a cell."""

    __slots__ = ("__weakref__", "child", "place")

    def __init__(self, child: CancelToken, parent: CancelToken) -> None:
        self.place = 0  # of the cell, in the parent
        self.child = ref(child, partial(_child_is_gone, ref(parent), ref(self)))

    def __call__(self) -> None:
        child = self.child()
        if child is not None:
            child._run_callbacks()


def _child_is_gone(parent: ref[CancelToken], heard: ref[_Heard], child: object) -> None:
    token, relay = parent(), heard()
    if token is not None and relay is not None and (cell := token._cells.get(relay.place)):
        token._take_back(relay.place, cell)


def _run_cell(cell: _Cell) -> None:
    try:
        fn = cell.pop()
    except IndexError:  # taken back, or run by somebody else
        return
    try:
        fn()
    except Exception:
        logger.exception("an on_cancel callback failed: %r", fn)


_making = RLock()  # reentrant: a collection may run `__del__` in the middle of it


class TokenHolder:
    """Something with a reason to stop and, if anybody ever asks, a token.

    Most children are never asked for theirs, so it is made on demand; from any thread, and if the stop
    comes at that very moment, the token is born cancelled: it is published before the reason is
    read, and the reason is written before the token is looked for.
    """

    __slots__ = ()

    _token: CancelToken | None
    reason: Reason | None

    def _above(self) -> CancelToken | None:
        """The token that this one hangs below."""
        return None

    @property
    def token(self) -> CancelToken:
        """The token of this piece of work."""
        token = self._token
        if token is None:
            made = CancelToken(parent=self._above())
            if self.reason is not None:
                made._fired.append(self.reason)  # ours came first, whatever is above says by now
            with _making:
                if self._token is None:
                    self._token = made  # type: ignore[misc]  # in the subclasses' slots
                token = self._token
            if self.reason is not None:
                token.cancel(self.reason)
        return token

    def _note_reason(self, reason: Reason) -> None:
        """Keep why it is being stopped (the first reason stays) and signal it."""
        if self.reason is None:
            self.reason = reason  # type: ignore[misc]
        if self._token is not None:
            self._token.cancel(reason)
