"""The peer's notifications, handled in order.

Those of one lane are handled one after the other by one task, which ends when none is left; lanes do not wait
for each other. The answer to a call of ours that came behind notifications of its lane takes its place among
them.

The obvious alternative is one task per lane that lives as long as the connection, and waits. But lanes are
named by the user of the connection (ACP has one per session), who does not say when one is no longer needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import field

from quiesce import Scope
from quiesce._safe.printed import logger
from quiesce.kernel.inner import WaitQueue, core_of, is_cancel, wait_settled, when_ended

from .current_handler import CurrentWork, current_work

if TYPE_CHECKING:
    from quiesce import Reason

    from .backlog import Backlog
    from .handlers import Notification
    from .sender import Sender

Waiting: TypeAlias = (
    "tuple[Notification, str, Any, int]"  # its handler, method, parameters, and size in bytes
)
Answer: TypeAlias = (
    "tuple[Callable[[], object], bool]"  # what delivers it, and whether a handler waits for it
)


class NotificationQueue(CurrentWork, eq=False, kw_only=True):
    """One lane: notifications that are handled in the order in which they came, and answers among them."""

    key: Hashable
    queue: deque[Waiting | Answer] = field(default_factory=deque)
    begun: bool = False
    nested: int = 0  # answers in the queue that a handler waits for

    def step_aside(self) -> None:
        """Deliver the answers that handlers wait for: this lane's own handler may wait for one of them."""
        if self.nested:
            self.nested = 0
            items = list(self.queue)
            self.queue.clear()
            for item in items:
                if len(item) == 2 and item[1]:
                    item[0]()
                else:
                    self.queue.append(item)


class NotificationQueues:
    """All lanes in which something waits or is being handled."""

    def __init__(self, sender: Sender, backlog: Backlog) -> None:
        self._sender = sender
        self._backlog = backlog
        self.busy: dict[Hashable, NotificationQueue] = {}
        self._scope: Scope | None = None
        self._all_handled = WaitQueue()
        self._stopped = False

    async def open(self) -> None:
        """Open the scope of the lanes' tasks."""
        self._scope = await Scope.open("notifications", on_error="report")

    def stop(self, reason: Reason) -> None:
        """Cancel the handlers, drop the notifications that wait, and deliver the answers that wait."""
        self._stopped = True
        if self._scope is not None and self._scope.state == "open":
            self._scope.cancel(reason)
        for lane in list(self.busy.values()):
            self._drop(lane)

    def _is_stopping(self) -> bool:
        # The scope can also be stopped from outside, by the scope that it belongs to.
        return self._stopped or self._scope is None or self._scope.state != "open"

    async def wait_handled(self) -> None:
        """Wait until everything that has come is handled. Can be cancelled."""
        await self._all_handled.wait_until(lambda: not self.busy)

    async def wait_settled(self) -> None:
        """Wait until every task has ended."""
        if self._scope is not None:
            await wait_settled(core_of(self._scope))

    # Coming in

    def add(self, key: Hashable, notification: Notification, method: str, params: Any, size: int) -> None:
        """Handle a notification when it is its turn in the lane `key`."""
        self._backlog.notifications += 1
        self._backlog.bytes += size
        lane = self.busy.get(key)
        if lane is None:
            lane = self.busy[key] = NotificationQueue(self._sender, key=key)
            lane.queue.append((notification, method, params, size))
            self._start(lane)
        else:
            lane.queue.append((notification, method, params, size))

    def hold(self, key: Hashable, deliver: Callable[[], object], *, is_nested: bool) -> bool:
        """Deliver an answer after what waits in its lane; return False if it has to be delivered at once.

        That is so if nothing waits, and if both the caller and the lane are handlers that wait for an answer.
        """
        lane = self.busy.get(key)
        if lane is None or (lane.calls and is_nested):
            return False
        lane.nested += is_nested
        lane.queue.append((deliver, is_nested))
        return True

    # Handling

    def _start(self, lane: NotificationQueue) -> None:
        assert self._scope is not None
        name = f"notifications {lane.key!r}" if lane.key else "notifications"
        lane.begun = False
        when_ended(self._scope.spawn(self._handle, lane, name=name), partial(self._on_end, lane))

    async def _handle(self, lane: NotificationQueue) -> None:
        backlog, queue = self._backlog, lane.queue
        lane.begun = True
        current_work.set(lane)
        try:
            while queue:
                item = queue.popleft()
                if len(item) == 2:
                    lane.nested -= item[1]
                    item[0]()
                    continue
                notification, method, params, size = item
                try:
                    await notification.fn(params)
                except Exception:
                    logger.exception("%s: the handler of %r failed", self._sender.name, method)
                finally:
                    backlog.notifications -= 1
                    backlog.bytes -= size
                    if backlog.paused:
                        backlog.adjust()
        except BaseException as error:
            if self._is_stopping() or not is_cancel(error):
                self._drop(lane)
            raise
        finally:
            if not queue:
                lane.done = True
                self._forget(lane)
            elif not self._is_stopping():
                # Only this task was cancelled, from outside, and with it one notification. The others are
                # still handled.
                self._start(lane)

    def _on_end(self, lane: NotificationQueue) -> None:
        if lane.begun:
            return
        # The task was cancelled before its first step, so its `finally` did not run.
        if self._is_stopping():
            self._drop(lane)
        else:
            self._start(lane)

    def _drop(self, lane: NotificationQueue) -> None:
        for item in lane.queue:
            if len(item) == 2:
                item[0]()
            else:
                self._backlog.notifications -= 1
                self._backlog.bytes -= item[3]
        lane.queue.clear()
        self._forget(lane)

    def _forget(self, lane: NotificationQueue) -> None:
        self.busy.pop(lane.key, None)
        if not self.busy:
            self._all_handled.wake_all()
