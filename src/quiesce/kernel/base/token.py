"""A cancel signal that, once given, stays.

A token is cancelled once and read from anywhere: other threads, signal handlers, `__del__`. Signal handlers
and `__del__` may run in the middle of an operation of the same thread, where a lock would deadlock. So there
is none; the design rests on three operations that are atomic in CPython:

- The first `append` to `_reasons` decides the reason. It is never removed.
- Each callback is in a list of its own (a cell). The thread that pops it from there runs it, so it runs once.
- `on_cancel` first registers the callback and then looks at `_reasons`; `cancel` first appends to `_reasons`
  and then looks at what is registered. So at least one of the two sees the other.

A child token looks at its parents when it is read, and subscribes to them only when something waits for it
or registers a callback. So tokens that are only read cost their parent nothing, however many there are. A
parent does not keep its children alive: a child without references disappears, with its callbacks.
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
    """Raised by `CancelToken.raise_if_cancelled()`; `reason` says why the token was cancelled."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


class CancelToken:
    """A thread-safe signal that, once cancelled, stays cancelled with its reason.

    Tokens form a tree: cancelling one cancels its children, never its parent. In a task or a thread of
    quiesce, `current_token()` returns the token of the current work.

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

    __slots__ = ("__weakref__", "_cells", "_parent", "_reasons", "_unsubscribe")

    def __init__(self, *, parent: CancelToken | None = None) -> None:
        self._parent = parent
        self._reasons: list[Reason] = []  # the first counts
        self._cells: dict[int, _Cell] = {}  # in order of registration, by `id(cell)`
        self._unsubscribe: Callable[[], None] | None = None  # from the parent

    # Reading

    @property
    def reason(self) -> Reason | None:
        """Why it was cancelled; None while it is not."""
        token: CancelToken | None = self
        while token is not None and not token._reasons:
            token = token._parent
        if token is None:
            return None
        if token is not self:
            self._reasons.append(token._reasons[0])
        return self._reasons[0]  # not what was appended: another thread may have been first

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled, or any token above it. Once True, it stays True."""
        return self.reason is not None

    def raise_if_cancelled(self) -> None:
        """Raise `TokenCancelled` if the token is cancelled. For loops in sync code."""
        reason = self.reason
        if reason is not None:
            raise TokenCancelled(reason)

    def child(self) -> CancelToken:
        """A new token that is cancelled with this one, and can also be cancelled alone."""
        return CancelToken(parent=self)

    # Cancelling

    def cancel(self, reason: Reason | str | None = None) -> bool:
        """Cancel for good, from any thread. False if it was cancelled before.

        The first reason stays. Waiters wake at once; callbacks run here, in this thread.
        """
        reason = as_reason(reason, Reason("user"))
        first = not self._reasons and (self._parent is None or self._parent.reason is None)
        if first:
            self._reasons.append(reason)
            first = self._reasons[0] is reason
        self._run_callbacks()  # even if not the first: the other thread may not have come to all of them yet
        return first

    def _run_callbacks(self) -> None:
        _ = self.reason  # copies an inherited reason into this token before any callback reads it
        interrupt: BaseException | None = None
        while self._cells:
            # One at a time, and never a loop over the dict: a callback may register or take back others, and
            # another thread may be doing the same as this one.
            try:
                key = next(iter(self._cells))
                cell = self._cells.pop(key, [])
            except (StopIteration, RuntimeError):  # another thread has changed the dict
                continue
            try:
                _run_cell(cell)
            except BaseException as exc:  # a KeyboardInterrupt, for example: the other callbacks still run
                interrupt = exc
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            unsubscribe()
        if interrupt is not None:
            raise interrupt

    # Waiting

    def on_cancel(self, fn: Callable[[], object]) -> Callable[[], None]:
        """Call `fn()` once when the token is cancelled. Returns a function that removes the callback.

        Callbacks run in the thread that cancels, in order of registration; if the token is cancelled already,
        `fn()` is called at once. Its errors are logged, never raised. Remove the callback when the work that
        it would stop has ended: the token may be cancelled long after. Keep a reference to the token, or to
        what this returns: a `child()` without references disappears, and its callbacks with it.
        """
        if not callable(fn):
            raise TypeError(f"on_cancel needs a function, not {type(fn).__name__}")
        cell: _Cell = [fn]
        key = id(cell)
        if isinstance(fn, _ParentCallback):
            fn.key = key
        self._cells[key] = cell
        if self._parent is not None and self._unsubscribe is None:
            self._subscribe(self._parent)
        # Only now, after the registration: a cancel just before would not have seen the cell.
        if self.reason is not None:
            self._cells.pop(key, None)
            _run_cell(cell)
        return partial(self._remove, key, cell)

    def _remove(self, key: int, cell: _Cell) -> None:
        cell.clear()
        self._cells.pop(key, None)
        if not self._cells:
            unsubscribe, self._unsubscribe = self._unsubscribe, None
            if unsubscribe is not None:
                unsubscribe()
            if self._cells and self._parent is not None and self._unsubscribe is None:
                # Another thread registered in between, and relied on the subscription that was just dropped.
                self._subscribe(self._parent)

    def _subscribe(self, parent: CancelToken) -> None:
        self._unsubscribe = parent.on_cancel(_ParentCallback(self, parent))

    async def wait(self) -> Reason:
        """Wait until the token is cancelled; returns the reason."""
        while (reason := self.reason) is None:
            loop = current_event_loop()
            waiter = loop.make_waiter()
            remove = self.on_cancel(partial(loop.run_from_anywhere, waiter.wake))
            try:
                await waiter.wait()
            finally:
                remove()
        return reason

    def wait_sync(self, timeout: float | None = None) -> bool:
        """Block this thread until the token is cancelled. False if `timeout` seconds passed first."""
        if timeout is not None:
            check_seconds("timeout", timeout)
        if self.reason is not None:
            return True
        # A bare lock, not a `threading.Event`: the release may come from a signal handler in this very
        # thread, in the middle of the wait, and an Event would then wait for its own lock.
        gate = Lock()
        gate.acquire()
        remove = self.on_cancel(gate.release)
        try:
            gate.acquire(timeout=-1 if timeout is None or timeout > TIMEOUT_MAX else timeout)
        finally:
            remove()
        return self.reason is not None

    def __repr__(self) -> str:
        reason = self.reason
        return f"<CancelToken {'active' if reason is None else f'cancelled, {reason}'}>"


