"""The chat as a person has it: in a real terminal. The screens are kept in build/ui, to be looked at."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ui_tests.tmux import Tmux

IDLE = "Ctrl-C exits"

POEM = """# Stopping by woods

Whose **woods** these are I think I `know`. See:

1. the house
2. the village

| what | how long |
|---|---|
| woods | a while |

```python
def stop(woods: str) -> str:
    return f"by {woods} on a snowy evening"
```

Done."""


# A chat that gives what it stops so much time to end that nobody has to hurry with the next key.
PATIENT = """
from quiesce import Grace
from quiesce.cli import main
from quiesce_chat.tools import programs as _programs; from quiesce_chat.session import session as _session
_programs.GRACE = _session.GRACE = Grace(cancel=60, terminate=60, kill=60)
raise SystemExit(main())
"""


def calls(name: str, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": arguments}]}


@pytest.fixture
def chat(tmp_path: Path, pictures: Path) -> Iterator[Callable[..., Tmux]]:
    """Begins a chat with a script."""
    opened: list[Tmux] = []
    folder = tmp_path / "garden"
    folder.mkdir()
    (folder / "notes.txt").write_text("sow beans\nsow pease\nsow leeks\n")

    def begin(
        *turns: Any,
        options: tuple[str, ...] = (),
        program: tuple[str, ...] = ("-m", "quiesce"),
        columns: int = 90,
        rows: int = 34,
        **more: str,
    ) -> Tmux:
        for before in opened:
            before.close()
        opened.clear()
        script = tmp_path / "script.json"
        script.write_text(json.dumps(turns))
        words = [
            sys.executable,
            *program,
            "chat",
            "--script",
            str(script),
            "--folder",
            str(folder),
            *options,
        ]
        environment = {"XDG_DATA_HOME": str(tmp_path / "data"), "LC_ALL": "C.UTF-8", **more}
        terminal = Tmux(tmp_path, pictures, words, environment, columns=columns, rows=rows)
        opened.append(terminal)
        terminal.until("Nothing is sandboxed")
        terminal.until("scripted ›")
        return terminal

    yield begin
    for terminal in opened:
        terminal.close()


def test_an_answer_is_set_as_markdown_and_the_line_below_says_what_can_be_done(
    chat: Callable[..., Tmux],
) -> None:
    terminal = chat(POEM)
    assert "Nothing is sandboxed" in terminal.keep("01-begins")
    terminal.send("A poem, please.")
    terminal.until("Done.")
    terminal.until_last(IDLE)
    screen = terminal.keep("02-answer")
    assert "› A poem, please." in screen
    assert "**" not in screen
    assert "def stop(woods: str) -> str:" in screen


def test_what_is_being_said_stands_above_the_line_to_type_in(chat: Callable[..., Tmux]) -> None:
    words = [f"word{number} " for number in range(2000)]
    terminal = chat({"pieces": words, "delay": 0.02})
    terminal.send("talk")
    terminal.until("word40 ")
    terminal.type("typed meanwhile")
    terminal.until("typed meanwhile")
    screen = terminal.keep("03-streaming", still=False)
    assert "typed meanwhile" in screen
    assert "scripted answering" in terminal.last_line
    terminal.press("Escape")
    terminal.until("stopped scripted answering in")
    terminal.until_last(IDLE)
    screen = terminal.keep("04-stopped-in-mid-sentence")
    assert "[stopped here]" in screen
    assert "nothing left" in screen
    assert "typed meanwhile" in screen  # what was being typed is still there


def test_a_command_is_asked_about_shown_and_stopped_and_the_tree_shows_it(chat: Callable[..., Tmux]) -> None:
    command = "for i in $(seq 40); do echo planting $i; done; sleep 3631 & sleep 3632"
    terminal = chat(calls("shell", command=command), "As you wish.")
    terminal.send("Plant the beans.")
    terminal.until("[a]lways:")
    terminal.keep("05-question")
    terminal.send("y")
    terminal.until("planting 12")
    time.sleep(1.2)
    terminal.keep("06-command-runs")
    terminal.send("/tree")
    terminal.until("sleep 3632")
    terminal.keep("07-tree")
    terminal.send("and water them")
    terminal.until("Queued: the model will see this")
    terminal.press("Escape")
    terminal.until("nothing left")
    terminal.until_last(IDLE)
    assert "planting 40" in terminal.keep("08-command-stopped")
    terminal.press("Enter")  # sends on what was kept
    terminal.until("As you wish.")


def test_one_that_does_not_listen_is_stopped_faster_and_then_at_once(chat: Callable[..., Tmux]) -> None:
    deaf = "trap '' TERM; echo deaf; while :; do sleep 0.1; done # 3633"
    terminal = chat(calls("shell", command=deaf), options=("--yes",), program=("-c", PATIENT))
    terminal.send("go")
    terminal.until("│ deaf")
    terminal.press("C-c")
    terminal.until_last("again")
    terminal.press("C-c")
    terminal.press("C-c")
    terminal.until("nothing left")
    terminal.until_last(IDLE)
    terminal.keep("09-escalated")
    assert not _running("# 3633")


def test_a_write_is_asked_about_with_what_it_would_change(chat: Callable[..., Tmux], tmp_path: Path) -> None:
    content = "sow beans\nsow peas\nsow leeks\nsow kale\n"
    terminal = chat(calls("write_file", path="notes.txt", content=content), "Then not.", "It is so.")
    terminal.send("Mend my notes.")
    terminal.until("[a]lways:")
    screen = terminal.keep("10-write")
    assert "-sow pease" in screen
    assert "+sow kale" in screen
    terminal.send("leave the peas alone")  # no answer: a word on what to do instead
    terminal.until("not allowed")
    terminal.until("Then not.")
    terminal.until_last(IDLE)
    terminal.keep("11-not-allowed")
    assert "kale" not in (tmp_path / "garden" / "notes.txt").read_text()


def test_help_history_and_what_there_is_not(chat: Callable[..., Tmux]) -> None:
    terminal = chat(calls("search_files", pattern="sow .e"), "Beans, leeks.")
    terminal.send("What do I sow?")
    terminal.until("Beans, leeks.")
    terminal.until_last(IDLE)
    terminal.send("/history")
    terminal.until("search_files sow .e in . →")
    terminal.send("/help")
    terminal.until("Ctrl-J inserts a new line")
    terminal.send("/modle")
    terminal.until("did you mean /model?")
    terminal.keep("12-help-and-history")


def test_ones_own_command_and_what_it_prints(chat: Callable[..., Tmux]) -> None:
    terminal = chat("I see.")
    terminal.send("!ls; printf '\\033[31mred\\033[0m and plain\\n'; exit 3")
    terminal.until("status 3")
    terminal.until_last(IDLE)
    terminal.send("/share what is this?")
    terminal.until("I see.")
    terminal.until_last(IDLE)
    screen = terminal.keep("13-own-command")
    assert "red and plain" in screen
    terminal.send("!sleep 3634")
    terminal.until_last("sleep 3634")
    terminal.press("C-c")
    terminal.until("nothing left")
    assert not _running("sleep 3634")


def test_it_goes_on_after_a_resize_a_paste_and_bytes_that_are_no_text(chat: Callable[..., Tmux]) -> None:
    terminal = chat("Three lines, I see.", "Odd bytes.", "Narrow.", "Wide again.")
    terminal.paste("first\nsecond\nthird")
    terminal.until("third")
    terminal.keep("14-pasted")
    terminal.press("Enter")
    terminal.until("Three lines, I see.")
    terminal.until_last(IDLE)
    terminal.send_bytes(b"caf\xe9\r")
    terminal.until("1 byte that is not UTF-8 was replaced")
    terminal.until("Odd bytes.")
    terminal.until_last(IDLE)
    terminal.resize(40, 20)
    time.sleep(0.3)
    terminal.send("narrow, with a line that is longer than the screen is wide")
    terminal.until("Narrow.")
    terminal.until_last("exits")
    terminal.keep("15-narrow")
    terminal.resize(110, 34)
    time.sleep(0.3)
    terminal.send("wide")
    terminal.until("Wide again.")
    terminal.until_last(IDLE)
    terminal.keep("16-wide-again")


def test_it_is_left_and_taken_up_again(chat: Callable[..., Tmux]) -> None:
    terminal = chat("A first answer.", {"pieces": ["and ", *["on "] * 500], "delay": 0.05})
    terminal.send("Begin.")
    terminal.until("A first answer.")
    terminal.until_last(IDLE)
    terminal.send("Go on.")
    terminal.until("and on on")
    terminal.send("/quit")
    assert terminal.ended() == 0
    screen = terminal.keep("17-left")
    assert "nothing left" in screen
    assert "To continue: quiesce chat --resume" in screen
    terminal = chat("A last answer.", options=("--resume",))
    terminal.until("The last answer was not finished")
    terminal.keep("18-resumed")
    terminal.send("/resume")
    terminal.until("A last answer.")
    terminal.until_last(IDLE)
    terminal.type("not sent")
    terminal.until("› not sent")
    terminal.press("C-c")
    terminal.wait_for(lambda: "not sent" not in terminal.screen, "the line is not cleared")
    terminal.press("C-c")
    assert terminal.ended() == 0


def test_without_colour_and_without_a_cursor_it_is_as_useful(chat: Callable[..., Tmux]) -> None:
    terminal = chat(POEM, NO_COLOR="1")
    terminal.send("A poem, please.")
    terminal.until("Done.")
    terminal.until_last(IDLE)
    terminal.keep("19-no-colour")
    assert "\x1b[3" not in terminal.do("capture-pane", "-p", "-e", "-t", "chat").replace("\x1b[39m", "")


def test_very_long_output_scrolls_by_and_the_last_lines_stay_put(chat: Callable[..., Tmux]) -> None:
    paragraphs = [f"Paragraph {number}: " + "so many words " * 30 + "\n\n" for number in range(60)]
    terminal = chat(
        {"pieces": paragraphs}, calls("shell", command="seq 100000"), "Counted.", options=("--yes",)
    )
    terminal.send("write")
    terminal.until("Paragraph 59:")
    terminal.until_last(IDLE)
    terminal.keep("20-long-answer")
    terminal.send("count")
    terminal.until("Counted.")
    terminal.until_last(IDLE)
    screen = terminal.keep("21-long-output")
    assert "99984 more lines" in screen
    assert "│ 100000" in screen


def _running(words: str) -> list[str]:
    """The command lines with these words, once whoever is ending has had time to."""
    ends = time.monotonic() + 5
    while True:
        found = [line for line in _command_lines() if words in line and "pytest" not in line]
        if not found or time.monotonic() > ends:
            return found
        time.sleep(0.05)


def _command_lines() -> Iterator[str]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                yield Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
