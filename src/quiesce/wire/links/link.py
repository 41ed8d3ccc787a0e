"""A link moves frames between a connection and the other side, and buffers what is to be sent.

Invariants
- `send` never waits: it may be called from a clean-up, from a callback, from a handler that is being cancelled. Whoever may wait, waits
  for room afterwards (`wait_for_room`), so that the buffer stays bounded.
- What is sent in one turn of the event loop goes out in one write.
- `abort` is final, at once, and never waits either. After it, and after an error, whatever is sent is dropped, and counted.
- The receiver is told of the end of the link once, and of nothing after that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from quiesce.wire.base import ConnectionEnded, Lines

if TYPE_CHECKING:
    from quiesce.kernel.inner import Backend, Waiter
    from quiesce.wire.base import Framing

CHUNK: Final = 65536  # bytes a read: a larger buffer costs more to make than most reads bring


class Receiver(Protocol):
    """Who is told what comes in: the connection."""

    def frames_came(self, frames: list[bytes | None]) -> None:
        """These were sent, in this order; None is one that was too long."""
        ...

    def link_ended(self, error: BaseException | None) -> None:
        """Nothing more will come, because of that error, or because the other side has ended well."""
        ...


class Link(ABC):
    """One connection to another side, open."""

    def __init__(self, backend: Backend, framing: Framing) -> None:
        self.backend = backend
        self.framing = framing
        self.receiver: Receiver | None = None
        self.pending = 0  # bytes that are not yet with the system
        self.dropped = 0  # bytes that never will be; what was cut off in the middle counts as a whole
        self.on_dropped: Callable[[], object] | None = None  # is told of more of these after `close`
        self.most: float = (
            inf  # more than that unsent, and the link is given up: nobody reads at the other end
        )
        self.most_owed: float = inf  # the same of answers alone, whatever else is unsent: see `owe`
        self._owed = 0
        self.over = False  # nothing is sent any more
        self.at_end = False  # nothing more comes: the last line may have no end because it was cut off
        self._hurried = False
        self._callers: list[Waiter] = []  # those of `_waiters` whose request waits to be sent
        self._out: list[bytes] = []
        self._raw = bytearray()  # packed already
        self._waiters: dict[Waiter, int] = {}  # who waits for room, and how much may be unsent then

    # Reading

    @abstractmethod
    def start(self, receiver: Receiver) -> None:
        """Begin to read."""

    @abstractmethod
    def pause(self) -> None:
        """Read nothing until `resume`."""

    @abstractmethod
    def resume(self) -> None:
        """Go on reading."""

    @abstractmethod
    def stop_reading(self) -> None:
        """Read nothing any more; sending goes on."""

    def hung_up(self) -> bool:
        """While paused: whether the other side is gone, as far as one can see without reading."""
        return False

    def _tell(self, data: bytes) -> None:
        """Hand on what was read."""
        framing, receiver = self.framing, self.receiver
        frames = framing.feed(data)
        if type(framing) is Lines:  # which never says anything itself
            if frames and receiver is not None:
                receiver.frames_came(frames)
            return
        if replies := framing.replies():
            self.send_raw(replies)
        if frames and receiver is not None:
            receiver.frames_came(frames)
        if replies:
            self.owe(len(replies))
        if framing.ended:
            self._end(framing.error)

    def _tell_end(self) -> None:
        """The other side sends nothing more."""
        self.at_end = True
        frames = self.framing.finish()
        if frames and self.receiver is not None:
            self.receiver.frames_came(frames)
        self._end(self.framing.error)

    def _end(self, error: BaseException | None) -> None:
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.link_ended(error)

    # Sending

    def send(self, frame: bytes) -> None:
        """Send this; without waiting."""
        if self.over:
            self.dropped += len(frame) + 1
            return
        self._out.append(frame)
        self.pending += len(frame) + 1
        if len(self._out) == 1:
            self._write_soon()
        if self.pending > self.most:
            self._give_up()

    def send_now(self, frame: bytes) -> None:
        """Send this, which nothing else is likely to follow: where that is quicker, without waiting for the end of the turn."""
        self.send(frame)

    def send_raw(self, data: bytes) -> None:
        """Send what the framing itself says."""
        if not self.over:
            self._settle_frames()
            self._raw += data
            self.pending += len(data)
            self._write_soon()
            if self.pending > self.most:
                self._give_up()

    def owe(self, size: int) -> None:
        """Of what was sent just now, so much is an answer, for which nobody waits: who makes us answer again and again and does not read is given up."""
        self._owed = self._owed + size if self.pending - size > self.most_owed else 0
        if self._owed > self.most_owed:
            self._give_up()

    def _give_up(self) -> None:
        self._lose(ConnectionEnded(f"it does not read: {self.pending} bytes could not be sent"))

    def _settle_frames(self) -> None:
        if self._out:
            frames, self._out = self._out, []
            self._raw += self.framing.pack(frames)

    def _take(self) -> bytes:
        """All that is to be sent, packed."""
        if self._raw:
            self._settle_frames()
            data, self._raw = bytes(self._raw), bytearray()
            return data
        frames, self._out = self._out, []
        return self.framing.pack(frames) if frames else b""

    @abstractmethod
    def _write_soon(self) -> None:
        """There is something to be sent."""

    async def wait_for_room(self, most: int, *, of_call: bool = False) -> None:
        """Wait until no more than `most` bytes are unsent, or nothing is sent any more; a call, until it need not wait any more."""
        while self.pending > most and not self.over and not (of_call and self._hurried):
            waiter = self.backend.make_waiter()
            self._waiters[waiter] = most
            if of_call:
                self._callers.append(waiter)
            try:
                await waiter
            finally:
                self._waiters.pop(waiter, None)
                if of_call and waiter in self._callers:
                    self._callers.remove(waiter)

    def _wrote(self) -> None:
        """Some of it is with the system now, or all is lost: wake those who have room, and nobody in vain."""
        unsent = 0 if self.over else self.pending
        if self._waiters and unsent <= max(self._waiters.values()):
            for waiter, most in list(self._waiters.items()):
                if unsent <= most:
                    del self._waiters[waiter]
                    waiter.wake()

    def _lose(self, error: BaseException | None) -> None:
        """Nothing can be sent any more."""
        self.over = True
        self._out, self._raw = [], bytearray()
        self._drop()
        self._end(error)

    def _drop(self) -> None:
        """What is unsent will not be sent."""
        self.dropped += self.pending
        self.pending = 0
        self._wrote()

    def hurry(self) -> None:
        """No call waits for room any more: it has failed."""
        self._hurried = True
        for waiter in self._callers:
            waiter.wake()

    async def flush(self) -> None:
        """Say farewell, and wait until all is with the system."""
        self._say_farewell()
        await self.wait_for_room(0)

    def _say_farewell(self) -> None:
        self._settle_frames()  # first: a framing that has said farewell packs nothing any more
        if farewell := self.framing.farewell():
            self.send_raw(farewell)

    # Ending

    @abstractmethod
    def abort(self) -> None:
        """Let go of everything, now; what was not sent is lost."""

    async def close(self) -> None:  # noqa: B027 - most have nothing to wait for
        """Wait for the end of what `abort` has let go of. (Most have nothing to wait for.)"""
