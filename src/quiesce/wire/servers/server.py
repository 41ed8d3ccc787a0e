"""Servers: a listener, and a child task per connection.

Invariants
- Every connection belongs to the server's scope, with all that its handler opens for it. Closing stops
  listening first, then stops all connections together and waits for them; the report says how each of them
  ended.
- Connections do not affect each other: an error of a handler is logged, and the other connections stay open.
- A socket is closed by what it belongs to: the peer that was opened on it, else the server.
- Who may connect, and how often, is decided before the handler is called (`admission`).
- If the process runs out of descriptors, that is logged once; the server continues when there are some again.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import anyio

from quiesce import Reason, ScopeClosed
from quiesce._safe.printed import logger
from quiesce.kernel.inner import (
    Cancellable,
    OpenScope,
    bind_scope,
    check_grace,
    core_of,
    current_backend,
    users_site,
    when_ended,
)
from quiesce.wire.base import ConnectionEnded
from quiesce.wire.links import STRANGERS, Admission, PeerKey, SocketTransport, first_line
from quiesce.wire.transports import prepare_tcp

if TYPE_CHECKING:
    from quiesce import Grace, Handle, Scope, StopReport
    from quiesce.kernel.inner import ScopeCore
    from quiesce.wire.base import Limits
    from quiesce.wire.links import Link, Transport


# Any: each kind of server has its own kind of transport.
ConnectionHandler: TypeAlias = "Callable[[Any], Awaitable[object]]"

_AT_A_TIME: Final = 64  # connections to accept before other tasks get their turn
# After these errors of `accept` the connection is still in the queue, so the socket stays readable: trying
# again at once would only burn CPU time.
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LOOK_AGAIN: Final = 0.1  # seconds, while there are none
_TOKEN_WITHIN: Final = 10.0  # seconds in which a client must present the token


class AcceptedSocket(SocketTransport):
    """A connection that a server accepted; it belongs to a peer that is opened on it."""

    _opened = False
    key: PeerKey = ""
    is_counted = False

    async def open(self, limits: Limits, scope: Scope) -> Link:
        """Make the link over it."""
        self.hand_over()
        return await super().open(limits, scope)

    @property
    def socket(self) -> socket.socket:
        """The connected socket."""
        return self._socket

    def hand_over(self) -> None:
        """Leave it to others to close the socket."""
        self._opened = True

    def discard(self) -> None:
        """Close the socket, unless it was handed over."""
        if not self._opened:
            super().discard()


class Server(Cancellable):
    """A listener, and an async function that handles its connections.

    `serve_tcp`, `serve_unix` and `serve_websocket` return one.

    ```python
    async def handle(transport):
        async with Peer(transport, {"ping": ping}) as peer:
            await peer.wait_closed()

    async with serve_tcp(handle, "localhost", 7000) as server:
        ...
    ```

    Or `server = await serve_tcp(...).open()` … `report = await server.close()`, from any task.

    A connection is closed when its handler returns, unless a peer was opened on it and is still held: then it
    stays open until the peer or the server is closed.
    """

    def __init__(
        self,
        handler: ConnectionHandler,
        *,
        name: str,
        grace: Grace | None,
        scope: Scope | None,
        admission: Admission,
    ) -> None:
        if not callable(handler):
            raise TypeError(
                f"handler must be an async function of one transport, not {type(handler).__name__}"
            )
        check_grace(grace)
        self._handler = handler
        self.name = name
        self._admission = admission
        self._owner = scope
        self._scope = OpenScope(name, on_error="report", grace=grace, scope=scope)
        self._core: ScopeCore | None = None
        self._site = users_site()
        self._listening: list[socket.socket] = []
        self._addresses: list[Any] = []
        # Accepted connections whose handler has not ended; a dict, because it keeps the order.
        self._accepted: dict[AcceptedSocket, None] = {}
        # Those of them that have not presented the token yet, the oldest first.
        self._strangers: dict[AcceptedSocket, Handle] = {}
        self._complained = False

    async def _listen(self) -> list[socket.socket]:
        raise NotImplementedError  # abstract: each kind of server has its own sockets

    def _released(self) -> None:
        """Called when the listening sockets have been closed."""

    # Opening

    async def open(self) -> Self:
        """Begin to listen. The holder closes the server, from any task."""
        if self._core is not None:
            raise RuntimeError(f"server {self.name!r} was opened before; it is used once: make a new one")
        parent = core_of(self._owner)
        if parent.closed:
            raise parent.refusal(f"open server {self.name!r} in")
        # First listen, then open the scope: a scope that is open has to be closed by the holder, who gets no
        # server if this fails.
        self._listening = await self._listen()
        try:
            self._core = bind_scope(self._scope, self._site)
        except BaseException:
            self._stop_listening()
            raise
        self._core.when_settled(self._on_settled)
        self._addresses = [each.getsockname() for each in self._listening]
        for each in self._listening:
            when_ended(self._scope.spawn(self._accept, each, name="accepts"), self._stop_listening)
        return self

    async def __aenter__(self) -> Self:
        return await self.open()

    def _find_core(self) -> ScopeCore | None:
        return self._core

    def _how_to_open(self) -> Exception:
        return RuntimeError(f"server {self.name!r} is not open: use `async with`, or `await` its `open()`")

    # Looking

    @property
    def addresses(self) -> list[Any]:
        """Where it listens, as from `socket.getsockname`; empty before it is open."""
        return list(self._addresses)

    @property
    def port(self) -> int:
        """The port it listens at, also if it was opened with port 0."""
        if not self._addresses or not isinstance(self._addresses[0], tuple):
            raise RuntimeError(f"server {self.name!r} has no port: it is not open, or does not listen on TCP")
        port: int = self._addresses[0][1]
        return port

    @property
    def connections(self) -> int:
        """How many connections are being handled."""
        return len(self._accepted)

    # Accepting

    async def _accept(self, listening: socket.socket) -> None:
        backend = current_backend()
        while self._listening:
            await backend.wait_readable(listening.fileno())
            await self._accept_some(listening)

    async def _accept_some(self, listening: socket.socket) -> None:
        for _ in range(_AT_A_TIME):
            if not self._listening:
                return
            try:
                accepted, _ = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    await self._out_of_descriptors(error)
                    return
                continue  # that client has disconnected already
            self._complained = False
            self._take(accepted)

    async def _out_of_descriptors(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            logger.error(
                "server %r cannot accept connections for now: %s (%d are open)",
                self.name,
                error.strerror,
                self.connections,
            )
        await anyio.sleep(_LOOK_AGAIN)

    def _take(self, accepted: socket.socket) -> None:
        if accepted.family != getattr(socket, "AF_UNIX", None):
            prepare_tcp(accepted)
        admitted = self._admission.client_of(accepted, self.name)
        if admitted is None:
            accepted.close()
            return
        taken = AcceptedSocket(accepted, f"a connection of {self.name}")
        taken.key, taken.client = admitted
        # With a token, a connection counts once it has presented it; until then it is a stranger.
        if not self._admission.needs_token and not self._count(taken):
            taken.discard()
            return
        self._accepted[taken] = None
        try:
            handled = self._scope.spawn(self._handle, taken, name="connection")
        except ScopeClosed:  # a handler that was started just before has closed the server
            self._forget(taken)
        else:
            if not taken.is_counted:
                self._add_stranger(taken, handled)
            # Not a `finally` in the task: that does not run if the task is cancelled before its first step.
            when_ended(handled, lambda: self._forget(taken))

    async def _handle(self, taken: AcceptedSocket) -> None:
        try:
            await self._attend(taken)
        except ConnectionEnded as error:  # the usual end of a connection, not an error
            logger.debug("a connection of %r has ended: %s", self.name, error)

    def _add_stranger(self, taken: AcceptedSocket, handled: Handle) -> None:
        """Wait for the token of this client."""
        # Many strangers cannot keep out clients with the token: each new one replaces the oldest.
        self._strangers[taken] = handled
        if len(self._strangers) > STRANGERS:
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest).cancel("too many clients have not presented their token")

    def _count(self, taken: AcceptedSocket) -> bool:
        """Count an admitted connection; return False if its client has too many."""
        self._strangers.pop(taken, None)
        assert taken.client is not None
        taken.is_counted = self._admission.count(taken.key, taken.client, self.name)
        return taken.is_counted

    def _forget(self, taken: AcceptedSocket) -> None:
        taken.discard()
        self._strangers.pop(taken, None)
        self._accepted.pop(taken, None)
        if taken.is_counted:
            taken.is_counted = False
            self._admission.forget(taken.key)

    async def _attend(self, taken: AcceptedSocket) -> None:
        """Serve one connection, from its beginning to its end."""
        if self._admission.needs_token and not await self._presents_token(taken):
            logger.warning("server %r closed a connection without its token", self.name)
            return
        transport: Transport = taken
        await self._handler(transport)

    async def _presents_token(self, taken: AcceptedSocket) -> bool:
        """Whether the first line is `Authorization: Bearer TOKEN`."""
        line: str | None = None
        with anyio.move_on_after(_TOKEN_WITHIN):
            line = await first_line(current_backend(), taken.socket)
        header, _, value = (line or "").partition(":")
        if header.lower() != "authorization" or not self._admission.accepts(value.strip()):
            return False
        assert taken.client is not None
        taken.client = replace(taken.client, has_token=True)
        return self._count(taken)

    # Ending

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """Stop listening, close every connection, wait until all have ended, and report; from any task.

        Bounded by `deadline` seconds, or its `Grace`. If you are cancelled meanwhile, it is closed all the
        same, and your cancellation is raised after that; the report is then in `server.report`.
        """
        self._stop_listening()
        return await super().close(deadline=deadline, grace=grace, reason=reason)

    def _stop_listening(self) -> None:
        listening, self._listening = self._listening, []
        for each in listening:
            if self._core is not None:
                self._core.backend.stop_waiting_for(each.fileno())
            each.close()
        if listening:
            self._released()

    def _on_settled(self) -> None:
        # The scope may have been stopped from outside, before some tasks took their first step.
        self._stop_listening()
        for taken in list(self._accepted):
            self._forget(taken)

    def __repr__(self) -> str:
        return f"<Server {self.name!r} {self._scope.state}, {self.connections} connections>"
