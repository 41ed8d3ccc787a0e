"""`quiesce exec` as pid 1 of a container: it reaps what nobody else waits for, and its exit status is the command's."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.namespaces import PID_1, as_pid_1, enter, in_namespaces, pid_of_init, zombies_of
from tests.kernel.processes import token_of_processes, wait_until

from .exec_commands import (
    DAEMON,
    DEAF,
    all_end,
    children_of,
    end_of,
    exec_,
    line_of,
    name_of,
    python,
    run,
    sleepers,
    started,
    wait_for_sleepers,
)

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux"),
    in_namespaces,
]


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


guarded = pytest.mark.parametrize("options", [(), ("--no-guard",)], ids=["guard", "no guard"])


@guarded
@pytest.mark.parametrize("script", ["exit 0", "exit 3", "exit 200"])
def test_the_exit_code_is_the_commands(script: str, options: tuple[str, ...]) -> None:
    ended = run(as_pid_1(exec_("sh", "-c", f"{script}", options=options)))
    assert (ended.returncode, ended.stderr) == (int(script.split()[1]), b"")


@guarded
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_signal_that_ended_the_command_becomes_an_exit_code(number: int, options: tuple[str, ...]) -> None:
    """Pid 1 cannot be ended by a signal of its own."""
    assert (
        run(as_pid_1(exec_("sh", "-c", f"kill -{int(number)} $$", options=options))).returncode
        == 128 + number
    )


@guarded
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_stop_it(number: int, token: str, options: tuple[str, ...]) -> None:
    """Without us they would not end a program that does not handle them."""
    with started(as_pid_1(exec_("sleep", f"300.{token}", options=options))) as process:
        wait_for_sleepers(token)
        os.kill(pid_of_init(process.pid), number)
        assert end_of(process) == 128 + number
        assert all_end(token)


@guarded
def test_a_deaf_tree_is_killed_at_the_end_of_the_grace(token: str, options: tuple[str, ...]) -> None:
    command = exec_(*python(DEAF, token), options=[*options, "--grace", "0.3"])
    with started(as_pid_1(command)) as process:
        assert line_of(process) == "ready"
        os.kill(pid_of_init(process.pid), signal.SIGTERM)
        assert end_of(process) == 128 + signal.SIGKILL


@guarded
def test_strangers_are_reaped(token: str, options: tuple[str, ...]) -> None:
    """What `docker exec` starts and leaves is not of the command's tree."""
    with started(as_pid_1(exec_("sleep", f"300.{token}", options=options))) as process:
        wait_for_sleepers(token)
        init = pid_of_init(process.pid)
        enter(init, ["sh", "-c", f"sleep 0.1 & sleep 0.2 & (sh -c 'sleep 0.1 & exit' &) ; exit 0 # {token}"])
        time.sleep(0.5)
        assert wait_until(lambda: zombies_of(init) == [])
        os.kill(init, signal.SIGTERM)
        assert end_of(process) == 128 + signal.SIGTERM


@guarded
def test_orphans_of_the_command_are_reaped(token: str, options: tuple[str, ...]) -> None:
    script = f"for i in 1 2 3 4 5; do (sleep 0.1 &); done; sleep 300.{token}"
    with started(as_pid_1(exec_("sh", "-c", script, options=options))) as process:
        wait_for_sleepers(token)
        init = pid_of_init(process.pid)
        time.sleep(0.3)
        parents = [init, *_guards(init)]
        assert wait_until(lambda: [zombie for pid in parents for zombie in zombies_of(pid)] == [])
        os.kill(init, signal.SIGTERM)
        assert end_of(process) == 128 + signal.SIGTERM


def _guards(init: int) -> list[int]:
    with open(f"/proc/{init}/task/{init}/children") as children:
        return [int(pid) for pid in children.read().split() if name_of(int(pid)) == "quiesce-guard"]


@guarded
def test_no_exit_status_is_taken_from_the_command(options: tuple[str, ...]) -> None:
    """Neither ours from the command, nor those that it waits for itself."""
    script = "for i in $(seq 50); do sh -c 'exit 7' & wait $! ; test $? = 7 || exit 1; (true &); done; exit 9"
    assert run(as_pid_1(exec_("sh", "-c", script, options=options))).returncode == 9


@pytest.mark.parametrize("end", ["", "deaf"])
def test_a_daemon_of_the_command_ends_before_we_do(end: str, token: str) -> None:
    command = exec_(*python(DAEMON, f"300.{token}", end), options=["--grace", "0.3"])
    ended = run(as_pid_1(command))
    assert ended.returncode == 0
    assert sleepers(token) == []


def test_a_stranger_that_runs_on_does_not_keep_us(token: str) -> None:
    """When we exit, the kernel ends it with the container."""
    with started(as_pid_1(exec_("sh", "-c", f"echo ready; read line; exit 4 # {token}"))) as process:
        assert line_of(process) == "ready"
        enter(pid_of_init(process.pid), ["sh", "-c", f"setsid sleep 300.{token} > /dev/null 2>&1 & exit 0"])
        wait_for_sleepers(token)
        assert process.stdin is not None
        process.stdin.close()
        assert end_of(process) == 4
        assert all_end(token)


def test_the_guard_killed_in_a_container(token: str) -> None:
    with started(as_pid_1(exec_("sh", "-c", f"sleep 300.{token} & read line; exit 5"))) as process:
        wait_for_sleepers(token)
        init = pid_of_init(process.pid)
        assert wait_until(lambda: _guards(init))
        os.kill(_guards(init)[0], signal.SIGKILL)
        assert process.stdin is not None
        process.stdin.close()
        assert end_of(process) == 5


OTHER_PROC = ("unshare", "--pid", "--fork", "--kill-child=KILL")  # /proc stays that of the outer namespace
NO_PROC = (*PID_1, "sh", "-c", 'umount -l /proc; exec "$@"', "sh")


@guarded
@pytest.mark.parametrize("where", [OTHER_PROC, NO_PROC], ids=["another one's", "none"])
def test_without_a_proc_of_its_own_it_stops_the_group(
    where: tuple[str, ...], token: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    script = f"trap 'echo bye' TERM; sleep 300.{token} & sleep 300.{token} & echo ready; wait; wait; exit 3"
    command = exec_("sh", "-c", script, options=[*options, "--grace", "0.4", "--report", str(report)])
    with started([*where, *command]) as process:
        assert line_of(process) == "ready"
        os.kill(pid_of_init(process.pid), signal.SIGTERM)
        assert end_of(process) == 3
        assert line_of(process) == "bye"
        assert all_end(token)
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert json.loads(report.read_text())["clean"]


@guarded
def test_what_cannot_be_seen_is_said_not_to_be_seen(
    token: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    script = f"setsid sh -c 'trap \"\" TERM; echo ready; sleep 300.{token}; exit' & wait"
    command = exec_("sh", "-c", script, options=[*options, "--grace", "0.4", "--report", str(report)])
    # Not as pid 1, whose exit would end everything.
    with started([*OTHER_PROC, "sh", "-c", '"$@"; sleep 0.1; exit 9', "sh", *command]) as process:
        assert line_of(process) == "ready"
        (front,) = children_of(pid_of_init(process.pid))
        os.kill(front, signal.SIGTERM)
        assert end_of(process) == 9
        assert process.stderr is not None
        said, ended = process.stderr.read().splitlines()
        assert said == b"quiesce exec: something may be left: /proc shows another PID namespace"
        assert ended == b"Terminated"  # the shell says so: we ended as the command did
    content = json.loads(report.read_text())
    assert (content["clean"], content["unseen"]) == (False, ["/proc shows another PID namespace"])