class _ParentCallback:
    """The callback that a child registers on its parent. Only the parent refers to it, in a cell.

    Its reference to the child is weak, so that the parent does not keep the child alive. When the child
    disappears, the cell is removed from the parent.
    """

    __slots__ = ("__weakref__", "child", "key")

    def __init__(self, child: CancelToken, parent: CancelToken) -> None:
        self.key = 0  # of the cell, in the parent
        self.child = ref(child, partial(_remove_from, ref(parent), ref(self)))

    def __call__(self) -> None:
        child = self.child()
        if child is not None:
            child._run_callbacks()


def _remove_from(parent: ref[CancelToken], callback: ref[_ParentCallback], child: object) -> None:
    token, entry = parent(), callback()
    if token is not None and entry is not None and (cell := token._cells.get(entry.key)):
        token._remove(entry.key, cell)


def _run_cell(cell: _Cell) -> None:
    try:
        fn = cell.pop()
    except IndexError:  # removed, or run by another thread
        return
    try:
        fn()
    except Exception:
        logger.exception("an on_cancel callback failed: %r", fn)


# Reentrant: a garbage collection in the middle of it may run a `__del__` that asks for a token too.
_token_lock = RLock()


class TokenHolder:
    """Something that can be stopped for a reason, with a token that is made when it is first read.

    The token of most children is never read. It may be made in any thread, and a stop may come at the same
    moment. Then the token is still cancelled: `token` stores it first and reads the reason after that, while
    `_note_reason` stores the reason first and looks for the token after that.
    """

    __slots__ = ()

    _token: CancelToken | None
    reason: Reason | None

    def _holder_above(self) -> TokenHolder | CancelToken | None:
        """What the parent of its token belongs to; or that token itself."""
        return None

    def _above(self) -> CancelToken | None:
        """The parent of the token."""
        holder = self._holder_above()
        return holder.token if isinstance(holder, TokenHolder) else holder

    def _reason_to_stop(self) -> Reason | None:
        """As `token.reason`, without making tokens on the way: most work is never asked for its own."""
        holder: TokenHolder | CancelToken | None = self
        while isinstance(holder, TokenHolder):
            if holder._token is not None:
                return holder._token.reason
            if holder.reason is not None:
                return holder.reason
            holder = holder._holder_above()
        return holder.reason if holder is not None else None

    @property
    def token(self) -> CancelToken:
        """The token of this piece of work."""
        token = self._token
        if token is None:
            made = CancelToken(parent=self._above())
            if self.reason is not None:
                # Ours came first, even if the parent has been cancelled for another reason since.
                made._reasons.append(self.reason)
            with _token_lock:
                if self._token is None:
                    self._token = made  # type: ignore[misc]  # a slot of the subclasses
                token = self._token
            if self.reason is not None:
                token.cancel(self.reason)
        return token

    def _note_reason(self, reason: Reason) -> None:
        """Store why it is being stopped, unless a reason is stored already, and cancel the token."""
        if self.reason is None:
            self.reason = reason  # type: ignore[misc]
        if self._token is not None:
            self._token.cancel(reason)
