"""The tests' own server leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from database_tests.server import binaries

ROOT = Path(__file__).parent.parent
PROGRAM = """
    import sys
    from database_tests.server import PostgresServer
    server = PostgresServer()
    server.hang()
    print(server.folder, flush=True)
    sys.stdin.read()
"""


@pytest.mark.time_limit(60)
def test_a_server_ends_with_its_folder_even_if_it_hangs_and_the_tests_are_killed() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert folder.is_dir()
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    until = time.monotonic() + 20
    while folder.exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(folder) not in found


def test_missing_programs_are_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    with pytest.raises(RuntimeError, match="apt-get install postgresql"):
        binaries()
