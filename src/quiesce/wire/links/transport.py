"""Transports: what a peer is connected by, before it is connected."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from quiesce.wire.base import Lines

from .channel_link import Channel, ChannelLink

if TYPE_CHECKING:
    from quiesce import Scope
    from quiesce.wire.base import Limits

    from .admission import Client
    from .link import Link


class Transport(ABC):
    """A way to the other side. It is opened once, by the peer that uses it, and closed with that."""

    name: str = "peer"
    #: Who is on the other side, if a server accepted the connection.
    client: Client | None = None

    @abstractmethod
    async def open(self, limits: Limits, scope: Scope) -> Link:
        """Connect. What that starts (tasks, processes) belongs to `scope`; the link closes it."""

    def discard(self) -> None:  # noqa: B027  # most have nothing to release
        """Release what the transport was made with, because it will not be opened. May be called twice."""


class ChannelTransport(Transport):
    """A stream of your own: an object with `receive`, `send`, `abort` and `aclose`, as in `Channel`."""

    def __init__(self, channel: Channel, name: str = "peer") -> None:
        self._channel = channel
        self.name = name

    async def open(self, limits: Limits, scope: Scope) -> Link:
        """Make the link over it."""
        return ChannelLink(self._channel, Lines(limits.frame), scope, name=self.name)

    def discard(self) -> None:
        """Abort it."""
        self._channel.abort()


def as_transport(given: object) -> Transport:
    """Return what was given, as a transport; raise TypeError if it cannot be one."""
    if isinstance(given, Transport):
        return given
    if all(callable(getattr(given, verb, None)) for verb in ("receive", "send", "abort", "aclose")):
        return ChannelTransport(given)  # type: ignore[arg-type]
    raise TypeError(
        "a peer is connected by a Transport (such as stdio(), ChildProcess(...), a connected socket or one end of "
        f"memory_pair()), or by an object with receive, send, abort and aclose; {type(given).__name__} is neither"
    )
