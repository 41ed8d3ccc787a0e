"""`quiesce stoptest`: it stops a program in every way, says truly what was left, and leaves nothing itself."""

from __future__ import annotations

import json
import os
import pty
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.namespaces import may_make_namespaces
from tests.kernel.processes import running, token_of_processes, wait_until

from .exec_commands import without_subreapers

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")

STOPTEST = [sys.executable, "-m", "quiesce", "stoptest"]
QUICKLY = ["--after", "0.2", "--exit-within", "1.5", "--patience", "0.4", "--grace", "0.3"]

# Writes down what it is told, as files: a terminal that is closed takes no more output.
LISTENER = """
import os, signal, sys, time
def note(text):
    with open(sys.argv[1], "a") as file: file.write(text + "\\n")
heard = []
def hear(number, frame):
    heard.append(number)
    note(signal.Signals(number).name)
    if len(heard) == int(sys.argv[2]): sys.exit(0)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(number, hear)
print("ready", flush=True)
if not sys.stdin.isatty():
    sys.stdin.read()
    note("end of input")
    try: os.write(1, b"end of input")
    except BrokenPipeError: note("broken pipe")
    sys.exit(0)
time.sleep(60)
"""


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as made:
        yield made


def stoptest(*words: str, quickly: bool = True) -> subprocess.CompletedProcess[str]:
    command = [*STOPTEST, *(QUICKLY if quickly else ()), *words]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )


def runs_of(*words: str) -> list[dict[str, Any]]:
    done = stoptest("--json", *words)
    assert not done.stderr
    runs: list[dict[str, Any]] = json.loads(done.stdout)["runs"]
    assert done.returncode == (0 if all(run["clean"] for run in runs) else 1)
    return runs


def leaving_a_child(token: str) -> list[str]:
    return ["sh", "-c", f"trap '' INT HUP; sleep 1{token} & trap - INT HUP; exec sleep 2{token}"]


def test_a_child_that_outlives_its_program_is_named_and_under_exec_it_is_gone(token: str) -> None:
    direct, under_exec = runs_of("--only", "sigterm", "--", *leaving_a_child(token))
    assert (direct["signal"], under_exec["signal"]) == ("SIGTERM", "SIGTERM")
    assert len(direct["processes"]) == 1
    assert f"sleep 1{token}" in direct["processes"][0]
    assert under_exec["processes"] == []
    assert (direct["under_exec"], under_exec["under_exec"]) == (False, True)


def test_what_a_leftover_listens_on_is_named(token: str) -> None:
    server = f"import socket, time; s = socket.create_server(('127.0.0.1', 0)); u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('127.0.0.1', 0)); time.sleep(60); {token}"
    program = ["sh", "-c", f'{sys.executable} -S -c "{server}" & exec sleep 2{token}']
    (direct,) = runs_of("--no-exec", "--after", "1", "--only", "sigkill", "--", *program)
    assert "listens on 127.0.0.1:" in direct["processes"][0]
    assert "UDP 127.0.0.1:" in direct["processes"][0]


