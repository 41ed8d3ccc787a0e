"""Control requests, in both directions.

Invariants
- A request of ours ends once: by its answer, by its caller's cancellation, or by the end of the session. In
  the last case it fails at once, with an error that says why.
- Each request of the CLI is handled in a task of its own. `control_cancel_request` cancels exactly that one,
  and then there is no answer, even if the handler returns one. Unknown ids and those of ended requests are
  ignored, and so is a second request with the id of one that is still being handled.
- A handler that raises SystemExit gives no answer: the CLI keeps waiting, and does nothing, until the session
  stops it.
- Sending never waits: `Link.send_now` takes a frame at once.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from quiesce import DuplicateId, Inflight, Reason, ScopeClosed, current_token
from quiesce._safe.printed import logger
from quiesce.claude.tools import McpCalls
from quiesce.claude.words import ClaudeSDKError, CLIConnectionError, encode
from quiesce.kernel.inner import when_ended

if TYPE_CHECKING:
    from quiesce import Handle
    from quiesce.kernel.inner import Backend, Waiter


# From the fields of a request to those of its answer, as JSON. None: send no answer, as the CLI has cancelled
# the request inside another protocol (MCP).
Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any] | None]]

MAX_OPEN_REQUESTS = 1024  # of the CLI; more are refused
LONGEST_ID = 1000

_CANCELLED = Reason("user", "the CLI cancelled the request")


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
        self._abandoned_interrupts: set[str] = set()  # without an answer, and their callers were cancelled
        self._mcp_calls = McpCalls()
        self._has_warned = False
        self._count = 0
        self._inflight: Inflight | None = None
        self._backend: Backend | None = None
        self._end_error: Callable[[str], BaseException] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether requests are open: of ours, without an answer, or of the CLI, which it may still cancel."""
        return bool(self._calls) or (self._inflight is not None and len(self._inflight) > 0)

    def is_waiting_for(self, subtype: str) -> bool:
        """Return whether such a request of ours waits for its answer."""
        return any(call.subtype == subtype for call in self._calls.values())

    @property
    def is_interrupting(self) -> bool:
        """Whether an interrupt was sent and is not answered, even if its caller was cancelled."""
        return bool(self._abandoned_interrupts) or self.is_waiting_for("interrupt")

    def forget_interrupts(self) -> None:
        """Forget the abandoned interrupts, because the turn that they were meant for has ended."""
        self._abandoned_interrupts.clear()

    async def open(self, backend: Backend) -> None:
        """Open the scope of the handlers."""
        self._backend = backend
        self._inflight = await Inflight.open("control requests")

    async def close(self, reason: Reason) -> None:
        """Cancel the running handlers, and wait until each has cleaned up."""
        if self._inflight is not None:
            await self._inflight.close(reason=reason)

    # Requests of ours

    def frame(self, subtype: str, fields: dict[str, Any]) -> tuple[str, bytes]:
        """Return a new request's id, and the request as a frame."""
        self._count += 1
        number = f"req_{self._count}_{secrets.token_hex(4)}"
        request = {"subtype": subtype, **fields}
        return number, encode({"type": "control_request", "request_id": number, "request": request})

    async def ask(self, subtype: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Send the CLI a request, and wait for its answer."""
        if self._end_error is not None:
            raise self._end_error(subtype)
        if self._backend is None:
            raise CLIConnectionError(f"{subtype!r} was not sent: the CLI is not started yet")
        number, frame = self.frame(subtype, fields)
        return await self.wait_for(self.expect(number, subtype), frame)

    def expect(self, number: str, subtype: str) -> Call:
        """Note that an answer to this request is expected."""
        assert self._backend is not None
        call = self._calls[number] = Call(number, subtype, self._backend.make_waiter())
        return call

    async def wait_for(self, call: Call, frame: bytes | None = None) -> dict[str, Any]:
        """Send `frame`, unless that was done before, and wait for the answer, which may have arrived."""
        self._adjust()
        if frame is not None:
            self._send(frame)
        try:
            while call.answer is None and call.error is None:
                await call.waiter
        finally:
            # Still in the table: this caller was cancelled. The CLI still obeys the interrupt, and
            # then the error result of the turn must not count as a failure.
            if self._calls.pop(call.number, None) is not None and call.subtype == "interrupt":
                self._abandoned_interrupts.add(call.number)
        if call.error is not None:
            raise call.error
        assert call.answer is not None
        return call.answer

    def take_answer(self, message: dict[str, Any]) -> str | None:
        """Pass an answer of the CLI to its request; return the subtype of the request, if it is known."""
        response = message.get("response")
        if not isinstance(response, dict):
            return None
        number = str(response.get("request_id"))
        if number in self._abandoned_interrupts:
            self._abandoned_interrupts.remove(number)
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
        """Fail all open requests, and all later ones; `but` may still be answered while the CLI is read."""
        # Kept for later requests: they fail with the same reason, instead of waiting for an answer.
        self._end_error = why
        calls, self._calls = self._calls, {}
        for number, call in calls.items():
            if call is but:
                self._calls[number] = call
            else:
                call.error = why(call.subtype)
                call.waiter.wake()

    # Requests of the CLI

    def take_request(self, message: dict[str, Any]) -> None:
        """Start the handler of a request, or refuse it."""
        number, request = message.get("request_id"), message.get("request")
        if (
            not isinstance(number, str)
            or len(number) > LONGEST_ID
            or not isinstance(request, dict)
            or self._inflight is None
        ):
            if not self._has_warned:  # once: a broken CLI may send thousands
                self._has_warned = True
                logger.warning("the CLI sent an invalid control request: %.200r", message)
            return
        handler = self._handlers.get(str(request.get("subtype")))
        if len(self._inflight) >= MAX_OPEN_REQUESTS:
            self._refuse(number, f"{MAX_OPEN_REQUESTS} requests are being handled already")
            return
        # A newer CLI may ask for things that are unknown here; without an answer it would wait forever.
        if handler is None:
            self._refuse(number, f"Unsupported control request subtype: {request.get('subtype')}")
            return
        try:
            handle = self._inflight.start(number, self._answer, number, handler, request)
        except DuplicateId:
            # Not refused: the CLI would take the refusal for the answer to the first request.
            logger.warning(
                "the CLI used the id %r, of a request that is still being handled, for another one", number
            )
        except ScopeClosed:
            pass  # the session is closing, and sends no more answers
        else:
            when_ended(handle, partial(self._refuse_if_never_begun, number, handle))
            if request.get("subtype") == "mcp_message":
                self._mcp_calls.add(request, handle)

    def _refuse_if_never_begun(self, number: str, handle: Handle) -> None:
        # A program that cancels all tasks may cancel a handler before its first step. Then `_answer` never
        # ran, but the CLI still waits for an answer.
        if handle.state == "cancelled" and handle.reason is None:
            self._refuse(number, "it was cancelled")

    def take_cancel(self, message: dict[str, Any]) -> None:
        """Cancel the handler of the request that a `control_cancel_request` names."""
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
            if (program_exit := _exit_in(error)) is not None:
                self._fail(program_exit)
                return
            # Without a cancel of ours, a CancelledError is one that the handler's own code caused. The CLI
            # did not cancel the request, so it waits for an answer then, too.
            if not token.cancelled:
                logger.debug("a handler of the CLI's %r failed", request.get("subtype"), exc_info=error)
                self._refuse(number, _sendable_text(error))
                if isinstance(error, Exception):
                    return
            elif isinstance(error, CLIConnectionError):
                return  # the handler itself was waiting for the CLI, when the session closed
            raise  # a clean-up that failed: `Inflight` reports it
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
    """Return the SystemExit that this is, or that an exception group contains."""
    while isinstance(error, BaseExceptionGroup) and (exits := error.subgroup(SystemExit)) is not None:
        error = exits.exceptions[0]
    return error if isinstance(error, SystemExit) else None


def _sendable_text(error: BaseException) -> str:
    """Return the text of an error, which the CLI shows to the model, without what cannot be encoded."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return (text or type(error).__name__).encode(errors="backslashreplace").decode()


def ended(why: str) -> Callable[[str], BaseException]:
    """Return a function from the subtype of a request to the error that it was not answered."""
    return lambda subtype: CLIConnectionError(f"{subtype!r} was not answered: {why}")
