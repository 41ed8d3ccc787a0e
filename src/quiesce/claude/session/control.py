"""Control requests, both ways.

Invariants
- A request of ours ends once: by its answer, by its caller's cancellation, or by the end of the session, at once and with an error that says why.
- A handler that wants the program to end (SystemExit) answers nothing: the CLI goes on waiting, and does nothing, until the session stops it.
- A request of the CLI is worked on in a task of its own. `control_cancel_request` cancels exactly that one, which then answers nothing, whatever its
  handler makes of the cancel; an id that is unknown, or done, is nobody's. A second request by the id of one that is at work is not worked on.
- Nothing here waits to be sent: `Link.send` takes it at once.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from quiesce import DuplicateId, Inflight, Reason, ScopeClosed, current_token
from quiesce._safe.printed import logger
from quiesce.claude.tools import McpCalls
from quiesce.claude.types import ClaudeSDKError, CLIConnectionError, encode
from quiesce.kernel.inner import CANCELLED, when_ended

if TYPE_CHECKING:
    from quiesce import Handle
    from quiesce.kernel.inner import Backend, Waiter


# Any: what the CLI asks, and is answered, is JSON. None is no answer: it has taken its question back by other means.
Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any] | None]]

AT_WORK = 1024  # requests of the CLI's; more are refused
LONGEST_ID = 1000

_CANCELLED = Reason("user", "the CLI has cancelled the request")


class Call:
    """One request of ours."""

    __slots__ = ("answer", "error", "number", "subtype", "waiter")

    def __init__(self, number: str, subtype: str, waiter: Waiter) -> None:
        self.number = number
        self.subtype = subtype
        self.waiter = waiter
        self.answer: dict[str, Any] | None = None
        self.error: BaseException | None = None


class Control:
    """The control requests of one session."""

    def __init__(
        self,
        send: Callable[[bytes], None],
        handlers: dict[str, Handler],
        adjust: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._send = send
        self._handlers = handlers
        self._adjust = adjust
        self._fail = fail
        self._calls: dict[str, Call] = {}
        self._unattended: set[str] = set()  # interrupts that were sent, and whose caller has gone
        self._mcp_calls = McpCalls()
        self._has_complained = False
        self._count = 0
        self._inflight: Inflight | None = None
        self._backend: Backend | None = None
        self._ended: Callable[[str], BaseException] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a request of ours waits for its answer, or one of the CLI's is being worked on, which it may cancel."""
        return bool(self._calls) or (self._inflight is not None and len(self._inflight) > 0)

    def is_asked(self, subtype: str) -> bool:
        """Whether such a request of ours waits for its answer."""
        return any(call.subtype == subtype for call in self._calls.values())

    @property
    def is_interrupting(self) -> bool:
        """Whether an interrupt was sent that is not answered, though nobody may wait for that."""
        return bool(self._unattended) or self.is_asked("interrupt")

    def forget_interrupts(self) -> None:
        """The turn is over: it was theirs, if they have come to anything. Those that somebody waits for are kept."""
        self._unattended.clear()

    async def open(self, backend: Backend) -> None:
        """Make the table of handlers."""
        self._backend = backend
        self._inflight = await Inflight.open("control requests")

    async def close(self, reason: Reason) -> None:
        """Cancel the handlers that are at work, and wait until each has cleaned up."""
        if self._inflight is not None:
            await self._inflight.close(reason=reason)

    # Ours

    def frame(self, subtype: str, fields: dict[str, Any]) -> tuple[str, bytes]:
        """A request, ready to be sent, and its id."""
        self._count += 1
        number = f"req_{self._count}_{secrets.token_hex(4)}"
        request = {"subtype": subtype, **fields}
        return number, encode({"type": "control_request", "request_id": number, "request": request})

    async def ask(self, subtype: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Ask the CLI something, and wait for its answer."""
        if self._ended is not None:
            raise self._ended(subtype)
        if self._backend is None:
            raise CLIConnectionError(f"{subtype!r} was not sent: the CLI is not started yet")
        number, frame = self.frame(subtype, fields)
        return await self.wait_for(self.expect(number, subtype), frame)

    def expect(self, number: str, subtype: str) -> Call:
        """The answer to this request is wanted."""
        assert self._backend is not None
        call = self._calls[number] = Call(number, subtype, self._backend.make_waiter())
        return call

    async def wait_for(self, call: Call, frame: bytes | None = None) -> dict[str, Any]:
        """Send the request, unless that was done before, and wait for its answer, which may have come."""
        self._adjust()
        if frame is not None:
            self._send(frame)
        try:
            while call.answer is None and call.error is None:
                await call.waiter
        finally:
            if self._calls.pop(call.number, None) is not None and call.subtype == "interrupt":
                self._unattended.add(call.number)
        if call.error is not None:
            raise call.error
        assert call.answer is not None
        return call.answer

    def answered(self, message: dict[str, Any]) -> str | None:
        """The CLI has answered a request of ours; returns the subtype of that."""
        response = message.get("response")
        if not isinstance(response, dict):
            return None
        number = str(response.get("request_id"))
        if number in self._unattended:
            self._unattended.remove(number)
            return "interrupt"
        call = self._calls.pop(number, None)
        if call is None:
            return None  # its caller was cancelled
        if response.get("subtype") == "error":
            call.error = ClaudeSDKError(f"{call.subtype}: {response.get('error') or 'the CLI refused it'}")
        else:
            answer = response.get("response")
            call.answer = answer if isinstance(answer, dict) else {}
        call.waiter.wake()
        return call.subtype

    def fail_all(self, why: Callable[[str], BaseException], *, but: Call | None = None) -> None:
        """The session is over: nobody will answer; `but` that one may still be, as the CLI is read on."""
        self._ended = why
        calls, self._calls = self._calls, {}
        for number, call in calls.items():
            if call is but:
                self._calls[number] = call
            else:
                call.error = why(call.subtype)
                call.waiter.wake()

    # The CLI's

    def asked(self, message: dict[str, Any]) -> None:
        """The CLI wants something."""
        number, request = message.get("request_id"), message.get("request")
        if (
            not isinstance(number, str)
            or len(number) > LONGEST_ID
            or not isinstance(request, dict)
            or self._inflight is None
        ):
            if not self._has_complained:  # it may do so thousands of times
                self._has_complained = True
                logger.warning("the CLI sent a control request that is none: %.200r", message)
            return
        handler = self._handlers.get(str(request.get("subtype")))
        if len(self._inflight) >= AT_WORK:
            self._refuse(number, f"{AT_WORK} requests are being worked on already")
            return
        if handler is None:
            self._refuse(number, f"Unsupported control request subtype: {request.get('subtype')}")
            return
        try:
            handle = self._inflight.start(number, self._answer, number, handler, request)
        except DuplicateId:
            # A refusal would be taken for the answer to the first.
            logger.warning(
                "the CLI has used the id %r, which is still being worked on, for another request", number
            )
        except ScopeClosed:
            pass  # the session is closing: its answer would come to nobody
        else:
            when_ended(handle, partial(self._refuse_if_never_begun, number, handle))
            if request.get("subtype") == "mcp_message":
                self._mcp_calls.came(request, handle)

    def _refuse_if_never_begun(self, number: str, handle: Handle) -> None:
        """Somebody who cancels all tasks may have cancelled it before its first step: the CLI waits all the same."""
        if handle.state == CANCELLED and handle.reason is None:
            self._refuse(number, "it was cancelled")

    def cancelled(self, message: dict[str, Any]) -> None:
        """The CLI does not want it any more."""
        number = message.get("request_id")
        if self._inflight is not None and isinstance(number, str):
            self._inflight.cancel(number, _CANCELLED)

    async def _answer(self, number: str, handler: Handler, request: dict[str, Any]) -> None:
        token = current_token()
        try:
            response = await handler(request)
            if response is None:
                return
            frame = encode(
                {
                    "type": "control_response",
                    "response": {"subtype": "success", "request_id": number, "response": response},
                }
            )
        except BaseException as error:
            if (wanted := _exit_in(error)) is not None:
                self._fail(wanted)
                return
            # Also a cancel that nobody asked for: the CLI waits for an answer.
            if not token.cancelled:
                logger.debug("a handler of the CLI's %r failed", request.get("subtype"), exc_info=error)
                self._refuse(number, _words_of(error))
                if isinstance(error, Exception):
                    return
            elif isinstance(error, CLIConnectionError):
                return  # the end of the session, of which a request of the handler's own was told
            raise  # a clean-up that failed is told by the table of handlers
        if not token.cancelled:
            self._send(frame)

    def _refuse(self, number: str, error: str) -> None:
        self._send(
            encode(
                {
                    "type": "control_response",
                    "response": {"subtype": "error", "request_id": number, "error": error},
                }
            )
        )


def _exit_in(error: BaseException) -> SystemExit | None:
    """That the program is to end, be it said in a task group."""
    while isinstance(error, BaseExceptionGroup) and (exits := error.subgroup(SystemExit)) is not None:
        error = exits.exceptions[0]
    return error if isinstance(error, SystemExit) else None


def _words_of(error: BaseException) -> str:
    """What it says, as far as that can be said: the CLI hands it on to the model."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return (text or type(error).__name__).encode(errors="backslashreplace").decode()


def ended(why: str) -> Callable[[str], BaseException]:
    """The error for requests that nobody will answer."""
    return lambda subtype: CLIConnectionError(f"{subtype!r} was not answered: {why}")
