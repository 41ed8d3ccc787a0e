"""A chat at a terminal: the conversation scrolls by above, and at the bottom are an input line and a status line.

Invariants
- What was printed is never touched again: the user can scroll and copy it with the terminal's own means. Only the
  last few lines are redrawn.
- The terminal is in raw mode from start to end, so that Ctrl-C is a key. A SIGINT from elsewhere has the same
  meaning.
- A question shows everything that the approval covers, and is answered by a word and Enter, never by a single key,
  because the user may be typing when it appears. What was typed before it could be read is not an answer: it is set
  aside until the question is answered. Anything but an answer is a message, and means no.
- Text from models, programs and files never reaches the terminal unchanged: see `shown` and `printed` in
  `quiesce.inner`.
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
from quiesce.cli.inner import detect_terminal
from quiesce.inner import printed, shortened, shown, whole
from quiesce.models import UserMessage
from quiesce_chat.session import (
    ANSWERS,
    READING_TIME,
    Approval,
    Call,
    Decision,
    is_command,
    seconds,
    text_of,
)

from .terminal_layout import make_application
from .terminal_text import (
    Blocks,
    Excerpt,
    call_line,
    markdown,
    output_line,
    question_text,
    rendered,
    result_line,
    tail_of,
    user_line,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quiesce_chat.session import InputHandler

_SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
#: Only the end of an unfinished block is drawn, because no screen shows more than this many characters.
_DRAWN_CHARACTERS: Final = 20_000
#: Seconds between two frames of the status line.
_TICK: Final = 0.1
_DECISION_TEXT: Final[dict[Decision, str]] = {
    "yes": "allowed",
    "no": "not allowed",
    "always": "allowed from now on, in this session",
}


@dataclass(slots=True)
class _Question:
    approval: Approval
    decided: asyncio.Future[Decision]
    is_drawn: bool = False
    #: The user has had time to read it, so that input is now an answer.
    is_open: bool = False


class TerminalFace:
    """The face for a terminal."""

    def __init__(self) -> None:
        self.buffer = Buffer(multiline=True, history=InMemoryHistory())
        self._blocks = Blocks()
        self._excerpts: dict[str, tuple[Excerpt, Call]] = {}
        self._question: _Question | None = None
        #: What the user had typed before a question could be read. It is restored after the question.
        self._draft = ""
        self._handler: InputHandler | None = None
        self._application: Application[None] | None = None
        self._submitted: asyncio.Queue[tuple[str, _Question | None]] = asyncio.Queue()
        self._pending: list[RenderableType] = []
        self._is_flushing = False

    async def run(self, handler: InputHandler, banner: str) -> None:
        """Run the chat until the user exits."""
        self._handler = handler
        for item in handler.chat.conversation.items:
            if isinstance(item, UserMessage):
                self.buffer.history.append_string(text_of(item))
        self._application = application = make_application(self)
        application.after_render += lambda _: self._after_render()
        self._print(_banner(banner))
        with _sigint_as_ctrl_c(self.ctrl_c):
            async with Scope("terminal") as scope:
                scope.spawn(self._handle_submitted, name="input")
                scope.spawn(self._tick, name="status line")
                try:
                    await application.run_async(handle_sigint=False, set_exception_handler=False)
                except EOFError:  # the terminal was closed
                    pass
                except OSError as error:
                    # EIO: the terminal was closed while SIGHUP is ignored, as under `nohup`.
                    if error.errno != errno.EIO:
                        raise
                scope.cancel("the user exits")
        self._application = None
        self._flush()

    async def _handle_submitted(self) -> None:
        assert self._handler is not None
        while not self._handler.is_quitting:
            text, question = await self._submitted.get()
            self._handler.width = detect_terminal().width
            await self._handler.handle(text)
            # A message in place of an answer means no: but only to the question that was open when it was sent.
            if question is self._question and not is_command(text):
                self._answer("no")
        self._exit()

    async def _tick(self) -> None:
        while True:
            was_idle = self._handler is None or self._handler.chat.is_visibly_idle
            await asyncio.sleep(_TICK)
            # Looked up before the pause, so that there is one more frame after the chat has become idle.
            if not was_idle:
                self.refresh()

    def _exit(self) -> None:
        application = self._application
        if application is not None and application.is_running and not application.is_done:
            application.exit()

    # Printing

    def _print(self, *parts: RenderableType) -> None:
        """Print above the lines at the bottom, together with all else that this step of the event loop prints."""
        # Each flush erases and redraws the bottom lines, which would flicker if it were done for every part.
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
            out = detect_terminal()
            out.stream.write(out.writable(text))
            out.stream.flush()
            return
        # Erase the bottom lines, print in their place, and let them be drawn again below. `run_in_terminal`, the
        # usual way, would leave raw mode meanwhile, and then Ctrl-C is a signal and typed text is echoed.
        application.renderer.erase()
        application.output.write_raw(text)
        application.output.flush()
        application.invalidate()

    # The face

    def text(self, piece: str) -> None:
        complete = self._blocks.feed(piece)
        if complete:
            self._print(*(part for block in complete for part in (markdown(block), Text())))
        self.refresh()

    def text_done(self, *, cut: bool) -> None:
        rest = self._blocks.finish()
        if rest.strip():
            self._print(markdown(rest), *(() if cut else (Text(),)))
        if cut:
            self._print(Text("[stopped here]", style="yellow"))

    def called(self, call: Call) -> None:
        self._print(call_line(call, detect_terminal().width))

    def program_output(self, call_id: str, text: str) -> None:
        if call_id == "!":
            self._excerpts.setdefault("!", (Excerpt(), Call("!", "!", "")))
        elif call_id not in self._excerpts:
            assert self._handler is not None
            running = self._handler.chat.running.get(call_id)
            self._excerpts[call_id] = Excerpt(), Call(call_id, running.name if running else "", "")
        excerpt, call = self._excerpts[call_id]
        self._print_output(call, excerpt.feed(text))

    def _print_output(self, call: Call, lines: list[str]) -> None:
        name = call.name if len(self._excerpts) > 1 else ""
        if lines:
            self._print(*(output_line(line, name) for line in lines))

    def returned(self, call: Call, outcome: str, elapsed: float | None, output: str) -> None:
        self._finish_output(call.call_id)
        line = result_line(call, outcome, elapsed, output, detect_terminal().width)
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

    def show_error(self, text: str) -> None:
        self._print(Text(printed(text), style="red"))

    def refresh(self) -> None:
        if self._application is not None:
            self._application.invalidate()

    async def ask(self, approval: Approval) -> Decision:
        self._question = question = _Question(approval, asyncio.get_running_loop().create_future())
        self._set_draft_aside()
        self._print(question_text(approval))
        self.refresh()
        if self._application is None:
            self._after_render()
        try:
            decision = await question.decided
            self._print(Text(f"  └ {_DECISION_TEXT[decision]}", style="dim"))
            return decision
        finally:
            self._question = None
            self.buffer.text, self._draft = self._draft + self.buffer.text, ""
            self.buffer.cursor_position = len(self.buffer.text)
            self.refresh()

    def _set_draft_aside(self) -> None:
        self._draft += self.buffer.text
        self.buffer.reset()

    def _after_render(self) -> None:
        """Start the reading time of a question when it is on the screen for the first time."""
        # Not when it is asked: a slow terminal may draw it later, and the user can only read what is drawn.
        question = self._question
        if question is not None and not question.is_drawn and not self._pending:
            question.is_drawn = True
            asyncio.get_running_loop().call_later(READING_TIME, self._open_question, question)

    def _open_question(self, question: _Question) -> None:
        if question is self._question:
            question.is_open = True
            self._set_draft_aside()
            self.refresh()

    # The lines at the bottom

    def prompt(self) -> StyleAndTextTuples:
        """The prompt: the model's name, or the open question."""
        if self._question is not None:
            name = self._question.approval.call.name
            answers = "[y]es, [n]o, [a]lways: " if self._question.is_open else ""
            return [("class:question", f"allow {name}? "), ("", answers)]
        name = self._handler.chat.model_name if self._handler is not None else ""
        return [("class:prompt", f"{shortened(name, max(min(40, detect_terminal().width // 2), 10))} › ")]

    def partial_answer(self) -> str:
        """The end of the block that the model is still writing."""
        terminal = detect_terminal()
        rows = self._application.output.get_size().rows if self._application is not None else 24
        rest = self._blocks.rest[-_DRAWN_CHARACTERS:]
        return tail_of(shown(rest), terminal.width, max(min(rows // 2, rows - 4), 1)) if rest.strip() else ""

    def status_line(self) -> StyleAndTextTuples:
        """What is running and for how long, or what the user can do."""
        if self._handler is None:
            return []
        chat = self._handler.chat
        if chat.activity is None:
            return [("", "/help · !command" + (" · Ctrl-C exits" if chat.is_visibly_idle else ""))]
        spin = _SPINNER[int(time.monotonic() / _TICK) % len(_SPINNER)]
        hints = {0: "Esc stops", 1: "stopping; Esc again: faster", 2: "stopping; Esc again: at once"}
        hint = hints.get(chat.presses, "stopping now")
        room = max(detect_terminal().width - len(hint) - 6, 10)
        items = list(chat.running.values())
        each = max(room // max(len(items), 1) - 2, 12)
        summary = " · ".join(
            f"{shortened(f'{item.name} {item.title}'.strip(), max(each - 8, 6))} {seconds(item.age)}"
            for item in items
        )
        return [("", f"{spin} "), ("class:live.name", shortened(summary, room)), ("", f"  {hint}")]

    def is_active(self) -> bool:
        """Whether there is something to stop."""
        return self._handler is not None and self._handler.chat.activity is not None

    def send(self) -> None:
        """Handle Enter: answer the question if there is one, else send what was typed."""
        # An Enter before the question could be read was meant for something else.
        if self._question is not None and not self._question.is_open:
            return
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
            self._submitted.put_nowait((raw, self._question))

    def _answer(self, decision: Decision) -> None:
        if self._question is not None and not self._question.decided.done():
            self._question.decided.set_result(decision)

    def escape(self) -> None:
        """Handle Esc: stop what is running."""
        if self._handler is not None:
            self._handler.chat.stop()

    def ctrl_c(self) -> None:
        """Handle Ctrl-C: stop what is running, else clear the input, else exit."""
        if self._handler is not None and self._handler.chat.interrupt():
            return
        if self.buffer.text:
            self.buffer.reset()
        else:
            self._exit()

    def ctrl_d(self) -> None:
        """Handle Ctrl-D: exit if the input is empty, else delete the character under the cursor."""
        if not self.buffer.text:
            self._exit()
        else:
            self.buffer.delete()


def _banner(text: str) -> Text:
    first, _, rest = text.partition("\n")
    return Text(f"quiesce chat · {first}", style="bold") + Text(f"\n{rest}\n", style="not bold dim")


@contextmanager
def _sigint_as_ctrl_c(pressed: Callable[[], object]) -> Iterator[None]:
    """Treat SIGINT like the key Ctrl-C, and restore the signal set-up of the event loop at the end."""
    loop = asyncio.get_running_loop()
    before = signal.signal(signal.SIGINT, lambda number, frame: loop.call_soon_threadsafe(pressed))
    # prompt_toolkit adds and removes a handler for SIGWINCH. When asyncio removes its last handler, it resets the
    # wakeup descriptor, and other handlers of the process would no longer wake the loop. There is no getter, so set
    # it and back.
    wakeup_fd = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
