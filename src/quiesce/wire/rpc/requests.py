"""The peer's requests, until they are answered.

Invariants
- Every request is answered exactly once: with the result, with an error, or with -32800 if it was cancelled
  and its handler has no answer. That includes a request whose handler was cancelled before its first step,
  and one that never got its turn.
- No more than `Limits.concurrent` requests are handled at a time; the others wait for their turn. A handler
  that waits for an answer of the peer lends its turn to another, because the peer may have to call us before
  it can answer. No more than `Limits.waiting` turns are lent.
- A handler runs in the context of the connection, never in that of the handler whose turn it got.
- An answer is sent without waiting, so that a handler that is being cancelled can answer too. If the peer
  does not read, the task of the handler waits afterwards, and keeps its turn; the reader never waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from quiesce import Reason, Scope
from quiesce._safe.printed import logger
from quiesce.kernel.inner import core_of, wait_settled, when_ended, without_cancels
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
    from quiesce import Handle

    from .backlog import Backlog
    from .handlers import Request
    from .message import Id
    from .sender import Sender


_CANCELLED_BY_PEER = Reason("user", "the peer has cancelled the request")


class Incoming(CurrentWork, eq=False, kw_only=True):
    """One request of the peer."""

    id: Id
    method: str
    request: Request
    params: Raw
    requests: Requests
    handle: Handle | None = None  # of its handler's task
    begun: bool = False
    decoded: Any = None
    stopped: Reason | None = None  # why it is being cancelled

    @property
    def key(self) -> Hashable:
        """Its id; but the id null does not tell requests apart, so such a request is its own key."""
        return self if self.id is None else self.id

    def step_aside(self) -> None:
        """Lend the turn to another request."""
        self.requests.lend_turn()

    def step_back(self) -> None:
        """Take the turn back, even if another has it now; unless the request has been answered."""
        if not self.done:
            self.requests.lent -= 1


def current_request() -> Incoming:
    """Return the request that the running code handles; raise LookupError if it handles none."""
    work = current_work.get()
    if not isinstance(work, Incoming):
        raise LookupError("no request is being handled here")
    return work


class Requests:
    """All requests of the peer that have not been answered yet."""

    def __init__(self, sender: Sender, backlog: Backlog) -> None:
        self._sender = sender
        self._backlog = backlog
        self._open: dict[Hashable, Incoming] = {}
        #: Those that wait for their turn.
        self.queue: deque[Incoming] = deque()
        #: How many handlers there are.
        self.at_work = 0
        #: How many of them wait for an answer of the peer.
        self.lent = 0
        self._scope: Scope | None = None
        self._context = Context()
        self._starting = False

    async def open(self, context: Context) -> None:
        """Open the scope of the handlers, which run in copies of this context."""
        self._scope = await Scope.open("requests", on_error="report", on_child_error=_logged_already)
        self._context = context

    def stop(self, reason: Reason) -> None:
        """Cancel all requests; answer those whose handler has not begun."""
        for incoming in list(self._open.values()):
            incoming.stopped = incoming.stopped or reason
            if not incoming.begun:
                self._cancel_unbegun(incoming)
        if self._scope is not None:
            self._scope.cancel(reason)

    async def wait_settled(self) -> None:
        """Wait until every handler has ended, and so has answered."""
        if self._scope is not None:
            await wait_settled(core_of(self._scope))

    # Coming in

    def came(self, id: Id, method: str, request: Request, params: Raw) -> None:  # noqa: A002
        """Handle a request: now, or when it is its turn."""
        sender = self._sender
        incoming = Incoming(sender, id=id, method=method, request=request, params=params, requests=self)
        key: Hashable = incoming if id is None else id
        if key in self._open:
            sender.refuse(
                id, INVALID_REQUEST, f"Invalid request: id {id!r} is that of a request still unanswered"
            )
            return
        is_free = self.at_work < sender.limits.concurrent or (self.lent and self._is_turn_free())
        if not is_free and self._backlog.nested and self._backlog.is_full():
            sender.refuse(id, INTERNAL_ERROR, f"Too many requests: {len(self.queue)} wait already")
            return
        if request.arrived is not None:
            self._call_arrived(incoming, request.arrived)
        self._open[key] = incoming
        if is_free:
            self._start(incoming)
        else:
            self.queue.append(incoming)
            self._backlog.requests += 1
            self._backlog.bytes += len(params)

    def _call_arrived(self, incoming: Incoming, arrived: Callable[[Any], object]) -> None:
        try:
            params = incoming.request.decode(incoming.params)
        except ValueError:
            return  # the handler's task answers with this error
        try:
            arrived(params)
        except Exception:  # must not stop the reader
            logger.exception("%s: %r came, and what follows failed", self._sender.name, incoming.method)

    def _is_turn_free(self) -> bool:
        limits = self._sender.limits
        return self.at_work - min(self.lent, limits.waiting) < limits.concurrent

    def _start(self, incoming: Incoming) -> None:
        scope = self._scope
        if scope is None or scope.state != "open":
            self._cancel_unbegun(incoming)
            return
        self.at_work += 1
        handle = scope.spawn(self._handle, incoming, name=incoming.method)
        # An eager task has taken its first steps already, and may have ended.
        if not incoming.begun:
            when_ended(handle, partial(self._on_end, incoming))
        if not incoming.done:
            incoming.handle = handle

    def _unqueue(self, incoming: Incoming) -> None:
        self.queue.remove(incoming)
        self._backlog.requests -= 1
        self._backlog.bytes -= len(incoming.params)

    # Cancelling

    def cancel(self, id: object) -> None:  # noqa: A002
        """Cancel the request with this id for the peer; do nothing if it is unknown, or answered already."""
        if not isinstance(id, (int, float, str)) or isinstance(id, bool):
            return
        incoming = self._open.get(id)
        if incoming is not None:
            self._cancel(incoming, _CANCELLED_BY_PEER)

    def cancel_where(self, is_chosen: Callable[[str, Any], bool], reason: Reason) -> int:
        """Cancel the requests for which `is_chosen(method, params)` is true; return how many these are."""
        found = 0
        for incoming in list(self._open.values()):
            if not incoming.begun:
                try:
                    incoming.decoded = incoming.request.decode(incoming.params)
                except ValueError:
                    continue  # the handler's task answers with this error
            if is_chosen(incoming.method, incoming.decoded):
                found += 1
                self._cancel(incoming, reason)
        return found

    def _cancel(self, incoming: Incoming, reason: Reason) -> None:
        if not incoming.begun:
            self._cancel_unbegun(incoming)
            return
        if incoming.handle is not None:
            incoming.handle.cancel(reason)
        if incoming.stopped is None:
            incoming.stopped = reason
            if incoming.request.stopping is not None:
                try:
                    incoming.request.stopping(incoming.decoded, reason)
                except Exception:  # must not stop the reader
                    logger.exception(
                        "%s: %r was cancelled, and what follows failed", self._sender.name, incoming.method
                    )

    def _cancel_unbegun(self, incoming: Incoming) -> None:
        """Answer a request whose handler has not begun, and so never will."""
        # Its task may have been started already. It finds `done` set, and does nothing.
        self._open.pop(incoming.key, None)
        incoming.done = True
        if incoming in self.queue:
            self._unqueue(incoming)
        self._answer_cancelled(incoming)

    def _answer_cancelled(self, incoming: Incoming) -> None:
        sender, result = self._sender, incoming.request.when_cancelled
        if result is not None:
            try:
                sender.send(sender.writer.result(incoming.id, result))
                return
            except (TypeError, ValueError, OverflowError):
                logger.exception(
                    "%s: the answer to a cancelled %r cannot be written", sender.name, incoming.method
                )
        sender.send_error(incoming.id, REQUEST_CANCELLED, "Request cancelled")

    # Handling

    async def _handle(self, incoming: Incoming) -> None:
        sender, request = self._sender, incoming.request
        is_congested = True  # unless the answer is sent, and `send` says that it is not
        try:
            incoming.begun = True
            if not incoming.done:  # else it was cancelled, and answered, before this first step
                current_work.set(incoming)
                try:
                    try:
                        incoming.decoded = params = request.decode(incoming.params)
                    except ValueError as error:
                        raise RpcError(INVALID_PARAMS, f"Invalid params: {error}") from None
                    result = await request.fn(params)
                    answer = sender.writer.result(incoming.id, result)
                    is_congested = sender.send(answer, self.at_work == 1)
                    if request.answered is not None:
                        self._call_answered(incoming, request.answered, result)
                except BaseException as error:
                    self._answer_failure(incoming, error)
                    if not isinstance(error, Exception):
                        raise
                finally:
                    incoming.done = True
                    if incoming.calls:
                        self.lent -= 1
                    self._open.pop(incoming.key, None)
            if is_congested:
                await sender.wait_for_room()
        finally:
            incoming.handle = None
            self.at_work -= 1
            if self.queue or self._backlog.paused:
                self._start_next()

    def _answer_failure(self, incoming: Incoming, error: BaseException) -> None:
        sender, id = self._sender, incoming.id  # noqa: A001
        if isinstance(error, RpcError):
            sender.send_error(id, error.code, error.message, error.data)
        elif isinstance(error, FrameTooLong):
            sender.send_error(id, INTERNAL_ERROR, f"Internal error: {error}")
        elif isinstance(error, Exception):
            logger.error("%s: the handler of %r failed", sender.name, incoming.method, exc_info=error)
            details = f"{type(error).__name__}: {error}"
            sender.send_error(id, INTERNAL_ERROR, "Internal error", {"details": details})
        elif without_cancels(error) is None:
            self._answer_cancelled(incoming)
        # Outside the loop, the garbage collector is ending what a dead event loop left over: there is nobody
        # to answer.
        elif sender.backend.is_current():
            logger.error("%s: the handler of %r failed", sender.name, incoming.method, exc_info=error)
            sender.send_error(id, INTERNAL_ERROR, "Internal error")

    def _call_answered(self, incoming: Incoming, answered: Callable[[Any], object], result: Any) -> None:
        try:
            answered(result)
        except Exception:  # the answer is sent, and there is no second one
            logger.exception(
                "%s: %r was answered, and what follows failed", self._sender.name, incoming.method
            )

    def _on_end(self, incoming: Incoming) -> None:
        if incoming.begun:
            return
        # The task was cancelled before its first step, from outside: it has neither answered nor given its
        # turn back.
        self.at_work -= 1
        if not incoming.done:
            self._cancel_unbegun(incoming)
        self._start_next()

    def lend_turn(self) -> None:
        """Let another request go on while a handler waits for an answer of the peer."""
        self.lent += 1
        self._start_next()

    def _start_next(self) -> None:
        # An eager task may end inside the loop below, and come here again: the loop goes on by itself.
        if self._starting:
            return
        self._starting = True
        try:
            while self.queue and self._is_turn_free() and not self._sender.closing:
                incoming = self.queue[0]
                self._unqueue(incoming)
                # Not in the context of the handler that has just ended, or waits.
                self._context.copy().run(self._start, incoming)
        finally:
            self._starting = False
        if self._backlog.paused:
            self._backlog.adjust()


def _logged_already(handle: Handle, error: BaseException) -> None:
    """Do nothing: `_answer_failure` has logged the error."""
