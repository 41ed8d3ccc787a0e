"""The terminal window is closed in the middle of an answer."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .chat_parts import calls, write_script
from .chat_programs import Here, at_terminal, processes_with

pytestmark = pytest.mark.time_limit(60)

# SIGHUP as a shell has it, or ignored, as below `nohup`: then only the terminal itself says that it is gone.
started = pytest.mark.parametrize(
    ("hang_up", "status"),
    [(signal.SIG_DFL, 129), (signal.SIG_IGN, 1)],
    ids=["with a signal", "without one"],
)


@started
def test_what_was_said_is_kept_and_what_was_started_is_gone(
    hang_up: signal.Handlers, status: int, here: Here, tmp_path: Path
) -> None:
    slow = {"pieces": ["I have ", "begun ", *["to say "] * 1000], "delay": 0.05}
    script = write_script(tmp_path / "s.json", calls("shell", command="sleep 4761 & echo sown"), slow)
    before = signal.signal(signal.SIGHUP, hang_up)
    try:
        with at_terminal(tmp_path, "chat", "--script", script, "--yes") as program:
            program.until("exits")
            program.type("go\r")
            program.until("I have begun")
            assert program.hang_up() == status
    finally:
        signal.signal(signal.SIGHUP, before)
    assert processes_with("sleep 4761") == []
    told = here.run("chat", "--model", "scripted", "--resume", typed="/history\n")
    assert "I have begun" in told.out + told.err


# What is in the buffer of standard output can no more be written.
_WITH_WORDS_TO_SAY = """
import os, signal, sys
import anyio
from quiesce_chat.start import run_command

async def main():
    print("words", end="")
    os.kill(os.getpid(), signal.SIGHUP)
    await anyio.sleep(60)

sys.exit(run_command("chat", main))
"""


def test_the_exit_status_is_that_of_the_hang_up_though_there_are_words_left_to_say() -> None:
    with open("/dev/full", "w") as full:
        program = [sys.executable, "-c", _WITH_WORDS_TO_SAY]
        done = subprocess.run(
            program, stdout=full, stderr=subprocess.PIPE, text=True, timeout=50, check=False
        )
    assert (done.returncode, done.stderr) == (129, "stopping (SIGHUP)\n")
