"""Two ends of a connection in one process: for tests, and for an agent and its client in one program."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from quiesce.kernel.inner import WaitQueue
from quiesce.wire.links import ChannelTransport

if TYPE_CHECKING:
    from collections.abc import Callable

CAPACITY: Final = 65536  # bytes, as in a pipe of Linux


class _Pipe:
    """One direction: a bounded queue of bytes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.chunks: deque[bytes] = deque()
        self.size = 0
        self.ended = False  # the writer has closed it
        self.broken = False  # the reader has closed it
        self._changed = WaitQueue()

    async def wait(self, ready: Callable[[], bool]) -> None:
        await self._changed.wait_until(ready)

    def changed(self) -> None:
        self._changed.wake_all()


class _End:
    """A channel that reads from one pipe and writes to the other."""

    def __init__(self, source: _Pipe, sink: _Pipe) -> None:
        self._source = source
        self._sink = sink

    async def receive(self) -> bytes:
        source = self._source
        await source.wait(lambda: bool(source.chunks) or source.ended or source.broken)
        if source.broken or not source.chunks:
            return b""
        data = b"".join(source.chunks)
        source.chunks.clear()
        source.size = 0
        source.changed()
        return data

    async def send(self, data: bytes) -> None:
        sink = self._sink
        view = memoryview(data)
        while view:
            await sink.wait(lambda: sink.size < sink.capacity or sink.ended or sink.broken)
            if sink.broken or sink.ended:
                raise BrokenPipeError("the other end of the memory pair is closed")
            # As much as fits, like a pipe, so that a message may be longer than the buffer.
            piece = view[: sink.capacity - sink.size]
            sink.chunks.append(bytes(piece))
            sink.size += len(piece)
            sink.changed()
            view = view[len(piece) :]

    def hung_up(self) -> bool:
        return self._source.ended

    def abort(self) -> None:
        self._sink.ended = self._source.broken = True
        self._source.chunks.clear()
        self._sink.changed()
        self._source.changed()

    async def aclose(self) -> None:
        pass


class MemoryTransport(ChannelTransport):
    """One end of a `memory_pair()`."""


def memory_pair(*, capacity: int = CAPACITY) -> tuple[MemoryTransport, MemoryTransport]:
    """Return two transports that are connected to each other, each with a buffer of `capacity` bytes.

    ```python
    one, other = memory_pair()
    async with Peer(one, {"ping": ping}), Peer(other) as peer:
        await peer.request("ping")
    ```
    """
    if capacity < 1:
        raise ValueError(f"capacity must be at least one byte, not {capacity!r}")
    there, back = _Pipe(capacity), _Pipe(capacity)
    return MemoryTransport(_End(back, there), "one end"), MemoryTransport(_End(there, back), "other end")
