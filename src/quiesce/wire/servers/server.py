"""Servers: a listener, and a child task for each connection.

Invariants
- Every connection belongs to the server's scope, with all that its handler opens for it. Closing stops listening first, then stops them all together
  and waits for them; the report says how each of them ended.
- One connection is nobody else's business: an error of its handler is logged, and the others live on.
- A socket is closed by whoever has it: the peer that was opened on it, else the server.
- Who may connect, and how often, is decided before the handler is called (`admission`).
- A machine that is out of descriptors is said so once; the server goes on when there are some again.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import anyio

from quiesce import Reason, ScopeClosed
from quiesce._safe.printed import logger
from quiesce.kernel.inner import (
    OpenScope,
    check_grace,
    current_backend,
    current_core,
    reason_of_block,
    users_site,
    when_ended,
)
from quiesce.wire.base import ConnectionEnded
from quiesce.wire.links import STRANGERS, Admission, PeerKey, SocketTransport, first_line
from quiesce.wire.transports import prepare_tcp

if TYPE_CHECKING:
    from quiesce import Grace, Handle, Scope, StopReport
    from quiesce.wire.base import Limits
    from quiesce.wire.links import Link, Transport


ConnectionHandler: TypeAlias = (
    "Callable[[Any], Awaitable[object]]"  # Any: the transport of that kind of server
)

_AT_A_TIME: Final = 64  # connections taken before others get their turn
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LOOK_AGAIN: Final = 0.1  # seconds, while there are none
_SHOWN_WITHIN: Final = 10.0  # seconds in which a client must have shown its token


class AcceptedSocket(SocketTransport):
    """A connection that a server has taken; a peer that is opened on it has it from then on."""

    _opened = False
    key: PeerKey = ""
    is_counted = False

    async def open(self, limits: Limits, scope: Scope) -> Link:
        """Begin to use it."""
        self.hand_over()
        return await super().open(limits, scope)

    @property
    def socket(self) -> socket.socket:
        """The connection itself."""
        return self._socket

    def hand_over(self) -> None:
        """Somebody else closes it from now on."""
        self._opened = True

    def discard(self) -> None:
        """Close it, unless it was opened."""
        if not self._opened:
            super().discard()


class Server:
    """A listener whose connections are handled by an async function: what `serve_tcp`, `serve_unix` and `serve_websocket` return.

    ```python
    async def handle(transport):
        async with Peer(transport, {"ping": ping}) as peer:
            await peer.wait_closed()

    async with serve_tcp(handle, "localhost", 7000) as server:
        ...
    ```

    Or `server = await serve_tcp(...).open()` … `report = await server.close()`, from any task.

    A connection is closed when its handler returns, unless a peer was opened on it that somebody still holds: that lives until it is closed, or the server is.
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
        self._site = users_site()
        self._listening: list[socket.socket] = []
        self._addresses: list[Any] = []
        self._unhandled: dict[AcceptedSocket, None] = {}  # taken, and not handled to the end
        self._strangers: dict[AcceptedSocket, Handle] = {}  # who has to show the token, the oldest first
        self._complained = False

    async def _listen(self) -> list[socket.socket]:
        raise NotImplementedError  # abstract: each kind of server has its own sockets

    def _released(self) -> None:
        """The sockets are closed."""

    # Opening

    async def open(self) -> Self:
        """Begin to listen; whoever holds the server closes it, from any task."""
        self._scope._check_unused()
        backend = current_backend()
        parent = self._owner._opened() if self._owner is not None else current_core(backend)
        if parent.closed:
            raise parent.refusal(f"open server {self.name!r} in")
        self._listening = await self._listen()
        try:
            core = self._scope._bind(backend, parent, self._site)
        except BaseException:
            self._stop_listening()
            raise
        core.on_settled = self._let_go
        self._addresses = [each.getsockname() for each in self._listening]
        for each in self._listening:
            when_ended(self._scope.spawn(self._accept, each, name="accepts"), self._stop_listening)
        return self

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close(reason=reason_of_block(self._scope._opened(), error))

    # Looking

    @property
    def addresses(self) -> list[Any]:
        """Where it listens, as `socket.getsockname` says it; empty before it is open."""
        return list(self._addresses)

    @property
    def port(self) -> int:
        """The port it listens at, also if any would do (0)."""
        if not self._addresses or not isinstance(self._addresses[0], tuple):
            raise RuntimeError(f"server {self.name!r} has no port: it is not open, or does not listen on TCP")
        port: int = self._addresses[0][1]
        return port

    @property
    def connections(self) -> int:
        """How many connections are being handled."""
        return len(self._unhandled)

    @property
    def report(self) -> StopReport | None:
        """What the last `close()` or the end of the block reported; None before."""
        return self._scope.report

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
                continue  # the other side was quicker to go than we to accept
            self._complained = False
            self._take(accepted)

    async def _out_of_descriptors(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            logger.error(
                "server %r can take no connections for now: %s (%d are open)",
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
        if not self._admission.needs_token and not self._count(taken):
            taken.discard()
            return
        self._unhandled[taken] = None
        try:
            handled = self._scope.spawn(self._handle, taken, name="connection")
        except ScopeClosed:  # by one that came just before
            self._forget(taken)
        else:
            if not taken.is_counted:
                self._take_stranger(taken, handled)
            when_ended(handled, lambda: self._forget(taken))  # also if it is cancelled before its first step

    async def _handle(self, taken: AcceptedSocket) -> None:
        try:
            await self._attend(taken)
        except ConnectionEnded as error:  # that is how connections end
            logger.debug("a connection of %r has ended: %s", self.name, error)

    def _take_stranger(self, taken: AcceptedSocket, handled: Handle) -> None:
        """One who has to show the token. Strangers cannot keep the owner out by their number: each new one takes the place of the oldest."""
        self._strangers[taken] = handled
        if len(self._strangers) > STRANGERS:
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest).cancel("others want to show their token, too")

    def _count(self, taken: AcceptedSocket) -> bool:
        """It may stay; False if its peer has too many already."""
        self._strangers.pop(taken, None)
        assert taken.client is not None
        taken.is_counted = self._admission.count(taken.key, taken.client, self.name)
        return taken.is_counted

    def _forget(self, taken: AcceptedSocket) -> None:
        taken.discard()
        self._strangers.pop(taken, None)
        self._unhandled.pop(taken, None)
        if taken.is_counted:
            taken.is_counted = False
            self._admission.forget(taken.key)

    async def _attend(self, taken: AcceptedSocket) -> None:
        """One connection, from its beginning to its end."""
        if self._admission.needs_token and not await self._has_shown_token(taken):
            logger.warning("server %r closed a connection that did not show its token", self.name)
            return
        transport: Transport = taken
        await self._handler(transport)

    async def _has_shown_token(self, taken: AcceptedSocket) -> bool:
        """As its first line, `Authorization: Bearer TOKEN`."""
        line: str | None = None
        with anyio.move_on_after(_SHOWN_WITHIN):
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

        Bounded by `deadline` seconds, or its `Grace`. If you are cancelled meanwhile, it goes on and your cancellation is raised after it; the
        report is then in `server.report`.
        """
        self._scope._opened()
        self._stop_listening()
        return await self._scope.close(deadline=deadline, grace=grace, reason=reason)

    def cancel(self, reason: Reason | str | None = None) -> None:
        """Begin to close; from any thread, without waiting."""
        self._scope.cancel(reason)

    def _stop_listening(self) -> None:
        listening, self._listening = self._listening, []
        for each in listening:
            if self._scope._core is not None:
                self._scope._core.backend.stop_waiting_for(each.fileno())
            each.close()
        if listening:
            self._released()

    def _let_go(self) -> None:
        """The scope has ended, whoever has ended it: of what never got its turn, nothing is left."""
        self._stop_listening()
        for taken in list(self._unhandled):
            self._forget(taken)

    def __repr__(self) -> str:
        return f"<Server {self.name!r} {self._scope.state}, {self.connections} connections>"
