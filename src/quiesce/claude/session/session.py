"""One CLI, from its start to the end of its whole process tree.

Invariants
- One owner task (`own`) opens and closes the session, whichever task asks for that.
- As soon as a stop is requested, in any way, an interrupt goes to the CLI if it is working. To end its input
  is not enough: the CLI would finish its turn first. Then the owner waits for the answer to the interrupt
  (for a part of the `cancel` seconds of `Grace`), cancels the handlers and waits for them, ends the input,
  and sends SIGTERM and SIGKILL to the whole tree. If the interrupt is not answered, the CLI is still working:
  then the end of its input and SIGTERM come first, and the rest follows.
- Control messages are handled as they arrive, by plain functions. Unread messages do not hold them up, up to
  `UNREAD_LIMIT`. Beyond that, the CLI is read only while a control request is open, ours or its own. So our
  requests are always answered. A new request of the CLI may have to wait behind messages, since the only way
  to reach it is to keep them all.
- However the session ends, every waiting task gets an error at once, with the exit status and the last of the
  CLI's stderr.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

import anyio

from quiesce import Reason, Scope, current_scope
from quiesce._safe.printed import logger
from quiesce.claude.process import CliProcess
from quiesce.claude.words import (
    CLIConnectionError,
    CLIJSONDecodeError,
    ProcessError,
    ResultError,
    decode,
    encode,
    parse_message,
    result_text,
)
from quiesce.kernel.inner import Backend, core_of, current_backend, is_cancel, read_last_output
from quiesce.wire import ProcessExited

from .control import Call, Control, Handler, ended
from .initialize import check_initialized
from .mailbox import Mailbox

if TYPE_CHECKING:
    from types import TracebackType

    from quiesce import Handle, Process
    from quiesce.kernel.inner import ScopeCore
    from quiesce.wire import Limits, Transport
    from quiesce.wire.inner import Link


_INTERRUPT_SHARE: Final = 1 / 3  # of `Grace.cancel`
_EXIT_POLL: Final = 0.01  # seconds between two checks whether the process has exited
UNREAD_LIMIT: Final = 64 * 1024 * 1024  # bytes of messages, before the CLI has to wait
MOST_UNREAD: Final = 512 * 1024 * 1024  # bytes, while a control request is open; beyond, the session fails


class Session:
    """The connection to one CLI, as the tasks of a query or a client share it."""

    backend: Backend
    core: ScopeCore
    scope: Scope
    mailbox: Mailbox
    info: dict[str, Any]

    def __init__(
        self,
        transport: Transport,
        handlers: dict[str, Handler],
        initialize: dict[str, Any],
        limits: Limits,
        *,
        verbatim: bool,
        connect_timeout: float,
    ) -> None:
        self.transport = transport
        self.limits = limits
        self.control = Control(self._send, handlers, self._adjust, self.fail)
        self.state: str | None = None  # as the CLI reports it: running, requires_action, idle
        self.failed_result: dict[str, Any] | None = None  # the last result, if it is an error
        self.interrupted = False  # whether the turn of the last result was interrupted
        self.prompts: Scope | None = None  # of the task that sends a stream of prompts
        self.feeder: Handle | None = None  # that task
        # Called with each message of the CLI, after the session has handled it.
        self.on_message: Callable[[dict[str, Any]], object] | None = None
        self.closing = False
        self._verbatim = verbatim  # whether the CLI is to take prompts literally
        self._initialize = initialize
        self._connect_timeout = connect_timeout
        self._link: Link | None = None
        self._paused = False
        self._interrupt: Call | None = None
        self._turn_interrupted = False
        self._error: BaseException | None = None  # what readers and the closer get
        self._end: BaseException | None = None  # how the CLI ended by itself, also if that was in order
        self._remove_stop_callback: Any = None
        self._link_ended = False

    @property
    def process(self) -> Process | None:
        """The process of the CLI; None with a transport that has no process."""
        process: Process | None = getattr(self.transport, "process", None)
        return process

    @property
    def is_open(self) -> bool:
        """Whether the CLI has answered the `initialize` request."""
        return hasattr(self, "info")

    # Opening and closing, in the owner task

    async def __aenter__(self) -> Self:
        self.backend = current_backend()
        self.core = core_of()
        self.scope = current_scope()
        self.mailbox = Mailbox(self._adjust)
        await self.control.open(self.backend)
        try:
            self._link = link = await self.transport.open(self.limits, self.scope)
        except OSError as error:
            raise CLIConnectionError(f"the CLI could not be started: {error}") from error
        finally:
            if self._link is None:
                self.transport.discard()
                self.control.fail_all(ended("the CLI was not started"))
                self.mailbox.end(None)
        # Answers to control requests are sent without waiting. A CLI that does not read them must not fill
        # our memory: beyond this many bytes the link fails.
        link.most = self.limits.unsent + self.limits.backlog
        try:
            link.start(self)
            # A callback, and not only the clean-up below: the owner notices a stop at its next turn of the
            # loop, and by then the CLI could have started another tool.
            self._remove_stop_callback = self.core.token.on_cancel(self._on_stop)
            with anyio.move_on_after(self._connect_timeout):
                info = await self.control.ask("initialize", self._initialize)
                check_initialized(self._initialize, info)
                self.info = info
                return self
            raise CLIConnectionError(
                f"the CLI did not answer `initialize` within {self._connect_timeout:g} s{self._last_words()}"
            )
        except BaseException as error:
            if self._error is None and not is_cancel(error):
                self._error = error
            await self._close()
            if self._error is not None and not is_cancel(error):
                # If the CLI has exited, that says more than the request that failed with it.
                raise self._error from self._error.__cause__
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()
        if isinstance(self._error, SystemExit) and not self.mailbox.error_was_raised:
            # A handler wanted the program to exit, and no reader got that: the closer has to.
            raise self._error

    async def _close(self) -> None:
        link = self._link
        assert link is not None
        self.closing = True
        self._on_stop()
        reason = self.core.reason or Reason("parent", "its owner ended")
        closed = ended(f"the session is closed ({reason})")
        # Requests of users fail at once, so that no task waits through the whole stop.
        self.control.fail_all(closed, but=self._interrupt)
        self.mailbox.end(self._error)
        if self.prompts is not None:
            self.prompts.cancel(reason)
        try:
            if not await self._wait_for_interrupt():
                # Handlers may take their whole grace to clean up; the agent must not work on meanwhile.
                self._hurry(reason)
            await self.control.close(reason)
            link.stop_reading()
            # The interrupt and the last answers must reach the CLI before its input ends.
            await link.flush()
        finally:
            if self._remove_stop_callback is not None:
                self._remove_stop_callback()
            self.control.fail_all(closed)
            link.abort()
            try:
                await link.close()
            finally:
                if isinstance(self.transport, CliProcess):
                    self.transport.finish()

    async def _wait_for_interrupt(self) -> bool:
        """Wait for the answer to the interrupt, if any; return whether the CLI has stopped working."""
        call, self._interrupt = self._interrupt, None
        if call is None:
            return True
        self._fail_if_exited(call)
        with anyio.move_on_after(self.core.grace.cancel * _INTERRUPT_SHARE):
            try:
                answer = await self.control.wait_for(call)
                return not answer.get("still_queued")  # otherwise it continues with the next prompt
            except Exception as error:
                logger.debug("the interrupt was not answered: %s", error)
        return False

    def _fail_if_exited(self, call: Call) -> None:
        """Fail the interrupt when the process has exited; check again until then.

        A process that was killed does not answer. The end of its output would show that, but the task that
        waits for it may have been stopped together with this one: so the process is polled.
        """
        process = self.process
        if process is None or call.answer is not None or call.error is not None:
            return
        if process.returncode is not None:
            call.error = ended("the CLI has exited")("interrupt")
            call.waiter.wake()
        elif self.closing and self.control.is_waiting_for("interrupt"):
            self.backend.call_at(self.backend.now() + _EXIT_POLL, lambda: self._fail_if_exited(call))

    def _hurry(self, reason: Reason) -> None:
        """Send SIGTERM at once: the CLI is still working, and the end of its input would not stop it."""
        process = self.process
        if process is not None:
            process.cancel(reason, grace=replace(self.core.grace, cooperate=0.0, cancel=0.0))

    @property
    def _is_working(self) -> bool:
        """Whether there is a turn to interrupt."""
        return self.mailbox.busy or self.state in ("running", "requires_action")

    @property
    def all_sent(self) -> bool:
        """Whether no more prompts of a stream can follow."""
        return self.feeder is None or self.feeder.done

    def _on_stop(self) -> None:
        """Interrupt the CLI, before anything else. The stop may have been requested in another thread."""
        self.backend.run_from_anywhere(self._interrupt_now)

    def _interrupt_now(self) -> None:
        link = self._link
        if (
            link is None
            or link.over
            or self._link_ended
            or self._interrupt is not None
            or not self._is_working
        ):
            return
        number, frame = self.control.frame("interrupt", {})
        self._interrupt = self.control.expect(number, "interrupt")
        link.send_now(frame)
        self._adjust()

    # Messages of the CLI

    def frames_came(self, frames: list[bytes | None]) -> None:
        """Take the lines that the CLI has written; None stands for one that is too long."""
        for frame in frames:
            if frame is None:
                too_long = ValueError("it is longer than max_buffer_size")
                self._fail_to_read(f"a message of more than {self.limits.frame} bytes", too_long)
                return
            if frame[:1] != b"{" and not frame.strip().startswith(b"{"):
                continue  # printed by a program between us and the CLI, such as a shell script that starts it
            try:
                message = decode(frame)
            except (ValueError, RecursionError) as error:
                if self._link is not None and self._link.at_end:
                    return  # the CLI died in the middle of a line; `link_ended` is called next
                self._fail_to_read(frame[:1000].decode(errors="replace"), error)
                return
            try:
                self._take(message, len(frame))
                if self.on_message is not None and not self.closing:
                    self.on_message(message)
            except RecursionError as error:  # nested so deeply that it can be decoded, but not processed
                self._fail_to_read(frame[:1000].decode(errors="replace"), error)
                return

    def _take(self, message: dict[str, Any], size: int) -> None:
        kind = message.get("type")
        if kind == "control_response":
            if self.control.take_answer(message) == "interrupt":
                self._turn_interrupted = self._is_working
        elif kind == "control_request":
            self.control.take_request(message)
        elif kind == "control_cancel_request":
            self.control.take_cancel(message)
        elif self.closing or self.mailbox.ended:
            pass  # there are no readers any more
        elif kind == "command_lifecycle":
            self.mailbox.set_prompt_state(str(message.get("command_uuid")), str(message.get("state")))
        else:
            if kind == "system" and message.get("subtype") == "session_state_changed":
                self.state = message.get("state")
                if not self._is_working:
                    # The interrupted turn ended without a result: the next result belongs to another turn.
                    self._turn_interrupted = False
                    self.control.forget_interrupts()
                self.mailbox.wake_readers()
            elif kind == "result":
                # An interrupted turn ends with an error result, which is not a failure. The answer to the
                # interrupt may arrive before or after that result, so both are considered.
                self.failed_result = message if message.get("is_error") else None
                self.interrupted = self._turn_interrupted or self.control.is_interrupting
                self._turn_interrupted = False
                self.control.forget_interrupts()
            try:
                parsed = parse_message(message)
            except Exception as error:
                self.fail(error)
                return
            if parsed is not None:
                self.mailbox.add(parsed, size, ends_turn=kind == "result")
                self._adjust()
                if self.mailbox.bytes > MOST_UNREAD:
                    self.fail(
                        CLIConnectionError(
                            f"the CLI has sent {self.mailbox.bytes} bytes of messages that were not read"
                        )
                    )

    def link_ended(self, error: BaseException | None) -> None:
        """Take note that the CLI has exited or closed the connection."""
        self._link_ended = True
        end: BaseException
        if not isinstance(error, ProcessExited):
            why = f": {error!r}" if error is not None else ""
            end = CLIConnectionError(f"the CLI has closed the connection{why}{self._last_words()}")
        elif error.returncode and self.failed_result is not None and not self.mailbox.busy:
            end = error_of(self.failed_result, error.returncode)
        else:
            tail = _text(error.stderr_tail)
            end = ProcessError("the CLI has exited", exit_code=error.returncode, stderr=tail)
        end.__cause__ = error
        early = self._is_working or not self.all_sent or not self.is_open
        if not self.core.closed:  # otherwise we stopped it ourselves
            self._end = end
            # An exit without an error, with nothing left to do, is in order.
            if (early or (isinstance(error, ProcessExited) and error.returncode)) and self._error is None:
                self._error = end
        self.control.fail_all(ended(str(end)))
        self.mailbox.end(self._error)
        self._stop(Reason("disconnect", str(end), end))

    def _fail_to_read(self, line: str, why: Exception) -> None:
        error = CLIJSONDecodeError(line, why)
        error.stderr = self._stderr_tail()
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Stop the session because of this error; the first error counts."""
        self._error = error if self._error is None else self._error
        why = _error_text(error)
        self.control.fail_all(ended(why))
        self.mailbox.end(self._error)
        self._stop(Reason("error", why, error))

    def _stop(self, reason: Reason) -> None:
        """Stop the session. While it is opening, its failed `initialize` request does that."""
        if self.is_open:
            self.core.stop(reason)

    def _adjust(self) -> None:
        """Pause or resume reading from the CLI, depending on how much is unread."""
        link = self._link
        if link is None:
            return
        # Never while closing: a paused link would not deliver the answer to the last interrupt.
        full = self.mailbox.bytes > UNREAD_LIMIT and not self.control.is_busy and not self.closing
        if full and not self._paused:
            link.pause()
        elif self._paused and not full:
            link.resume()
        self._paused = full

    # Messages to the CLI

    def _send(self, frame: bytes) -> None:
        # Handlers may still answer while the session closes; the link drops frames when it has ended.
        if self._link is not None:
            self._link.send_now(frame)

    async def send(self, message: dict[str, Any]) -> int:
        """Send a message of the user, and return the number of its prompt."""
        self.check_open()
        link = self._link
        assert link is not None
        is_prompt = message.get("type") == "user"
        if is_prompt and not message.get("uuid"):
            message = {**message, "uuid": str(uuid4())}  # the CLI uses it in its reports about the prompt
        if is_prompt and self._verbatim:
            message = {**message, "client_composed": True}
        # Encode first: a message that cannot be encoded must not count as a prompt that waits for its answer.
        frame = encode(message)
        prompt = self.mailbox.add_prompt(str(message["uuid"])) if is_prompt else self.mailbox.prompt_count
        link.send(frame)
        if link.pending > self.limits.unsent:
            await link.wait_for_room(self.limits.unsent)
            self.check_open()
        return prompt

    async def interrupt(self) -> None:
        """Interrupt the turn; wait for the first prompt, since before it there is nothing to interrupt."""
        if hasattr(self, "mailbox"):  # otherwise the CLI is not started, and `ask` raises that
            await self.mailbox.wait_for_prompt()
        await self.control.ask("interrupt", {})

    def check_open(self) -> None:
        """Raise if the session takes no more prompts."""
        if self.closing or self.mailbox.ended:
            cause = self._end if self._error is None else self._error
            why = f": {_error_text(cause)}" if cause is not None else ""
            raise CLIConnectionError(f"the session is closed{why}") from cause

    def _last_words(self) -> str:
        tail = self._stderr_tail()
        return f"; the last of its stderr:\n{tail}" if tail else ""

    def _stderr_tail(self) -> str:
        process = self.process
        if process is None:
            return ""
        read_last_output(process)
        return _text(process.stderr_tail)


def error_of(result: dict[str, Any], exit_code: int | None) -> ResultError:
    """Return the exception for an error result."""
    text = f"Claude Code returned an error result: {result_text(result)}"
    return ResultError(text, data=result, exit_code=exit_code)


def _error_text(error: BaseException) -> str:
    """Return the text of an error; for a SystemExit its repr, since its text is a bare number."""
    return str(error) if isinstance(error, Exception) else repr(error)


def _text(tail: bytes) -> str:
    return tail.decode(errors="replace").strip()
