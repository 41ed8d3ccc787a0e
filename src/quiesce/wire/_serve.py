"""Servers of lines, on TCP and in the file system. What all servers have in common is in `_server`."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any, Final

from ._connect import check_port
from ._listener import ListeningPath, listen_tcp
from ._server import ConnectionHandler, Server

if TYPE_CHECKING:
    from quiesce.kernel._grace import Grace
    from quiesce.kernel._scope import Scope

BACKLOG: Final = 512


class TcpServer(Server):
    """A server on TCP."""

    def __init__(
        self, handler: ConnectionHandler, host: str | None, port: int, backlog: int, **options: Any
    ) -> None:
        super().__init__(handler, **options)
        self._where = (host, check_port(port, least=0), backlog)

    async def _listen(self) -> list[socket.socket]:
        return await listen_tcp(*self._where)


class UnixServer(Server):
    """A server on a socket in the file system."""

    def __init__(self, handler: ConnectionHandler, path: str, backlog: int, **options: Any) -> None:
        super().__init__(handler, **options)
        self._path = ListeningPath(path)
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
    backlog: int = BACKLOG,
    name: str | None = None,
    grace: Grace | None = None,
    scope: Scope | None = None,
) -> TcpServer:
    """A server on TCP, one message a line; `handler(transport)` is called for each connection, in a task of its own.

    ```python
    async def handle(transport):
        async with Peer(transport, {"ping": ping}) as peer:
            await peer.wait_closed()

    async with serve_tcp(handle, "localhost", 7000) as server:
        print(server.addresses)
    ```

    `host` None is every address of this machine, `port` 0 any that is free: see `server.port`.
    """
    return TcpServer(
        handler, host, port, backlog, name=name or f"{host or '*'}:{port}", grace=grace, scope=scope
    )


def serve_unix(
    handler: ConnectionHandler,
    path: str | os.PathLike[str],
    *,
    backlog: int = BACKLOG,
    name: str | None = None,
    grace: Grace | None = None,
    scope: Scope | None = None,
) -> UnixServer:
    """A server on a socket in the file system; otherwise as `serve_tcp`.

    ```python
    async with serve_unix(handle, "/run/agent.sock"): ...
    ```

    The path is removed at the end. One that a dead server has left is replaced; if somebody listens there, that is an error.
    """
    path = os.fspath(path)
    return UnixServer(handler, path, backlog, name=name or path, grace=grace, scope=scope)
