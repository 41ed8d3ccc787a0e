"""The way out of a connection: all its parts send by it, and learn from it when nothing more can be sent.

Invariants
- `send` never waits, so that a handler that is being cancelled can still answer. Callers that may wait do so
  afterwards (`wait_for_room`), which is what bounds the buffer.
- What is sent before the link is open is kept, and goes out first when it is.
- `closing` is set before the peer's requests are stopped, `over` after the last answer: in between, answers
  go out, but no call of ours is made any more, because its answer would not be read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from quiesce._safe.printed import logger
from quiesce.kernel.inner import WaitQueue
from quiesce.wire.base import ConnectionEnded, Limits

from .message import Writer

if TYPE_CHECKING:
    from quiesce import Reason
    from quiesce.kernel.inner import Backend, ScopeCore
    from quiesce.wire.links import Link

    from .message import Id

Tap = Callable[[Literal["in", "out"], bytes], object]


class Sender:
    """Sends the messages of one connection."""

    backend: Backend
    core: ScopeCore

    def __init__(self, name: str, limits: Limits, tap: Tap | None) -> None:
        self.name = name
        self.limits = limits
        self.writer = Writer(limits.frame)
        self.tap = tap
        self.link: Link | None = None
        #: Nothing more is read, so no call can be made.
        self.closing = False
        #: Why the peer will send nothing more; None while it may.
        self.ended: Reason | None = None
        #: Nothing is sent any more.
        self.over = False
        self._early: list[bytes] = []
        self._opening = WaitQueue()
        self._note = ""

    # Opening and closing

    def bind(self, core: ScopeCore) -> None:
        """Belong to this scope, whose report will say how much could not be sent."""
        self.core = core
        self.backend = core.backend

    def open(self, link: Link) -> None:
        """Send over this link from now on, first of all what was sent before."""
        link.most = self.limits.unsent + self.limits.backlog
        link.on_dropped = self.note_dropped
        self.link = link
        early, self._early = self._early, []
        for frame in early:
            link.send(frame)
        self._opening.wake_all()

    def give_up(self) -> None:
        """Drop what was sent, because the link will never be opened."""
        self.over = self.closing = True
        self.note_dropped()
        self._early = []
        self._opening.wake_all()

    def note_dropped(self) -> None:
        """Say in the report how many bytes were never sent, if any."""
        size = self.link.dropped if self.link is not None else sum(len(frame) + 1 for frame in self._early)
        if size:
            before, self._note = self._note, f"{size} bytes were dropped unsent"
            self.core.add_notes([self._note], instead_of=[before])

    # Sending

    def send(self, frame: bytes, alone: bool = False) -> bool:
        """Send a message without waiting; `alone` if no other is likely to follow in this turn of the loop.

        Return whether more is unsent than should be; a caller that may wait then waits for room.
        """
        if self.tap is not None:
            self.show("out", frame)
        link = self.link
        if link is None:
            if not self.over:
                self._early.append(frame)
            return sum(map(len, self._early)) > self.limits.unsent
        if alone:
            link.send_now(frame)
        else:
            link.send(frame)
        return link.pending > self.limits.unsent

    def send_notification(self, method: str, params: Any) -> None:
        """Send a notification without waiting, as a clean-up has to."""
        self.send(self.writer.notification(method, params))

    def send_error(self, id: Id, code: int, message: str, data: Any = None) -> bool:  # noqa: A002
        """Answer a request with an error, without waiting; return as `send` does."""
        return self.send(self.writer.error(id, code, message, data))

    async def notify(self, method: str, params: Any) -> None:
        """Send a notification, and wait while the peer does not read; `ConnectionEnded` if it is too late."""
        self._check_open(method)
        if self.send(self.writer.notification(method, params)):
            await self.wait_for_room()
            self._check_open(method)

    def refuse(self, id: Id, code: int, message: str) -> None:  # noqa: A002
        """Answer a message that is not handled."""
        # Nobody waits for an answer without an id. A peer that sends nonsense and reads nothing would only
        # fill our buffer with them.
        if id is not None or not self.is_congested():
            self.send_error(id, code, message)

    def show(self, way: Literal["in", "out"], frame: bytes) -> None:
        """Show a message to the tap, whose errors are only logged."""
        assert self.tap is not None
        try:
            self.tap(way, frame)
        except Exception:
            logger.exception("%s: the tap failed", self.name)

    # Whether it can be sent

    def _check_open(self, method: str) -> None:
        if self.over or (self.link is not None and self.link.over):
            raise self.refusal(method)

    def refusal(self, method: str) -> ConnectionEnded:
        """Return the error for a message that comes too late."""
        why = self.ended or self.core.reason
        return ConnectionEnded(
            f"{method!r} cannot be sent: {self.name} is closed{f' ({why})' if why else ''}"
        )

    def is_congested(self) -> bool:
        """Whether more is unsent than should be."""
        return self.link is not None and self.link.pending > self.limits.unsent

    async def wait_for_room(self, *, of_call: bool = False) -> None:
        """Wait until less is unsent, or nothing can be sent; a call only as long as it can be answered."""
        await self._opening.wait_until(lambda: self.link is not None or self.over)
        if self.link is not None:
            await self.link.wait_for_room(self.limits.unsent, of_call=of_call)
