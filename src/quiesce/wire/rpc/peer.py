"""A JSON-RPC peer as its users hold it.

This face and the connection proper are two objects, so that a peer which its users have dropped without closing is noticed: the
connection's tasks refer to the connection alone.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from quiesce import Held, NotHeld, Reason
from quiesce.kernel.inner import (
    EXPIRED,
    Owned,
    as_reason,
    current_backend,
    raise_unchanged,
    reason_of_block,
    users_site,
    when_ended,
)
from quiesce.wire.base import Limits
from quiesce.wire.links import as_transport

from .connection import Connection, Fallback, Tap
from .handlers import Decode, Handler, Notification, Request, notifications_of, requests_of

if TYPE_CHECKING:
    from quiesce import Grace, Scope, StopReport
    from quiesce.kernel.inner import ContextManagerOwner


@dataclass(frozen=True, slots=True)
class PeerStatistics:
    """What a peer is at, in one moment."""

    calls_waiting: int
    requests_at_work: int
    requests_waiting: int
    notifications_waiting: int
    bytes_unsent: int
    reading: bool


class Peer:
    """One side of a connection on which both sides may ask and tell: JSON-RPC 2.0.

    ```python
    async def add(params):
        return params["a"] + params["b"]

    async with Peer(ChildProcess(["calculator"]), {"add": add}) as peer:
        answer = await peer.request("multiply", {"a": 6, "b": 7})
        await peer.notify("thanks")
    ```

    Or `peer = await Peer.open(...)` … `report = await peer.close()`, from any task.

    - `transport`: the way to the other side: `stdio()`, `ChildProcess(...)`, `connect_tcp(...)`, one end of `memory_pair()`, ...
    - `handlers`: by method, the async function that answers requests, or a `Request` that says how it wants its parameters. What it
      raises is the error that is answered (`RpcError`), or an internal error, which is logged.
    - `notifications`: by method, the async function that takes notifications, or a `Notification`. They are handled one after the other, in
      the order in which they came (in each lane), and the answer to a request of yours that came behind them is delivered after them.
    - `on_request(method, params)`, `on_notification(method, params)`: for all other methods.
    - `limits`: see `Limits`. `tap("in" or "out", frame)` is called with every message.
    - `grace` holds the deadlines of its stop (those of its owner unless given), and `scope` is its owner: the current scope unless
      another is given.

    Closing stops reading, fails every request of yours that waits with `ConnectionEnded`, cancels the handlers and lets each of them answer, sends what is
    to be sent, and closes the transport; in that order, on every transport, whoever asks for it, and within the `Grace`. A handler may
    close its own peer, and still answers. The end of the other side does the same. Bytes that could not be sent are in the notes of the report.
    """

    def __init__(
        self,
        transport: object,
        handlers: Mapping[str, Handler | Request] | None = None,
        *,
        notifications: Mapping[str, Callable[[Any], Any] | Notification] | None = None,
        on_request: Fallback | None = None,
        on_notification: Fallback | None = None,
        name: str | None = None,
        limits: Limits | None = None,
        tap: Tap | None = None,
        grace: Grace | None = None,
        scope: Scope | None = None,
    ) -> None:
        self._held: Held[Connection] | None = None
        way = as_transport(transport)
        self.name = name or way.name
        if limits is not None and not isinstance(limits, Limits):
            raise TypeError(
                f"limits must be a Limits, not {type(limits).__name__}: for example Limits(concurrent=8)"
            )
        self._connection = Connection(
            way,
            self.name,
            limits or Limits(),
            requests_of(handlers or {}),
            notifications_of(notifications or {}),
            on_request,
            on_notification,
            tap,
        )
        self._owned = Owned(self._connection, scope, self.name, grace, users_site())

    # Opening

    @classmethod
    async def open(cls, *args: Any, **options: Any) -> Self:
        """Connect; whoever holds the peer closes it, from any task. Arguments as for `Peer`."""
        peer = cls(*args, **options)
        peer.start()
        await peer.wait_open()
        return peer

    def start(self) -> None:
        """Begin to connect, without waiting for it; what is sent meanwhile is sent when it is connected."""
        if self._held is not None:
            raise RuntimeError(f"peer {self.name!r} was opened before; it is used once: make a new one")
        connection = self._connection
        try:
            keeper = self._owned._start(current_backend())
        except BaseException:
            connection._transport.discard()  # it was ours from the beginning
            raise
        if not hasattr(connection, "backend"):
            connection.backend, connection.core = keeper.core.backend, keeper.core
        self._opened()
        when_ended(keeper.handle, partial(_owner_ended, connection))

    async def wait_open(self) -> None:
        """Wait until it is connected, after `start()`. Raises what went wrong; if you are cancelled, it is closed."""
        keeper = self._keeper()
        try:
            await keeper.wait_until_entered()
        except NotHeld:
            # One that was connected, and has ended since, is like one that ends a moment later.
            if not keeper.entered or keeper.failure is not None:
                raise

    def _opened(self) -> Held[Connection] | None:
        """What holds the connection; None before. With eager tasks a handler may ask before `start()` has returned."""
        if self._held is None and self._owned._keeper is not None:
            self._held = Held(self._owned._keeper)
        return self._held

    def _keeper(self) -> ContextManagerOwner[Connection]:
        held = self._opened()
        if held is None:
            raise RuntimeError(
                f"peer {self.name!r} is not open: use `async with Peer(...)` or `await Peer.open(...)`"
            )
        return held._keeper

    async def __aenter__(self) -> Self:
        self.start()
        await self.wait_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        keeper = self._keeper()
        core = keeper.core
        if isinstance(error, GeneratorExit) and not core.backend.is_current():
            return  # the loop is gone, and the collector closes what it left
        if core.state is EXPIRED:  # what is left over has had its grace: only `close()` waits for it again
            core.report()
            failure = keeper.take_failure()
            if failure is not None:
                raise_unchanged(failure)
        else:
            await self.close(reason=reason_of_block(core, error))

    # Asking and telling

    def request(
        self, method: str, params: Any = None, *, decode: Decode | None = None, lane: Hashable = None
    ) -> Coroutine[Any, Any, Any]:
        """Ask the peer, and wait for its answer.

        Raises the `RpcError` that it answers, and `ConnectionEnded` if no answer will come. If you are cancelled, the peer is told so, and its
        answer is dropped. `decode` makes what you want of the result (`params_as(Type)`), `lane` is that of the notifications which must have
        been handled before the answer is delivered, if they came before it.
        """
        if self._held is None:
            self._keeper()
        # The peer too is held by whoever waits: it is not dropped while somebody uses it.
        return self._connection.calls.call(method, params, lane, decode, self)

    def notify(self, method: str, params: Any = None) -> Coroutine[Any, Any, None]:
        """Tell the peer something. Waits only for a peer that does not read."""
        if self._held is None:
            self._keeper()
        return self._connection.notify(method, params)

    # Ending

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """End the connection, wait until all of it has ended, and report; from any task, also from a handler.

        Bounded by `deadline` seconds, or its `Grace`. If you are cancelled meanwhile, it goes on and your cancellation is raised after it;
        the report is then in `peer.report`.
        """
        self._keeper()
        assert self._held is not None
        return await self._held.close(deadline=deadline, grace=grace, reason=reason)

    def cancel(self, reason: Reason | str | None = None) -> None:
        """Begin to end the connection; from any thread, without waiting."""
        core = self._keeper().core
        why = as_reason(reason, Reason("user"))
        core.backend.run_from_anywhere(lambda: core.stop(why, hurry=core.closed))

    async def wait_closed(self) -> StopReport:
        """Wait until the connection has ended, whoever ends it, and report."""
        core = self._keeper().core
        await core.waiters.wait_until(core.is_over)
        return core.report()

    # Looking

    @property
    def closed(self) -> bool:
        """Whether it has ended, or is about to."""
        held = self._opened()
        return held is not None and held._keeper.core.closed

    @property
    def error(self) -> BaseException | None:
        """What broke the connection; None while it lasts, and if it was ended in order."""
        return self._connection.error

    @property
    def report(self) -> StopReport | None:
        """What the last `close()` or the end of the block reported; None before."""
        return self._held.report if self._held is not None else None

    def statistics(self) -> PeerStatistics:
        """What it is at."""
        connection = self._connection
        link = connection._link
        return PeerStatistics(
            calls_waiting=len(connection.calls),
            requests_at_work=connection.requests.at_work,
            requests_waiting=connection.requests.waiting,
            notifications_waiting=connection.lanes.waiting,
            bytes_unsent=link.pending if link is not None else 0,
            reading=link is not None and not connection.paused and not connection.closing,
        )

    def __repr__(self) -> str:
        state = "new" if self._held is None else self._held._keeper.core.state
        return f"<Peer {self.name!r} {state}>"


def _owner_ended(connection: Connection) -> None:
    """Perhaps before its first step, and nothing of the connection ever ran."""
    connection.core.stop(Reason("cancelled", "its owner task was cancelled"))  # unless it was stopped
    connection.forsake()
