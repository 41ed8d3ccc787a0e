"""A chat in plain lines: for pipes, files, and terminals that can do no more.

The model's answers, and the output of the user's own commands, go to standard output as they arrive; everything else
goes to standard error. Nothing is ever overwritten, and nothing is coloured.

Invariants
- A question shows everything that the approval covers, and a line typed before it could be read is never its answer.
- If the reader of standard output closes it (`| head`), nothing more is written, and `output_closed` is set, so
  that the run can stop. If only standard error is closed, the chat continues.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TextIO

from quiesce import Scope
from quiesce.cli.inner import Terminal, detect_terminal
from quiesce.inner import exact, one_line, printed, shown
from quiesce_chat.session import (
    ANSWERS,
    READING_TIME,
    Approval,
    Call,
    Decision,
    outcome_in_words,
    seconds,
)


class PlainFace:
    """The face for plain lines.

    With `can_ask`, there is a user who can be asked, and whose next line is passed to `answer`. `discard_pending`
    drops what was typed so far. With `quiet`, answers are not written to standard output, because the caller prints
    them in another form.
    """

    def __init__(
        self, *, can_ask: bool, quiet: bool = False, discard_pending: Callable[[], object] | None = None
    ) -> None:
        self._can_ask = can_ask
        self._discard_pending = discard_pending
        self._quiet = quiet
        self._out = detect_terminal(sys.stdout)
        self._err = detect_terminal(sys.stderr)
        self._question: asyncio.Future[Decision] | None = None
        #: Set once the user has had time to read the question.
        self._question_is_open = asyncio.Event()
        self._at_line_start = True
        self.output_closed = asyncio.Event()
        self.errors: list[str] = []
        #: Makes the prompt of an interactive chat; empty while something is running.
        self.prompt: Callable[[], str] | None = None

    # The face

    def text(self, piece: str) -> None:
        if not self._quiet:
            self._write(self._out, shown(piece))

    def text_done(self, *, cut: bool) -> None:
        if not self._quiet:
            self._write(self._out, " [stopped here]\n" if cut else "\n")

    def called(self, call: Call) -> None:
        self._write_line(f"· {call.name} {one_line(call.title, 200)}")

    def program_output(self, call_id: str, text: str) -> None:
        if call_id == "!":
            self._write(self._out, shown(text))
        elif self._err.is_terminal:
            # The output of the model's programs is only for a user who is watching, not for a log file.
            self._write(self._err, shown(text))

    def returned(self, call: Call, outcome: str, elapsed: float | None, output: str) -> None:
        if call.call_id == "!" and not self._at_line_start:
            self._write(self._out, "\n")
        how = outcome_in_words(outcome) or "done"
        took = f" after {seconds(elapsed)}" if elapsed is not None else ""
        if call.call_id != "!" or outcome != "finished":
            self._write_line(f"· {call.name} {one_line(call.title, 60)}: {how}{took}")

    def stopped(self, line: str, *, clean: bool) -> None:
        self._write_line(line)

    def say(self, text: str) -> None:
        self._write_line(text)

    def show_error(self, text: str) -> None:
        self.errors.append(text)
        self._write_line(f"quiesce: {printed(text)}")

    def refresh(self) -> None:
        if self.prompt is not None:
            self._write(self._err, self.prompt())

    async def ask(self, approval: Approval) -> Decision:
        call = approval.call
        if not self._can_ask:
            self._write_line(
                f"not allowed: {call.name} {one_line(call.title, 200)} "
                "(there is no user to ask; --yes approves everything)"
            )
            return "no"
        preview = "".join(f"\n  {line}" for line in approval.preview.split("\n"))
        self._write_line(f"allow {call.name}?{preview}")
        self._question = asyncio.get_running_loop().create_future()
        try:
            # The user may be typing when the question appears. An Enter that was meant for something else must not
            # approve a call.
            await asyncio.sleep(READING_TIME)
            if self._discard_pending is not None:
                self._discard_pending()
            self._write(self._err, "[y]es, [n]o, [a]lways for this session: ")
            self._question_is_open.set()
            return await self._question
        finally:
            self._question = None
            self._question_is_open.clear()

    # Answers

    @property
    def is_asking(self) -> bool:
        """Whether the next line is an answer."""
        return self._question_is_open.is_set() and self._question is not None and not self._question.done()

    async def wait_for_question(self) -> None:
        """Wait until the next line is an answer."""
        while not self.is_asking:
            await self._question_is_open.wait()
            # The event stays set until `ask` runs again after an answer. Without this, the loop would spin.
            await asyncio.sleep(0)

    def is_too_early(self, line: str) -> bool:
        """Whether the line looks like an answer, but was typed before the question could be read."""
        return self._question is not None and not self._question_is_open.is_set() and self.is_answer(line)

    def is_answer(self, line: str) -> bool:
        """Whether the line is one of the words that answer a question."""
        return line.strip().lower() in ANSWERS

    def answer(self, line: str) -> None:
        """Answer the question. Any other text than a known answer means no; an empty line asks again."""
        word = line.strip().lower()
        if not word:
            self._write(self._err, "y, n or a: ")
        elif self._question is not None and not self._question.done():
            self._question.set_result(ANSWERS.get(word, "no"))

    def stop_asking(self) -> None:
        """Answer no from now on: the user's input has ended."""
        self._can_ask = False
        if self._question is not None and not self._question.done():
            self._question.set_result("no")

    # Writing

    def _write_line(self, text: str) -> None:
        if not self._at_line_start:
            self._write(self._out, "\n")
        self._write(self._err, f"{exact(text)}\n")

    def _write(self, to: Terminal, text: str) -> None:
        if not text or self.output_closed.is_set():
            return
        try:
            to.stream.write(to.writable(text))
            to.stream.flush()
        except OSError as error:
            # With `2>&1 | head`, a write to standard error may be the first to find the pipe closed.
            is_output = to is self._out or _same_file(self._out.stream, to.stream)
            if is_output and not isinstance(error, BrokenPipeError):
                raise
            if is_output:
                self.output_closed.set()
            discard_output(to.stream)
        if to is self._out:
            self._at_line_start = text.endswith("\n")

    async def run_while_read(self, work: Callable[[], Awaitable[object]]) -> bool:
        """Run `work` until it ends or standard output is closed; True if it was open to the end."""
        async with Scope("output") as scope:
            scope.spawn(self._stop_when_closed, scope, name="watch for closed output")
            await work()
            scope.cancel("everything is written")
        return not self.output_closed.is_set()

    async def _stop_when_closed(self, scope: Scope) -> None:
        await self.output_closed.wait()
        scope.cancel("standard output is closed")


def _same_file(one: TextIO, other: TextIO) -> bool:
    """Whether both streams write to the same place, as with `2>&1`."""
    try:
        return os.path.sameopenfile(one.fileno(), other.fileno())
    except OSError:
        return False


def discard_output(stream: TextIO) -> None:
    """Redirect a stream that was closed by its reader to the null device."""
    # Closing the stream would not do: it flushes first, and fails again. What is still buffered is flushed by the
    # interpreter on exit, and now goes nowhere.
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, stream.fileno())
    finally:
        os.close(devnull)
