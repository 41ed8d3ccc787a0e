"""A connection to a peer: what comes in, what goes out, and how it ends.

Invariants
- Everything that comes in is dealt with by plain functions, in the order in which it came; only handlers are tasks. So nothing that a
  handler does holds up an answer, or a cancel, that comes behind.
- It is opened and ended by one owner task (`own`), whoever asks for that, and however: `close()`, the end of a block, the end of the owner's
  scope, the end of the file, an error of the socket, the end of the program. There is one way out, `leave`:
  read nothing more; cancel the handlers, and let each answer; send what is to be sent; fail every call that waits; let go of the link.
- All of that takes its time from one `Grace`, that of the stop. When it is over, what was not sent is lost, and no call waits on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, Raw

from quiesce.kernel._backend import Backend, Timer, current_backend
from quiesce.kernel._reason import Reason
from quiesce.kernel._scope import current_core, current_scope

from ._calls import Calls
from ._errors import INVALID_REQUEST, METHOD_NOT_FOUND, ConnectionEnded
from ._handlers import Notification, Request
from ._lanes import Lanes
from ._limits import Limits
from ._message import Malformed, Message, Writer, parse, plain
from ._requests import Requests

if TYPE_CHECKING:
    from types import TracebackType

    from quiesce.kernel._core import ScopeCore

    from ._link import Link
    from ._transport import Transport

logger = logging.getLogger("quiesce")

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
        self.lanes = Lanes(self)
        self.requests = Requests(self)
        self.error: BaseException | None = None  # of the link
        self.closing = False
        self.paused = False
        self.over = False
        self._transport = transport
        self._link: Link | None = None
        self._early: list[bytes] = []  # sent before there was a link
        self._handlers = requests
        self._notifications = notifications
        self._on_request = on_request
        self._on_notification = on_notification
        self._tap = tap
        self._ended: Reason | None = None
        self._timer: Timer | None = None

    # The whole life, in the owner task

    async def __aenter__(self) -> Connection:
        self.backend = current_backend()
        self.core = current_core(self.backend)
        await self.requests.open()
        await self.lanes.open()
        self._link = link = await self._transport.open(self.limits, current_scope())
        early, self._early = self._early, []
        for frame in early:
            link.send(frame)
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
        try:
            link.stop_reading()
            await self.requests.close(reason)
            await self.lanes.close(reason)
            await link.flush()
        finally:
            self.over = True
            self.calls.fail_all(f"{self.name} is closed ({self._ended or reason})")
            link.abort()
        await link.close()

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
                self._tap("in", frame)
            message = parse(frame)
            if type(message) is Message:
                if message.method is UNSET:
                    self.calls.answered(message)
                elif message.id is UNSET:
                    self._notified(message.method, message.params, len(frame))
                else:
                    self._requested(message)
            elif type(message) is Malformed:
                self._refuse(message)
        if self.lanes.waiting >= self.limits.waiting or self.requests.waiting >= self.limits.waiting:
            self.adjust()

    def _refuse(self, what: Malformed) -> None:
        if what.id is UNSET:
            logger.warning("%s sent an answer that is none: %s", self.name, what.message)
        elif not self.is_congested():  # nobody is owed an answer to nonsense that does not even read them
            self.send(self.writer.error(what.id, what.code, what.message))

    def _requested(self, message: Message) -> None:
        method: str = message.method  # type: ignore[assignment]
        request = self._handlers.get(method)
        if request is None:
            fallback = self._on_request
            if fallback is None:
                text = f"Method not found: {method}"
                self.send(self.writer.error(message.id, METHOD_NOT_FOUND, text, {"method": method}))  # type: ignore[arg-type]
                return
            request = Request(lambda params: fallback(method, params))
        self.requests.came(message.id, method, request, message.params)  # type: ignore[arg-type]

    def _notified(self, method: str, raw: Raw, size: int) -> None:
        notification = self._notifications.get(method)
        if notification is None:
            if method == "$/cancel_request":
                wanted = plain(raw)
                self.requests.cancel(wanted.get("requestId") if isinstance(wanted, dict) else None)
                return
            fallback = self._on_notification
            if fallback is None or method.startswith("$/"):
                logger.debug("%s sent %r, which nobody handles", self.name, method)
                return
            notification = Notification(lambda params: fallback(method, params))
        try:
            params = notification.decode(raw)
            lane = notification.lane(params) if notification.lane is not None else None
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

    def link_ended(self, error: BaseException | None) -> None:
        """Nothing more will come."""
        self.error = error
        why = f"the other side has closed it{f': {error!r}' if error is not None else ''}"
        self._ended = Reason("disconnect", why, error)
        self.core.stop(self._ended)

    # Backpressure

    def adjust(self) -> None:
        """Read on, or stop reading for a while, as much waits or not."""
        link, limits = self._link, self.limits
        if link is None or self.closing:
            return
        full = self.lanes.waiting >= limits.waiting or self.requests.waiting >= limits.waiting
        if full and self.calls.nested and self.lanes.bytes > limits.backlog:
            link.stop_reading()
            self.link_ended(
                ConnectionEnded(f"more than {limits.backlog} bytes of notifications wait to be handled")
            )
        elif full and not self.calls.nested:
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
            self.link_ended(None)
        else:
            self._look_later()

    # Going out

    def check_open(self, method: str) -> None:
        """An error if nothing can be sent any more."""
        if self.over or self._ended is not None:
            why = self._ended or (getattr(self, "core", None) and self.core.reason)
            raise ConnectionEnded(
                f"{method!r} cannot be sent: {self.name} is closed{f' ({why})' if why else ''}"
            )

    def send(self, frame: bytes, *, alone: bool = False) -> None:
        """Send this, without waiting; `alone` if nothing else is likely to be sent in this turn of the loop."""
        if self._tap is not None:
            self._tap("out", frame)
        if self._link is not None:
            if alone:
                self._link.send_now(frame)
            else:
                self._link.send(frame)
        elif not self.over:
            self._early.append(frame)

    def is_congested(self) -> bool:
        """Whether more is unsent than should be."""
        return self._link is not None and self._link.pending > self.limits.unsent

    async def wait_for_room(self) -> None:
        """Wait until it is less."""
        if self._link is not None:
            await self._link.wait_for_room(self.limits.unsent)

    async def notify(self, method: str, params: Any) -> None:
        """Tell the peer something."""
        self.check_open(method)
        self.send(self.writer.notification(method, params))
        if self.is_congested():
            await self.wait_for_room()
            self.check_open(method)

    async def request(self, method: str, params: Any, lane: Hashable) -> Raw:
        """Ask the peer something."""
        message = await self.calls.call(method, params, lane)
        return message.result
