"""The sockets that a server listens at: made, bound, and removed again."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from typing import Any, Final

import anyio

from quiesce.wire.transports import check_unix, resolve

_LOOK_AGAIN: Final = 0.05  # seconds


async def listen_tcp(host: str | None, port: int, backlog: int) -> list[socket.socket]:
    """Return one socket for each address of the host, all with the same port."""
    where = f"{host or 'every address'}, port {port}"
    try:
        addresses = await resolve(host, port, listen=True)
    except socket.gaierror as error:
        raise OSError(f"cannot listen at {where}: {error.strerror or error}") from error
    listening: list[socket.socket] = []
    errors: list[OSError] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            # With port 0, the first address gets a free one, and the others the same.
            same = listening[0].getsockname()[1] if listening else address[1]
            name = (address[0], same, *address[2:])
            try:
                listening.append(_listen_at(family, kind, protocol, name, backlog))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                errors.append(error)  # this machine does not have that address, but perhaps another
        if not listening:
            raise errors[0] if errors else OSError(errno.EADDRNOTAVAIL, "it has no address")
    except BaseException as error:
        for each in listening:
            each.close()
        if isinstance(error, OSError):
            raise OSError(error.errno, f"cannot listen at {where}: {error.strerror}") from error
        raise
    return listening


def _listen_at(family: int, kind: int, protocol: int, name: Any, backlog: int) -> socket.socket:
    fresh = socket.socket(family, kind, protocol)
    try:
        fresh.setblocking(False)
        if os.name == "posix":
            fresh.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Otherwise the IPv6 socket would take the port of the IPv4 address as well, and that bind would fail.
        if family == socket.AF_INET6:
            fresh.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        fresh.bind(name)
        fresh.listen(backlog)
    except BaseException:
        fresh.close()
        raise
    return fresh


class ListeningPath:
    """A socket in the file system. A path that a dead server has left over is replaced; one in use is not."""

    def __init__(self, path: str, mode: int | None = None) -> None:
        self.path = path
        self._mode = mode
        self._inode: tuple[int, int] | None = None

    async def listen(self, backlog: int) -> socket.socket:
        """Bind it."""
        check_unix()
        try:
            fresh = self._bind(backlog)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise OSError(
                    error.errno, f"cannot listen at {self.path!r}: {error.strerror or error}"
                ) from error
            await self._remove_if_dead()
            fresh = self._bind(backlog)
        self._inode = _inode(self.path)
        return fresh

    def _bind(self, backlog: int) -> socket.socket:
        fresh = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            fresh.setblocking(False)
            fresh.bind(self.path)
            if self._mode is not None:
                os.chmod(self.path, self._mode)  # in time: no client can connect before it listens
            fresh.listen(backlog)
        except BaseException:
            fresh.close()
            raise
        return fresh

    async def _remove_if_dead(self) -> None:
        """Remove the path if no server listens there; raise OSError if one does."""
        # Look twice: a server that is just starting looks dead between `bind` and `listen`.
        first = _inode(self.path)
        for pause in (_LOOK_AGAIN, 0.0):
            self._check_dead()
            await anyio.sleep(pause)
        if _inode(self.path) != first:
            raise OSError(
                errno.EADDRINUSE, f"cannot listen at {self.path!r}: another server has just started there"
            )
        os.unlink(self.path)

    def _check_dead(self) -> None:
        if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
            raise FileExistsError(
                errno.EEXIST, f"cannot listen at {self.path!r}: there is a file that is not a socket"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            status = probe.connect_ex(self.path)
        if status not in (errno.ECONNREFUSED, errno.ENOENT):
            raise OSError(errno.EADDRINUSE, f"cannot listen at {self.path!r}: another server listens there")

    def remove(self) -> None:
        """Remove the path, if it is still ours."""
        # Another server may have replaced the path meanwhile; its inode tells.
        inode, self._inode = self._inode, None
        if inode is not None:
            with contextlib.suppress(OSError):
                if _inode(self.path) == inode:
                    os.unlink(self.path)


def _inode(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino
