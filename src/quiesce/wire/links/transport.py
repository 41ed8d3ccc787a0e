"""What a peer can be connected by, before it is."""

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
    """A way to the other side. It is opened once, by the peer that uses it, and closed with it."""

    name: str = "peer"
    client: Client | None = None  # who is on the other side, if a server has taken the connection

    @abstractmethod
    async def open(self, limits: Limits, scope: Scope) -> Link:
        """Connect; what that takes (tasks, processes) belongs to `scope`. Opened means closed: by the link."""

    def discard(self) -> None:  # noqa: B027  # most are given nothing
        """Let go of what was given: its peer has ended before this was open, or this could not be opened. May be called twice."""


class ChannelTransport(Transport):
    """Anybody's stream of bytes: an object with `receive`, `send`, `abort` and `aclose`, as `Channel` says."""

    def __init__(self, channel: Channel, name: str = "peer") -> None:
        self._channel = channel
        self.name = name

    async def open(self, limits: Limits, scope: Scope) -> Link:
        """Begin to use it."""
        return ChannelLink(self._channel, Lines(limits.frame), scope, name=self.name)

    def discard(self) -> None:
        """Let go of it."""
        self._channel.abort()


def as_transport(given: object) -> Transport:
    """What was given as a transport, or an error that says what can be."""
    if isinstance(given, Transport):
        return given
    if all(callable(getattr(given, verb, None)) for verb in ("receive", "send", "abort", "aclose")):
        return ChannelTransport(given)  # type: ignore[arg-type]
    raise TypeError(
        f"a peer is connected by a Transport (such as stdio(), ChildProcess(...), a connected socket or one end of memory_pair()), "
        f"or by an object with receive, send, abort and aclose; {type(given).__name__} is neither"
    )
