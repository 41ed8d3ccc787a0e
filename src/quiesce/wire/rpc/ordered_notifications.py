"""Notifications, in order.

Those of one lane are handled one after the other by one task, which ends when there are none left; lanes do not wait for each other. An answer
to a call of ours that came behind notifications of its lane takes its place among them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import field

from quiesce import Scope
from quiesce._safe.printed import logger
from quiesce.kernel.inner import WaitQueue, is_cancel, wait_settled, when_ended

from .current_handler import CurrentWork, current_work

if TYPE_CHECKING:
    from quiesce import Reason

    from .calls import Call
    from .connection import Connection
    from .handlers import Notification
    from .message import Message


class NotificationQueue(CurrentWork, eq=False, kw_only=True):
    """Notifications that are handled in the order in which they came."""

    key: Hashable
    # What to do with which parameters, and how long the message was; or an answer of a call of ours.
    queue: deque[tuple[Notification, str, Any, int] | tuple[Call, Message]] = field(default_factory=deque)
    begun: bool = False
    held: int = 0  # answers in the queue that a handler waits for

    def steps_aside(self) -> None:
        """Let those answers through."""
        if self.held:
            self.held = 0
            items = list(self.queue)
            self.queue.clear()
            for item in items:
                if len(item) == 2 and item[0].nested:
                    item[0].settle(item[1])
                else:
                    self.queue.append(item)


class NotificationQueues:
    """All lanes in which something is to be done."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.busy: dict[Hashable, NotificationQueue] = {}
        self._scope: Scope | None = None
        self._all_handled = WaitQueue()
        self._stopped = False
        self.waiting = 0  # notifications
        self.bytes = 0

    async def open(self) -> None:
        """Make the scope of their tasks."""
        self._scope = await Scope.open("notifications", on_error="report")

    def stop(self, reason: Reason) -> None:
        """Cancel the handlers; what waits is dropped, except for answers that have come."""
        self._stopped = True
        if self._scope is not None and self._scope.state == "open":
            self._scope.cancel(reason)
        for lane in list(self.busy.values()):
            self._drop(lane)

    def _is_stopping(self) -> bool:
        """By us, or with everything around us."""
        return self._stopped or self._scope is None or self._scope.state != "open"

    async def finished(self) -> None:
        """Wait until all that has come is handled. A cancel cuts it short."""
        await self._all_handled.wait_until(lambda: not self.busy)

    def _forget(self, lane: NotificationQueue) -> None:
        self.busy.pop(lane.key, None)
        if not self.busy:
            self._all_handled.wake_all()

    async def drained(self) -> None:
        """Wait until each has ended."""
        if self._scope is not None:
            await wait_settled(self._scope._opened())

    def add(self, key: Hashable, notification: Notification, method: str, params: Any, size: int) -> None:
        """A notification came."""
        lane = self.busy.get(key)
        self.waiting += 1
        self.bytes += size
        if lane is None:
            lane = self.busy[key] = NotificationQueue(self._connection, key=key)
            lane.queue.append((notification, method, params, size))
            self._start(lane)
        else:
            lane.queue.append((notification, method, params, size))

    def hold(self, key: Hashable, call: Call, answer: Message) -> bool:
        """Deliver this answer behind what its lane has to do; False if that is nothing, or must not be waited for."""
        lane = self.busy.get(key)
        if lane is None or (lane.asking and call.nested):
            return False
        lane.held += call.nested
        lane.queue.append((call, answer))
        return True

    def _start(self, lane: NotificationQueue) -> None:
        assert self._scope is not None
        name = f"notifications {lane.key!r}" if lane.key else "notifications"
        lane.begun = False
        when_ended(self._scope.spawn(self._handle, lane, name=name), partial(self._ended, lane))

    async def _handle(self, lane: NotificationQueue) -> None:
        connection, queue = self._connection, lane.queue
        lane.begun = True
        current_work.set(lane)
        try:
            while queue:
                item = queue.popleft()
                if len(item) == 2:
                    lane.held -= item[0].nested
                    item[0].settle(item[1])
                    continue
                notification, method, params, size = item
                try:
                    await notification.fn(params)
                except Exception:
                    logger.exception("%s: the handler of %r failed", connection.name, method)
                finally:
                    self.waiting -= 1
                    self.bytes -= size
                    if connection.paused:
                        connection.adjust()
        except BaseException as error:
            if self._is_stopping() or not is_cancel(error):
                self._drop(lane)
            raise
        finally:
            if not queue:
                lane.done = True
                self._forget(lane)
            elif not self._is_stopping():  # somebody has cancelled this one task: the others' turn comes
                self._start(lane)

    def _ended(self, lane: NotificationQueue) -> None:
        if not lane.begun:  # somebody has cancelled it before that
            if self._is_stopping():
                self._drop(lane)
            else:
                self._start(lane)

    def _drop(self, lane: NotificationQueue) -> None:
        for item in lane.queue:
            if len(item) == 2:
                item[0].settle(item[1])
            else:
                self.waiting -= 1
                self.bytes -= item[3]
        lane.queue.clear()
        self._forget(lane)
