"""`quiesce exec`: the whole tree of the command ends, however the command ends and however we do."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.kernel.processes import is_gone, running, token_of_processes, wait_until

from .exec_commands import (
    DAEMON,
    DEAF,
    EXEC,
    all_end,
    children_of,
    end_of,
    exec_,
    guard_of,
    line_of,
    python,
    run,
    sleepers,
    started,
    wait_for_sleepers,
)

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


guarded = pytest.mark.parametrize("options", [(), ("--no-guard",)], ids=["guard", "no guard"])

# What a command may have below it, as scripts of a shell that are given a token. Each starts one sleeper.
TREES = {
    "itself": "exec sleep 300.{token}",
    "a child": "sleep 300.{token} & wait",
    "a grandchild": "sh -c 'sleep 300.{token} & wait' & wait",
    "a session of its own": "setsid sleep 300.{token} & wait",
    "ignores SIGTERM": "trap '' TERM HUP INT; sleep 300.{token} & wait",
    "deaf, in a session": "trap '' TERM HUP INT; setsid sleep 300.{token} & wait",
    "a daemon": "{daemon} 300.{token}; sleep 300",
    "a deaf daemon": "{daemon} 300.{token} deaf; sleep 300",
    "an orphan": "sh -c 'sleep 300.{token} & exit'; sleep 300",
    "stopped": "sleep 300.{token} & sleep 0.1; kill -STOP $!; wait",
}


def tree(name: str, token: str) -> list[str]:
    # Without a token in its own command line, it would not be looked for: `sh` has it as a comment.
    script = TREES[name].format(token=token, daemon=shlex.join(python(DAEMON)))
    return ["sh", "-c", f"{script} # {token}"]


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_everything_ends_when_we_are_ended(number: int, name: str, token: str) -> None:
    with started(exec_(*tree(name, token), options=["--grace", "0.3"])) as process:
        wait_for_sleepers(token)
        guard = guard_of(process.pid)
        process.send_signal(number)
        status = end_of(process)
        assert status < 0 or name == "itself"
        if number != signal.SIGKILL:
            assert running(token) == [], "we have exited before them"
        assert all_end(token)
        assert wait_until(lambda: is_gone(guard))


@guarded
@pytest.mark.parametrize("name", [name for name in TREES if name != "itself"])
def test_everything_ends_when_the_command_does(name: str, token: str, options: tuple[str, ...]) -> None:
    command = tree(name, token)
    command[2] = (
        command[2]
        .replace("wait #", "exec sh -c 'read line; exit 5' #")
        .replace("sleep 300 #", "exec sh -c 'read line; exit 5' #")
    )
    with started(exec_(*command, options=[*options, "--grace", "0.3"])) as process:
        wait_for_sleepers(token)
        assert process.stdin is not None
        process.stdin.close()
        assert end_of(process) == 5
        assert running(token) == []


@pytest.mark.parametrize("name", TREES)
def test_everything_ends_when_the_command_is_killed(name: str, token: str) -> None:
    with started(exec_(*tree(name, token), options=["--grace", "0.3"])) as process:
        wait_for_sleepers(token)
        guard = guard_of(process.pid)
        os.kill(min(children_of(guard)), signal.SIGKILL)
        assert end_of(process) == -signal.SIGKILL
        assert running(token) == []


def test_a_polite_child_is_asked_and_may_clean_up(token: str) -> None:
    script = f"sh -c 'trap \"echo cleaned; exit\" TERM; echo ready; while :; do sleep 0.01; done' {token} & wait $!; exit 3"
    with started(exec_("sh", "-c", script)) as process:
        assert line_of(process) == "ready"
        process.terminate()
        assert line_of(process) == "cleaned"
        assert end_of(process) == -signal.SIGTERM


def test_what_a_command_leaves_is_asked_before_it_is_killed(token: str) -> None:
    script = (
        f"sh -c 'trap \"sleep 0.1; echo cleaned; exit\" TERM; echo ready; while :; do sleep 0.01; done' {token} &"
        "read line; exit 4"
    )
    with started(exec_("sh", "-c", script)) as process:
        assert line_of(process) == "ready"
        assert process.stdin is not None
        process.stdin.close()
        assert line_of(process) == "cleaned"
        assert end_of(process) == 4


# The guard -----------------------------------------------------------------------------------------------------


def test_if_the_guard_is_killed_we_go_on(token: str) -> None:
    script = f"sleep 300.{token} & read line; exit 6"
    with started(exec_("sh", "-c", script)) as process:
        wait_for_sleepers(token)
        os.kill(guard_of(process.pid), signal.SIGKILL)
        time.sleep(0.2)
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
        assert end_of(process) == 6
        assert running(token) == []


@pytest.mark.parametrize("name", TREES)
def test_if_the_guard_is_killed_a_signal_still_ends_everything(name: str, token: str) -> None:
    with started(exec_(*tree(name, token), options=["--grace", "0.3"])) as process:
        wait_for_sleepers(token)
        os.kill(guard_of(process.pid), signal.SIGKILL)
        process.terminate()
        end_of(process)
        assert running(token) == []


def test_the_guard_and_the_command_killed_together_give_the_commands_status(token: str) -> None:
    for _ in range(5):
        with started(exec_("sleep", f"300.{token}")) as process:
            (sleep,) = wait_for_sleepers(token)
            guard = guard_of(process.pid)
            os.kill(sleep, signal.SIGUSR1)
            with suppress(ProcessLookupError):  # it may have been faster
                os.kill(guard, signal.SIGKILL)
            assert end_of(process) == -signal.SIGUSR1


def test_the_guard_cannot_be_ended_by_other_signals(token: str) -> None:
    with started(exec_("sleep", f"300.{token}")) as process:
        wait_for_sleepers(token)
        guard = guard_of(process.pid)
        for number in (
            signal.SIGTERM,
            signal.SIGINT,
            signal.SIGHUP,
            signal.SIGQUIT,
            signal.SIGUSR1,
            signal.SIGUSR2,
        ):
            os.kill(guard, number)
        time.sleep(0.1)
        assert guard_of(process.pid) == guard
        assert len(sleepers(token)) == 1
        process.kill()
        assert all_end(token)


def test_a_command_that_kills_its_group_ends_as_if_it_had_been_run_directly(token: str) -> None:
    script = f"setsid sleep 300.{token} & sleep 0.1; kill -9 0"
    with started(exec_("sh", "-c", script)) as process:
        assert end_of(process) == -signal.SIGKILL
        assert running(token) == []


def test_a_command_that_kills_a_group_that_it_does_not_lead_ends_alone(token: str) -> None:
    script = f"setsid sleep 300.{token} & sleep 0.1; kill -9 0"
    ended = run(["sh", "-c", '"$@" 2>&1; echo status $?', "sh", *exec_("sh", "-c", script)])
    assert ended.stdout.endswith(b"status 137\n")
    assert running(token) == []


def test_killed_while_it_stops_we_still_leave_nothing(token: str) -> None:
    with started(exec_(*python(DEAF, token), options=["--grace", "0.5"])) as process:
        assert line_of(process) == "ready"
        began = time.monotonic()
        process.terminate()
        time.sleep(0.1)
        process.kill()
        assert all_end(token, 5)
        assert 0.4 <= time.monotonic() - began < 3, "the grace begins once"


def test_killed_while_it_starts_we_leave_nothing(token: str) -> None:
    for wait in (0.03, 0.05, 0.07, 0.09, 0.1, 0.11, 0.12, 0.13, 0.15, 0.2):
        with started(exec_("sleep", f"300.{token}")) as process:
            time.sleep(wait)
            process.kill()
            assert all_end(token)


def test_without_a_guard_the_command_survives_our_death(token: str) -> None:
    """That is what the guard is for."""
    with started(exec_("sleep", f"300.{token}", options=["--no-guard"])) as process:
        (sleep,) = wait_for_sleepers(token)
        process.kill()
        process.wait()
        time.sleep(0.2)
        assert sleepers(token) == [sleep]
        os.kill(sleep, signal.SIGKILL)


def test_one_in_the_other(token: str) -> None:
    with started(exec_(*EXEC, "--", "sh", "-c", f"sleep 300.{token} & exit 3")) as process:
        assert end_of(process) == 3
        assert running(token) == []


# Those that fork on and on -------------------------------------------------------------------------------------


def test_a_chain_of_processes_that_forks_and_exits_does_not_escape(token: str) -> None:
    """Each is an orphan as soon as it runs: a look through /proc may see none of them."""
    program = """
