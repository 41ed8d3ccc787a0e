"""The tests pass however they are started: a telling part of them, started in each of these ways."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.time_limit(120)]

ROOT = Path(__file__).parent.parent

# They raise signals, start programs and look at how those end, write to terminals, to files and to folders.
TELLING = [
    "tests/cli/test_chat_hang_up.py",
    "tests/cli/test_privacy.py",
    "tests/cli/test_tour.py::test_at_a_terminal_the_timelines_grow_in_colour",
    "tests/kernel/test_guardian.py::test_at_a_normal_exit_trees_are_asked_then_killed_and_the_guard_reaped",
    "tests/kernel/test_process.py::test_the_status_is_that_of_the_first_process",
    "tests/kernel/test_run.py::test_a_signal_stops_everything_with_its_reason",
    "tests/kernel/test_run.py::test_the_handlers_from_before_are_restored",
]

BLOCKED = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); os.execv(sys.argv[1], sys.argv[1:])"

# What a shell without job control runs; $@ are the tests.
WAYS = {
    "under nohup": 'nohup "$@"',
    "in the background of a script": '"$@" & wait $!',
    "without a terminal, with standard input closed": 'setsid --wait "$@" <&-',
    "with signals ignored": "trap '' HUP INT QUIT TERM USR1 USR2 ALRM PIPE CHLD; \"$@\"",
    "with signals blocked": f'{shlex.quote(sys.executable)} -c {shlex.quote(BLOCKED)} "$@"',
    "with next to no environment": 'env -i PATH="$PATH" TMPDIR="$TMPDIR" "$@"',
    "in ASCII, on a narrow terminal": 'LC_ALL=POSIX PYTHONUTF8=0 NO_COLOR=1 COLUMNS=20 LINES=5 TERM=dumb "$@"',
    "with colours by force, in debug mode": 'umask 002; FORCE_COLOR=1 PYTHONASYNCIODEBUG=1 "$@"',
    "with little to call its own": """
        umask 077; ulimit -n 256; mkdir "$TMPDIR/with blanks"; HOME=/nonexistent TMPDIR="$TMPDIR/with blanks" "$@"
    """,
}


@pytest.mark.parametrize("way", WAYS)
def test_the_tests_pass_started(way: str, tmp_path: Path) -> None:
    tests = [sys.executable, "-m", "pytest", "-q", "-n1", "-p", "no:cacheprovider", *TELLING]
    done = subprocess.run(
        ["sh", "-c", WAYS[way], "sh", *tests],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
