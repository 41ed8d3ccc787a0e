"""A connection to a peer: what comes in, and how it ends. What goes out is in `sender`.

Invariants
- Everything that comes in is dealt with by plain functions, in the order in which it came; only handlers are
  tasks. So nothing that a handler does delays an answer, or a cancel, that comes behind. The exception is a
  `backlog` that is full: then nothing is read for a while.
- It is opened and closed by one owner task (`own`), no matter which task asks for that.

The contract of closing
-----------------------
It is the same on every transport, and for every way to close: `close()` and `cancel()` from any task,
including that of a handler; the exit of the block, also by an error or a cancel; the stop of the owner's
scope; a disconnect by the peer; the end of the program. `__aexit__` does it:

1. Nothing more is read. Every pending call fails, because its answer would not be read.
2. Every request that was read is answered, once: with what its handler returns or raises, else with -32800.
   That includes the request whose handler called `close()`: its `close()` returns when all others have
   answered, and then it answers. It also includes a request whose handler never began.
3. All of that is sent, in order. Then the transport is closed: in order, or by force if it is stuck.
4. Only unsent bytes are waited for. A transport that has nothing left to send, and does not confirm that it
   is closed, costs no time. (The goodbye of TLS, and the `close()` of an object that is not ours, are a
   clean-up, and have the time of one.)
5. One `Grace` bounds all of it, that of the stop. What is unsent when the time to clean up (`cancel`) is
   over, or because the peer does not read any more, is dropped, and the report says how many bytes that was.

What the owner needs for that (the link, the process, the task that closes a stream) it has opened itself, in
its own scope. So the kernel leaves it alone while the owner waits for a handler that closes: see
`kernel/scope/closing.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from anyio.lowlevel import checkpoint
from msgspec import UNSET, Raw

from quiesce import Reason, current_scope
from quiesce._safe.printed import logger
from quiesce.kernel.inner import core_of
from quiesce.wire.base import INVALID_REQUEST, METHOD_NOT_FOUND, ConnectionEnded, Limits, RpcError

from .backlog import Backlog
from .calls import Calls
from .handlers import Notification, Request
from .message import Malformed, Message, parse, plain
from .ordered_notifications import NotificationQueues
from .requests import Requests
from .sender import Sender, Tap

if TYPE_CHECKING:
    from types import TracebackType

    from quiesce.wire.links import Transport


Fallback = Callable[[str, Any], Awaitable[Any]]


class Connection:
    """The connection itself, as an async context manager that its owner task enters; users hold a `Peer`."""

    def __init__(
        self,
        transport: Transport,
        name: str,
        limits: Limits,
        requests: dict[str, Request],
        notifications: dict[str, Notification],
        on_request: Fallback | None,
        on_notification: Fallback | None,
        tap: Tap | None,
    ) -> None:
        self.sender = Sender(name, limits, tap)
        self.backlog = Backlog(limits, self.link_ended)
        self.lanes = NotificationQueues(self.sender, self.backlog)
        self.calls = Calls(self.sender, self.backlog, self.lanes)
        self.requests = Requests(self.sender, self.backlog)
        #: Whether its peer was opened, or is being opened.
        self.started = False
        #: What broke the link.
        self.error: BaseException | None = None
        #: Called with the reason when the peer has disconnected, before anything is stopped because of that.
        self.on_disconnect: Callable[[Reason], object] | None = None
        self._transport = transport
        self._limits = limits
        self._handlers = requests
        self._notifications = notifications
        # A handler like others, not an answer at once: a peer that reads no answers has to wait for its turn
        # here too.
        self._on_request = on_request or _no_such_method
        self._on_notification = on_notification

    # Opening and closing, in the owner task

    async def __aenter__(self) -> Self:
        core = core_of()
        self.sender.bind(core)
        try:
            if core.closed:
                await checkpoint()  # it was stopped before it began: the cancel is raised here
            await self.requests.open(copy_context())
            await self.lanes.open()
            link = await self._transport.open(self._limits, current_scope())
        except BaseException as error:
            self.error = error if isinstance(error, Exception) else None
            self.give_up()
            raise
        self.sender.open(link)
        self.backlog.open(link)
        if not core.closed:
            link.start(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        sender, link = self.sender, self.sender.link
        assert link is not None
        sender.closing = True
        self.backlog.stop()
        reason = sender.core.reason or Reason("parent", "its owner ended")
        why = f"{sender.name} is closed ({sender.ended or reason})"
        try:
            link.stop_reading()
            self.requests.stop(reason)
            if sender.ended is None:
                self.lanes.stop(reason)
            # After the handlers were cancelled: a call of one of them should raise the cancel, not this.
            self.calls.fail_all(why)
            link.release_calls()
            # What the peer sent before it disconnected is still handled.
            if sender.ended is not None:
                await self.lanes.wait_handled()
                self.lanes.stop(reason)
            await self.requests.wait_settled()
            await self.lanes.wait_settled()
            await link.flush()
        finally:
            sender.over = True
            self.lanes.stop(reason)
            self.calls.fail_all(why)
            link.abort()
            try:
                await link.close()
            finally:
                sender.note_dropped()

    def give_up(self) -> None:
        """End a connection that has not been opened, and will not be; do nothing if it has been."""
        sender = self.sender
        if sender.link is None and not sender.over:
            sender.give_up()
            why = f": {self.error!r}" if self.error is not None else f" ({sender.core.reason})"
            self.calls.fail_all(f"{sender.name} was not opened{why}")
            self.discard()

    def discard(self) -> None:
        """Release the transport, which was never opened."""
        self._transport.discard()

    # Coming in

    def frames_came(self, frames: list[bytes | None]) -> None:
        """Deal with these messages, one after the other."""
        sender, backlog = self.sender, self.backlog
        for frame in frames:
            if sender.closing:
                return
            if frame is None:
                limit = self._limits.frame
                self._refuse(Malformed(INVALID_REQUEST, f"Invalid request: longer than {limit} bytes"))
                continue
            if sender.tap is not None:
                sender.show("in", frame)
            try:
                message = parse(frame)
                if type(message) is Message:
                    method = message.method
                    if method is UNSET:
                        self.calls.answer_came(message)
                    elif message.id is UNSET:
                        self._notification_came(method, message.params, len(frame))
                    else:
                        request = self._handlers.get(method)
                        if request is None:
                            request = Request(partial(self._on_request, method))
                        self.requests.came(message.id, method, request, message.params)
                elif type(message) is Malformed:
                    self._refuse(message)
            except Exception:  # one message must not cost those behind it
                logger.exception("%s: a message could not be dealt with", sender.name)
        if (backlog.notifications or backlog.requests) and backlog.is_full():
            backlog.adjust()

    def _refuse(self, what: Malformed) -> None:
        sender = self.sender
        if what.call is not UNSET:
            self.calls.malformed_answer_came(what.call, what.message)
        if what.id is UNSET:
            logger.warning("%s sent an answer that is not valid: %s", sender.name, what.message)
        else:
            sender.refuse(what.id, what.code, what.message)

    def _notification_came(self, method: str, raw: Raw, size: int) -> None:
        name = self.sender.name
        notification = self._notifications.get(method)
        if notification is None:
            if method == "$/cancel_request":
                self._cancel_came(raw)
                return
            fallback = self._on_notification
            # JSON-RPC reserves `$/` for the protocol; such a notification may be ignored.
            if fallback is None or method.startswith("$/"):
                logger.debug("%s sent %r, which has no handler", name, method)
                return
            notification = Notification(partial(fallback, method))
        try:
            params = notification.decode(raw)
            lane = notification.lane(params) if notification.lane is not None else None
            hash(lane)
            if notification.at_once:
                notification.fn(params)
                return
        except Exception as error:  # there is no answer to a notification, so it can only be logged
            what = (
                "sent parameters that do not fit"
                if isinstance(error, ValueError)
                else "made its handler fail"
            )
            logger.error("%s %s: %r: %s", name, what, method, error)
            return
        self.lanes.add(lane, notification, method, params, size)

    def _cancel_came(self, raw: Raw) -> None:
        try:
            params = plain(raw)
        except ValueError:
            return
        if isinstance(params, dict):
            self.requests.cancel(params.get("requestId"))

    def link_ended(self, error: BaseException | None) -> None:
        """Stop, because the peer will send nothing more: because of this error, or in order."""
        self.error = error
        if isinstance(error, ConnectionEnded):
            why = str(error)
        else:
            why = f"the other side has closed it{f': {error!r}' if error is not None else ''}"
        self.sender.ended = reason = Reason("disconnect", why, error)
        self.backlog.stop()
        if self.on_disconnect is not None:
            try:
                self.on_disconnect(reason)
            except Exception:  # must not prevent the stop
                logger.exception("%s: on_disconnect failed", self.sender.name)
        self.sender.core.stop(reason)


async def _no_such_method(method: str, params: Any) -> None:
    raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method}", {"method": method})
