"""The two faces of the chat, without a terminal and without a process: questions, and what others print."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import cast

import pytest

from quiesce._safe.text import one_line, shown
from quiesce_chat.session.face import Approval, Call, Decision
from quiesce_chat.session.slash import InputHandler
from quiesce_chat.ui import plain_face, terminal_face
from quiesce_chat.ui.input_lines import InputLines
from quiesce_chat.ui.plain_face import PlainFace
from quiesce_chat.ui.terminal_face import TerminalFace
from quiesce_chat.ui.terminal_text import (
    COLOURED,
    GOES_ON,
    LONGEST,
    Excerpt,
    call_line,
    question_text,
    rendered,
)

pytestmark = [pytest.mark.worlds("asyncio"), pytest.mark.real_time]

REMOVE = Approval(Call("1", "shell", "rm -rf important"), "rm -rf important")
LIST = Approval(Call("2", "shell", "ls"), "ls")


@pytest.fixture
def never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions that nobody has had the time to read."""
    monkeypatch.setattr(terminal_face, "READING_TIME", 3600.0)
    monkeypatch.setattr(plain_face, "READING_TIME", 3600.0)


@pytest.fixture
def read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal_face, "READING_TIME", 0.0)
    monkeypatch.setattr(plain_face, "READING_TIME", 0.0)


async def ask(face: TerminalFace | PlainFace, approval: Approval) -> asyncio.Task[Decision]:
    asked = asyncio.create_task(face.ask(approval))
    for _ in range(10):
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    return asked


async def give_up(asked: asyncio.Task[Decision]) -> None:
    asked.cancel()
    await asyncio.wait([asked])


def bottom(face: TerminalFace) -> str:
    return "".join(part[1] for part in face.prompt())


# At a terminal


@pytest.mark.usefixtures("read_at_once")
async def test_each_question_says_what_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    face = TerminalFace()
    for approval in (REMOVE, LIST, LIST):
        asked = await ask(face, approval)
        assert f"allow shell?\n  {approval.preview}\n" in capsys.readouterr().out
        face.buffer.text = "n"
        face.send()
        assert await asked == "no"


@pytest.mark.usefixtures("read_at_once")
async def test_what_was_typed_before_a_question_is_no_answer_and_is_there_again_after_it() -> None:
    face = TerminalFace()
    face.buffer.text = "yes"
    asked = await ask(face, REMOVE)
    assert face.buffer.text == ""
    face.send()  # Enter
    await asyncio.sleep(0.01)
    assert not asked.done()
    face.buffer.text = "yes"
    face.send()
    assert await asked == "yes"
    assert face.buffer.text == "yes"
    assert face.buffer.cursor_position == 3


@pytest.mark.usefixtures("never_read")
async def test_a_question_that_nobody_can_have_read_takes_no_answer() -> None:
    face = TerminalFace()
    asked = await ask(face, REMOVE)
    assert "[y]es" not in bottom(face)
    for word in ("y", "always", "no"):
        face.buffer.text = word
        face.send()
    await asyncio.sleep(0.01)
    assert not asked.done()
    await give_up(asked)


async def test_a_question_takes_answers_when_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal_face, "READING_TIME", 0.05)
    face = TerminalFace()
    asked = asyncio.create_task(face.ask(REMOVE))
    await asyncio.sleep(0)
    face.buffer.text = "y"  # too early
    while "[y]es" not in bottom(face):
        await asyncio.sleep(0.01)
    face.send()
    assert not asked.done()
    face.buffer.text = "a"
    face.send()
    assert await asked == "always"
    assert face.buffer.text == "y"


@pytest.mark.usefixtures("read_at_once")
async def test_only_what_was_said_to_a_question_is_a_no_to_it() -> None:
    face, taken = TerminalFace(), list[str]()

    class Slow:
        is_quitting = False
        width = 80

        async def handle(self, text: str) -> None:
            taken.append(text)
            self.is_quitting = text == "/quit"

    face._handler = cast(InputHandler, Slow())
    face.buffer.text = "said before"
    face.send()
    asked = await ask(face, REMOVE)
    taking = asyncio.create_task(face._handle_submitted())
    await asyncio.sleep(0.01)
    assert taken == ["said before"]
    assert not asked.done()
    face.buffer.text = "/tree"  # looks, and decides nothing
    face.send()
    face.buffer.text = "/etc/hosts is the wrong one"
    face.send()
    assert await asked == "no"
    assert taken == ["said before", "/tree", "/etc/hosts is the wrong one"]
    face.buffer.text = "/quit"
    face.send()
    await taking


# Plain lines


@pytest.mark.usefixtures("never_read")
async def test_a_line_that_came_before_a_question_could_be_read_is_no_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    face = PlainFace(can_ask=True)
    asked = await ask(face, REMOVE)
    assert not face.is_asking
    assert face.is_too_early("y")
    assert not face.is_too_early("something else")
    assert capsys.readouterr().err == "allow shell?\n  rm -rf important\n"
    await give_up(asked)


