"""One HTTP exchange: send a request, read events, and release the connection in every case.

Invariants
- One task opens, reads and releases it. Only the owner of that task cancels it, and only once: see `provider_model`. A
  second cancel in the middle of the HTTP library's own clean-up would leak the connection, or its slot in the pool, for
  good. For the same reason there is no timeout in here: whatever needs one runs in a task of its own.
- Releasing is shielded and bounded, and happens no matter what happened before.
- A response that was not read to its end is closed first, and its iterator is then run to its end, which is quick on
  a closed connection. Only closing the iterator would leave the generators below it to the garbage collector, which
  closes them in tasks of its own.
- A response that was read to its end leaves its connection intact for the next call.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from quiesce import ChildCancelled, Scope, shielded
from quiesce._safe.printed import logger
from quiesce.models.words import ModelError, ModelTimeoutError

from .deadline import CallDeadline
from .errors import Endpoint, not_a_stream, translate, unreadable_event
from .sse import EventStream, EventTooLong, ServerEvent

RELEASED_WITHIN = 5.0
# How many seconds the server has to end its stream after the answer is complete.
ENDED_WITHIN = 0.25
# How many pieces are read from a closed response before its iterator is closed as well.
LAST_PIECES = 1000
# How many bytes of a response that is not a stream are kept for the error.
HEAD = 2000


class Exchange:
    """One attempt at one call."""

    def __init__(self, post: Callable[[], Awaitable[Any]], endpoint: Endpoint) -> None:
        self._post = post
        self._endpoint = endpoint
        self._response: Any = None
        self._pieces: AsyncGenerator[bytes, None] | None = None
        self._ended = False
        self._events = EventStream()
        self._unread: list[ServerEvent] = []
        self._any_events = False
        self._head = b""

    async def open(self) -> None:
        """Send the request, and wait until the response begins; raise if it is not a stream."""
        try:
            self._response = await self._post()
            self._pieces = self._response.aiter_bytes()
            content_type = str(self._response.headers.get("content-type") or "").partition(";")[0].strip()
            # Only types that rule out a stream: some servers send their streams under another one. `read` notices the
            # rest.
            if content_type == "application/json" or content_type.startswith("text/html"):
                while len(self._head) < HEAD and not self._ended:
                    await self._next_piece()
                raise not_a_stream(self._endpoint, content_type, self._head.decode(errors="replace"))
        except ModelError:
            raise
        except Exception as error:
            raise translate(error, self._endpoint) from error

    async def read(self) -> list[ServerEvent] | None:
        """Return the next events, at least one; None at the end of the stream."""
        if self._unread:
            events, self._unread = self._unread, []
            return events
        return await self._next_events()

    async def peek(self) -> list[ServerEvent] | None:
        """As `read`, but `read` will return these events too."""
        events = await self._next_events()
        self._unread += events or ()
        return events

    async def _next_events(self) -> list[ServerEvent] | None:
        try:
            while not self._ended:
                piece = await self._next_piece()
                events = self._events.feed(piece) if piece else self._events.finish()
                if events:
                    self._any_events = True
                    return events
        except EventTooLong as error:
            raise unreadable_event(self._endpoint, str(error)) from error
        except ModelError:
            raise
        except Exception as error:
            raise translate(error, self._endpoint) from error
        if not self._any_events:
            content_type = str(self._response.headers.get("content-type") or "")
            raise not_a_stream(self._endpoint, content_type, self._head.decode(errors="replace"))
        return None

    async def end(self) -> None:
        """Let the server end its stream after a complete answer, so that the connection can be reused."""
        if self._ended:
            return
        try:
            await shielded(self._wait_for_the_end, within=RELEASED_WITHIN)
        except (TimeoutError, ChildCancelled) as error:
            logger.debug("%s did not end its stream after the answer: %r", self._endpoint.url, error)

    async def release(self) -> None:
        """Close the response if it is open; no cancel interrupts this, and it takes a bounded time."""
        if self._response is None or self._ended:
            return
        try:
            try:
                await shielded(self._close_response, within=RELEASED_WITHIN)
            except ChildCancelled:
                # Something cancelled every task of the event loop, including the shielded one (`asyncio.run` does so
                # when it shuts down). The response is still open, so close it again.
                await shielded(self._close_response, within=RELEASED_WITHIN)
        except TimeoutError:
            logger.warning(
                "model %r: the connection to %s could not be closed within %g s",
                self._endpoint.name,
                self._endpoint.url,
                RELEASED_WITHIN,
            )

    async def _wait_for_the_end(self) -> None:
        async with Scope("the end of a stream", on_error="report") as scope:
            reading = scope.spawn(self._read_to_the_end)
            try:
                await CallDeadline(ENDED_WITHIN, self._endpoint.name).wait_for(reading.wait)
            except ModelTimeoutError:
                # The reading task is not cancelled: it may just have failed, and a cancel would interrupt its clean-up.
                # Closing the connection ends it as well.
                await self._response.aclose()

    async def _read_to_the_end(self) -> None:
        try:
            while not self._ended:
                await self._next_piece()
        except Exception as error:
            self._ended = True
            logger.debug("%s broke the connection after the answer: %r", self._endpoint.url, error)

    async def _next_piece(self) -> bytes:
        """Return the next bytes of the response, b"" at its end."""
        assert self._pieces is not None
        while not self._ended:
            try:
                piece = await anext(self._pieces)
            except StopAsyncIteration:
                self._ended = True
                break
            if piece:
                if not self._any_events and len(self._head) < HEAD:
                    self._head += piece[:HEAD]
                return piece
        return b""

    async def _close_response(self) -> None:
        try:
            await self._response.aclose()
        except Exception as error:
            logger.debug("closing the connection to %s failed: %r", self._endpoint.url, error)
        try:
            if self._pieces is not None:
                for _ in range(LAST_PIECES):
                    await anext(self._pieces)
                await self._pieces.aclose()
        except Exception as end:
            # A closed response ends its iterator in one of several ways: StopAsyncIteration, or an error about the
            # close.
            logger.debug("the stream from %s ended with %r", self._endpoint.url, end)
        self._ended = True
