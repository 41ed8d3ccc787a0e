"""A connection to a peer: what comes in, what goes out, and how it ends.

Invariants
- Everything that comes in is dealt with by plain functions, in the order in which it came; only handlers are tasks. So nothing that a
  handler does holds up an answer, or a cancel, that comes behind; until as much waits as `Limits` allows, and nothing is read for a while.
- It is opened and closed by one owner task (`own`), whoever asks for that.

The contract of closing
-----------------------
It is the same on every transport, and for every way to close: `close()` and `cancel()` from any task, a
handler's own among them; the exit of the block, an error or a cancel in it; the stop of the owner's scope;
the end of the other side; the end of the program. `__aexit__` does it:

1. Nothing more is read. Every call that waits fails, as its answer would not be read.
2. Every request that was read is answered, once: with what its handler returns or raises, else with -32800.
   So is the one whose handler has asked for the close: its `close()` returns when all others have answered,
   and then it answers. So is one whose handler never began.
3. All of that is sent, in order, and then the transport is closed: in order, or by force if it is stuck.
4. Only what is unsent is waited for. A transport that has nothing left to send, and does not confirm that it
   is closed, costs no time. (The farewell of TLS, and the `close()` of somebody else's object, are a
   clean-up, and have the time of one.)
5. One `Grace` bounds all of it, that of the stop. What is unsent when the time to clean up (`cancel`) is
   over, or because the other side takes nothing any more, is dropped, and the report says how many bytes that
   were.

What the owner needs for that (the link, the process, the task that closes a stream) it has opened itself, in
its own scope. So the kernel leaves it alone while the owner waits for a handler that closes: see
`kernel/scope/closing.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

from anyio.lowlevel import checkpoint
from msgspec import UNSET, Raw

from quiesce import Reason, current_scope
from quiesce._safe.printed import logger
from quiesce.kernel.inner import Backend, Timer, WaitQueue, current_backend, current_core
from quiesce.wire.base import INVALID_REQUEST, METHOD_NOT_FOUND, ConnectionEnded, Limits, RpcError

from .calls import Calls
from .handlers import Notification, Request
from .message import Malformed, Message, Writer, parse, plain
from .ordered_notifications import NotificationQueues
from .requests import Requests

if TYPE_CHECKING:
    from types import TracebackType

    from quiesce.kernel.inner import ScopeCore
    from quiesce.wire.links import Link, Transport

    from .message import Id


Fallback = Callable[[str, Any], Awaitable[Any]]
Tap = Callable[[Literal["in", "out"], bytes], object]

_LOOK_AGAIN = 1.0  # seconds, while nothing is read, between looks whether the other side is still there


class Connection:
    """What the tasks of a peer share; users hold a `Peer`."""

    backend: Backend
    core: ScopeCore

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
        self.name = name
        self.limits = limits
        self.writer = Writer(limits.frame)
        self.calls = Calls(self)
        self.lanes = NotificationQueues(self)
        self.requests = Requests(self)
        self.error: BaseException | None = None  # of the link
        self.closing = False
        self.paused = False
        self.hung_up = False  # the other side has sent its last
        self.over = False
        self._transport = transport
        self._link: Link | None = None
        self._early: list[bytes] = []  # sent before there was a link
        self._opening = WaitQueue()
        self._handlers = requests
        self._notifications = notifications
        self._on_request = on_request
        self._on_notification = on_notification
        self._tap = tap
        self.ended: Reason | None = None  # why nothing more will come
        self.on_disconnect: Callable[[Reason], object] | None = None  # is told so, before anything is stopped
        self._note = ""  # of what was not sent, in the report
        self._timer: Timer | None = None
        self.context = Context()  # the owner task's, for handlers

    # The whole life, in the owner task

    async def __aenter__(self) -> Self:
        self.backend = current_backend()
        self.core = current_core(self.backend)
        self.context = copy_context()
        try:
            if self.core.closed:
                await checkpoint()  # stopped before it began: here is the cancel
            await self.requests.open()
            await self.lanes.open()
            link = await self._transport.open(self.limits, current_scope())
        except BaseException as error:
            self.error = error if isinstance(error, Exception) else None
            self.forsake()
            raise
        link.most = self.limits.unsent + self.limits.backlog
        link.on_dropped = self._note_dropped
        self._link = link
        early, self._early = self._early, []
        for frame in early:
            link.send(frame)
        self._now_open()
        if not self.core.closed:
            link.start(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        link = self._link
        assert link is not None
        self.closing = True
        reason = self.core.reason or Reason("parent", "its owner ended")
        if self._timer is not None:
            self._timer.cancel()
        why = f"{self.name} is closed ({self.ended or reason})"
        try:
            link.stop_reading()
            self.requests.stop(reason)
            if self.ended is None:
                self.lanes.stop(reason)
            # Nobody would read their answers. Whoever is being cancelled has that first.
            self.calls.fail_all(why)
            link.hurry()
            if self.ended is not None:  # what the other side told before it went is still handled
                await self.lanes.finished()
                self.lanes.stop(reason)
            await self.requests.drained()
            await self.lanes.drained()
            await link.flush()
        finally:
            self.over = True
            self.lanes.stop(reason)
            self.calls.fail_all(why)
            link.abort()
            try:
                await link.close()
            finally:
                self._note_dropped()

    def _note_dropped(self) -> None:
        """For the report: how much was never sent."""
        size = self._link.dropped if self._link is not None else sum(len(frame) + 1 for frame in self._early)
        if size:
            others = [note for note in self.core.notes if note != self._note]
            self._note = f"{size} bytes were dropped unsent"
            self.core.notes = [*others, self._note]

    def forsake(self) -> None:
        """It was never opened, and will not be."""
        if self._link is None and not self.over:
            self.over = self.closing = True
            self._note_dropped()
            self._early = []
            self._now_open()
            why = f": {self.error!r}" if self.error is not None else f" ({self.core.reason})"
            self.calls.fail_all(f"{self.name} was not opened{why}")
            self._transport.discard()

    def _now_open(self) -> None:
        self._opening.wake_all()

    # Coming in

    def frames_came(self, frames: list[bytes | None]) -> None:
        """Deal with them, one after the other."""
        for frame in frames:
            if self.closing:
                return
            if frame is None:
                limit = self.limits.frame
                self._refuse(Malformed(INVALID_REQUEST, f"Invalid request: longer than {limit} bytes"))
                continue
            if self._tap is not None:
                self._tapped("in", frame)
            try:
                message = parse(frame)
                if type(message) is Message:
                    method = message.method
                    if method is UNSET:
                        self.calls.answered(message)
                    elif message.id is UNSET:
                        self._notified(method, message.params, len(frame))
                    else:
                        request = self._handlers.get(method)
                        if request is None:
                            request = self._request_of(method)
                        self.requests.came(message.id, method, request, message.params)
                elif type(message) is Malformed:
                    self._refuse(message)
            except Exception:  # nobody's mistake here may cost the messages behind it
                logger.exception("%s: a message could not be dealt with", self.name)
        if (self.lanes.waiting or self.requests.queue) and self.is_full():
            self.adjust()

    def _tapped(self, way: Literal["in", "out"], frame: bytes) -> None:
        assert self._tap is not None
        try:
            self._tap(way, frame)
        except Exception:
            logger.exception("%s: the tap failed", self.name)

    def _refuse(self, what: Malformed) -> None:
        if what.call is not UNSET:
            self.calls.spoiled(what.call, what.message)
        if what.id is UNSET:
            logger.warning("%s sent an answer that is none: %s", self.name, what.message)
        else:
            self.refuse(what.id, what.code, what.message)

    def refuse(self, id: Id, code: int, message: str) -> None:  # noqa: A002
        """Answer at once what is not handled. (To nonsense that nobody's id stands on, only who reads his answers gets one.)"""
        if id is not None or not self.is_congested():
            self.send(self.writer.error(id, code, message))

    def _request_of(self, method: str) -> Request:
        """What is done with a request that has no handler of its own."""
        fallback = self._on_request
        if fallback is None:
            fallback = (
                _no_such_method  # a handler like others, so that a peer that reads no answers has to wait
            )
        return Request(partial(fallback, method))

    def _notified(self, method: str, raw: Raw, size: int) -> None:
        notification = self._notifications.get(method)
        if notification is None:
            if method == "$/cancel_request":
                self._cancelled(raw)
                return
            fallback = self._on_notification
            if fallback is None or method.startswith("$/"):
                logger.debug("%s sent %r, which nobody handles", self.name, method)
                return
            notification = Notification(partial(fallback, method))
        try:
            params = notification.decode(raw)
            lane = notification.lane(params) if notification.lane is not None else None
            hash(lane)
            if notification.at_once:
                notification.fn(params)
                return
        except Exception as error:  # there is no answer to a notification
            what = (
                "sent parameters that do not fit"
                if isinstance(error, ValueError)
                else "made its handler fail"
            )
            logger.error("%s %s: %r: %s", self.name, what, method, error)
            return
        self.lanes.add(lane, notification, method, params, size)

    def _cancelled(self, raw: Raw) -> None:
        try:
            wanted = plain(raw)
        except ValueError:
            return
        if isinstance(wanted, dict):
            self.requests.cancel(wanted.get("requestId"))

    def link_ended(self, error: BaseException | None) -> None:
        """Nothing more will come."""
        self.error = error
        if isinstance(error, ConnectionEnded):
            why = str(error)
        else:
            why = f"the other side has closed it{f': {error!r}' if error is not None else ''}"
        self.ended = Reason("disconnect", why, error)
        if self.on_disconnect is not None:
            try:
                self.on_disconnect(self.ended)
            except Exception:  # the stop must not depend on it
                logger.exception("%s: on_disconnect failed", self.name)
        self.core.stop(self.ended)

    # Backpressure

    def is_full(self) -> bool:
        """Whether as much waits to be handled as may."""
        lanes, requests, limits = self.lanes, self.requests, self.limits
        return (
            lanes.waiting >= limits.waiting
            or requests.waiting >= limits.waiting
            or lanes.bytes + requests.bytes > limits.backlog
        )

    def adjust(self) -> None:
        """Read on, or stop reading for a while, as much waits or not."""
        link, limits = self._link, self.limits
        if link is None or self.closing or self.ended is not None:
            return
        full = self.is_full()
        if full and self.calls.nested and self.lanes.bytes + self.requests.bytes > limits.backlog:
            link.stop_reading()
            self.link_ended(ConnectionEnded(f"more than {limits.backlog} bytes wait to be handled"))
        elif full and not self.calls.nested and not self.hung_up:
            if not self.paused:
                self.paused = True
                link.pause()
                self._look_later()
        elif self.paused:
            self.paused = False
            link.resume()

    def _look_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.backend.call_at(self.backend.now() + _LOOK_AGAIN, self._look)

    def _look(self) -> None:
        """Who does not read does not see the end of the file either."""
        self._timer = None
        if not self.paused or self.closing or self._link is None:
            return
        if self._link.hung_up():
            self.hung_up = True  # what it had said is read to its end, which is near
            self.adjust()
        else:
            self._look_later()

    # Going out

    def check_open(self, method: str) -> None:
        """An error if nothing can be sent any more."""
        if self.over or (self._link is not None and self._link.over):
            raise self.refusal(method)

    def refusal(self, method: str) -> ConnectionEnded:
        """The error for somebody who comes too late."""
        why = self.ended or self.core.reason
        return ConnectionEnded(
            f"{method!r} cannot be sent: {self.name} is closed{f' ({why})' if why else ''}"
        )

    def send(self, frame: bytes, alone: bool = False) -> bool:
        """Send this, without waiting; `alone` if nothing else is likely to be sent in this turn of the loop.

        True if more is unsent than should be: whoever can wait, waits for room then.
        """
        if self._tap is not None:
            self._tapped("out", frame)
        link = self._link
        if link is None:
            if not self.over:
                self._early.append(frame)
            return sum(map(len, self._early)) > self.limits.unsent
        if alone:
            link.send_now(frame)
        else:
            link.send(frame)
        return link.pending > self.limits.unsent

    def send_notification(self, method: str, params: Any) -> None:
        """Tell the peer something, without waiting: for a clean-up."""
        self.send(self.writer.notification(method, params))

    def is_congested(self) -> bool:
        """Whether more is unsent than should be."""
        return self._link is not None and self._link.pending > self.limits.unsent

    async def wait_for_room(self, *, of_call: bool = False) -> None:
        """Wait until it is less; a call, until it need not wait any more."""
        await self._opening.wait_until(lambda: self._link is not None or self.over)
        if self._link is not None:
            await self._link.wait_for_room(self.limits.unsent, of_call=of_call)

    async def notify(self, method: str, params: Any) -> None:
        """Tell the peer something."""
        self.check_open(method)
        if self.send(self.writer.notification(method, params)):
            await self.wait_for_room()
            self.check_open(method)


async def _no_such_method(method: str, params: Any) -> None:
    raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method}", {"method": method})
