"""`quiesce exec`: signals that stop it, and those that it passes on; once, in order, and within the grace."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from tests.kernel.processes import running, token_of_processes, wait_until

from .exec_commands import (
    DEAF,
    LISTENER,
    all_end,
    children_of,
    end_of,
    exec_,
    guard_of,
    line_of,
    python,
    started,
    state_of,
    wait_for_sleepers,
    without_pidfds,
)

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


def got(number: int) -> str:
    return f"got {int(number)}"


guarded = pytest.mark.parametrize("options", [(), ("--no-guard",)], ids=["guard", "no guard"])
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@guarded
@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_ends_the_command_and_us_with_it(number: int, token: str, options: tuple[str, ...]) -> None:
    with started(exec_("sleep", f"300.{token}", options=options)) as process:
        wait_for_sleepers(token)
        process.send_signal(number)
        assert end_of(process) == -number
        assert process.stderr is not None
        assert process.stderr.read() == b""


@guarded
@pytest.mark.parametrize("number", STOPPING)
def test_a_command_that_handles_the_signal_chooses_the_exit_status(
    number: int, options: tuple[str, ...]
) -> None:
    script = f"trap 'echo cleaned up; exit 7' {number}; echo ready; while :; do sleep 0.01; done"
    with started(exec_("sh", "-c", script, options=options)) as process:
        assert line_of(process) == "ready"
        process.send_signal(number)
        assert line_of(process) == "cleaned up"
        assert end_of(process) == 7


PASSED_ON = (
    *(
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGWINCH,
        signal.SIGQUIT,
        signal.SIGALRM,
        signal.SIGIO,
        signal.SIGURG,
    ),
    signal.SIGRTMIN + 3,
)


@guarded
def test_all_other_signals_are_passed_on_once_in_order(token: str, options: tuple[str, ...]) -> None:
    last = signal.SIGRTMIN + 4
    with started(exec_(*python(LISTENER, str(int(last)), token), options=options)) as process:
        assert line_of(process) == "ready"
        for number in (*PASSED_ON, *PASSED_ON):
            process.send_signal(number)
            assert line_of(process) == got(number)
        process.send_signal(last)
        assert line_of(process) == got(last)
        assert end_of(process) == 0


def test_a_stop_is_told_to_the_command_once(token: str) -> None:
    """SIGTERM after SIGTERM means "now" to many programs. Their children get one, too, after three fifths of the grace."""
    child = python(LISTENER, "64", token)
    script = f"""
