"""Our requests to the peer, until they are answered.

Invariants
- A call ends once: by its answer, by its caller's cancellation, or by the end of the connection. None waits for ever.
- A caller that is cancelled has told the peer (`$/cancel_request`) when its cancellation goes on. The answer that still comes is matched and
  dropped; unless it makes a difference to somebody (`Late`), who is then told once: of the result, or that there is none.
- An answer is not delivered before the notifications of its lane that came ahead of it have been handled; unless the caller is itself a
  handler of that lane, which would then wait for itself, or a handler at all while that lane's own handler waits for an answer: what that
  one waits for may be this one.
- No call is made once nothing is read any more: its answer would never be seen.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw, Struct

from quiesce._safe.printed import logger
from quiesce.wire.base import INTERNAL_ERROR, REQUEST_CANCELLED, ConnectionEnded, RequestCancelled, RpcError

from .call_queue import CallQueue
from .current_handler import current_work, work_for
from .message import NULL, Message, error_in, plain
from .ordered_notifications import NotificationQueue

if TYPE_CHECKING:
    from quiesce.kernel.inner import FreshWaiter

    from .connection import Connection
    from .handlers import Decode


REMEMBERED: Final = 4096  # cancelled calls whose answer is still awaited


class Late:
    """What is to be done with the answer to a call whose caller does not wait for it any more."""

    __slots__ = ("unanswered",)

    def __init__(self) -> None:
        self.unanswered = False  # whether the caller was cancelled before the answer came

    def answered(self, result: Raw | None) -> None:
        """Here is the result; None if it is an error, or if it will never be known."""
        raise NotImplementedError  # abstract: who gave up knows what to do with it


class Call(Struct, eq=False):
    """One request of ours. (A struct is made in less time than an object with an `__init__`.)"""

    method: str
    lane: tuple[Hashable] | None  # whose notifications go before its answer; None if none do
    nested: bool  # made inside a handler, which waits for it
    waiter: FreshWaiter
    answer: Message | None = None
    error: BaseException | None = None
    settled: bool = False
    late: Late | None = None
    abandoned: bool = False  # its caller was cancelled when the answer was here, but not delivered yet

    def settle(self, answer: Message) -> None:
        """Here is the answer."""
        self.answer = answer
        self.settled = True
        if self.abandoned:
            tell_late(self.late, result_in(answer))
        else:
            self.waiter.wake()

    def abandon(self) -> None:
        """The answer has come, and nobody wants it any more."""
        if self.answer is not None:
            tell_late(self.late, result_in(self.answer))
        else:
            self.abandoned = True

    def fail(self, error: BaseException) -> None:
        """There will be none."""
        if not self.settled:
            self.error = error
            self.settled = True
            self.waiter.wake()


class Calls:
    """All calls that wait, by id."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pending: dict[int, Call] = {}
        self._cancelled: dict[int, Late | None] = {}  # told so, not answered yet
        self._last_id = 0
        self._askers = CallQueue(connection)
        self.nested = 0  # calls that handlers wait for

    def __len__(self) -> int:
        return len(self._pending)

    async def call(
        self,
        method: str,
        params: Any,
        lane: Hashable,
        decode: Decode | None = None,
        holder: object = None,
        late: Late | None = None,
    ) -> Any:
        """Ask, and wait for the answer; its result is read by `decode`. If you are cancelled, `late` hears of it."""
        connection = self._connection
        if connection.closing or connection.ended is not None:
            raise connection.refusal(method)
        self._last_id = number = self._last_id + 1
        frame = connection.writer.request(number, method, params)
        work = work_for(connection) if current_work.get() is not None else None
        if work is None and len(self._pending) >= connection.limits.unanswered:
            await self._askers.wait_for_turn(method)
        call = Call(method, (lane,), work is not None, connection.backend.make_waiter(), late=late)
        self._pending[number] = call
        if work is not None:
            if isinstance(work, NotificationQueue) and work.key == lane:
                call.lane = None
            self.nested += 1
            work.begins_to_ask()
            connection.adjust()
        is_congested = connection.send(frame, len(self._pending) == 1)
        try:
            if is_congested:
                await connection.wait_for_room(of_call=True)
            if not call.settled:
                await call.waiter.signal
        except BaseException as cut:
            if self._pending.pop(number, None) is not None:
                self._give_up(number, cut, late)
            elif late is not None and not isinstance(cut, GeneratorExit):
                call.abandon()
            raise
        finally:
            if work is not None:
                self.nested -= 1
                work.has_asked()
            if self._askers:
                self._askers.next()
        if call.error is not None:
            if isinstance(call.error, RequestCancelled):
                from anyio.lowlevel import checkpoint_if_cancelled

                # A caller that is being cancelled too is told so, and not that its question was taken back.
                await checkpoint_if_cancelled()
            raise call.error
        answer = call.answer
        assert answer is not None
        if answer.error and answer.error != NULL:  # some say so of what went well
            raise error_in(answer)
        return plain(answer.result) if decode is None else decode(answer.result)

    def _give_up(self, number: int, cut: BaseException, late: Late | None) -> None:
        connection = self._connection
        if connection.closing or (isinstance(cut, GeneratorExit) and not connection.backend.is_current()):
            return
        self._forget(number, late)
        connection.send(connection.writer.notification("$/cancel_request", {"requestId": number}))

    def _forget(self, number: int, late: Late | None = None) -> None:
        self._cancelled[number] = late
        if late is not None:
            late.unanswered = True
        if len(self._cancelled) > REMEMBERED:
            tell_late(self._cancelled.pop(next(iter(self._cancelled))), None)

    def ask_in_passing(self, method: str, params: Any) -> None:
        """Ask, and drop the answer: for what is to be undone when nobody is there any more who could wait."""
        connection = self._connection
        if not (connection.closing or connection.ended is not None):
            self._last_id = number = self._last_id + 1
            frame = connection.writer.request(number, method, params)
            self._forget(number)
            connection.send(frame)

    def cancel_lane(self, lane: Hashable, why: str) -> None:
        """Whoever waits for an answer in this lane gets none: the peer is told so, as if each had been cancelled."""
        connection = self._connection
        for number, call in list(self._pending.items()):
            if call.lane == (lane,):
                del self._pending[number]
                self._forget(number, call.late)
                connection.send(connection.writer.notification("$/cancel_request", {"requestId": number}))
                call.fail(RequestCancelled(REQUEST_CANCELLED, why))

    def answered(self, message: Message) -> None:
        """An answer came: to whom?"""
        number = message.id
        call = self._pending.pop(number, None) if type(number) is int else None
        if call is None:
            if isinstance(number, int) and number in self._cancelled:
                tell_late(self._cancelled.pop(number), result_in(message))
            elif number is None and message.error:
                logger.warning(
                    "%s could not understand a message of ours: %s",
                    self._connection.name,
                    error_in(message),
                )
            else:
                logger.debug("%s has answered %r, which was not asked", self._connection.name, number)
        else:
            lanes = self._connection.lanes
            if not lanes.busy or call.lane is None or not lanes.hold(call.lane[0], call, message):
                call.settle(message)

    def spoiled(self, number: object, why: str) -> None:
        """What should have been the answer is none, and there will be no other."""
        call = self._pending.pop(number, None) if type(number) is int else None
        if call is not None:
            call.fail(RpcError(INTERNAL_ERROR, f"the peer's answer to {call.method!r} is none: {why}"))
        elif isinstance(number, int):
            tell_late(self._cancelled.pop(number, None), None)

    def fail_all(self, why: str) -> None:
        """The connection is over."""
        pending, self._pending = self._pending, {}
        self._cancelled.clear()
        for call in pending.values():
            call.fail(ConnectionEnded(f"{call.method!r} was not answered: {why}"))


def result_in(answer: Message) -> Raw | None:
    """What was answered; None for an error."""
    return None if answer.error and answer.error != NULL else answer.result


def tell_late(late: Late | None, result: Raw | None) -> None:
    """The answer is here, and its caller has gone."""
    if late is not None:
        try:
            late.answered(result)
        except Exception:  # the reader must not suffer from it
            logger.exception("an answer came late, and what follows failed")
