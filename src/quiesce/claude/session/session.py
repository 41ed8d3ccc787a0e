"""One CLI, from its start to the end of its whole process tree.

Invariants
- It is opened and ended by one owner task (`own`), whoever asks for that, and however.
- The moment a stop is asked for, by whatever way, an interrupt is on its way to the CLI, if it is at work: a CLI whose input merely ends goes on
  until its turn is over. Then, in the owner: wait for the interrupt's answer (a part of the `cancel` seconds of `Grace`); cancel the handlers
  and wait for them; end its input; SIGTERM; SIGKILL, to the whole tree. If there is no answer, it is at work still: then its input ends and SIGTERM
  comes first, and all the rest after that.
- Control messages are dealt with as they come, by plain functions. What a consumer does not read is in nobody's way, up to `UNREAD_LIMIT`: beyond that
  the CLI is read only while a control request, of ours or of its own, is open. So the answers to ours always come; a new question of the CLI's
  may wait behind messages, as there is no way to it but to keep them all.
- However it ends, whoever waits for anything is told at once, and why: with how the process ended and the last of its stderr.
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
from quiesce.claude.types import (
    CLIConnectionError,
    CLIJSONDecodeError,
    ProcessError,
    ResultError,
    decode,
    encode,
    parse_message,
    result_text,
)
from quiesce.kernel.inner import Backend, current_backend, current_core, is_cancel
from quiesce.wire import ProcessExited
from quiesce.wire.inner import read_last_output

from .control import Call, Control, Handler, ended
from .initialize import check_initialized
from .mailbox import Mailbox

if TYPE_CHECKING:
    from types import TracebackType

    from quiesce import Handle, Process
    from quiesce.kernel.inner import ScopeCore
    from quiesce.wire import Limits, Transport
    from quiesce.wire.inner import Link


_INTERRUPT_SHARE: Final = 1 / 3  # of the time to clean up
_LOOK_AGAIN: Final = 0.01  # seconds between two looks whether the process is still there
UNREAD_LIMIT: Final = 64 * 1024 * 1024  # bytes of messages, before the CLI has to wait
MOST_UNREAD: Final = (
    512 * 1024 * 1024
)  # bytes of them, though a control request is open: then the CLI is given up


class Session:
    """What the tasks of a query or a client share."""

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
        self.state: str | None = None  # as the CLI tells it: running, requires_action, idle
        self.failed_result: dict[str, Any] | None = None  # the last result, if it is an error
        self.interrupted = False  # whether the turn of that result was
        self.prompts: Scope | None = None  # where a stream of them is said
        self.fed: Handle | None = None  # who says it
        self.on_message: Callable[[dict[str, Any]], object] | None = None  # told of all that the CLI says
        self.closing = False
        self._verbatim = verbatim  # whether prompts are to be taken as they are
        self._initialize = initialize
        self._connect_timeout = connect_timeout
        self._link: Link | None = None
        self._paused = False
        self._interrupt: Call | None = None
        self._turn_interrupted = False
        self._error: BaseException | None = None
        self._end: BaseException | None = None  # how the CLI has ended by itself, be it in order
        self._take_back: Any = None
        self._gone = False

    # The whole life, in the owner task

    async def __aenter__(self) -> Self:
        self.backend = current_backend()
        self.core = current_core(self.backend)
        self.scope = current_scope()
        self.mailbox = Mailbox(self.backend, self._adjust)
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
        link.most = self.limits.unsent + self.limits.backlog  # beyond that, nobody reads at the other end
        try:
            link.start(self)
            self._take_back = self.core.token.on_cancel(self._stop_asked)
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
            await self._leave()
            if self._error is not None and not is_cancel(error):
                raise self._error from self._error.__cause__  # what has become of the CLI, if it has ended
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._leave()
        if isinstance(self._error, SystemExit) and not self.mailbox.told:
            raise self._error  # or the program would go on: whoever closes is told

    async def _leave(self) -> None:
        link = self._link
        assert link is not None
        self.closing = True
        self._stop_asked()
        reason = self.core.reason or Reason("parent", "its owner ended")
        closed = ended(f"the session is closed ({reason})")
        self.control.fail_all(closed, but=self._interrupt)
        self.mailbox.end(self._error)
        if self.prompts is not None:
            self.prompts.cancel(reason)
        try:
            if not await self._wait_for_interrupt():
                self._hurry(reason)
            await self.control.close(reason)
            link.stop_reading()
            await link.flush()
        finally:
            if self._take_back is not None:
                self._take_back()
            self.control.fail_all(closed)
            link.abort()
            try:
                await link.close()
            finally:
                if isinstance(self.transport, CliProcess):
                    self.transport.said_all()

    async def _wait_for_interrupt(self) -> bool:
        """Whether the CLI is at rest."""
        call, self._interrupt = self._interrupt, None
        if call is None:
            return True
        self._give_up_if_gone(call)
        with anyio.move_on_after(self.core.grace.cancel * _INTERRUPT_SHARE):
            try:
                answer = await self.control.wait_for(call)
                return not answer.get("still_queued")  # else it goes on with the next prompt
            except Exception as error:
                logger.debug("the interrupt was not answered: %s", error)
        return False

    def _give_up_if_gone(self, call: Call) -> None:
        """A process that dies of a signal does not answer, and whoever would tell of its exit may have been stopped with us: look."""
        process: Process | None = getattr(self.transport, "process", None)
        if process is None or call.answer is not None or call.error is not None:
            return
        if process.returncode is not None:
            call.error = ended("the CLI has ended")("interrupt")
            call.waiter.wake()
        elif self.closing and self.control.is_asked("interrupt"):
            self.backend.call_at(self.backend.now() + _LOOK_AGAIN, lambda: self._give_up_if_gone(call))

    def _hurry(self, reason: Reason) -> None:
        """It works on, and the end of its input would not keep it from that: SIGTERM, before anything is waited for."""
        process: Process | None = getattr(self.transport, "process", None)
        if process is not None:
            process.cancel(reason, grace=replace(self.core.grace, cooperate=0.0, cancel=0.0))

    @property
    def _at_work(self) -> bool:
        """Whether there is something to interrupt."""
        return self.mailbox.busy or self.state in ("running", "requires_action")

    @property
    def all_said(self) -> bool:
        """Whether no more of a stream of prompts can come."""
        return self.fed is None or self.fed.done

    def _stop_asked(self) -> None:
        """A stop was asked for, perhaps in another thread: tell the CLI, before anything else."""
        self.backend.run_from_anywhere(self._interrupt_now)

    def _interrupt_now(self) -> None:
        link = self._link
        if link is None or link.over or self._gone or self._interrupt is not None or not self._at_work:
            return
        number, frame = self.control.frame("interrupt", {})
        self._interrupt = self.control.expect(number, "interrupt")
        link.send_now(frame)
        self._adjust()

    # Coming in

    def frames_came(self, frames: list[bytes | None]) -> None:
        """What the CLI has written, line by line."""
        for frame in frames:
            if frame is None:
                too_long = ValueError("it is longer than max_buffer_size")
                self._fail_to_read(f"a message of more than {self.limits.frame} bytes", too_long)
                return
            if frame[:1] != b"{" and not frame.strip().startswith(b"{"):
                continue  # what a program in between has printed
            try:
                message = decode(frame)
            except (ValueError, RecursionError) as error:
                if self._link is not None and self._link.at_end:
                    return  # it has died in the middle of a line: of that we are told next
                self._fail_to_read(frame[:1000].decode(errors="replace"), error)
                return
            try:
                self._came(message, len(frame))
                if self.on_message is not None and not self.closing:
                    self.on_message(message)
            except RecursionError as error:  # nested so deeply that it can be read, and nothing more
                self._fail_to_read(frame[:1000].decode(errors="replace"), error)
                return

    def _came(self, message: dict[str, Any], size: int) -> None:
        kind = message.get("type")
        if kind == "control_response":
            if self.control.answered(message) == "interrupt":
                self._turn_interrupted = self._at_work
        elif kind == "control_request":
            self.control.asked(message)
        elif kind == "control_cancel_request":
            self.control.cancelled(message)
        elif self.closing or self.mailbox.over:
            pass  # nobody will read it
        elif kind == "command_lifecycle":
            self.mailbox.command(str(message.get("command_uuid")), str(message.get("state")))
        else:
            if kind == "system" and message.get("subtype") == "session_state_changed":
                self.state = message.get("state")
                if not self._at_work:
                    self._turn_interrupted = False  # it had no result
                    self.control.forget_interrupts()
                self.mailbox.poke()
            elif kind == "result":
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
                self.mailbox.came(parsed, size, ends_turn=kind == "result")
                self._adjust()
                if self.mailbox.bytes > MOST_UNREAD:
                    self.fail(
                        CLIConnectionError(
                            f"the CLI has said {self.mailbox.bytes} bytes that nobody has read"
                        )
                    )

    def link_ended(self, error: BaseException | None) -> None:
        """The CLI is gone."""
        self._gone = True
        told: BaseException
        if not isinstance(error, ProcessExited):
            why = f": {error!r}" if error is not None else ""
            told = CLIConnectionError(f"the CLI has closed the connection{why}{self._last_words()}")
        elif error.returncode and self.failed_result is not None and not self.mailbox.busy:
            told = error_of(self.failed_result, error.returncode)
        else:
            tail = _text(error.stderr_tail)
            told = ProcessError("the CLI has ended", exit_code=error.returncode, stderr=tail)
        told.__cause__ = error
        early = self._at_work or not self.all_said or not hasattr(self, "info")
        if not self.core.closed:  # else it is our own doing
            self._end = told
            if early or (isinstance(error, ProcessExited) and error.returncode):
                self._error = told if self._error is None else self._error  # else it is in order
        self.control.fail_all(ended(str(told)))
        self.mailbox.end(self._error)
        self._stop(Reason("disconnect", str(told), told))

    def _fail_to_read(self, line: str, why: Exception) -> None:
        error = CLIJSONDecodeError(line, why)
        error.stderr = self._stderr_tail()
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """What it says makes no sense, or a handler wants the program to end: stop it."""
        self._error = error if self._error is None else self._error
        why = _said(error)
        self.control.fail_all(ended(why))
        self.mailbox.end(self._error)
        self._stop(Reason("error", why, error))

    def _stop(self, reason: Reason) -> None:
        """End it; one that is being opened is told by its first request, which has failed."""
        if hasattr(self, "info"):
            self.core.stop(reason)

    def _adjust(self) -> None:
        """Read on, or let the CLI wait, as much is unread or not."""
        link = self._link
        if link is None or self.closing:
            if link is not None and self._paused:
                self._paused = False
                link.resume()
            return
        full = self.mailbox.bytes > UNREAD_LIMIT and not self.control.is_busy
        if full and not self._paused:
            self._paused = True
            link.pause()
        elif self._paused and not full:
            self._paused = False
            link.resume()

    # Going out

    def _send(self, frame: bytes) -> None:
        if self._link is not None:
            self._link.send_now(frame)

    async def say(self, message: dict[str, Any]) -> int:
        """Send a message of the user; returns the number of its turn."""
        self.check_open()
        link = self._link
        assert link is not None
        is_prompt = message.get("type") == "user"
        if is_prompt and not message.get("uuid"):
            message = {**message, "uuid": str(uuid4())}  # by which the CLI says what becomes of it
        if is_prompt and self._verbatim:
            message = {**message, "client_composed": True}
        frame = encode(message)  # before it counts as asked: it may be nothing that can be said
        turn = self.mailbox.prompted(str(message["uuid"])) if is_prompt else self.mailbox.asked
        link.send(frame)
        if link.pending > self.limits.unsent:
            await link.wait_for_room(self.limits.unsent)
            self.check_open()
        return turn

    async def interrupt(self) -> None:
        """Interrupt the turn; the first one as soon as its prompt is said, for before that there is nothing to interrupt."""
        if hasattr(self, "mailbox"):  # else it is not started, which is an error
            await self.mailbox.wait_for_prompt()
        await self.control.ask("interrupt", {})

    def check_open(self) -> None:
        """An error if nothing can be said any more."""
        if self.closing or self.mailbox.over:
            cause = self._end if self._error is None else self._error
            why = f": {_said(cause)}" if cause is not None else ""
            raise CLIConnectionError(f"the session is closed{why}") from cause

    def _last_words(self) -> str:
        tail = self._stderr_tail()
        return f"; the last of its stderr:\n{tail}" if tail else ""

    def _stderr_tail(self) -> str:
        process: Process | None = getattr(self.transport, "process", None)
        if process is None:
            return ""
        read_last_output(process)
        return _text(process.stderr_tail)


def error_of(result: dict[str, Any], exit_code: int | None) -> ResultError:
    """The error for a result that is one."""
    text = f"Claude Code returned an error result: {result_text(result)}"
    return ResultError(text, data=result, exit_code=exit_code)


def _said(error: BaseException) -> str:
    """Its own words, if it has some: those of a SystemExit are a bare number."""
    return str(error) if isinstance(error, Exception) else repr(error)


def _text(tail: bytes) -> str:
    return tail.decode(errors="replace").strip()
