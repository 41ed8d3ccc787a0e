"""The command itself: what it says of its subcommands, how quickly, and what it says to what it does not know."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from quiesce import __version__
from quiesce.cli import main
from quiesce.cli.base.terminal import detect_terminal, fill_closed_descriptors

COMMANDS = ("tour", "chat", "ask", "audit", "acp")
HEAVY = (
    "asyncio",
    "anyio",
    "msgspec",
    "rich",
    "prompt_toolkit",
    "quiesce.kernel",
    "quiesce.audit",
    "quiesce.agents",
)
SOON = 0.150  # seconds of CPU that the help may take


def cpu_seconds(*words: str) -> float:
    """What a fresh interpreter needs for this, at its best of a few times."""
    took = []
    for _ in range(5):
        child = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0
        took.append(usage.ru_utime + usage.ru_stime)
        if took[-1] < SOON:
            break
    return min(took)


def test_the_help_has_a_line_for_every_command_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    for command in COMMANDS:
        assert sum(line.startswith(f"  {command} ") for line in told.splitlines()) == 1
        assert f"\n  quiesce {command} " in told.partition("examples:")[2] + "\n"
    assert max(map(len, told.splitlines())) <= 80


def test_the_help_takes_little_time() -> None:
    """On a machine where Python itself needs that long to start, it may take a few times as long as Python."""
    took = cpu_seconds("-m", "quiesce", "--help")
    assert took < max(SOON, 3 * cpu_seconds("-c", "import argparse"))


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["nonsense"], []], ids=" ".join)
def test_the_frame_imports_nothing_that_takes_time(words: Sequence[str]) -> None:
    code = f"import sys, json; from quiesce.cli import main; main({words!r}); print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert [name for name in loaded if name.startswith(HEAVY)] == []


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"quiesce {__version__}\n"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("tuor", "did you mean tour?"),
        ("frobnicate", "choose from tour, stoptest, exec, chat, ask, audit, acp"),
    ],
)
def test_an_unknown_command_is_answered_with_a_hint(
    word: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word, "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"quiesce: error: there is no command {word!r}; {hint}\n")


def test_an_option_without_a_command_is_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--jsno"]) == 2
    assert "there is no option '--jsno' without a command" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_in_the_same_style(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"usage: quiesce {command} ")
    assert f"\nexamples:\n  quiesce {command} " in told
    assert "\nexit codes: 0 " in told


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_fault_of_an_option_is_said_in_one_line(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "x:y", "--no-such-option"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"quiesce {command}: error: ")
    assert err.endswith(f"(quiesce {command} --help lists the options)\n")
    assert "--no-such-option" in err


def test_a_missing_extra_is_said_plainly() -> None:
    code = "import sys; sys.modules['msgspec'] = None; from quiesce.cli import main; sys.exit(main(['tour']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("quiesce tour: ")
    assert "pip install 'quiesce[agents]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["chat", "ask"])
def test_without_the_distribution_of_the_chat_a_command_says_what_to_install(command: str) -> None:
    code = f"import sys; sys.modules['quiesce_chat'] = None; from quiesce.cli import main; sys.exit(main([{command!r}]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"quiesce {command}: this command needs the package 'quiesce_chat', which is not installed: "
        "pip install 'quiesce[cli]'\n"
    )


# What a stream can show


class Screen(io.TextIOWrapper):
    """A terminal, as far as one can see."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding)

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "choice", "color"),
    [
        ({"TERM": "xterm"}, "auto", True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, "auto", False),
        ({"TERM": "xterm", "NO_COLOR": ""}, "auto", True),
        ({"TERM": "dumb"}, "auto", False),
        ({"TERM": "xterm"}, "never", False),
        ({"TERM": "dumb"}, "always", True),
    ],
)
def test_colour_is_for_terminals_that_want_it(environment: dict[str, str], choice: str, color: bool) -> None:
    assert detect_terminal(Screen(), color=choice, environment=environment).color is color  # type: ignore[arg-type]


def test_a_file_is_no_terminal(tmp_path: Path) -> None:
    with open(tmp_path / "out", "w", encoding="utf-8") as file:
        terminal = detect_terminal(file, environment={})
    assert (terminal.is_terminal, terminal.color, terminal.width, terminal.unicode) == (
        False,
        False,
        80,
        True,
    )


@pytest.mark.parametrize(
    ("columns", "width"), [("40", 40), ("200", 200), ("3", 20), ("", 80), ("wide", 80), ("0", 80)]
)
def test_columns_says_how_wide_it_is(columns: str, width: int) -> None:
    assert detect_terminal(Screen(), environment={"COLUMNS": columns}).width == width


def test_what_the_encoding_does_not_have_is_replaced() -> None:
    terminal = detect_terminal(Screen("ascii"), environment={})
    assert not terminal.unicode
    assert terminal.writable("caf\u00e9") == "caf?"


def test_standard_output_that_is_closed_takes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    terminal = detect_terminal(environment={})
    assert terminal.stream.write("nobody reads this")
    assert not terminal.is_terminal


def test_descriptors_that_are_closed_are_filled_so_that_no_pipe_takes_their_place() -> None:
    code = (
        "import os; from quiesce.cli.base.terminal import fill_closed_descriptors;"
        "os.close(0); fill_closed_descriptors(); print(os.read(0, 1), min(os.pipe()) > 2)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "b'' True\n"
    before = [os.fstat(number).st_ino for number in range(3)]
    fill_closed_descriptors()
    assert [os.fstat(number).st_ino for number in range(3)] == before
