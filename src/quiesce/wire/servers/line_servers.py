"""Servers with one message per line, on TCP and in the file system. The common part is in `server`."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any, Final

from quiesce.wire.links import PER_PEER, Admission, check_exposure
from quiesce.wire.transports import check_port

from .listener import ListeningPath, listen_tcp
from .server import ConnectionHandler, Server

if TYPE_CHECKING:
    from quiesce import Grace, Scope

BACKLOG: Final = 512


class TcpServer(Server):
    """A server on TCP."""

    def __init__(
        self,
        handler: ConnectionHandler,
        host: str | None,
        port: int,
        backlog: int,
        anyone: bool,
        **options: Any,
    ) -> None:
        super().__init__(handler, **options)
        self._where = (host, check_port(port, least=0), backlog)
        self._anyone = anyone

    @property
    def _is_encrypted(self) -> bool:
        return False

    async def _listen(self) -> list[socket.socket]:
        listening = await listen_tcp(*self._where)
        try:
            check_exposure(
                self.name,
                [each.getsockname() for each in listening],
                is_protected=self._is_encrypted and self._admission.needs_token,
                anyone=self._anyone,
            )
        except BaseException:
            for each in listening:
                each.close()
            raise
        return listening


class UnixServer(Server):
    """A server on a socket in the file system."""

    def __init__(
        self, handler: ConnectionHandler, path: str, backlog: int, owner_only: bool, **options: Any
    ) -> None:
        super().__init__(handler, **options)
        self._path = ListeningPath(path, mode=0o600 if owner_only else None)
        self._backlog = backlog

    async def _listen(self) -> list[socket.socket]:
        return [await self._path.listen(self._backlog)]

    def _released(self) -> None:
        self._path.remove()


def serve_tcp(
    handler: ConnectionHandler,
    host: str | None = "localhost",
    port: int = 0,
    *,
    token: str | None = None,
    per_peer: int = PER_PEER,
    anyone: bool = False,
    backlog: int = BACKLOG,
    name: str | None = None,
    grace: Grace | None = None,
    scope: Scope | None = None,
) -> TcpServer:
    """Return a server on TCP, with one message per line; `handler(transport)` runs in a task per connection.

    ```python
    async def handle(transport):
        async with Peer(transport, {"ping": ping}) as peer:
            await peer.wait_closed()

    async with serve_tcp(handle, "localhost", 7000) as server:
        print(server.addresses)
    ```

    `host` None means every address of this machine, `port` 0 any that is free: see `server.port`.

    - `token`: what a client has to present before the handler is called, as `connect_tcp(token=...)` does, in
      its first line: `Authorization: Bearer TOKEN`. Every user of this machine can connect to a port on
      loopback, so an agent needs one. `transport.client` says who has presented it.
    - `per_peer`: how many connections one address may have at a time.
    - `anyone`: let anybody connect from other machines. Without it, a server that others can reach is refused
      with a `PermissionError`, because there is no TLS here.
    """
    return TcpServer(
        handler,
        host,
        port,
        backlog,
        anyone,
        name=name or f"{host or '*'}:{port}",
        grace=grace,
        scope=scope,
        admission=Admission(token=token, per_peer=per_peer),
    )


def serve_unix(
    handler: ConnectionHandler,
    path: str | os.PathLike[str],
    *,
    owner_only: bool = True,
    token: str | None = None,
    per_peer: int = PER_PEER,
    backlog: int = BACKLOG,
    name: str | None = None,
    grace: Grace | None = None,
    scope: Scope | None = None,
) -> UnixServer:
    """Return a server on a socket in the file system; otherwise like `serve_tcp`.

    ```python
    async with serve_unix(handle, "/run/agent.sock"): ...
    ```

    The path is removed at the end. A path that a dead server has left over is replaced; one where another
    server listens is an error.

    `owner_only`: only processes of the same user (and of root) may connect. The socket has mode 0600, and the
    system is asked who is on the other side.
    """
    path = os.fspath(path)
    return UnixServer(
        handler,
        path,
        backlog,
        owner_only,
        name=name or path,
        grace=grace,
        scope=scope,
        admission=Admission(token=token, owner_only=owner_only, per_peer=per_peer),
    )
