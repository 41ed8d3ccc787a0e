"""Links over file descriptors: sockets, pipes, terminals, files.

On asyncio the event loop watches them by callbacks (`selector_link`); on trio two tasks wait for them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import anyio.lowlevel

from quiesce.kernel.inner import AsyncioBackend, current_backend
from quiesce.wire.base import Framing, Lines

from .channel_link import ChannelLink
from .graceful_close import wait_delivered
from .link import CHUNK, Link
from .selector_link import SelectorLink, hung_up
from .transport import Transport

if TYPE_CHECKING:
    from quiesce import Scope
    from quiesce.kernel.inner import Backend
    from quiesce.wire.base import Limits


class DescriptorChannel:
    """A channel over one descriptor to read from and one to write to, which may be the same."""

    def __init__(self, backend: Backend, read_fd: int, write_fd: int, release: Callable[[], object]) -> None:
        self._backend = backend
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._release = release
        self._closed = False

    async def receive(self) -> bytes:
        """Return at least one byte; `b""` at the end."""
        while not self._closed:
            try:
                await self._backend.wait_readable(self._read_fd)
            except PermissionError:  # a plain file, which is always ready
                await anyio.lowlevel.checkpoint()
            data = self.read_now()
            if data is not None:
                return data
        return b""

    def read_now(self) -> bytes | None:
        """Return what can be read without waiting; None if nothing can, `b""` at the end."""
        if self._closed:
            return None
        try:
            return os.read(self._read_fd, CHUNK)
        except (BlockingIOError, InterruptedError):
            return None

    async def send(self, data: bytes) -> None:
        """Send all of it."""
        view = memoryview(data)
        while view:
            self._check_open()
            try:
                view = view[os.write(self._write_fd, view) :]
                continue
            except (BlockingIOError, InterruptedError):
                pass
            await self._backend.wait_writable(self._write_fd)

    def write_now(self, data: bytes) -> int:
        """Send as much as can be without waiting; return how many bytes that was."""
        self._check_open()
        try:
            return os.write(self._write_fd, data)
        except (BlockingIOError, InterruptedError):
            return 0

    def _check_open(self) -> None:
        if self._closed:
            raise BrokenPipeError("the connection was closed on this side")

    def hung_up(self) -> bool:
        """Whether the other side has disconnected."""
        return not self._closed and hung_up(self._read_fd)

    def abort(self) -> None:
        """Close the descriptors."""
        if not self._closed:
            self._closed = True
            for fd in {self._read_fd, self._write_fd}:
                self._backend.stop_waiting_for(fd)
            self._release()

    async def aclose(self) -> None:
        """Do nothing: there is nothing to wait for."""


def descriptor_link(
    read_fd: int, write_fd: int, release: Callable[[], object], framing: Framing, scope: Scope, name: str
) -> Link:
    """Return a link over these descriptors, which must be non-blocking; `release` closes them."""
    backend = current_backend()
    if isinstance(backend, AsyncioBackend):
        return SelectorLink(backend, framing, read_fd, write_fd, release)
    return ChannelLink(DescriptorChannel(backend, read_fd, write_fd, release), framing, scope, name=name)


def socket_link(connected: socket.socket, framing: Framing, scope: Scope, name: str) -> Link:
    """Return a link over a connected, non-blocking socket."""
    fd = connected.fileno()
    link = descriptor_link(fd, fd, connected.close, framing, scope, name)
    link.wait_delivered = partial(wait_delivered, connected, link.read_now)
    return link


class SocketTransport(Transport):
    """A socket that is already connected. It belongs to the peer from now on, which closes it.

    ```python
    one, other = socket.socketpair()
    async with Peer(SocketTransport(one)) as peer: ...
    ```
    """

    def __init__(self, connected: socket.socket, name: str = "socket") -> None:
        if not isinstance(connected, socket.socket):
            raise TypeError(f"SocketTransport takes a socket.socket, not {type(connected).__name__}")
        connected.setblocking(False)
        self._socket = connected
        self.name = name

    async def open(self, limits: Limits, scope: Scope) -> Link:
        """Make the link over it."""
        if self._socket.fileno() < 0:
            raise ValueError(f"the socket of {self.name!r} is closed")
        return socket_link(self._socket, Lines(limits.frame), scope, self.name)

    def discard(self) -> None:
        """Close it."""
        self._socket.close()
