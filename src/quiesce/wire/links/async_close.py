"""A channel over something that can only be closed by waiting.

`Channel.abort` has to let go at once, and may be the last that anybody can do; an `aclose()` of somebody else's stream is neither. So a task of the connection's
scope stands by from the beginning: told to let go, it closes the stream in order, or by force if somebody is stuck in it; cancelled, by force.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from quiesce import Scope, ScopeClosed
from quiesce._safe.printed import logger
from quiesce.kernel.inner import current_backend, face_of, root_core, when_ended
from quiesce.wire.base import ConnectionEnded

if TYPE_CHECKING:
    from quiesce import Handle


class ClosingChannel(ABC):
    """A channel whose stream is closed by a task that stands by."""

    _scope: Scope
    _closer: Handle

    def __init__(self) -> None:
        self.stuck = False  # whether somebody is in the middle of sending
        self.on_dropped: Callable[[int], object] | None = (
            None  # is told how much was unsent when it was broken off
        )

    @abstractmethod
    async def receive(self) -> bytes:
        """At least one byte; `b""` at the end."""

    @abstractmethod
    async def _send(self, data: bytes) -> None:
        """All of it."""

    @abstractmethod
    async def _close(self) -> None:
        """Close the stream in order."""

    @abstractmethod
    async def _break_off(self) -> None:
        """Close the stream at once; also in a task that is cancelled."""

    async def stand_by(self, scope: Scope, name: str) -> None:
        """Have it closed, whatever happens from now on."""
        self._let_go = anyio.Event()
        ready = anyio.Event()
        try:
            self._scope = await Scope.open(f"closes {name}", on_error="report", scope=scope)
            self._closer = self._scope.spawn(self._hold, ready, name=f"closes {name}")
            when_ended(self._closer, ready.set)  # by somebody else's cancel, perhaps before its first step
            await ready.wait()  # if we were cancelled before that, it would never take it
            if self._closer.done:
                raise ConnectionEnded("the task that closes was cancelled")
        except BaseException:
            await self._break_off()
            raise

    async def _hold(self, ready: anyio.Event) -> None:
        ready.set()
        closed = False
        try:
            await self._let_go.wait()
            if not self.stuck:
                await self._close()
                closed = True
        except Exception as error:
            logger.debug("%s ended with %r", self._scope.name, error)
        finally:
            if not closed:
                try:
                    await self._break_off()
                except Exception as error:
                    logger.debug("%s was broken off with %r", self._scope.name, error)

    def discard(self) -> None:
        """It was never opened, and nobody waits for its end: the loop's own scope closes it."""
        with contextlib.suppress(ScopeClosed):
            face_of(root_core(current_backend())).spawn(self._discard, name="closes what was not opened")

    async def _discard(self) -> None:
        try:
            await self._break_off()
        except Exception as error:
            logger.debug("what was not opened was broken off with %r", error)

    async def send(self, data: bytes) -> None:
        """All of it; waits while the other side does not take it."""
        self.stuck = True
        await self._send(data)
        self.stuck = False  # not if it was cut short: half a message is no place to go on from

    def abort(self) -> None:
        """Have it closed."""
        self._let_go.set()

    async def aclose(self) -> None:
        """Wait until it is."""
        await self._closer.wait()
        await self._scope.close()
