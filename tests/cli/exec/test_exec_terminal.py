"""`quiesce exec` at a terminal: Ctrl-C, Ctrl-Z, the foreground and hang-ups are those of the command.

Most tests are run twice, with the command run directly and by `quiesce exec`: both have to pass.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.processes import running, token_of_processes, wait_until

from .exec_commands import (
    DEAF,
    EXEC,
    LISTENER,
    all_end,
    exec_,
    name_of,
    python,
    sleepers,
    state_of,
    wait_for_sleepers,
)
from .exec_terminal import CTRL_BACKSLASH, CTRL_C, CTRL_D, CTRL_Z, PROMPT, Terminal, shell, terminal

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not sys.platform.startswith("linux") or not shutil.which("bash"), reason="needs Linux, and bash"
    ),
    pytest.mark.time_limit(60),
]

BY_EXEC = f"{shlex.join(EXEC)} -- "
BY = {"directly": "", "by quiesce exec": BY_EXEC, "without a guard": f"{shlex.join(EXEC)} --no-guard -- "}
ways = pytest.mark.parametrize("by", BY.values(), ids=BY)


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


@pytest.fixture
def user() -> Iterator[Terminal]:
    with shell() as user:
        yield user


@pytest.fixture
def listener(token: str, tmp_path: Path) -> str:
    """A command line without quotes: it prints the numbers of the signals that it gets, until SIGQUIT."""
    return _program(LISTENER, tmp_path / f"listener-{token}", str(int(signal.SIGQUIT)))


@pytest.fixture
def deaf(token: str, tmp_path: Path) -> str:
    return _program(DEAF, tmp_path / f"deaf-{token}")


def _program(text: str, file: Path, *arguments: str) -> str:
    file.write_text(text)
    return shlex.join([sys.executable, "-I", "-S", str(file), *arguments])


# Ctrl-C --------------------------------------------------------------------------------------------------------


@ways
def test_ctrl_c_ends_the_command(by: str, token: str, user: Terminal) -> None:
    user.type(f"{by}sleep 300.{token}\n")
    wait_for_sleepers(token)
    user.type(CTRL_C)
    user.expect(PROMPT)
    assert user.status() == 130


@ways
def test_ctrl_c_reaches_the_command_once(by: str, token: str, listener: str, user: Terminal) -> None:
    user.type(f"{by}{listener}\n")
    user.expect("ready\r\n")
    for _ in range(2):
        user.type(CTRL_C)
        user.expect("got 2\r\n")
        time.sleep(0.2)
    user.type(CTRL_BACKSLASH)
    assert user.expect("got 3\r\n") == ""
    user.expect(PROMPT)
    assert user.status() == 0


@ways
def test_ctrl_c_reaches_children_of_the_command(by: str, token: str, listener: str, user: Terminal) -> None:
    user.type(f"{by}sh -c 'trap \"echo parent\" INT; {listener}; echo over'\n")
    user.expect("ready\r\n")
    user.type(CTRL_C)
    user.expect("got 2\r\n")
    user.type(CTRL_BACKSLASH)
    user.expect(PROMPT)
    assert all_end(token)


@ways
def test_ctrl_c_ends_the_script_that_we_are_in(by: str, token: str, user: Terminal) -> None:
    user.type(f"sh -c '{by}sleep 300.{token}; echo after'\n")
    wait_for_sleepers(token)
    user.type(CTRL_C)
    assert "after" not in user.expect(PROMPT)
    assert user.status() == 130


@ways
def test_ctrl_c_reaches_the_command_of_a_script_once(
    by: str, token: str, listener: str, user: Terminal
) -> None:
    user.type(f"sh -c 'trap : QUIT; {by}{listener}; echo after'\n")
    user.expect("ready\r\n")
    user.type(CTRL_C)
    user.expect("got 2\r\n")
    time.sleep(0.2)
    user.type(CTRL_BACKSLASH)
    assert user.expect("got 3\r\n") == ""
    user.expect(PROMPT)
    assert all_end(token)


@ways
def test_ctrl_c_ends_make(by: str, token: str, user: Terminal, tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(f"all:\n\t@{by}sleep 300.{token}\n\t@echo after\n")
    user.type(f"make -C {tmp_path}\n")
    wait_for_sleepers(token)
    user.type(CTRL_C)
    assert "after" not in user.expect(PROMPT)
    assert user.status() in (130, 2)


@ways
def test_a_command_that_handles_ctrl_c_lives_on(by: str, user: Terminal) -> None:
    user.type(f"{by}{shlex.quote(sys.executable)} -I -S -i -q -u\n")
    user.expect(">>> ")
    for _ in range(2):
        user.type("import time; time.sleep(100)\n")
        time.sleep(0.2)
        user.type(CTRL_C)
        user.expect("KeyboardInterrupt")
        user.expect(">>> ")
    user.type("print(41 + 1)\n")
    user.expect("42")
    user.type("raise SystemExit(5)\n")
    user.expect(PROMPT)
    assert user.status() == 5


@pytest.mark.parametrize("place", ["{}", "sh -c '{}; exit $?'"], ids=["shell", "script"])
def test_three_times_ctrl_c_end_a_deaf_tree(place: str, token: str, deaf: str, user: Terminal) -> None:
    user.type(place.format(f"{shlex.join(EXEC)} --grace 1 -- {deaf}") + "\n")
    user.expect("ready")
    for _ in range(3):
        assert running(token)
        user.type(CTRL_C)
        time.sleep(0.1)
    user.expect(PROMPT)
    assert all_end(token)


def test_ctrl_c_now_and_then_does_not_end_a_command_that_handles_it(
    token: str, listener: str, user: Terminal
) -> None:
    user.type(f"{shlex.join(EXEC)} --grace 0.2 -- {listener}\n")
    user.expect("ready\r\n")
    for _ in range(4):
        user.type(CTRL_C)
        user.expect("got 2\r\n")
        time.sleep(0.25)
    assert running(token)
    user.type(CTRL_BACKSLASH)
    user.expect(PROMPT)
    assert user.status() == 0


# Ctrl-Z --------------------------------------------------------------------------------------------------------


@ways
def test_ctrl_z_stops_the_command_and_fg_continues_it(by: str, user: Terminal) -> None:
    user.type(f"{by}cat\n")
    time.sleep(0.3)
    user.type("one\n")
    user.expect("one\r\n")
    for word in ("two", "three"):
        user.type(CTRL_Z)
        user.expect_stopped()
        assert "Stopped" in user.run("jobs")
        user.type("fg\n")
        user.expect("cat\r\n")
        time.sleep(0.1)
        user.type(f"{word}\n")
        user.expect(f"{word}\r\n")
    user.type(CTRL_D)
    user.expect(PROMPT)
    assert user.status() == 0


@ways
def test_bg_continues_a_stopped_command_in_the_background(by: str, token: str, user: Terminal) -> None:
    user.type(f"{by}sh -c 'sleep 0.5; echo fini''shed; sleep 300.{token}'\n")
    time.sleep(0.3)
    user.type(CTRL_Z)
    user.expect_stopped()
    user.run("bg")
    user.expect("finished")
    user.type("fg\n")
    wait_for_sleepers(token)
    time.sleep(0.1)
    user.type(CTRL_C)
    user.expect(PROMPT)
    assert all_end(token)


PIPELINES = {
    "on the left": "{by}cat | cat",
    "on the right": "cat | {by}cat",
    "on both sides": "{by}cat | {by}cat",
    "in a script": "sh -c '{by}cat; true'",
    "in a pipeline of a script": "sh -c '{by}cat | cat'",
}


@ways
@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)
def test_a_pipeline_reads_the_terminal_stops_and_continues_as_one(
    by: str, pipeline: str, user: Terminal
) -> None:
    user.type(f"{pipeline.format(by=by)}\n")
    time.sleep(0.3)
    user.type("one\n")
    user.expect("one\r\n")
    user.type(CTRL_Z)
    user.expect_stopped()
    user.type("fg\n")
    time.sleep(0.2)
    user.type("two\n")
    user.expect("two\r\n")
    user.type(CTRL_C)
    user.expect(PROMPT)
    assert user.status() == 130
    assert user.run("jobs").strip() == ""


@ways
def test_sigstop_stops_the_job(by: str, token: str, user: Terminal) -> None:
    user.type(f"{by}sleep 300.{token}\n")
    (sleep,) = wait_for_sleepers(token)
    os.kill(sleep, signal.SIGSTOP)
    user.expect_stopped()
    user.type("fg\n")
    assert wait_until(lambda: state_of(sleep) == "S")
    user.type(CTRL_C)
    user.expect(PROMPT)
    assert user.status() == 130


# In the background ---------------------------------------------------------------------------------------------


@ways
def test_in_the_background_reading_the_terminal_stops_the_command(by: str, user: Terminal) -> None:
    user.run(f"{by}cat &")
    time.sleep(0.3)
    assert wait_until(lambda: "Stopped" in user.run("jobs"))
    user.type("fg\n")
    user.expect("cat\r\n")
    time.sleep(0.1)
    user.type("typed\n")
    user.expect("typed\r\n")
    user.type(CTRL_D)
    user.expect(PROMPT)
    assert user.status() == 0


@ways
def test_fg_of_a_running_command_gives_it_the_terminal(by: str, token: str, user: Terminal) -> None:
    user.run(f"{by}sh -c 'sleep 0.6; read line; echo got $line' &")
    time.sleep(0.3)
    user.type("fg\n")
    time.sleep(0.7)
    user.type("it\n")
    user.expect("got it")
    user.expect(PROMPT)
    assert user.status() == 0


@ways
def test_ctrl_c_reaches_a_command_that_fg_has_brought_back_once(
    by: str, token: str, listener: str, user: Terminal
) -> None:
    user.run(f"{by}{listener} &")
    time.sleep(0.4)
    user.type("fg\n")
    time.sleep(0.2)
    for _ in range(2):
        user.type(CTRL_C)
        user.expect("got 2\r\n")
        time.sleep(0.2)
    user.type(CTRL_BACKSLASH)
    assert "got" not in user.expect("got 3\r\n")
    user.expect(PROMPT)
    assert user.status() == 0


@ways
def test_kill_of_a_job_ends_it(by: str, token: str, user: Terminal) -> None:
    user.run(f"{by}sleep 300.{token} &")
    wait_for_sleepers(token)
    user.run("kill %1")
    assert all_end(token)


@ways
def test_two_commands_of_a_script_share_the_terminal(by: str, token: str, user: Terminal) -> None:
    user.type(f"sh -c '{by}sleep 300.{token} & {by}sh -c \"read line; echo got \\$line\"; kill $!; wait'\n")
    wait_for_sleepers(token)
    time.sleep(0.3)
    user.type("it\n")
    user.expect("got it")
    user.expect(PROMPT)
    assert all_end(token)


# The terminal itself -------------------------------------------------------------------------------------------


@ways
@pytest.mark.parametrize("command", ["true", "false", "does-not-exist", 'sh -c "kill -9 0"', "bash -ic true"])
def test_afterwards_the_terminal_belongs_to_who_had_it(by: str, command: str, user: Terminal) -> None:
    """A script gets it back by itself: nobody does that for it."""
    if "kill" in command:  # the script would be killed, too
        user.run(f"{by}{command}")
    else:
        user.type(f"sh -c '{by}{command}; read line; echo got $line'\n")
        time.sleep(0.6)
        user.type("it\n")
        user.expect("got it")
        user.expect(PROMPT)
    assert user.run("echo still $((6 * 7))").startswith("still 42")
    assert user.foreground() == user.process.pid


@pytest.mark.parametrize("words", [("true",), ("does-not-exist",)], ids=" ".join)
def test_the_leader_of_the_session_takes_the_terminal_back(words: tuple[str, ...]) -> None:
    program = f"""
