"""A chat at a terminal: what was said scrolls by above, and below stand a line to type in and one that says what runs now.

Invariants
- What was printed is never touched again: it is the terminal's own, to scroll and to copy. Only the last few lines are drawn anew.
- The terminal is in raw mode from the beginning to the end, so that Ctrl-C is a key. A SIGINT that comes all the same means the same.
- A question shows all that it is about, and is answered by a word and Enter, never by a key alone: somebody may be typing when it comes up. What was
  typed before it could be read is no answer: it is put aside until the question is over. Whatever else is typed is a message, and means no.
- Nothing of others reaches the terminal as it is: see `quiesce._safe.text`.
"""

from __future__ import annotations

import asyncio
import errno
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import InMemoryHistory
from rich.text import Text

from quiesce import Scope
from quiesce._safe.printed import printed
from quiesce._safe.text import shortened, shown, whole
from quiesce.cli.base import look_at
from quiesce.cli.chat.session import ANSWERS, READ_IN, Approval, Call, Decision, is_command, seconds, text_of
from quiesce.models import UserMessage

from .terminal_layout import make_application
from .terminal_text import (
    Blocks,
    Excerpt,
    call_line,
    markdown,
    output_line,
    question,
    rendered,
    result_line,
    tail_of,
    user_line,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quiesce.cli.chat.session import Desk

_SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_SEEN: Final = 20_000  # characters: no screen shows more of what is being said
_TICK: Final = 0.1  # seconds between two looks of the live line
_DECIDED: Final[dict[Decision, str]] = {
    "yes": "allowed",
    "no": "not allowed",
    "always": "allowed from now on, in this session",
}


@dataclass(slots=True)
class _Question:
    approval: Approval
    decided: asyncio.Future[Decision]
    is_drawn: bool = False
    is_open: bool = False  # somebody may have read it


class TerminalFace:
    """See the top of this module."""

    def __init__(self) -> None:
        self.buffer = Buffer(multiline=True, history=InMemoryHistory())
        self._blocks = Blocks()
        self._excerpts: dict[str, tuple[Excerpt, Call]] = {}
        self._question: _Question | None = None
        self._aside = ""  # typed before the question could be read
        self._desk: Desk | None = None
        self._application: Application[None] | None = None
        self._sent: asyncio.Queue[tuple[str, _Question | None]] = asyncio.Queue()
        self._pending: list[RenderableType] = []
        self._is_flushing = False

    async def run(self, desk: Desk, banner: str) -> None:
        """Until the user leaves."""
        self._desk = desk
        for item in desk.chat.conversation.items:
            if isinstance(item, UserMessage):
                self.buffer.history.append_string(text_of(item))
        self._application = application = make_application(self)
        application.after_render += lambda _: self._drawn()
        self._print(_banner(banner))
        with _signals_to_us(self.ctrl_c):
            async with Scope("terminal") as scope:
                scope.spawn(self._take, name="typed")
                scope.spawn(self._tick, name="live line")
                try:
                    await application.run_async(handle_sigint=False, set_exception_handler=False)
                except EOFError:  # the terminal was closed
                    pass
                except OSError as error:
                    if error.errno != errno.EIO:  # EIO: the terminal was closed while SIGHUP is ignored
                        raise
                scope.cancel("the user leaves")
        self._application = None
        self._flush()

    async def _take(self) -> None:
        assert self._desk is not None
        while not self._desk.leaving:
            text, asked = await self._sent.get()
            self._desk.width = look_at().width
            await self._desk.take(text)
            if asked is self._question and not is_command(text):
                self._answer("no")  # whoever says something else than an answer, wants something else
        self._leave()

    async def _tick(self) -> None:
        while True:
            was_at_rest = self._desk is None or self._desk.chat.is_at_rest
            await asyncio.sleep(_TICK)
            if not was_at_rest:
                self.changed()

    def _leave(self) -> None:
        application = self._application
        if application is not None and application.is_running and not application.is_done:
            application.exit()

    # Printing

    def _print(self, *parts: RenderableType) -> None:
        """Above the lines at the bottom; soon, and all that is there by then at once."""
        self._pending += parts
        if self._application is None:
            self._flush()
        elif not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        parts, self._pending = self._pending, []
        if not parts:
            return
        text = rendered(*parts)
        application = self._application
        if application is None or not application.is_running or application.is_done:
            out = look_at()
            out.stream.write(out.writable(text))
            out.stream.flush()
            return
        application.renderer.erase()
        application.output.write_raw(text)
        application.output.flush()
        application.invalidate()

    # The face

    def text(self, piece: str) -> None:
        complete = self._blocks.feed(piece)
        if complete:
            self._print(*(part for block in complete for part in (markdown(block), Text())))
        self.changed()

    def text_done(self, *, cut: bool) -> None:
        rest = self._blocks.finish()
        if rest.strip():
            self._print(markdown(rest), *(() if cut else (Text(),)))
        if cut:
            self._print(Text("[stopped here]", style="yellow"))

    def called(self, call: Call) -> None:
        self._print(call_line(call, look_at().width))

    def heard(self, call_id: str, text: str) -> None:
        if call_id == "!":
            self._excerpts.setdefault("!", (Excerpt(), Call("!", "!", "")))
        elif call_id not in self._excerpts:
            assert self._desk is not None
            running = self._desk.chat.running.get(call_id)
            self._excerpts[call_id] = Excerpt(), Call(call_id, running.name if running else "", "")
        excerpt, call = self._excerpts[call_id]
        self._print_output(call, excerpt.feed(text))

    def _print_output(self, call: Call, lines: list[str]) -> None:
        name = call.name if len(self._excerpts) > 1 else ""
        if lines:
            self._print(*(output_line(line, name) for line in lines))

    def returned(self, call: Call, outcome: str, elapsed: float | None, output: str) -> None:
        self._finish_output(call.call_id)
        line = result_line(call, outcome, elapsed, output, look_at().width)
        if line is not None:
            self._print(line)

    def _finish_output(self, call_id: str) -> None:
        if call_id in self._excerpts:
            excerpt, call = self._excerpts[call_id]
            self._print_output(call, excerpt.finish())
            del self._excerpts[call_id]

    def stopped(self, line: str, *, clean: bool) -> None:
        for call_id in list(self._excerpts):
            self._finish_output(call_id)
        self._print(Text(f"■ {line}", style="yellow" if clean else "red"), Text())

    def say(self, text: str) -> None:
        self._print(Text(text, style="dim"))

    def complain(self, text: str) -> None:
        self._print(Text(printed(text), style="red"))

    def changed(self) -> None:
        if self._application is not None:
            self._application.invalidate()

    async def ask(self, approval: Approval) -> Decision:
        self._question = asked = _Question(approval, asyncio.get_running_loop().create_future())
        self._put_aside()
        self._print(question(approval))
        self.changed()
        if self._application is None:
            self._drawn()
        try:
            said = await asked.decided
            self._print(Text(f"  └ {_DECIDED[said]}", style="dim"))
            return said
        finally:
            self._question = None
            self.buffer.text, self._aside = self._aside + self.buffer.text, ""
            self.buffer.cursor_position = len(self.buffer.text)
            self.changed()

    def _put_aside(self) -> None:
        self._aside += self.buffer.text
        self.buffer.reset()

    def _drawn(self) -> None:
        """The screen is as it should be; perhaps there is a question on it for the first time."""
        asked = self._question
        if asked is not None and not asked.is_drawn and not self._pending:
            asked.is_drawn = True
            asyncio.get_running_loop().call_later(READ_IN, self._open, asked)

    def _open(self, asked: _Question) -> None:
        if asked is self._question:
            asked.is_open = True
            self._put_aside()
            self.changed()

    # The lines at the bottom

    def prompt(self) -> StyleAndTextTuples:
        """Who answers; or what is to be decided."""
        if self._question is not None:
            name = self._question.approval.call.name
            answers = "[y]es, [n]o, [a]lways: " if self._question.is_open else ""
            return [("class:question", f"allow {name}? "), ("", answers)]
        name = self._desk.chat.model_name if self._desk is not None else ""
        return [("class:prompt", f"{shortened(name, max(min(40, look_at().width // 2), 10))} › ")]

    def saying(self) -> str:
        """The end of the block that is being said."""
        terminal = look_at()
        rows = self._application.output.get_size().rows if self._application is not None else 24
        rest = self._blocks.rest[-_SEEN:]
        return tail_of(shown(rest), terminal.width, max(min(rows // 2, rows - 4), 1)) if rest.strip() else ""

    def live(self) -> StyleAndTextTuples:
        """What runs now, with ages; or what can be done."""
        if self._desk is None:
            return []
        chat = self._desk.chat
        if chat.activity is None:
            return [("", "/help · !command" + (" · Ctrl-C leaves" if chat.is_at_rest else ""))]
        spin = _SPINNER[int(time.monotonic() / _TICK) % len(_SPINNER)]
        how = {0: "Esc stops", 1: "stopping; Esc again: faster", 2: "stopping; Esc again: at once"}
        hint = how.get(chat.presses, "stopping now")
        room = max(look_at().width - len(hint) - 6, 10)
        items = list(chat.running.values())
        each = max(room // max(len(items), 1) - 2, 12)
        told = " · ".join(
            f"{shortened(f'{item.name} {item.title}'.strip(), max(each - 8, 6))} {seconds(item.age)}"
            for item in items
        )
        return [("", f"{spin} "), ("class:live.name", shortened(told, room)), ("", f"  {hint}")]

    def is_active(self) -> bool:
        """Whether there is something to stop."""
        return self._desk is not None and self._desk.chat.activity is not None

    def send(self) -> None:
        """Enter: an answer, if there is a question; else something to send."""
        if self._question is not None and not self._question.is_open:
            return  # it was meant for something else
        raw = self.buffer.text
        word = raw.strip().lower()
        if self._question is not None and word in ANSWERS:
            self.buffer.reset()
            self._answer(ANSWERS[word])
            return
        if word:
            self.buffer.append_to_history()
            self._print(user_line(whole(raw)[0]))
        self.buffer.reset()
        if word or self._question is None:
            self._sent.put_nowait((raw, self._question))

    def _answer(self, decision: Decision) -> None:
        if self._question is not None and not self._question.decided.done():
            self._question.decided.set_result(decision)

    def escape(self) -> None:
        """Stop what runs."""
        if self._desk is not None:
            self._desk.chat.stop()

    def ctrl_c(self) -> None:
        """Stop what runs; else clear the line; else leave."""
        if self._desk is not None and self._desk.chat.interrupt():
            return
        if self.buffer.text:
            self.buffer.reset()
        else:
            self._leave()

    def ctrl_d(self) -> None:
        """Leave, if nothing is typed."""
        if not self.buffer.text:
            self._leave()
        else:
            self.buffer.delete()


def _banner(text: str) -> Text:
    first, _, rest = text.partition("\n")
    return Text(f"quiesce chat · {first}", style="bold") + Text(f"\n{rest}\n", style="not bold dim")


@contextmanager
def _signals_to_us(pressed: Callable[[], object]) -> Iterator[None]:
    """SIGINT is Ctrl-C. And whoever waits for signals beside us does so again when the application is over."""
    loop = asyncio.get_running_loop()
    before = signal.signal(signal.SIGINT, lambda number, frame: loop.call_soon_threadsafe(pressed))
    wakes = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