import os, sys, time
give_up_at = time.monotonic() + 5
while time.monotonic() < give_up_at:
    if os.fork():
        os._exit(0)
"""
    for _ in range(3):
        with started(exec_(*python(program, token))) as process:
            end_of(process, 15)
            assert running(token) == []


def test_a_shell_that_forks_without_end_is_ended(token: str) -> None:
    script = f"for i in 1 2 3; do (while :; do sleep 0.01 & sleep 0.01; done) & done; wait # {token}"
    with started(exec_("sh", "-c", script, options=["--grace", "0.2"])) as process:
        time.sleep(0.3)
        process.terminate()
        end_of(process)
        assert running(token) == []


def test_many_processes_end(token: str) -> None:
    script = f"for i in $(seq 200); do sleep 300.{token} & done; wait"
    with started(exec_("sh", "-c", script)) as process:
        wait_for_sleepers(token, 200)
        process.kill()
        assert all_end(token)


def test_a_busy_tree_of_short_processes_is_reaped(token: str) -> None:
    ended = run(exec_("sh", "-c", f"for i in $(seq 300); do (true &) ; done; exit 2 # {token}"))
    assert ended.returncode == 2


def test_what_says_that_it_is_a_guard_ends_too(token: str) -> None:
    """The guards of `quiesce.run` carry that mark; anybody can."""
    script = f"trap '' TERM; QUIESCE_TREE=guard setsid sh -c 'trap \"\" TERM; sleep 300.{token}' & wait"
    with started(exec_("sh", "-c", script, options=["--grace", "0.3"])) as process:
        wait_for_sleepers(token)
        process.terminate()
        end_of(process)
        assert running(token) == []


def test_a_long_grace(token: str) -> None:
    with started(exec_("sleep", f"300.{token}", options=["--grace", "1e12"])) as process:
        wait_for_sleepers(token)
        process.terminate()
        assert end_of(process) == -signal.SIGTERM


def test_a_guard_that_was_stopped_costs_no_time_and_no_status(token: str) -> None:
    with started(exec_("sh", "-c", f"trap 'exit 7' TERM; sleep 300.{token} & wait")) as process:
        wait_for_sleepers(token)
        os.kill(guard_of(process.pid), signal.SIGSTOP)
        began = time.monotonic()
        process.terminate()
        assert end_of(process) == 7
        assert time.monotonic() - began < 3
        assert running(token) == []


def test_without_descriptors_it_fails_and_nothing_runs_on(token: str) -> None:
    for limit in range(4, 16):
        command = exec_("sleep", f"0.1{token}", options=["--grace", "0.3"])
        ended = run(["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *command])
        assert ended.returncode in (0, 1, 125, 127), (limit, ended)  # 1: Python itself, 127: the loader
        if ended.returncode == 125:
            assert ended.stderr.startswith(b"quiesce exec: "), (limit, ended.stderr)
        assert all_end(token)


def test_its_own_fault_ends_the_command_too(token: str) -> None:
    """A poll that fails, as an example of what we did not foresee."""
    program = (
        "import sys; from quiesce.cli.exec import command, front\n"
        "def fail(self): raise ValueError('a fault')\n"
        "front.Front._milliseconds = fail\n"
        "sys.exit(command.main(sys.argv[1:]))"
    )
    for options in ([], ["--no-guard"]):
        command = [sys.executable, "-c", program, *options, "--grace", "0.3", "--", "sleep", f"300.{token}"]
        ended = run(command)
        assert ended.returncode == 125
        assert b"ValueError: a fault" in ended.stderr
        assert ended.stderr.endswith(b"quiesce exec: failed: a fault\n")
        assert all_end(token)
