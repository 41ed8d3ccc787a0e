"""`quiesce chat` at a terminal: keys, questions, stops in every phase, and the way out. What it looks like is for `make test-ui`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quiesce_chat.ui import terminal_text
from quiesce_chat.ui.terminal_text import HEAD, TAIL, Blocks, Excerpt, markdown, rendered, tail_of

from .chat_parts import calls, write_script
from .chat_programs import SIGINT, SIGTERM, AtTerminal, at_terminal, processes_with

pytestmark = [pytest.mark.time_limit(60), pytest.mark.slow]

IDLE = "Ctrl-C exits"
ESCAPE = "\x1b"


def test_it_is_stopped_in_every_phase_and_leaves_nothing(tmp_path: Path) -> None:
    script = write_script(
        tmp_path / "s.json",
        {"pieces": ["I am ", *["still "] * 1000], "delay": 0.05},
        calls("shell", command="echo begun; sleep 36111"),
        calls("shell", command="trap '' TERM; echo deaf; while :; do sleep 0.1; done # 36112"),
        calls("python", code="print('snake', flush=True)\nwhile True: pass"),
        {"after": 3600},
    )
    with at_terminal(tmp_path, "chat", "--script", script, patient=True) as program:
        program.until(IDLE)
        # the model in mid-sentence, by Esc
        send(program, "talk")
        program.until("I am still")
        program.type(ESCAPE)
        stopped(program, 1)
        # a question, by Ctrl-C
        send(program, "run")
        program.until("[a]lways:")
        program.type("\x03")
        stopped(program, 2)
        # a command, allowed for good
        send(program, "/resume")
        program.until("[a]lways:")
        send(program, "always")
        program.until("│ begun")
        program.type(ESCAPE)
        stopped(program, 3)
        # one that does not listen: three times
        send(program, "again")
        program.until("│ deaf")
        for told in ("again: faster", "Stopping faster.", "Stopping now."):
            program.type("\x03")
            program.until(told)
        stopped(program, 4)
        # Python that never looks
        send(program, "python")
        program.until("allow python? [y]es")
        send(program, "y")
        program.until("│ snake")
        program.type(ESCAPE)
        stopped(program, 5)
        # a command of one's own, and then a SIGINT from outside
        send(program, "!echo mine; sleep 36113")
        program.until("│ mine")
        os.kill(program.process.pid, SIGINT)
        stopped(program, 6)
        # nothing runs: a line is cleared, then it is left
        program.type("half a thought")
        program.until("half a thought")
        program.type("\x03")
        program.wait_for(lambda: "half a thought" not in program.text, "the line is not cleared")
        program.type("\x03")
        assert program.ended() == 0
    assert "To continue: quiesce chat --resume" in program.text
    for words in ("sleep 36111", "# 36112", "snake", "sleep 36113"):
        assert processes_with(words) == []


def send(program: AtTerminal, text: str) -> None:
    program.type(text)
    program.type("\r")


def stopped(program: AtTerminal, times: int) -> None:
    program.until("nothing left", times=times)
    program.until_last(IDLE)


def test_what_is_typed_meanwhile_is_the_next_message_and_quit_stops_what_runs(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    wait = f"while [ ! -e {gate} ]; do sleep 0.02; done; echo one"
    script = write_script(tmp_path / "s.json", calls("shell", command=wait), "Heard.", {"after": 3600})
    with at_terminal(tmp_path, "chat", "--script", script, "--yes") as program:
        program.until(IDLE)
        send(program, "go")
        program.until("Esc stops")
        send(program, "and this")
        program.until("Queued: the model will see this")
        gate.touch()
        program.until("Heard.")
        program.until_last(IDLE)
        send(program, "more")
        program.until_last("scripted answering")
        send(program, "/quit")
        assert program.ended() == 0
    assert "stopped scripted answering in" in program.text


def test_several_lines_are_pasted_as_one_message_and_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", "Three lines.", "Odd.")
    with at_terminal(tmp_path, "chat", "--script", script) as program:
        program.until(IDLE)
        program.type("\x1b[200~one\ntwo\nthree\x1b[201~")
        program.until("three")
        program.type("\r")
        program.until("Three lines.")
        program.type(b"caf\xe9 ol\xe9\r")
        program.until("2 bytes that are not UTF-8 were replaced")
        program.until("Odd.")
        program.until_last(IDLE)
        program.type("\x04")
        assert program.ended() == 0


def test_sigterm_gives_the_terminal_back_and_ends_it_with_143(tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", calls("shell", command="echo begun; sleep 36114"))
    with at_terminal(tmp_path, "chat", "--script", script, "--yes") as program:
        program.until(IDLE)
        send(program, "go")
        program.until("│ begun")
        program.process.send_signal(SIGTERM)
        assert program.ended() == 143
    assert "stopped shell echo begun; sleep 36114 in" in program.text
    assert b"\x1b[?2004l" in program.seen  # no more bracketed paste
    assert processes_with("sleep 36114") == []


def test_what_the_model_says_cannot_touch_the_terminal(tmp_path: Path) -> None:
    script = write_script(tmp_path / "s.json", "\x1b]0;owned\x07\x1b[2Jplain\x9b31m \u202egnp.exe")
    with at_terminal(tmp_path, "chat", "--script", script) as program:
        program.until(IDLE)
        send(program, "hi")
        program.until("plain")
        program.until_last(IDLE)
        program.type("\x03")
        assert program.ended() == 0
    assert b"owned" not in program.seen
    assert "\u202e".encode() not in program.seen


# What it shows


def test_an_answer_is_cut_into_blocks_at_empty_lines_but_not_inside_code() -> None:
    blocks = Blocks()
    text = "One\nline.\n\n```py\na = 1\n\nb = 2\n```\nrest\n\nend"
    found = [block for character in text for block in blocks.feed(character)]
    assert found == ["One\nline.\n\n", "```py\na = 1\n\nb = 2\n```\n", "rest\n\n"]
    assert blocks.finish() == "end"


def test_long_output_is_shown_by_its_beginning_and_its_end() -> None:
    excerpt = Excerpt()
    shown = [line for number in range(1000) for line in excerpt.feed(f"{number}\n")]
    assert shown == [str(number) for number in range(HEAD)]
    hidden = 1000 - HEAD - TAIL
    assert excerpt.finish() == [f"… {hidden} more lines …", *map(str, range(1000 - TAIL, 1000))]


def test_the_last_lines_of_a_text_are_those_that_fit() -> None:
    assert tail_of("abcdef\nxy", 3, 2) == "def\nxy"
    assert tail_of("日本語", 4, 5) == "日本\n語"
    assert tail_of("one two three", 8, 5) == "one two\nthree"


def test_markdown_that_cannot_be_set_is_shown_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*anything: object) -> None:
        raise LookupError("no such lexer")

    monkeypatch.setattr(terminal_text._PlainCode, "__rich_console__", fail)
    assert "print(1)" in rendered(markdown("```odd\nprint(1)\n```"))
    assert "x" * 100 in rendered(markdown("x" * 100_000)).replace("\n", "")
