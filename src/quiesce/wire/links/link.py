"""A link moves frames between a connection and the other side, and buffers those to be sent.

Invariants
- `send` never waits, because it is called in clean-up, in callbacks, and in handlers that are being
  cancelled. A caller that may wait does so afterwards (`wait_for_room`), which is what bounds the buffer.
- Frames that are sent in one turn of the event loop go out in one write.
- `abort` is final, immediate, and never waits either. After it, and after an error, frames are dropped, and
  counted.
- The receiver is told once that the link has ended, and nothing after that.

There are two kinds. `ChannelLink` works over any stream, with one task that reads and one that writes.
`SelectorLink` works over file descriptors on asyncio, with callbacks of the event loop and no task: requests
that are made one after the other then cost less than half of the CPU time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from quiesce.wire.base import ConnectionEnded, Lines

if TYPE_CHECKING:
    from quiesce.kernel.inner import Backend, Waiter
    from quiesce.wire.base import Framing

# Bytes per read. Most reads bring less, and then a larger buffer only costs time to allocate.
CHUNK: Final = 65536
#: What a pipe can be made to hold; of a socket, no more is read at once either.
LARGEST: Final = 1 << 20


class Receiver(Protocol):
    """What a link hands its input to: a connection."""

    def frames_came(self, frames: list[bytes | None]) -> None:
        """Take frames that came, in order; None stands for one that was too long."""
        ...

    def link_ended(self, error: BaseException | None) -> None:
        """Take note that nothing more will come: because of this error, or in order."""
        ...


class Link(ABC):
    """An open connection to the other side."""

    #: Waits until what was sent has arrived, where one can know that.
    wait_delivered: Callable[[], Awaitable[None]] | None = None

    def __init__(self, backend: Backend, framing: Framing) -> None:
        self.backend = backend
        self.framing = framing
        self.receiver: Receiver | None = None
        #: Bytes that the system has not taken yet.
        self.pending = 0
        #: Bytes that it never will; a message that was interrupted counts as a whole.
        self.dropped = 0
        #: Called when more are dropped after `close`.
        self.on_dropped: Callable[[], object] | None = None
        #: The link ends if more bytes than that are unsent: the other side does not read.
        self.most: float = inf
        #: The same for replies alone, whatever else is unsent: see `owe`.
        self.most_owed: float = inf
        self._owed = 0
        #: Nothing is sent any more.
        self.over = False
        #: Nothing more comes, so a last line without an end may have been cut off.
        self.at_end = False
        self._frames: list[bytes] = []
        # Frames that are packed already, and replies of the framing. They go out before `_frames`.
        self._packed = bytearray()
        # Those that wait for room, and how many bytes may be unsent then.
        self._waiters: dict[Waiter, int] = {}
        # Those of them that wait to send a call.
        self._callers: list[Waiter] = []
        self._calls_released = False

    # Reading

    @abstractmethod
    def start(self, receiver: Receiver) -> None:
        """Begin to read, for this receiver."""

    @abstractmethod
    def pause(self) -> None:
        """Read nothing until `resume`."""

    @abstractmethod
    def resume(self) -> None:
        """Read again, after `pause`."""

    @abstractmethod
    def stop_reading(self) -> None:
        """Read nothing more; sending continues."""

    def hung_up(self) -> bool:
        """Whether the other side has disconnected, as far as one can see while paused, without reading."""
        return False

    def data_came(self, data: bytes) -> None:
        """Pass on what was read."""
        framing, receiver = self.framing, self.receiver
        frames = framing.feed(data)
        if type(framing) is Lines:  # the usual case, which has neither replies nor an end of its own
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

    def read_now(self) -> bytes | None:
        """Return what can be read without waiting; None if nothing can, `b""` at the end."""
        return None

    def pass_on_remaining_input(self) -> None:
        """Pass on what can be read without waiting: what the other side sent before it ended is not lost."""
        # No more than a pipe can hold: another process may have the same end open, and go on writing.
        for _ in range(0, LARGEST, CHUNK):
            if self.receiver is None:
                return
            try:
                data = self.read_now()
            except OSError:
                return
            if data is None:
                return
            if not data:
                self.data_ended()
                return
            self.data_came(data)

    def data_ended(self) -> None:
        """Pass on that the other side sends nothing more."""
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
        """Send a frame, without waiting."""
        if self.over:
            self.dropped += len(frame) + 1
            return
        self._frames.append(frame)
        self.pending += len(frame) + 1
        if len(self._frames) == 1:
            self._write_soon()
        if self.pending > self.most:
            self._give_up()

    def send_now(self, frame: bytes) -> None:
        """Send a frame that no other is likely to follow: if possible at once, not at the end of the turn."""
        self.send(frame)

    def send_raw(self, data: bytes) -> None:
        """Send bytes of the framing itself, after all frames so far."""
        if not self.over:
            self._pack()
            self._packed += data
            self.pending += len(data)
            self._write_soon()
            if self.pending > self.most:
                self._give_up()

    def owe(self, size: int) -> None:
        """Take note that so many of the bytes sent just now were a reply, which no task waits to send.

        Nothing else limits replies: a peer that sends one ping after the other and reads nothing would fill
        our memory. So the link ends when more than `most_owed` bytes of replies were sent while more than
        that was unsent.
        """
        self._owed = self._owed + size if self.pending - size > self.most_owed else 0
        if self._owed > self.most_owed:
            self._give_up()

    def _give_up(self) -> None:
        self._lose(ConnectionEnded(f"it does not read: {self.pending} bytes could not be sent"))

    def _pack(self) -> None:
        if self._frames:
            frames, self._frames = self._frames, []
            self._packed += self.framing.pack(frames)

    def _take(self) -> bytes:
        """Return all that is to be sent, as bytes."""
        if self._packed:
            self._pack()
            data, self._packed = bytes(self._packed), bytearray()
            return data
        frames, self._frames = self._frames, []
        return self.framing.pack(frames) if frames else b""

    @abstractmethod
    def _write_soon(self) -> None:
        """Send what is unsent, at the end of this turn of the loop or later."""

    async def wait_for_room(self, most: int, *, of_call: bool = False) -> None:
        """Wait until `most` bytes or less are unsent, or nothing is sent; a call until `release_calls`."""
        while self.pending > most and not self.over and not (of_call and self._calls_released):
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
        """Wake those that have room now, after the system took some bytes, or all were dropped."""
        unsent = 0 if self.over else self.pending
        # The others stay asleep. To wake all and let them wait again would cost the square of their number.
        if self._waiters and unsent <= max(self._waiters.values()):
            for waiter, most in list(self._waiters.items()):
                if unsent <= most:
                    del self._waiters[waiter]
                    waiter.wake()

    def _lose(self, error: BaseException | None) -> None:
        """Send nothing any more, and pass on that the link has ended."""
        self.over = True
        self._frames, self._packed = [], bytearray()
        self._drop()
        self._end(error)

    def _drop(self) -> None:
        """Count what is unsent as dropped."""
        self.dropped += self.pending
        self.pending = 0
        self._wrote()

    def release_calls(self) -> None:
        """Let no call wait for room any more, because they have all failed."""
        self._calls_released = True
        for waiter in self._callers:
            waiter.wake()

    async def flush(self) -> None:
        """Send the farewell of the framing; wait until the system has taken all bytes, and delivered them."""
        self._say_farewell()
        await self.wait_for_room(0)
        await self._wait_delivered()

    async def _wait_delivered(self) -> None:
        if self.wait_delivered is not None and not self.over:
            await self.wait_delivered()

    def _say_farewell(self) -> None:
        self._pack()  # first, because a framing packs nothing after its farewell
        if farewell := self.framing.farewell():
            self.send_raw(farewell)

    # Ending

    @abstractmethod
    def abort(self) -> None:
        """Release everything, at once; what is unsent is dropped."""

    async def close(self) -> None:  # noqa: B027 - most have nothing to wait for
        """Wait until what `abort` released has ended."""