@pytest.mark.parametrize(
    ("way", "signals", "heard"),
    [
        ("ctrl-c", "1", ["SIGINT"]),
        ("ctrl-c-2", "2", ["SIGINT", "SIGINT"]),
        ("ctrl-c-3", "3", ["SIGINT", "SIGINT", "SIGINT"]),
        ("sigterm", "1", ["SIGTERM"]),
        ("hang-up", "1", ["SIGHUP"]),
        ("stdin", "1", ["end of input"]),
        ("client", "1", ["end of input", "broken pipe"]),
    ],
)
@pytest.mark.parametrize("under_exec", [False, True])
def test_the_program_hears_of_each_stop_as_it_really_comes(
    way: str, signals: str, heard: list[str], under_exec: bool, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    program = [sys.executable, "-S", "-c", LISTENER, str(notes), signals]
    options = ["--ready", "ready", "--only", way, "--grace", "5"]
    runs = runs_of(*options, *([] if under_exec else ["--no-exec"]), "--", *program)
    assert [run["exit_code"] for run in runs] == [0] * len(runs)
    assert notes.read_text().splitlines() == heard * len(runs)


def test_a_program_that_is_killed_has_that_signal(token: str) -> None:
    runs = runs_of("--only", "sigkill", "--", "sleep", f"1{token}")
    assert [run["signal"] for run in runs] == ["SIGKILL", "SIGKILL"]
    assert all(run["clean"] for run in runs)


def test_a_program_that_does_not_stop_is_still_running_and_exec_stops_it(token: str) -> None:
    deaf = ["sh", "-c", f"trap '' TERM INT HUP; echo up; while :; do sleep 1{token}; done"]
    direct, under_exec = runs_of("--only", "sigterm", "--ready", "up", "--", *deaf)
    assert direct["still_running"]
    assert direct["seconds"] >= 1.5
    assert not under_exec["still_running"]
    assert under_exec["processes"] == []


def test_waiting_for_a_program_whose_client_was_killed_takes_little_time_of_the_processor(token: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = stoptest("--only", "client", "--no-exec", "--exit-within", "3", "--", "sleep", f"1{token}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "still running" in done.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.7


def test_a_file_that_is_left_is_named() -> None:
    program = ["sh", "-c", 'echo x > "$TMPDIR/lock"; mkfifo "$TMPDIR/door"; exec sleep 60']
    (direct,) = runs_of("--no-exec", "--only", "sigterm", "--", *program)
    assert direct["files"] == ["file door", "file lock"]
    assert not direct["clean"]


def test_what_it_said_last_is_what_it_said_after_the_stop() -> None:
    program = ["sh", "-c", "trap 'echo bye; exit 3' TERM; echo hello; sleep 60 & wait"]
    (direct,) = runs_of("--no-exec", "--only", "sigterm", "--", *program)
    assert direct["said_last"] == "bye"
    assert direct["exit_code"] == 3


def test_what_it_said_before_the_stop_is_shown_if_it_said_nothing_after_it() -> None:
    program = ["sh", "-c", "echo hello; exec sleep 60"]
    (direct,) = runs_of("--no-exec", "--only", "sigterm", "--ready", "hello", "--", *program)
    assert direct["said_last"] == "hello"


def test_a_way_that_cannot_be_tested_does_not_cost_the_results_of_the_others(token: str) -> None:
    """At a terminal it waits; without one, it has nothing to do and ends."""
    program = ["sh", "-c", f"[ -t 0 ] || exit 4; exec sleep 1{token}"]
    words = ["--only", "ctrl-c", "--only", "stdin", "--only", "client", "--", *program]
    done = stoptest("--json", *words)
    assert done.returncode == 2
    runs = json.loads(done.stdout)["runs"]
    assert [run["clean"] for run in runs] == [True, True, False, False, False, False]
    assert [bool(run["untested"]) for run in runs] == [False, False, True, True, True, True]
    table = stoptest(*words).stdout
    assert "input closed" in table
    assert "not tested: it ended by itself (exit 4)" in table
    assert table.count("it ended by itself") == 2  # once for each column


def test_what_a_program_has_left_that_ended_by_itself_is_named(token: str) -> None:
    done = stoptest("--only", "sigterm", "--", "sh", "-c", f"sleep 1{token} & exit 0")
    assert done.returncode == 2
    assert "it ended by itself (exit 0)" in done.stderr
    assert f"sleep 1{token}" in done.stderr.splitlines()[1]


def test_a_real_time_signal_has_a_name() -> None:
    program = """
import os, signal
signal.signal(15, lambda *_: os.kill(os.getpid(), 36))
print("ready", flush=True)
signal.pause()
signal.pause()
"""
    runs = runs_of("--only", "sigterm", "--ready", "ready", "--", sys.executable, "-c", program)
    assert [run["signal"] for run in runs] == ["SIGRTMIN+2", "SIGRTMIN+2"]


def test_it_can_be_stopped_at_once(token: str) -> None:
    runs = runs_of("--after", "0", "--", "sleep", f"1{token}")
    assert len(runs) == 16
    assert not any(run["untested"] for run in runs)


def test_the_terminal_has_a_size(tmp_path: Path) -> None:
    program = ["sh", "-c", f"stty size > {tmp_path}/size; exec sleep 60"]
    runs_of("--only", "ctrl-c", "--no-exec", "--", *program)
    assert (tmp_path / "size").read_text() == "24 80\n"


def test_leftovers_that_differ_in_their_folder_alone_are_listed_once(token: str) -> None:
    program = ["sh", "-c", f'sh -c "sleep 1{token}; : $TMPDIR" & exec sleep 2{token}']
    done = stoptest("--no-exec", "--only", "sigterm", "--only", "sigkill", "--", *program)
    assert "as it is: SIGTERM, SIGKILL" in done.stdout


def test_without_a_proc_of_its_own_it_says_that_it_cannot_see(token: str) -> None:
    if not may_make_namespaces():
        pytest.skip("needs root, to make namespaces")
    command = ["unshare", "--pid", "--fork", "--kill-child=KILL", *STOPTEST, "--", "sleep", f"1{token}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "what is left cannot be seen: /proc shows another PID namespace" in done.stderr


def test_where_it_cannot_adopt_processes_it_tests_nothing_and_says_why() -> None:
    command = without_subreapers([*STOPTEST, *QUICKLY, "--", "sleep", "60"])
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "quiesce stoptest: what is left cannot be seen" in done.stderr


def test_results_that_cannot_be_written_are_not_results_that_say_something_was_left() -> None:
    with open("/dev/full", "wb") as full:
        command = [*STOPTEST, *QUICKLY, "--no-exec", "--only", "sigterm", "--", "sleep", "60"]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr == "quiesce stoptest: the results could not be written: No space left on device\n"


def test_the_table_has_both_columns_and_says_what_was_left(token: str) -> None:
    done = stoptest("--only", "sigterm", "--only", "sigkill", "--", *leaving_a_child(token))
    head, term, kill, *details = done.stdout.splitlines()
    assert head.split("  ")[-1].strip() == "under quiesce exec"
    assert term.startswith("SIGTERM")
    assert "1 process left" in term
    assert term.endswith("nothing left")
    assert kill.endswith("SIGKILL, nothing left")
    # Both ways left the same.
    assert "as it is: SIGTERM, SIGKILL" in details
    assert sum(f"sleep 1{token}" in line for line in details) == 1
    assert done.returncode == 1
    assert not done.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "there is no command: quiesce stoptest [options] -- COMMAND"),
        (("--only", "sigtrem", "--", "true"), "there is no way 'sigtrem'; did you mean sigterm?"),
        (("--ready", "(", "--", "true"), "'(' is not a regular expression"),
        (("--after", "soon", "--", "true"), "'soon' is not a number of seconds"),
        (("--only", "stdin", "--skip", "stdin", "--", "true"), "--only and --skip leave no way"),
        (("--", "no-such-program-here"), "cannot start 'no-such-program-here': no such program in PATH"),
        (("--", "sh", "-c", "echo oh no; exit 4"), "it ended by itself (exit 4)"),
        (("--", "sh", "-c", "echo oh no; exit 4"), "before it could be stopped; it said: oh no"),
        (
            ("--ready", "never", "--start-within", "0.3", "--", "sleep", "60"),
            "no line of its output matched 'never'",
        ),
    ],
)
def test_what_cannot_be_tested_is_an_error_that_says_why(words: tuple[str, ...], problem: str) -> None:
    done = stoptest(*words)
    assert done.returncode == 2
    assert problem in done.stderr
    assert not done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_it_leaves_nothing_when_it_is_stopped_itself(number: int, token: str) -> None:
    words = ["--after", "30", "--only", "sigterm", "--", *leaving_a_child(token)]
    command = [*STOPTEST, *words]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as own:
        assert wait_until(lambda: len(running(token)) >= 5)  # itself, thrice, and both of its processes
        own.send_signal(number)
        assert own.wait(10) == (-number if number == signal.SIGKILL else 128 + number)
        assert wait_until(lambda: not running(token))
        assert own.stderr is not None
        assert b"Traceback" not in own.stderr.read()


def test_at_a_terminal_a_bar_says_how_far_it_is(token: str) -> None:
    terminal, theirs = pty.openpty()
    command = [*STOPTEST, *QUICKLY, "--only", "sigkill", "--", "sleep", f"1{token}"]
    stoptest = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    shown = b""
    give_up_at = time.monotonic() + 30
    while time.monotonic() < give_up_at:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            shown += os.read(terminal, 4096)
        except OSError:
            break
    os.close(terminal)
    assert stoptest.wait(30) == 0
    assert b"[----------------] 1/2 SIGKILL, as it is: starting" in shown
    assert b"[########--------] 2/2 SIGKILL, under quiesce exec: " in shown
    assert (
        shown.decode()
        .replace("\r", "")
        .split("\x1b[K")[-1]
        .splitlines()[0]
        .endswith("under quiesce exec\x1b[0m")
    )
