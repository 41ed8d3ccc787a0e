"""A chat in plain lines: for pipes, files, and terminals that can do no more.

What the model answers, and what the user's own commands print, goes to standard output, as it comes; all else goes to standard error. Nothing is
ever overwritten, and nothing is coloured.

Invariants
- A question shows all that it is about, and no line that was typed before it could be read is its answer.
- If whoever reads us has gone (`| head`), nothing more is written, and `gone` says so: there is nobody to work for. Who reads standard error alone is
  not missed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TextIO

from quiesce import Scope
from quiesce._safe.printed import printed
from quiesce._safe.text import exact, one_line, shown
from quiesce.cli.base import Terminal, look_at
from quiesce.cli.chat.session import ANSWERS, READ_IN, Approval, Call, Decision, outcome_in_words, seconds


class PlainFace:
    """`asks`: there is a person who can be asked, and whose next line is the answer (`answer`); `forget` drops what was typed so far."""

    def __init__(
        self, *, asks: bool, quiet: bool = False, forget: Callable[[], object] | None = None
    ) -> None:
        self._asks = asks
        self._forget = forget
        self._quiet = quiet  # no answer to standard output: somebody will print it in another form
        self._out = look_at(sys.stdout)
        self._err = look_at(sys.stderr)
        self._question: asyncio.Future[Decision] | None = None
        self._question_is_open = asyncio.Event()  # it could be read
        self._column_zero = True
        self.gone = asyncio.Event()
        self.complaints: list[str] = []
        self.prompt: Callable[[], str] | None = None  # for a person: empty while something runs

    # The face

    def text(self, piece: str) -> None:
        if not self._quiet:
            self._write(self._out, shown(piece))

    def text_done(self, *, cut: bool) -> None:
        if not self._quiet:
            self._write(self._out, " [stopped here]\n" if cut else "\n")

    def called(self, call: Call) -> None:
        self._tell(f"· {call.name} {one_line(call.title, 200)}")

    def heard(self, call_id: str, text: str) -> None:
        if call_id == "!":
            self._write(self._out, shown(text))
        elif self._err.is_terminal:
            self._write(self._err, shown(text))

    def returned(self, call: Call, outcome: str, elapsed: float | None, output: str) -> None:
        if call.call_id == "!" and not self._column_zero:
            self._write(self._out, "\n")
        how = outcome_in_words(outcome) or "done"
        took = f" after {seconds(elapsed)}" if elapsed is not None else ""
        if call.call_id != "!" or outcome != "finished":
            self._tell(f"· {call.name} {one_line(call.title, 60)}: {how}{took}")

    def stopped(self, line: str, *, clean: bool) -> None:
        self._tell(line)

    def say(self, text: str) -> None:
        self._tell(text)

    def complain(self, text: str) -> None:
        self.complaints.append(text)
        self._tell(f"quiesce: {printed(text)}")

    def changed(self) -> None:
        if self.prompt is not None:
            self._write(self._err, self.prompt())

    async def ask(self, approval: Approval) -> Decision:
        call = approval.call
        if not self._asks:
            self._tell(
                f"not allowed: {call.name} {one_line(call.title, 200)} (nobody can be asked here; --yes allows everything)"
            )
            return "no"
        preview = "".join(f"\n  {line}" for line in approval.preview.split("\n"))
        self._tell(f"allow {call.name}?{preview}")
        self._question = asyncio.get_running_loop().create_future()
        try:
            await asyncio.sleep(READ_IN)
            if self._forget is not None:
                self._forget()
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

    async def asks_something(self) -> None:
        """Wait until the next line is an answer."""
        while not self.is_asking:
            await self._question_is_open.wait()
            await asyncio.sleep(0)

    def is_too_early(self, line: str) -> bool:
        """Whether that would be an answer, but was typed before the question could be read."""
        return self._question is not None and not self._question_is_open.is_set() and self.is_answer(line)

    def is_answer(self, line: str) -> bool:
        """Whether it is one of the words that are."""
        return line.strip().lower() in ANSWERS

    def answer(self, line: str) -> None:
        """What the user says to that; whatever is no answer means no."""
        word = line.strip().lower()
        if not word:
            self._write(self._err, "y, n or a: ")
        elif self._question is not None and not self._question.done():
            self._question.set_result(ANSWERS.get(word, "no"))

    def give_up(self) -> None:
        """Nobody is there any more."""
        self._asks = False
        if self._question is not None and not self._question.done():
            self._question.set_result("no")

    # Writing

    def _tell(self, text: str) -> None:
        if not self._column_zero:
            self._write(self._out, "\n")
        self._write(self._err, f"{exact(text)}\n")

    def _write(self, to: Terminal, text: str) -> None:
        if not text or self.gone.is_set():
            return
        try:
            to.stream.write(to.writable(text))
            to.stream.flush()
        except OSError as error:
            is_output = to is self._out or _are_the_same(self._out.stream, to.stream)
            if is_output and not isinstance(error, BrokenPipeError):
                raise
            if is_output:
                self.gone.set()
            let_be(to.stream)
        if to is self._out:
            self._column_zero = text.endswith("\n")

    async def while_read(self, work: Callable[[], Awaitable[object]]) -> bool:
        """Do that, as long as somebody reads what is written; whether somebody did to its end."""
        async with Scope("output") as scope:
            scope.spawn(self._stop_when_gone, scope, name="whether somebody reads")
            await work()
            scope.cancel("all is said")
        return not self.gone.is_set()

    async def _stop_when_gone(self, scope: Scope) -> None:
        await self.gone.wait()
        scope.cancel("nobody reads what is written")


def _are_the_same(one: TextIO, other: TextIO) -> bool:
    """Whether both go to the same place, as with `2>&1`."""
    try:
        return os.path.sameopenfile(one.fileno(), other.fileno())
    except OSError:
        return False


def let_be(stream: TextIO) -> None:
    """Nobody reads this any more: what is still in it goes nowhere, and the end of the program does not trip over it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    finally:
        os.close(nowhere)
