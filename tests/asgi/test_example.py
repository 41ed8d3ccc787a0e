"""`examples/disconnect.py` shows the trouble and that it is gone, by itself, and leaves nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.test_docs import wait_until_gone

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "disconnect.py"


@pytest.mark.time_limit(60)
def test_a_client_that_leaves_takes_its_handler_and_its_model_call_along() -> None:
    mark = uuid.uuid4().hex
    done = subprocess.run(
        [sys.executable, "-W", "default", EXAMPLE],
        env={**os.environ, "QUIESCE_TEST_MARK": mark},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    left = wait_until_gone(mark)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert not left
    ordinary, ours = done.stdout.split("with quiesce:\n")
    assert re.search(r"1 listener\(s\), and wrote [1-9]\d* words for nobody", ordinary)
    assert ours.count("stopped (disconnect: the client disconnected)") == 2
    assert ours.count("0 listener(s), and wrote 0 words for nobody") == 2