import subprocess, sys
subprocess.Popen({child!r}, stdout=open("/dev/null", "w"))
{LISTENER}"""
    command = exec_(*python(script, "64", token), options=["--grace", "0.5"])
    with started(command) as process:
        assert line_of(process) == "ready"
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stdout.read() == b"got 15\n"
        assert 0.5 <= time.monotonic() - began < 3
        assert end_of(process) == -signal.SIGKILL


def test_sigterm_follows_for_a_command_that_ignores_sigint(token: str) -> None:
    command = exec_(*python(LISTENER, str(int(signal.SIGTERM)), token), options=["--grace", "0.5"])
    with started(command) as process:
        assert line_of(process) == "ready"
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert line_of(process) == "got 2"
        assert line_of(process) == "got 15"
        assert 0.3 <= time.monotonic() - began < 0.5
        assert end_of(process) == 0


@guarded
def test_the_grace_is_honoured(token: str, options: tuple[str, ...]) -> None:
    with started(exec_(*python(DEAF, token), options=[*options, "--grace", "0.5"])) as process:
        assert line_of(process) == "ready"
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert end_of(process) == -signal.SIGKILL
        assert 0.5 <= time.monotonic() - began < 3


def test_a_grace_of_zero_kills_at_once(token: str) -> None:
    with started(exec_(*python(DEAF, token), options=["--grace", "0"])) as process:
        assert line_of(process) == "ready"
        process.send_signal(signal.SIGTERM)
        assert end_of(process, 3) == -signal.SIGKILL


@guarded
def test_a_second_signal_halves_the_time_and_a_third_kills(token: str, options: tuple[str, ...]) -> None:
    with started(exec_(*python(DEAF, token), options=[*options, "--grace", "100"])) as process:
        assert line_of(process) == "ready"
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            assert process.poll() is None
            process.send_signal(number)
            time.sleep(0.1)
        assert end_of(process, 5) == -signal.SIGKILL


def test_a_second_signal_hurries(token: str) -> None:
    with started(exec_(*python(DEAF, token), options=["--grace", "1"])) as process:
        assert line_of(process) == "ready"
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert end_of(process) == -signal.SIGKILL
        assert 0.5 <= time.monotonic() - began < 0.95


def test_the_same_signal_in_a_row_is_one(token: str) -> None:
    """`timeout` signals its command, and then its whole group."""
    with started(exec_(*python(DEAF, token), options=["--grace", "1"])) as process:
        assert line_of(process) == "ready"
        began = time.monotonic()
        for _ in range(4):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.005)
        assert end_of(process) == -signal.SIGKILL
        assert 1 <= time.monotonic() - began < 3


def test_more_hang_ups_do_not_hurry(token: str) -> None:
    """One closed terminal may send several."""
    with started(exec_(*python(DEAF, token), options=["--grace", "0.6"])) as process:
        assert line_of(process) == "ready"
        began = time.monotonic()
        for _ in range(4):
            process.send_signal(signal.SIGHUP)
            time.sleep(0.02)
        assert end_of(process) == -signal.SIGKILL
        assert 0.6 <= time.monotonic() - began < 3


def test_a_signal_can_be_forwarded_instead_of_stopping(token: str) -> None:
    command = exec_(
        *python(LISTENER, str(int(signal.SIGTERM)), token), options=["--forward", "HUP", "--grace", "0.2"]
    )
    with started(command) as process:
        assert line_of(process) == "ready"
        for _ in range(3):
            process.send_signal(signal.SIGHUP)
            assert line_of(process) == "got 1"
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert line_of(process) == "got 15"
        assert end_of(process) == 0


@guarded
def test_a_stopped_command_is_continued_to_be_ended(token: str, options: tuple[str, ...]) -> None:
    with started(exec_("sleep", f"300.{token}", options=options)) as process:
        (sleep,) = wait_for_sleepers(token)
        os.kill(sleep, signal.SIGSTOP)
        assert wait_until(lambda: state_of(sleep) == "T")
        process.terminate()
        assert end_of(process, 3) == -signal.SIGTERM


def test_a_signal_that_comes_while_the_command_starts_is_not_lost(token: str) -> None:
    for wait in (0.0, 0.02, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2):
        with started(exec_("sleep", f"300.{token}")) as process:
            time.sleep(wait)
            process.terminate()
            assert end_of(process, 5) == -signal.SIGTERM
            assert all_end(token)


@guarded
def test_where_there_are_no_pidfds_signals_reach_the_command(token: str, options: tuple[str, ...]) -> None:
    listens = python(LISTENER, str(int(signal.SIGTERM)), token)
    with started(without_pidfds(exec_(*listens, options=options))) as process:
        assert line_of(process) == "ready"
        process.send_signal(signal.SIGUSR1)
        assert line_of(process) == got(signal.SIGUSR1)
        process.terminate()
        assert line_of(process) == got(signal.SIGTERM)
        assert end_of(process) == 0
    assert all_end(token)


@pytest.mark.parametrize("makes", ["os.setsid()", "pass"], ids=["with a session", "without one"])
def test_signals_reach_a_command_that_does_not_lead_its_group(makes: str, token: str) -> None:
    program = python(
        f"import os, signal; {makes}; signal.signal(signal.SIGCONT, lambda *_: os.write(1, b'went on\\n'))\n"
        "print('ready', flush=True)\nwhile True: signal.pause()",
        token,
    )
    with started(["sh", "-c", '"$@" & wait $!; echo $?', "sh", *exec_(*program)]) as script:
        assert line_of(script) == "ready"
        (front,) = children_of(script.pid)
        (command,) = children_of(guard_of(front))
        if makes == "pass":  # the leader of a session cannot be stopped so
            os.kill(front, signal.SIGTSTP)
            assert wait_until(lambda: state_of(command) == "T")
        os.kill(front, signal.SIGCONT)
        assert line_of(script) == "went on"
        os.kill(front, signal.SIGTERM)
        assert line_of(script) == str(128 + signal.SIGTERM)


def test_signals_to_a_whole_group_reach_the_command_once(token: str) -> None:
    """Supervisors signal the group of what they have started."""
    with started(exec_(*python(LISTENER, str(int(signal.SIGUSR2)), token))) as process:
        assert line_of(process) == "ready"
        os.killpg(process.pid, signal.SIGUSR1)
        assert line_of(process) == got(signal.SIGUSR1)
        process.send_signal(signal.SIGUSR2)
        assert line_of(process) == got(signal.SIGUSR2)
        assert end_of(process) == 0


@guarded
def test_waiting_for_a_quiet_command_takes_no_time_of_the_processor(
    token: str, options: tuple[str, ...]
) -> None:
    with started(exec_("sleep", f"300.{token}", options=options)) as process:
        wait_for_sleepers(token)
        time.sleep(0.2)
        before = [_ticks(pid) for pid in running(token)]
        time.sleep(0.5)
        assert [_ticks(pid) for pid in running(token)] == before
        process.terminate()
        assert end_of(process) == -signal.SIGTERM


def _ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
