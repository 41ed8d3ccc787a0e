"""The terminal window is closed in the middle of an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from .chat_parts import calls, write_script
from .chat_programs import Here, at_terminal, processes_with

pytestmark = pytest.mark.time_limit(60)


def test_what_was_said_is_kept_and_what_was_started_is_gone(here: Here, tmp_path: Path) -> None:
    slow = {"pieces": ["I have ", "begun ", *["to say "] * 1000], "delay": 0.05}
    script = write_script(tmp_path / "s.json", calls("shell", command="sleep 4761 & echo sown"), slow)
    with at_terminal(tmp_path, "chat", "--script", script, "--yes") as program:
        program.until("leaves")
        program.type("go\r")
        program.until("I have begun")
        assert program.hang_up() == 129
    assert processes_with("sleep 4761") == []
    told = here.run("chat", "--model", "scripted", "--resume", typed="/history\n")
    assert "I have begun" in told.out + told.err
