"""Connecting to a server: TCP, and sockets in the file system.

The peer connects when it is opened, in its own task, and can be cancelled at any moment without leaving
anything over. Every address of a host is tried. The next attempt begins when the previous one has failed, or
has not succeeded for a moment, and the first that succeeds wins ("happy eyeballs", RFC 8305, without sorting
the addresses).
"""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio

from quiesce import to_thread
from quiesce.kernel.inner import current_backend
from quiesce.wire.base import Lines
from quiesce.wire.links import Transport, socket_link

if TYPE_CHECKING:
    from quiesce import Scope
    from quiesce.wire.base import Limits
    from quiesce.wire.links import Link

# What getaddrinfo returns. Any: an address is a str or a tuple, depending on the family.
Address: TypeAlias = "tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]"

_NEXT: Final = 0.25  # seconds until the next address is tried as well
_AGAIN: Final = 0.01


class TcpTransport(Transport):
    """The way to a server on TCP: what `connect_tcp` returns."""

    def __init__(self, host: str, port: int, token: str | None = None) -> None:
        self.host, self.port = check_host(host), check_port(port, least=1)
        self.name = f"{host}:{port}"
        self._token = token

    async def open(self, limits: Limits, scope: Scope) -> Link:
        """Connect."""
        connected = await tcp_connection(self.host, self.port)
        if self._token is not None:
            try:
                # There is room for it: nothing was sent before.
                connected.send(f"Authorization: Bearer {self._token}\n".encode())
            except BaseException:
                connected.close()
                raise
        return socket_link(connected, Lines(limits.frame), scope, self.name)


class UnixTransport(Transport):
    """The way to a server on a socket in the file system: what `connect_unix` returns."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.name = self.path

    async def open(self, limits: Limits, scope: Scope) -> Link:
        """Connect."""
        check_unix()
        connected = await _connection(
            [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", self.path)], f"to {self.path!r}"
        )
        return socket_link(connected, Lines(limits.frame), scope, self.name)


def connect_tcp(host: str, port: int, *, token: str | None = None) -> TcpTransport:
    """Return a transport to the server at `host` and `port`, with one message per line.

    ```python
    async with Peer(connect_tcp("localhost", 7000)) as peer:
        await peer.request("ping")
    ```

    It connects when the peer is opened, and tries every address of the host. If none works, that raises a
    `ConnectionError` with the error of each. `token` is sent first, for a server that needs one.
    """
    return TcpTransport(host, port, token)


def connect_unix(path: str | os.PathLike[str]) -> UnixTransport:
    """Return a transport to the server at a socket in the file system, with one message per line.

    ```python
    async with Peer(connect_unix("/run/agent.sock")) as peer: ...
    ```
    """
    return UnixTransport(path)


async def tcp_connection(host: str, port: int) -> socket.socket:
    """Return a socket that is connected to `host`."""
    where = f"to {host}:{port}"
    try:
        addresses = await resolve(host, port)
    except socket.gaierror as error:
        raise ConnectionError(f"cannot connect {where}: {error.strerror or error}") from error
    connected = await _connection(addresses, where)
    prepare_tcp(connected)
    return connected


def prepare_tcp(connected: socket.socket) -> None:
    """Set the options of a TCP socket for messages."""
    # Messages are small, and the other side waits for them: send each at once. And notice, some day, a peer
    # that has disappeared without closing the connection.
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except OSError:  # it has disconnected already, as the first read will tell
        pass


async def resolve(host: str | None, port: int, *, listen: bool = False) -> list[Address]:
    """Return the addresses of a host; looked up in a thread, unless it is an address itself."""
    flags = socket.AI_PASSIVE if listen else 0

    def look_up(more: int = 0) -> list[Address]:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags | more)  # type: ignore[return-value]

    # An address needs no lookup, which may block, so it needs no thread either.
    try:
        return look_up(socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await to_thread(look_up, name=f"look up {host}")


async def _connection(addresses: list[Address], where: str) -> socket.socket:
    won: list[socket.socket] = []
    errors: list[OSError] = []

    async def attempt(address: Address, failed: anyio.Event) -> None:
        family, kind, protocol, _, name = address
        try:
            fresh = socket.socket(family, kind, protocol)
        except OSError as error:
            errors.append(error)
            failed.set()
            return
        try:
            fresh.setblocking(False)
            await _connect(fresh, name)
        except OSError as error:
            fresh.close()
            errors.append(type(error)(error.errno, f"{error.strerror} at {_shown(name)}"))
            failed.set()
        except BaseException:
            fresh.close()
            raise
        else:
            won.append(fresh)
            # The other attempts are cancelled, but one of them may have succeeded in this same turn of the
            # loop.
            group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            for address in addresses:
                failed = anyio.Event()
                group.start_soon(attempt, address, failed)
                with anyio.move_on_after(_NEXT):
                    await failed.wait()
    except BaseException:
        for connected in won:
            connected.close()
        raise
    for late in won[1:]:
        late.close()
    if won:
        return won[0]
    # If all attempts failed in the same way, raise that error, such as ConnectionRefusedError.
    kinds = {type(error) for error in errors}
    raised = kinds.pop() if len(kinds) == 1 else ConnectionError
    if not issubclass(raised, ConnectionError):
        raised = ConnectionError
    tried = "; ".join(str(error.strerror or error) for error in errors)
    raise raised(f"cannot connect {where}: {tried}") from (errors[0] if errors else None)


async def _connect(fresh: socket.socket, name: Any) -> None:
    status = fresh.connect_ex(name)
    # The queue of a socket in the file system is full, and the system does not tell when it has room again.
    while status == errno.EAGAIN:
        await anyio.sleep(_AGAIN)
        status = fresh.connect_ex(name)
    if status == errno.EINPROGRESS:
        await current_backend().wait_writable(fresh.fileno())
        status = fresh.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if status:
        raise OSError(status, os.strerror(status))


def _shown(name: object) -> str:
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else repr(name)


def check_host(host: object) -> str:
    """Return a host; raise TypeError if it is not a name or an address."""
    if not isinstance(host, str) or not host:
        raise TypeError(f"host must be a name or an address, not {host!r}")
    return host


def check_port(port: object, *, least: int) -> int:
    """Return a port; raise ValueError if there is no such port."""
    if isinstance(port, bool) or not isinstance(port, int) or not least <= port <= 65535:
        raise ValueError(f"port must be a number from {least} to 65535, not {port!r}")
    return port


def check_unix() -> None:
    """Raise NotImplementedError where the system has no sockets in the file system."""
    if not hasattr(socket, "AF_UNIX"):
        raise NotImplementedError("this system has no sockets in the file system; use TCP on the loopback")
