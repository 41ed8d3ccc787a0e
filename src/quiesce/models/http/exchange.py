"""One HTTP exchange: a request goes out, events come in, and the connection is surely given back.

Invariants
- It is opened, read and given back by one task, which nobody but its owner cancels, and once: see `provider_model`. A second
  cancel in the middle of the HTTP library's own clean-up would lose the connection, or its slot in the pool, for good. So there is
  no timeout in here either: what has its own time runs in a task of its own.
- Giving back is shielded and bounded, and done whatever has happened before.
- A response that is left in the middle is closed first, and what iterates it is then run to its end, which a closed connection makes
  short. Only closing that iteration would leave the generators below it to the garbage collector, and to tasks of its own.
- A response that is read to its end leaves its connection whole, for the next call.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from quiesce import ChildCancelled, Scope, shielded
from quiesce._safe.printed import logger
from quiesce.models.words import ModelError, ModelTimeoutError

from .deadline import CallDeadline
from .errors import Endpoint, garbage, not_a_stream, translate
from .sse import EventStream, EventTooLong, ServerEvent

GIVEN_BACK_WITHIN = 5.0
ENDED_WITHIN = 0.25  # seconds for a server to end its stream after it has said that this was all
LAST_PIECES = 1000
HEAD = 2000


class Exchange:
    """One try of one call."""

    def __init__(self, post: Callable[[], Awaitable[Any]], at: Endpoint) -> None:
        self._post = post
        self._at = at
        self._response: Any = None
        self._pieces: AsyncGenerator[bytes, None] | None = None
        self._over = False
        self._events = EventStream()
        self._any = False
        self._head = b""

    async def open(self) -> None:
        """Send the request, and wait for the beginning of a response that is a stream."""
        try:
            self._response = await self._post()
            self._pieces = self._response.aiter_bytes()
            content_type = str(self._response.headers.get("content-type") or "").partition(";")[0].strip()
            if content_type == "application/json" or content_type.startswith("text/html"):
                while len(self._head) < HEAD and not self._over:
                    await self._next_piece()
                raise not_a_stream(self._at, content_type, self._head.decode(errors="replace"))
        except ModelError:
            raise
        except Exception as error:
            raise translate(error, self._at) from error

    async def read(self) -> list[ServerEvent] | None:
        """The next events, at least one; None at the end."""
        try:
            while not self._over:
                piece = await self._next_piece()
                events = self._events.feed(piece) if piece else self._events.finish()
                if events:
                    self._any = True
                    return events
        except EventTooLong as error:
            raise garbage(self._at, str(error)) from error
        except ModelError:
            raise
        except Exception as error:
            raise translate(error, self._at) from error
        if not self._any:
            content_type = str(self._response.headers.get("content-type") or "")
            raise not_a_stream(self._at, content_type, self._head.decode(errors="replace"))
        return None

    async def end(self) -> None:
        """The answer is complete: let the server end its stream, so that the connection can be used again."""
        if self._over:
            return
        try:
            await shielded(self._wait_for_the_end, within=GIVEN_BACK_WITHIN)
        except (TimeoutError, ChildCancelled) as error:
            logger.debug("after its answer, %s did not end its stream: %r", self._at.url, error)

    async def give_back(self) -> None:
        """Close the response if it is open. Not cut by any cancel, and bounded."""
        if self._response is None or self._over:
            return
        try:
            try:
                await shielded(self._let_go, within=GIVEN_BACK_WITHIN)
            except ChildCancelled:  # by somebody who cancels all tasks there are: it is still to be done
                await shielded(self._let_go, within=GIVEN_BACK_WITHIN)
        except TimeoutError:
            logger.warning(
                "model %r: the connection to %s could not be closed within %g s",
                self._at.name,
                self._at.url,
                GIVEN_BACK_WITHIN,
            )

    async def _wait_for_the_end(self) -> None:
        async with Scope("the end of a stream", on_error="report") as scope:
            reading = scope.spawn(self._read_to_the_end)
            try:
                await CallDeadline(ENDED_WITHIN, self._at.name).hold(reading.wait)
            except ModelTimeoutError:
                # Not cancelled: it may have failed by itself just now, and be cleaning up. A closed connection ends it too.
                await self._response.aclose()

    async def _read_to_the_end(self) -> None:
        try:
            while not self._over:
                await self._next_piece()
        except Exception as error:
            self._over = True
            logger.debug("after its answer, %s broke the connection: %r", self._at.url, error)

    async def _next_piece(self) -> bytes:
        """What came, b"" at the end."""
        assert self._pieces is not None
        while not self._over:
            try:
                piece = await anext(self._pieces)
            except StopAsyncIteration:
                self._over = True
                break
            if piece:
                if not self._any and len(self._head) < HEAD:
                    self._head += piece[:HEAD]
                return piece
        return b""

    async def _let_go(self) -> None:
        try:
            await self._response.aclose()
        except Exception as error:
            logger.debug("closing the connection to %s: %r", self._at.url, error)
        try:
            if self._pieces is not None:
                for _ in range(LAST_PIECES):
                    await anext(self._pieces)
                await self._pieces.aclose()
        except Exception as end:  # it is closed: that ends it, in one way or another
            logger.debug("the end of the stream from %s: %r", self._at.url, end)
        self._over = True
