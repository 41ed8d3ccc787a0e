"""A channel over a stream that can only be closed by `await`.

`Channel.abort` must close at once, and may be called where nothing can wait. The `aclose()` of a stream that
is not ours has to be awaited. So a task of the connection's scope stands by from the beginning: on `abort` it
closes the stream in order, or by force if a task is stuck in it; if it is cancelled, by force.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from quiesce import Scope, ScopeClosed
from quiesce._safe.printed import logger
from quiesce.kernel.inner import root_scope, when_ended
from quiesce.wire.base import ConnectionEnded

if TYPE_CHECKING:
    from quiesce import Handle


class ClosingChannel(ABC):
    """A channel whose stream is closed by a task of its own."""

    _scope: Scope
    _closer: Handle

    def __init__(self) -> None:
        #: Whether a message is being sent, or was interrupted.
        self.stuck = False
        #: Called with the number of bytes that were unsent when the stream was closed by force.
        self.on_dropped: Callable[[int], object] | None = None

    @abstractmethod
    async def receive(self) -> bytes:
        """Return at least one byte; `b""` at the end."""

    @abstractmethod
    async def _send(self, data: bytes) -> None:
        """Send all of it."""

    @abstractmethod
    async def _close(self) -> None:
        """Close the stream in order."""

    @abstractmethod
    async def _close_forcefully(self) -> None:
        """Close the stream at once; also in a task that is being cancelled."""

    async def stand_by(self, scope: Scope, name: str) -> None:
        """Start the task that closes it, whatever happens from now on."""
        self._aborted = anyio.Event()
        ready = anyio.Event()
        try:
            self._scope = await Scope.open(f"closes {name}", on_error="report", scope=scope)
            self._closer = self._scope.spawn(self._hold, ready, name=f"closes {name}")
            # A task that is cancelled before its first step never runs its `finally`. So wait until it is
            # past that step, or has ended.
            when_ended(self._closer, ready.set)
            await ready.wait()
            if self._closer.done:
                raise ConnectionEnded("the task that closes was cancelled")
        except BaseException:
            await self._close_forcefully()
            raise

    async def _hold(self, ready: anyio.Event) -> None:
        ready.set()
        closed = False
        try:
            await self._aborted.wait()
            if not self.stuck:
                await self._close()
                closed = True
        except Exception as error:
            logger.debug("%s ended with %r", self._scope.name, error)
        finally:
            if not closed:
                try:
                    await self._close_forcefully()
                except Exception as error:
                    logger.debug("%s was closed by force with %r", self._scope.name, error)

    def discard(self) -> None:
        """Close a channel that was never opened, in a task of the event loop's own scope."""
        with contextlib.suppress(ScopeClosed):
            root_scope().spawn(self._discard, name="closes what was not opened")

    async def _discard(self) -> None:
        try:
            await self._close_forcefully()
        except Exception as error:
            logger.debug("a stream that was not opened was closed by force with %r", error)

    async def send(self, data: bytes) -> None:
        """Send all of it; wait while the other side does not read."""
        self.stuck = True
        await self._send(data)
        # Not if this was interrupted: after half a message, the stream cannot be closed in order.
        self.stuck = False

    def abort(self) -> None:
        """Begin to close it."""
        self._aborted.set()

    async def aclose(self) -> None:
        """Wait until it is closed."""
        await self._closer.wait()
        await self._scope.close()
