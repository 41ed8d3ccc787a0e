"""A JSON-RPC peer as its users hold it.

This object and the connection itself are two, so that a peer which its users drop without closing it is
noticed: the tasks of the connection refer to the connection alone.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from quiesce import Reason
from quiesce.kernel.inner import SessionFace, make_holding, raise_unchanged, users_site
from quiesce.wire.base import Limits
from quiesce.wire.links import as_transport

from .connection import Connection, Fallback
from .handlers import Decode, Handler, Notification, Request, notifications_of, requests_of
from .sender import Tap

if TYPE_CHECKING:
    from quiesce import Grace, Scope, StopReport


@dataclass(frozen=True, slots=True)
class PeerStatistics:
    """What a peer is doing, at one moment."""

    calls_waiting: int
    requests_at_work: int
    requests_waiting: int
    notifications_waiting: int
    bytes_unsent: int
    reading: bool


class Peer(SessionFace[Connection]):
    """One side of a connection on which both sides may send requests and notifications: JSON-RPC 2.0.

    ```python
    async def add(params):
        return params["a"] + params["b"]

    async with Peer(ChildProcess(["calculator"]), {"add": add}) as peer:
        answer = await peer.request("multiply", {"a": 6, "b": 7})
        await peer.notify("thanks")
    ```

    Or `peer = await Peer.open(...)` … `report = await peer.close()`, from any task.

    - `transport`: the way to the other side: `stdio()`, `ChildProcess(...)`, `connect_tcp(...)`, one end of
      `memory_pair()`, ...
    - `handlers`: by method, the async function that answers requests, or a `Request` that says how it wants
      its parameters. If it raises an `RpcError`, that is the answer; any other error is logged and answered
      as an internal error.
    - `notifications`: by method, the async function that handles notifications, or a `Notification`. They are
      handled one after the other, in the order in which they came (in each lane). The answer to a request of
      yours that came behind them is delivered after them.
    - `on_request(method, params)`, `on_notification(method, params)`: for all other methods.
    - `limits`: see `Limits`. `tap("in" or "out", frame)` is called with every message.
    - `grace` holds the deadlines of its stop (those of its owner unless given), and `scope` is its owner: the
      current scope unless another is given.

    Closing stops reading, fails every pending request of yours with `ConnectionEnded`, cancels the handlers
    and lets each of them answer, sends what is unsent, and closes the transport: in that order, on every
    transport, no matter what closes it, and within the `Grace`. A handler may close its own peer, and still
    answers. A disconnect by the other side does the same. Bytes that could not be sent are in the notes of
    the report.
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
        self._grace, self._owner, self._site = grace, scope, users_site()

    # Opening

    @classmethod
    async def open(cls, *args: Any, **options: Any) -> Self:
        """Connect, with the arguments of `Peer`. The holder closes the peer, from any task."""
        peer = cls(*args, **options)
        peer.start()
        await peer.wait_open()
        return peer

    def start(self) -> None:
        """Begin to connect, without waiting; messages that you send meanwhile go out when it is connected."""
        if self._holding is not None:
            raise RuntimeError(f"peer {self.name!r} was opened before; it is used once: make a new one")
        connection = self._connection
        # Before the owner task is started, because an eager one may run a handler at once.
        connection.started = True
        try:
            self._holding = holding = make_holding(
                connection, self.name, self._site, grace=self._grace, scope=self._owner
            )
            holding.start()
        except BaseException:
            self._holding = None
            connection.started = False
            connection.discard()  # the transport belongs to the peer from the beginning
            raise
        connection.sender.bind(holding.core)
        holding.when_ended(partial(_on_owner_end, connection))

    async def wait_open(self) -> None:
        """Wait until it is connected, after `start()`; raise the error if it fails.

        If you are cancelled meanwhile, it is closed.
        """
        await self._held().wait_until_entered()

    def _how_to_open(self) -> Exception:
        return RuntimeError(
            f"peer {self.name!r} is not open: use `async with Peer(...)` or `await Peer.open(...)`"
        )

    async def __aenter__(self) -> Self:
        self.start()
        await self.wait_open()
        return self

    async def _close_block(self, reason: Reason) -> None:
        core = self._open_core()
        if core.state != "expired":
            await self.close(reason=reason)
            return
        # What is left over has used up its grace. Only another `close()` waits for it again.
        core.report()
        if (failure := self._held().take_failure()) is not None:
            raise_unchanged(failure)

    # Requests and notifications

    def request(
        self, method: str, params: Any = None, *, decode: Decode | None = None, lane: Hashable = None
    ) -> Coroutine[Any, Any, Any]:
        """Send a request to the peer, and wait for its answer.

        Raises the `RpcError` that the peer answers with, and `ConnectionEnded` if no answer will come. If you
        are cancelled, the peer is told so, and its answer is dropped. `decode` reads the result
        (`params_as(Type)`). `lane` is the lane of the notifications that must be handled before the answer is
        delivered, if they came before it.
        """
        if self._holding is None:
            self._held()
        # Passed along so that a peer is not dropped while somebody waits for an answer.
        return self._connection.calls.call(method, params, lane, decode, self)

    def notify(self, method: str, params: Any = None) -> Coroutine[Any, Any, None]:
        """Send a notification to the peer. Waits only while the peer does not read."""
        if self._holding is None:
            self._held()
        return self._connection.sender.notify(method, params)

    # Closing

    async def wait_closed(self) -> StopReport:
        """Wait until the connection has ended, on either side, and report."""
        core = self._open_core()
        await core.waiters.wait_until(core.is_over)
        return core.report()

    # Looking

    @property
    def error(self) -> BaseException | None:
        """What broke the connection; None if nothing did."""
        return self._connection.error

    def statistics(self) -> PeerStatistics:
        """What it is doing now."""
        connection = self._connection
        sender, backlog, requests = connection.sender, connection.backlog, connection.requests
        link = sender.link
        return PeerStatistics(
            calls_waiting=len(connection.calls),
            requests_at_work=requests.at_work,
            requests_waiting=backlog.requests,
            notifications_waiting=backlog.notifications,
            bytes_unsent=link.pending if link is not None else 0,
            reading=link is not None and not backlog.paused and not sender.closing,
        )

    def __repr__(self) -> str:
        state = "new" if self._holding is None else self._holding.core.state
        return f"<Peer {self.name!r} {state}>"


def connection_of(peer: Peer) -> Connection:
    """Return the connection itself, for protocols that are built on a peer."""
    return peer._connection


def _on_owner_end(connection: Connection) -> None:
    # If the owner task was cancelled before its first step, nothing of the connection ever ran. Both calls do
    # nothing if it was opened, and has been closed.
    connection.sender.core.stop(Reason("cancelled", "its owner task was cancelled"))
    connection.give_up()
