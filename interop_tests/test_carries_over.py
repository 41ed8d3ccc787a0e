"""The program that carries over by changing the import prints with agent-client-protocol what it prints with
quiesce.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent.parent / "examples" / "carries_over" / "agent_client_protocol.py"


def test_with_the_library_that_it_was_written_for() -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, "acp"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == PROGRAM.with_suffix(".txt").read_text()
