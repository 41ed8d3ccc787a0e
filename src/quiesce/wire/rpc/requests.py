"""The peer's requests, until they are answered.

Invariants
- Every request is answered exactly once: with the result, with an error, or, if it was cancelled and its handler has nothing to say, with
  -32800. Also one whose handler was cancelled before it began, and one that never got its turn.
- No more than `Limits.concurrent` are worked on at a time; the others wait for their turn. A handler that waits for an answer of the peer lends
  its turn to another, as the peer may have to ask us before it can answer; no more than `Limits.waiting` do.
- A handler runs in the context of the connection, never in that of the handler whose turn it got.
- An answer is sent without waiting, so that a handler that is being cancelled can answer too. Then the handler, not the reader, waits for
  a peer that takes no answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from quiesce import Inflight, Reason
from quiesce._safe.printed import logger
from quiesce.kernel.inner import OPEN, wait_settled, without_cancels
from quiesce.wire.base import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    REQUEST_CANCELLED,
    FrameTooLong,
    RpcError,
)

from .current_handler import CurrentWork, current_work

if TYPE_CHECKING:
    from quiesce.kernel.inner import ScopeCore

    from .connection import Connection
    from .handlers import Request
    from .message import Id


_CANCELLED_BY_PEER = Reason("user", "the peer has cancelled the request")


class Incoming(CurrentWork, eq=False, kw_only=True):
    """One request of the peer."""

    id: Id
    method: str
    request: Request
    params: Raw
    begun: bool = False
    decoded: Any = None
    stopped: Reason | None = None  # why, once it is being cancelled

    @property
    def key(self) -> Hashable:
        """What it is known by: its id; but null is nobody's name, and may be asked twice."""
        return self if self.id is None else self.id

    def steps_aside(self) -> None:
        """Lend the turn."""
        self.connection.requests.lend()

    def steps_back(self) -> None:
        """Take it back, unless all is over."""
        if not self.done:
            self.connection.requests.lent -= 1


