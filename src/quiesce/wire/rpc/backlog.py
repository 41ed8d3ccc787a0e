"""How much of what the peer has sent waits to be handled, and whether more is read.

While too much waits, nothing is read, and in the end the peer cannot send. There is one exception: a handler
of ours that waits for an answer of the peer (a nested call). What stands before that answer has to be read,
or the handler, and with it the whole connection, would wait for ever. Then requests are refused instead (see
`requests`), and a peer that has sent more than `Limits.backlog` bytes is disconnected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from quiesce.wire.base import ConnectionEnded, Limits

if TYPE_CHECKING:
    from quiesce.kernel.inner import Timer
    from quiesce.wire.links import Link

_LOOK_AGAIN: Final = 1.0  # seconds


class Backlog:
    """Counts what waits; pauses and resumes the link."""

    def __init__(self, limits: Limits, disconnect: Callable[[BaseException], object]) -> None:
        self._limits = limits
        self._disconnect = disconnect
        self._link: Link | None = None
        self._timer: Timer | None = None
        self._has_hung_up = False
        #: Notifications that wait to be handled, and requests that wait for their turn.
        self.notifications = 0
        self.requests = 0
        #: The bytes of all those.
        self.bytes = 0
        #: Calls of ours that handlers wait for.
        self.nested = 0
        #: Whether nothing is read for now.
        self.paused = False

    def open(self, link: Link) -> None:
        """Pause and resume this link from now on."""
        self._link = link

    def stop(self) -> None:
        """Leave the link alone: nothing more will be read from it."""
        self._link = None
        if self._timer is not None:
            self._timer.cancel()

    def is_full(self) -> bool:
        """Whether as much waits as may."""
        limits = self._limits
        return (
            self.notifications >= limits.waiting
            or self.requests >= limits.waiting
            or self.bytes > limits.backlog
        )

    def adjust(self) -> None:
        """Pause or resume reading, after one of the counts has changed."""
        link, limits = self._link, self._limits
        if link is None:
            return
        is_full = self.is_full()
        if is_full and self.nested and self.bytes > limits.backlog:
            link.stop_reading()
            self._disconnect(ConnectionEnded(f"more than {limits.backlog} bytes wait to be handled"))
        elif is_full and not self.nested and not self._has_hung_up:
            if not self.paused:
                self.paused = True
                link.pause()
                self._look_later(link)
        elif self.paused:
            self.paused = False
            link.resume()

    # Nothing is read while it is paused, so the end of the stream is not seen either: look for it now and
    # then.

    def _look_later(self, link: Link) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = link.backend.call_at(link.backend.now() + _LOOK_AGAIN, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._link is None or not self.paused:
            return
        if self._link.hung_up():
            # Read on, over the limit: what the peer sent before it disconnected is bounded by what the system
            # buffers.
            self._has_hung_up = True
            self.adjust()
        else:
            self._look_later(self._link)
