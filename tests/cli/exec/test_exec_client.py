"""`quiesce exec --stop-on-eof`: the command ends when its client has disconnected, or was killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.processes import running, token_of_processes

from .exec_commands import (
    DEAF,
    LISTENER,
    all_end,
    end_of,
    exec_,
    guard_of,
    line_of,
    python,
    run,
    started,
    wait_for_sleepers,
    without_descriptors,
)

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
STOP_ON_EOF = ["--stop-on-eof", "--grace", "0.5"]


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


guarded = pytest.mark.parametrize("options", [(), ("--no-guard",)], ids=["guard", "no guard"])

# What a client does: it starts the server with one kind of input, and waits.
CLIENT = """
import socket, subprocess, sys, time
if sys.argv[1] == "pipe":
    server = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE)
else:
    ours, theirs = socket.socketpair()
    server = subprocess.Popen(sys.argv[2:], stdin=theirs.fileno(), stdout=theirs.fileno())
    theirs.close()
time.sleep(300)
"""


@guarded
@pytest.mark.parametrize("kind", ["pipe", "socket"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_client_is_killed_everything_ends(
    number: int, kind: str, token: str, options: tuple[str, ...]
) -> None:
    script = f"setsid sleep 300.{token} & exec 0</dev/null sleep 300.{token}"
    with started(
        python(CLIENT, kind, *exec_("sh", "-c", script, options=[*options, *STOP_ON_EOF]))
    ) as client:
        wait_for_sleepers(token, 2)
        client.send_signal(number)
        assert all_end(token, 5)


@guarded
def test_a_command_that_ends_at_the_end_of_input_is_not_signalled(options: tuple[str, ...]) -> None:
    script = "trap 'echo signalled' TERM; cat; echo finished; exit 3"
    with started(exec_("sh", "-c", script, options=[*options, *STOP_ON_EOF])) as process:
        out, err = process.communicate(b"data\n", timeout=10)
        assert (process.returncode, out, err) == (3, b"data\nfinished\n", b"")


def test_a_command_that_does_not_end_gets_sigterm_after_three_fifths_of_the_grace(token: str) -> None:
    command = exec_(*python(LISTENER, str(int(signal.SIGTERM)), token), options=STOP_ON_EOF)
    with started(command) as process:
        assert line_of(process) == "ready"
        assert process.stdin is not None
        began = time.monotonic()
        process.stdin.close()
        assert line_of(process) == "got 15"
        assert 0.3 <= time.monotonic() - began < 0.5
        assert end_of(process) == 0


@guarded
def test_a_deaf_command_is_killed_at_the_end_of_the_grace(token: str, options: tuple[str, ...]) -> None:
    with started(exec_(*python(DEAF, token), options=[*options, *STOP_ON_EOF])) as process:
        assert line_of(process) == "ready"
        assert process.stdin is not None
        began = time.monotonic()
        process.stdin.close()
        assert end_of(process) == -signal.SIGKILL
        assert 0.5 <= time.monotonic() - began < 3


def test_input_that_is_still_in_the_pipe_is_not_lost(token: str) -> None:
    """The client writes a request, and disconnects."""
    ended = run(exec_("sh", "-c", "sleep 0.1; cat", options=STOP_ON_EOF), input=b"x" * 50_000)
    assert ended.stdout == b"x" * 50_000


def test_a_socket_that_is_shut_down_in_one_direction_is_the_end(token: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            exec_("sh", "-c", f"exec 0</dev/null sleep 300.{token}", options=STOP_ON_EOF),
            stdin=theirs.fileno(),
        )
        theirs.close()
        wait_for_sleepers(token)
        ours.shutdown(socket.SHUT_WR)
        assert process.wait(10) == -signal.SIGTERM


INPUTS = {"/dev/null": os.devnull, "a file": __file__}


@pytest.mark.parametrize("path", INPUTS.values(), ids=INPUTS)
def test_input_that_has_no_other_end_ends_nothing(path: str) -> None:
    with Path(path).open("rb") as opened:
        command = exec_("sh", "-c", "cat >/dev/null; sleep 0.8; exit 3", options=STOP_ON_EOF)
        assert run(command, stdin=opened).returncode == 3


def test_without_input_the_option_means_nothing() -> None:
    ended = run(without_descriptors([0], exec_("sh", "-c", "sleep 0.8; exit 3", options=STOP_ON_EOF)))
    assert (ended.returncode, ended.stderr) == (3, b"")


def test_signals_that_follow_are_the_first(token: str, tmp_path: Path) -> None:
    """Clients close the input, and send SIGTERM when nothing happens: that must not count as a second request."""
    options = ["--stop-on-eof", "--grace", "1", "--report", str(tmp_path / "report")]
    with started(exec_(*python(DEAF, token), options=options)) as process:
        assert line_of(process) == "ready"
        assert process.stdin is not None
        began = time.monotonic()
        process.stdin.close()
        time.sleep(0.1)
        process.terminate()
        assert end_of(process) == -signal.SIGKILL
        assert 1 <= time.monotonic() - began < 4
    assert json.loads((tmp_path / "report").read_text())["reason"]["kind"] == "disconnect"


def test_if_the_guard_was_killed_the_end_of_input_is_still_seen(token: str) -> None:
    with started(exec_("sleep", f"300.{token}", options=STOP_ON_EOF)) as process:
        wait_for_sleepers(token)
        os.kill(guard_of(process.pid), signal.SIGKILL)
        assert process.stdin is not None
        process.stdin.close()
        assert end_of(process) == -signal.SIGTERM
        assert running(token) == []