class Requests:
    """All requests of the peer that are not answered yet."""

    _core: ScopeCore  # of the handlers

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open: dict[Hashable, Incoming] = {}
        self.queue: deque[Incoming] = deque()  # those that wait for their turn
        self._inflight: Inflight | None = None
        self._starting = False
        self._at_work = 0
        self.lent = 0  # how many of those wait for an answer of the peer
        self.bytes = 0  # of those that wait for their turn

    @property
    def at_work(self) -> int:
        """How many handlers are at work."""
        return self._at_work

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self.queue)

    async def open(self) -> None:
        """Make the table of handlers."""
        self._inflight = await Inflight.open("requests", on_error=_logged_already)
        self._core = self._inflight._scope._opened()

    def stop(self, reason: Reason) -> None:
        """Cancel all."""
        for incoming in list(self._open.values()):
            incoming.stopped = incoming.stopped or reason
            if not incoming.begun:
                self._answer_cancelled(incoming)
        self.queue.clear()
        self.bytes = 0
        if self._inflight is not None:
            self._inflight._scope.cancel(reason)

    async def drained(self) -> None:
        """Wait until each has answered."""
        if self._inflight is not None:
            await wait_settled(self._inflight._scope._opened())

    # Coming in

    def came(self, id: Id, method: str, request: Request, params: Raw) -> None:  # noqa: A002
        """A request came."""
        connection = self._connection
        incoming = Incoming(connection, id=id, method=method, request=request, params=params)
        key: Hashable = incoming if id is None else id
        if key in self._open:
            connection.refuse(
                id, INVALID_REQUEST, f"Invalid request: id {id!r} is that of a request still unanswered"
            )
            return
        is_free = self._at_work < connection.limits.concurrent or (self.lent and self._is_turn_free())
        if not is_free and connection.calls.nested and connection.is_full():
            connection.refuse(id, INTERNAL_ERROR, f"Too many requests: {len(self.queue)} wait already")
            return
        if request.arrived is not None:
            self._tell_arrived(incoming, request.arrived)
        self._open[key] = incoming
        if is_free:
            self._start(incoming)
        else:
            self.queue.append(incoming)
            self.bytes += len(params)

    def _tell_arrived(self, incoming: Incoming, tell: Callable[[Any], object]) -> None:
        try:
            params = incoming.request.decode(incoming.params)
        except ValueError:
            return  # it is answered so in a moment
        try:
            tell(params)
        except Exception:  # the reader must not suffer from it
            logger.exception("%s: %r came, and what follows failed", self._connection.name, incoming.method)

    def _is_turn_free(self) -> bool:
        limits = self._connection.limits
        return self._at_work - min(self.lent, limits.waiting) < limits.concurrent

    def _start(self, incoming: Incoming) -> None:
        core, inflight = self._core, self._inflight
        if core.state is not OPEN or inflight is None:
            self._answer_cancelled(incoming)
            return
        self._at_work += 1
        # By the request itself: the id of one that was cancelled before it began is free again before its task has gone.
        inflight._start(
            core, incoming, incoming.method, _SITE, self._handle, (incoming,), self.look_for_unbegun
        )

    def cancel(self, id: object) -> None:  # noqa: A002
        """The peer does not want the answer any more."""
        if not isinstance(id, (int, float, str)) or isinstance(id, bool):
            return
        incoming = self._open.get(id)
        if incoming is None:
            return  # answered already, or never asked: both are fine
        if incoming.begun:
            self._cancel(incoming, _CANCELLED_BY_PEER)
        else:
            self._answer_cancelled(incoming)

    def _cancel(self, incoming: Incoming, reason: Reason) -> None:
        assert self._inflight is not None
        self._inflight.cancel(incoming, reason)
        if incoming.stopped is None:
            incoming.stopped = reason
            if incoming.request.stopping is not None:
                try:
                    incoming.request.stopping(incoming.decoded, reason)
                except Exception:  # of a rule of the protocol: the reader must not suffer from it
                    logger.exception(
                        "%s: %r was cancelled, and what follows failed",
                        self._connection.name,
                        incoming.method,
                    )

    def _answer_cancelled(self, incoming: Incoming) -> None:
        """It was cancelled before its handler began."""
        self._open.pop(incoming.key, None)
        incoming.done = True
        if incoming in self.queue:
            self.queue.remove(incoming)
            self.bytes -= len(incoming.params)
        self._say_cancelled(incoming)

    def _say_cancelled(self, incoming: Incoming) -> None:
        connection, result = self._connection, incoming.request.when_cancelled
        if result is None:
            self._error(incoming.id, REQUEST_CANCELLED, "Request cancelled")
            return
        try:
            frame = connection.writer.result(incoming.id, result)
        except (TypeError, ValueError, OverflowError):
            logger.exception(
                "%s: what to answer to a cancelled %r cannot be said", connection.name, incoming.method
            )
            self._error(incoming.id, REQUEST_CANCELLED, "Request cancelled")
        else:
            connection.send(frame)

    def cancel_where(self, chosen: Callable[[str, Any], bool], reason: Reason) -> int:
        """Cancel the requests that `chosen(method, params)` picks, at work or not yet; returns how many."""
        found = 0
        for incoming in list(self._open.values()):
            if not incoming.begun:
                try:
                    incoming.decoded = incoming.request.decode(incoming.params)
                except ValueError:
                    continue  # it is answered so in a moment
            if not chosen(incoming.method, incoming.decoded):
                continue
            found += 1
            if incoming.begun:
                self._cancel(incoming, reason)
            else:
                self._answer_cancelled(incoming)
        return found

    # At work

    async def _handle(self, incoming: Incoming) -> None:
        connection, request = self._connection, incoming.request
        is_congested = True  # for all we know
        inflight = self._inflight
        assert inflight is not None
        try:
            incoming.begun = True
            inflight._begun(incoming)
            if not incoming.done:  # cancelled just before
                current_work.set(incoming)
                try:
                    try:
                        incoming.decoded = params = request.decode(incoming.params)
                    except ValueError as error:
                        raise RpcError(INVALID_PARAMS, f"Invalid params: {error}") from None
                    result = await request.fn(params)
                    answer = connection.writer.result(incoming.id, result)
                    is_congested = connection.send(answer, self._at_work == 1)
                    if request.answered is not None:
                        self._tell_answered(incoming, request.answered, result)
                except BaseException as error:
                    self._answer_failure(incoming, error)
                    if not isinstance(error, Exception):
                        raise
                finally:
                    incoming.done = True
                    if incoming.asking:
                        self.lent -= 1
                    self._open.pop(incoming.key, None)
            if is_congested:
                await connection.wait_for_room()
        finally:  # its turn is free
            inflight._done(incoming)
            self._at_work -= 1
            if self.queue or connection.paused:
                self._start_next()

    def _answer_failure(self, incoming: Incoming, error: BaseException) -> None:
        connection, id = self._connection, incoming.id  # noqa: A001
        if isinstance(error, RpcError):
            self._error(id, error.code, error.message, error.data)
        elif isinstance(error, FrameTooLong):
            self._error(id, INTERNAL_ERROR, f"Internal error: {error}")
        elif isinstance(error, Exception):
            logger.error("%s: the handler of %r failed", connection.name, incoming.method, exc_info=error)
            self._error(id, INTERNAL_ERROR, "Internal error", {"details": f"{type(error).__name__}: {error}"})
        elif without_cancels(error) is None:
            self._say_cancelled(incoming)
        elif connection.backend.is_current():  # else the collector ends what a dead loop has left
            logger.error("%s: the handler of %r failed", connection.name, incoming.method, exc_info=error)
            self._error(id, INTERNAL_ERROR, "Internal error")

    def _tell_answered(self, incoming: Incoming, tell: Callable[[Any], object], result: Any) -> None:
        try:
            tell(result)
        except Exception:  # the answer is out: there is no second one
            logger.exception(
                "%s: %r was answered, and what follows failed", self._connection.name, incoming.method
            )

    def lend(self) -> None:
        """A handler waits for an answer: its turn is free."""
        self.lent += 1
        self._start_next()

    def look_for_unbegun(self) -> None:
        """Somebody has cancelled a task before its first step: its turn is free, and its request still has to be answered."""
        inflight = self._inflight
        assert inflight is not None
        for incoming, handle in list(inflight._handles.items()):
            if handle.done and isinstance(incoming, Incoming) and not incoming.begun:
                inflight._done(incoming)
                self._at_work -= 1
                if not incoming.done:
                    self._answer_cancelled(incoming)
        self._start_next()

    def _start_next(self) -> None:
        if self._starting:
            return  # an eager task has ended inside the loop below, which goes on
        connection = self._connection
        self._starting = True
        try:
            while self.queue and self._is_turn_free() and not connection.closing:
                incoming = self.queue.popleft()
                self.bytes -= len(incoming.params)
                connection.context.copy().run(self._start, incoming)
        finally:
            self._starting = False
        if connection.paused:
            connection.adjust()

    def _error(self, id: Id, code: int, message: str, data: Any = None) -> None:  # noqa: A002
        connection = self._connection
        connection.send(connection.writer.error(id, code, message, data))


def _logged_already(id: Hashable, error: BaseException) -> None:  # noqa: A002
    """The handler has."""


_SITE = (Requests._start.__code__, 0)
