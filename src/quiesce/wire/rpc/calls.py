"""Our requests to the peer, until they are answered.

Invariants
- A call ends once: by its answer, by its caller's cancellation, or by the end of the connection. No call
  waits for ever.
- When the cancellation of a caller propagates, the peer has been told already (`$/cancel_request`). The
  answer that still comes is matched and dropped, except for a call with a `Late`: that is called once, with
  the result or with None.
- An answer is delivered after the notifications of its lane that came before it have been handled. There are
  two exceptions. A caller that is itself a handler of that lane would wait for itself. And while the lane's
  own handler waits for an answer, a caller that is any handler gets its answer at once: the lane may be
  waiting for that very handler.
- No call is made once nothing is read any more, because its answer would never be seen.
- No more than `Limits.unanswered` calls are open at a time; the others wait, in order. Otherwise two peers
  that call each other more than either can handle would both stop reading, and neither would read the answers
  that it waits for. Handlers do not wait, because their own answer may depend on their calls.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw, Struct

from quiesce._safe.printed import logger
from quiesce.kernel.inner import WaitQueue
from quiesce.wire.base import INTERNAL_ERROR, REQUEST_CANCELLED, ConnectionEnded, RequestCancelled, RpcError

from .current_handler import current_work, work_for
from .message import NULL, Message, error_in, plain
from .ordered_notifications import NotificationQueue

if TYPE_CHECKING:
    from quiesce.kernel.inner import FreshWaiter

    from .backlog import Backlog
    from .handlers import Decode
    from .ordered_notifications import NotificationQueues
    from .sender import Sender


REMEMBERED: Final = 4096  # cancelled calls whose answer may still come


class Late:
    """What to do with the answer to a call whose caller was cancelled. Subclasses implement `answered`."""

    __slots__ = ("unanswered",)

    def __init__(self) -> None:
        #: Whether the caller was cancelled before the answer came.
        self.unanswered = False

    def answered(self, result: Raw | None) -> None:
        """Called with the result; with None if the answer is an error, or will never be known."""
        raise NotImplementedError


# A msgspec struct, because making one costs less than making an object with an `__init__`.
class Call(Struct, eq=False):
    """One request of ours."""

    method: str
    lane: tuple[Hashable] | None  # whose notifications are handled before its answer is delivered
    nested: bool  # whether a handler waits for it
    waiter: FreshWaiter
    answer: Message | None = None
    error: BaseException | None = None
    settled: bool = False
    late: Late | None = None
    abandoned: bool = False  # its caller was cancelled while the answer waited in a lane

    def settle(self, answer: Message) -> None:
        """Deliver the answer."""
        self.answer = answer
        self.settled = True
        if self.abandoned:
            _call_late(self.late, _result_in(answer))
        else:
            self.waiter.wake()

    def abandon(self) -> None:
        """Deliver the answer, which has come, to `late`, because the caller was cancelled."""
        if self.answer is not None:
            _call_late(self.late, _result_in(self.answer))
        else:
            self.abandoned = True

    def fail(self, error: BaseException) -> None:
        """Raise this error in the caller, unless there is an answer."""
        if not self.settled:
            self.error = error
            self.settled = True
            self.waiter.wake()


class Calls:
    """All calls that wait for their answer, by id."""

    def __init__(self, sender: Sender, backlog: Backlog, lanes: NotificationQueues) -> None:
        self._sender = sender
        self._backlog = backlog
        self._lanes = lanes
        self._pending: dict[int, Call] = {}
        self._cancelled: dict[int, Late | None] = {}  # not answered yet
        self._last_id = 0
        self._callers = WaitQueue()  # those that wait until fewer calls are unanswered

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
        """Send a request, wait for its answer, and return the result, read by `decode`.

        `late` is called if the caller is cancelled and the answer comes after all. `holder` is only kept
        alive.
        """
        sender, backlog = self._sender, self._backlog
        if sender.closing or sender.ended is not None:
            raise sender.refusal(method)
        self._last_id = number = self._last_id + 1
        frame = sender.writer.request(number, method, params)
        work = work_for(sender) if current_work.get() is not None else None
        if work is None and len(self._pending) >= sender.limits.unanswered:
            await self._wait_for_turn(method)
        call = Call(method, (lane,), work is not None, sender.backend.make_waiter(), late=late)
        self._pending[number] = call
        if work is not None:
            if isinstance(work, NotificationQueue) and work.key == lane:
                call.lane = None
            backlog.nested += 1
            work.call_begins()
            backlog.adjust()
        is_congested = sender.send(frame, len(self._pending) == 1)
        try:
            if is_congested:
                await sender.wait_for_room(of_call=True)
            if not call.settled:
                await call.waiter.signal
        except BaseException as error:
            if self._pending.pop(number, None) is not None:
                self._withdraw(number, error, late)
            elif late is not None and not isinstance(error, GeneratorExit):
                call.abandon()
            raise
        finally:
            if work is not None:
                backlog.nested -= 1
                work.call_ended()
            if self._callers:
                self._callers.wake_one()
        if call.error is not None:
            if isinstance(call.error, RequestCancelled):
                from anyio.lowlevel import checkpoint_if_cancelled

                # The request may have been withdrawn because the caller itself is being cancelled. Then the
                # caller gets its cancellation, and not this error.
                await checkpoint_if_cancelled()
            raise call.error
        answer = call.answer
        assert answer is not None
        # Some peers send `"error": null` next to a result, as in JSON-RPC 1.0.
        if answer.error and answer.error != NULL:
            raise error_in(answer)
        return plain(answer.result) if decode is None else decode(answer.result)

    async def _wait_for_turn(self, method: str) -> None:
        sender = self._sender
        was_woken = False
        while len(self._pending) >= sender.limits.unanswered:
            # A call of a handler, which does not wait, may have come between the wake-up and here. Then wait
            # again, but before all others.
            await self._callers.wait(first=was_woken)
            was_woken = True
            if sender.closing or sender.ended is not None:
                self._callers.wake_one()
                raise sender.refusal(method)

    # Cancelling

    def _withdraw(self, number: int, error: BaseException, late: Late | None) -> None:
        sender = self._sender
        # With a GeneratorExit outside the loop, the garbage collector is ending what a dead event loop left
        # over.
        if sender.closing or (isinstance(error, GeneratorExit) and not sender.backend.is_current()):
            return
        self._forget(number, late)
        sender.send_notification("$/cancel_request", {"requestId": number})

    def _forget(self, number: int, late: Late | None = None) -> None:
        self._cancelled[number] = late
        if late is not None:
            late.unanswered = True
        if len(self._cancelled) > REMEMBERED:
            _call_late(self._cancelled.pop(next(iter(self._cancelled))), None)

    def send_and_forget(self, method: str, params: Any) -> None:
        """Send a request and drop its answer: for clean-up on behalf of a caller that is no longer there."""
        sender = self._sender
        if not (sender.closing or sender.ended is not None):
            self._last_id = number = self._last_id + 1
            frame = sender.writer.request(number, method, params)
            self._forget(number)
            sender.send(frame)

    def cancel_lane(self, lane: Hashable, why: str) -> None:
        """Withdraw all calls in this lane; they raise `RequestCancelled`."""
        for number, call in list(self._pending.items()):
            if call.lane == (lane,):
                del self._pending[number]
                self._forget(number, call.late)
                self._sender.send_notification("$/cancel_request", {"requestId": number})
                call.fail(RequestCancelled(REQUEST_CANCELLED, why))

    # Answers

    def answer_came(self, message: Message) -> None:
        """Deliver an answer to its call: now, or after the notifications that came before it."""
        number = message.id
        call = self._pending.pop(number, None) if type(number) is int else None
        if call is None:
            if isinstance(number, int) and number in self._cancelled:
                _call_late(self._cancelled.pop(number), _result_in(message))
            elif number is None and message.error:
                logger.warning(
                    "%s could not understand a message of ours: %s", self._sender.name, error_in(message)
                )
            else:
                logger.debug("%s answered %r, which was not asked", self._sender.name, number)
        else:
            lanes = self._lanes
            if (
                not lanes.busy
                or call.lane is None
                or not lanes.hold(call.lane[0], partial(call.settle, message), is_nested=call.nested)
            ):
                call.settle(message)

    def malformed_answer_came(self, number: object, why: str) -> None:
        """Fail the call whose answer cannot be read; there will be no other answer."""
        call = self._pending.pop(number, None) if type(number) is int else None
        if call is not None:
            call.fail(RpcError(INTERNAL_ERROR, f"the peer's answer to {call.method!r} is not valid: {why}"))
        elif isinstance(number, int):
            _call_late(self._cancelled.pop(number, None), None)

    def fail_all(self, why: str) -> None:
        """Fail every call, because the connection has ended."""
        pending, self._pending = self._pending, {}
        self._cancelled.clear()
        for call in pending.values():
            call.fail(ConnectionEnded(f"{call.method!r} was not answered: {why}"))


def _result_in(answer: Message) -> Raw | None:
    return None if answer.error and answer.error != NULL else answer.result


def _call_late(late: Late | None, result: Raw | None) -> None:
    if late is not None:
        try:
            late.answered(result)
        except Exception:  # must not stop the reader
            logger.exception("an answer came late, and what follows failed")