@pytest.mark.usefixtures("read_at_once")
async def test_what_was_typed_before_is_dropped_when_the_answers_are_offered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dropped = list[str]()
    face = PlainFace(can_ask=True, discard_pending=lambda: dropped.append(capsys.readouterr().err))
    asked = await ask(face, REMOVE)
    assert dropped == ["allow shell?\n  rm -rf important\n"]
    assert capsys.readouterr().err == "[y]es, [n]o, [a]lways for this session: "
    await face.wait_for_question()
    assert not face.is_too_early("y")
    face.answer("y")
    assert await asked == "yes"


async def test_what_was_typed_at_a_terminal_can_be_forgotten() -> None:
    ours, theirs = os.openpty()
    try:
        lines = InputLines(theirs)
        os.write(ours, b"yes, do\nand ye")
        assert await lines.line() == "yes, do"
        lines.discard_pending()
        os.write(ours, b"no\n")
        assert await lines.line() == "no"
    finally:
        os.close(ours)
        os.close(theirs)


async def test_a_terminal_is_not_read_while_it_is_somebody_elses_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from quiesce_chat.ui import input_lines

    turns = [True, True, False]
    monkeypatch.setattr(input_lines, "_in_background", lambda fd: turns.pop(0))
    monkeypatch.setattr(input_lines, "_POLL", 0.001)
    reads, writes = os.pipe()
    try:
        os.write(writes, b"y\n")
        assert await InputLines(reads).line() == "y"
        assert turns == []
    finally:
        os.close(reads)
        os.close(writes)


@contextmanager
def nobody_reads() -> Iterator[None]:
    """A standard output that its reader has left."""
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as stdout, redirect_stdout(stdout):
        yield


async def test_when_nobody_reads_any_more_the_work_stops_and_nothing_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = list[str]()

    async def work() -> None:
        try:
            face.text("for nobody")
            await asyncio.sleep(3600)
        finally:
            ended.append("ended")

    with nobody_reads():
        face = PlainFace(can_ask=False)
        assert not await face.run_while_read(work)
        face.show_error("not heard")
    assert ended == ["ended"]
    assert capsys.readouterr().err == ""


async def test_work_that_is_read_to_its_end_ends_by_itself() -> None:
    face = PlainFace(can_ask=False)
    assert await face.run_while_read(lambda: asyncio.sleep(0))


# What others print


def test_a_line_without_an_end_is_cut_and_that_is_said() -> None:
    excerpt = Excerpt()
    for _ in range(1000):
        assert excerpt.feed("x" * 65536) == []
    assert excerpt.feed("y\nshort\n") == ["x" * LONGEST + GOES_ON, "short"]
    excerpt.feed("z" * 10 * LONGEST)
    assert excerpt.finish() == ["z" * LONGEST + GOES_ON]


def test_a_line_that_is_written_over_is_as_long_as_what_is_left_of_it() -> None:
    excerpt = Excerpt()
    for number in range(10 * LONGEST):
        excerpt.feed(f"{number} done\r")
    assert [shown(line) for line in excerpt.feed("\n")] == [f"{10 * LONGEST - 1} done"]
    assert [shown(line) for line in excerpt.feed("10%\r20%\r\nand on\r")] == ["20%"]
    assert [shown(line) for line in excerpt.feed("\n")] == ["and on"]


@pytest.mark.parametrize(
    ("printed", "is_shown"),
    [
        ("safe \x1b]0;title\x07 and \x1b]8;;http://x\x1b\\link", "safe  and link"),
        ("\x1b[1mbold\x1b[0m \x1b(Bplain \x1bMup", "bold plain up"),
        ("safe \x1b]0;hides\nall that follows", "safe ␛]0;hides\nall that follows"),
        ("safe \x1bPnever ends", "safe ␛Pnever ends"),
        ("\x1b]0;" + "x" * 300 + "\x07", "␛]0;" + "x" * 300 + "␇"),
        ("\u061cturned", "\\u061cturned"),
    ],
)
def test_a_sequence_hides_nothing_but_itself(printed: str, is_shown: str) -> None:
    assert shown(printed) == is_shown


def test_the_blanks_of_a_command_are_shown_as_they_are() -> None:
    command = "rm 'a  b'   c"
    assert call_line(Call("1", "shell", command), 80).plain == f"● shell {command}"
    assert one_line("a  b\n c", 80) == "a  b⏎ c"
    assert one_line("abcdef", 4) == "abc…"


def test_a_question_is_shown_whole_however_long_it_is() -> None:
    preview = "\n".join(["a.txt: changed", *(f"+{number}" for number in range(COLOURED + 1))])
    for name in ("write_file", "shell"):
        text = rendered(question_text(Approval(Call("1", name, "a.txt"), preview)))
        assert text.startswith(f"allow {name}?\n  a.txt: changed\n  +0\n")
        assert text.endswith(f"\n  +{COLOURED}\n")
    coloured = question_text(Approval(Call("1", "write_file", "a.txt"), "a.txt: changed\n-one\n+two"))
    assert [span.style for span in coloured.spans if span.style] == ["bold yellow", "red", "green"]
