"""What users of OpenAI's realtime sessions write works here when they change the import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "carries_over"


@pytest.mark.time_limit(60)
def test_a_program_for_realtime_sessions_of_openai_agents_prints_the_same_here() -> None:
    """The expected lines were printed by openai-agents; `make peers-fast` checks that they still are."""
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / "openai_agents_realtime.py", "quiesce"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == (EXAMPLES / "openai_agents_realtime.txt").read_text()