import os, subprocess, sys
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    os.execv(sys.executable, {exec_(*words)!r})
os.waitpid(pid, 0)
print("foreground", os.tcgetpgrp(0) == pid)
"""
    ignoring = f"import signal; signal.signal(signal.SIGTTOU, signal.SIG_IGN)\n{program}"
    with terminal(python(ignoring)) as user:
        user.expect("foreground True")


@ways
def test_a_command_whose_input_is_a_pipe_reads_the_terminal(by: str, user: Terminal) -> None:
    """As `less` does."""
    user.type(f"echo piped | {by}sh -c 'read line; read typed < /dev/tty; echo got $line $typed'\n")
    time.sleep(0.4)
    user.type("typed\n")
    user.expect("got piped typed")
    user.expect(PROMPT)


@ways
def test_the_reader_of_our_output_reads_the_terminal(by: str, user: Terminal) -> None:
    """As `git log | less` does."""
    user.type(f"{by}echo piped | sh -c 'read line; read typed < /dev/tty; echo got $line $typed'\n")
    time.sleep(0.4)
    user.type("typed\n")
    user.expect("got piped typed")
    user.expect(PROMPT)


@ways
def test_the_size_of_the_window_arrives(by: str, token: str, listener: str, user: Terminal) -> None:
    user.type(f"{by}{listener}\n")
    user.expect("ready\r\n")
    user.resize(33, 99)
    user.expect(f"got {int(signal.SIGWINCH)}\r\n")
    user.type(CTRL_BACKSLASH)
    assert user.expect("got 3\r\n") == ""
    user.expect(PROMPT)


def test_the_command_is_in_the_session_of_the_terminal(user: Terminal) -> None:
    assert user.run(f"{BY_EXEC}tty").startswith("/dev/pts/")
    assert "42" in user.run(f"{BY_EXEC}sh -c 'echo 42 > /dev/tty'")


# Hang-up -------------------------------------------------------------------------------------------------------

TREES = {
    "polite": "sleep 300.{token}",
    "deaf": 'trap "" HUP TERM INT; sleep 300.{token}',
    "in a session of its own": "setsid sleep 300.{token}; true",
}
PLACES = {
    "alone": "{}",
    "in a script": "sh -c {quoted}",
    "in a pipeline": "{} | cat",
    "in the background": "{} &",
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("script", TREES.values(), ids=TREES)
def test_a_hang_up_ends_everything(script: str, place: str, token: str, user: Terminal) -> None:
    command = f"{shlex.join(EXEC)} --grace 0.3 -- sh -c {shlex.quote(script.format(token=token))}"
    user.type(place.format(command, quoted=shlex.quote(f"{command}; true")) + "\n")
    wait_for_sleepers(token)
    time.sleep(0.1)
    user.hang_up()
    assert all_end(token)


@pytest.mark.parametrize("script", TREES.values(), ids=TREES)
def test_a_hang_up_ends_everything_where_we_lead_the_session(script: str, token: str) -> None:
    with terminal(exec_("sh", "-c", script.format(token=token), options=["--grace", "0.3"])) as user:
        wait_for_sleepers(token)
        time.sleep(0.1)
        user.hang_up()
        assert all_end(token)


def test_under_nohup_the_command_survives_a_hang_up(token: str, user: Terminal) -> None:
    user.type(f"nohup {BY_EXEC}sleep 300.{token} > /dev/null\n")
    (sleep,) = wait_for_sleepers(token)
    time.sleep(0.1)
    user.hang_up()
    user.process.wait(5)
    time.sleep(0.3)
    assert sleepers(token) == [sleep]
    for pid in _fronts(token):
        os.kill(pid, signal.SIGTERM)
    assert all_end(token)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_killed_at_a_terminal_we_leave_nothing(place: str, token: str, user: Terminal) -> None:
    command = f"{BY_EXEC}sh -c {shlex.quote(TREES['in a session of its own'].format(token=token))}"
    user.type(place.format(command, quoted=shlex.quote(f"{command}; true")) + "\n")
    wait_for_sleepers(token)
    for pid in _fronts(token):
        os.kill(pid, signal.SIGKILL)
    assert all_end(token)


def _fronts(token: str) -> list[int]:
    found = []
    for pid in running(token):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"quiesce" in words and b"exec" in words and name_of(pid) != "quiesce-guard":
            found.append(pid)
    assert found
    return found
