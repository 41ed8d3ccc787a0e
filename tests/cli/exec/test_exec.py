"""`quiesce exec` runs a command as if it had been run directly: its exit, its output, its input, what it inherits."""

from __future__ import annotations

import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.processes import running, token_of_processes, wait_until

from .exec_commands import (
    EXEC,
    end_of,
    exec_,
    line_of,
    python,
    run,
    started,
    wait_for_sleepers,
    with_blocked,
    with_ignored,
    without_descriptors,
)

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


guarded = pytest.mark.parametrize("options", [(), ("--no-guard",)], ids=["guard", "no guard"])

# Scripts of a shell. What they print, and how they end, is the same under `quiesce exec`.
SCRIPTS = {
    "success": "exit 0",
    "failure": "exit 1",
    "the last exit code": "exit 255",
    "an exit code that looks like a signal": "exit 137",
    "an exit code of ours": "exit 125",
    **{
        f"ended by {number.name}": f"kill -{number.value} $$"
        for number in signal.Signals
        if number.name
        in (
            "SIGHUP",
            "SIGINT",
            "SIGQUIT",
            "SIGSEGV",
            "SIGABRT",
            "SIGKILL",
            "SIGTERM",
            "SIGPIPE",
            "SIGUSR1",
            "SIGALRM",
        )
    },
    "ended by a real-time signal": f"kill -{signal.SIGRTMIN + 3} $$",
    "output": "echo out; echo err >&2",
    "input": "cat",
    "input that is not read": "exit 4",
    "the first line of input": "head -1; cat >&2",
    "its folder": "pwd; cd /; pwd",
    "umask": "umask",
    "limits": "ulimit -a",
    "its process group has one leader": 'set -- $(cat /proc/$$/stat); test "$5" = "$$" && echo leader',
    # Whether the shell says "Killed" depends on which is first, its wait or the death.
    "killed children": "{ sleep 100 & kill -9 $!; wait $!; echo $?; } 2>/dev/null",
    "a child that nobody waits for": "true & exit 0",
    "kill 0": "trap 'echo caught; exit 3' TERM; kill 0; sleep 1",
    "kill -9 0": "kill -9 0",
    "its descriptors": "ls /proc/self/fd",
    "no input": "exec <&-; ls /proc/self/fd",
    "ignored signals": "grep SigIgn /proc/self/status",
    "blocked signals": "grep SigBlk /proc/self/status",
    "caught signals": "grep SigCgt /proc/self/status",
    "nice": "nice",
    "arguments": 'printf "<%s>" "$0" "$@"',
    "a broken pipe": "yes | head -1",
    "its own stop and go": "(sleep 0.1; kill -CONT $$) & kill -STOP $$; wait; echo went on",
}


@guarded
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_ends_and_prints_as_if_it_had_been_run_directly(
    script: str, options: tuple[str, ...]
) -> None:
    command = ["sh", "-c", script, "name", "", "--", "a b", "*"]
    direct, by_exec = (
        run(words, input=b"one\ntwo\n") for words in (command, exec_(*command, options=options))
    )
    assert (by_exec.returncode, by_exec.stdout, by_exec.stderr) == (
        direct.returncode,
        direct.stdout,
        direct.stderr,
    )


# Where we do not lead a process group: the command of a script or a server's client, without a terminal.
IN_A_SCRIPT = ["sh", "-c", '"$@"; echo status $?', "sh"]
IN_A_GROUP = {
    "a command that makes a session": python("import os; os.setsid(); print('made')"),
    "setsid does not fork": ["setsid", "sh", "-c", "sleep 0.2; echo waited for; exit 3"],
    "kill -9 0": ["setsid", "sh", "-c", "kill -9 0"],
    "its own stop and go": ["sh", "-c", "(sleep 0.1; kill -CONT $$) & kill -STOP $$; wait; echo went on"],
}


@pytest.mark.parametrize("command", IN_A_GROUP.values(), ids=IN_A_GROUP)
def test_a_command_that_would_not_lead_its_group_may_make_a_session(command: list[str]) -> None:
    direct, by_exec = (run([*IN_A_SCRIPT, *words]) for words in (command, exec_(*command)))
    assert (by_exec.stdout, by_exec.stderr) == (direct.stdout, direct.stderr)


ENVIRONMENTS = {
    "nothing": {},
    "the locale C, of which Python makes another": {"PATH": os.defpath, "LANG": "C"},
    "a locale of the user's": {"PATH": os.defpath, "LC_CTYPE": "C.UTF-8"},
    "bytes that are no text": {"PATH": os.defpath, "ODD": "\udcff=\udcfe\n"},
    "settings of Python": {"PATH": os.defpath, "PYTHONHASHSEED": "1", "PYTHONUTF8": "0"},
}


@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_the_environment_is_inherited_as_it_is(environment: dict[str, str]) -> None:
    direct, by_exec = (run(words, env=environment) for words in (["/usr/bin/env"], exec_("/usr/bin/env")))
    assert sorted(by_exec.stdout.split(b"\n")) == sorted(direct.stdout.split(b"\n"))
    assert by_exec.stderr == b""


def test_arguments_that_are_no_text_come_through() -> None:
    assert run([*EXEC, "--", "printf", "%s", b"\xff\xfe \n"]).stdout == b"\xff\xfe \n"


# Descriptors ---------------------------------------------------------------------------------------------------


@guarded
def test_much_comes_through_in_both_directions(options: tuple[str, ...]) -> None:
    data = os.urandom(5_000_000)
    assert run(exec_("cat", options=options), input=data).stdout == data


def test_what_the_command_does_not_read_is_left_for_the_next(tmp_path: Path) -> None:
    (tmp_path / "input").write_text("one\ntwo\n")
    script = f"{shlex.join(exec_('sh', '-c', 'read line; echo first $line'))}; cat"
    with (tmp_path / "input").open("rb") as opened:
        assert run(["sh", "-c", script], stdin=opened).stdout == b"first one\ntwo\n"


def test_other_descriptors_are_inherited(tmp_path: Path) -> None:
    with (tmp_path / "extra").open("wb") as extra:
        number = extra.fileno()
        assert run(exec_("sh", "-c", f"echo hello > /dev/fd/{number}"), pass_fds=[number]).returncode == 0
    assert (tmp_path / "extra").read_text() == "hello\n"


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)], ids=str)
@guarded
def test_closed_descriptors_are_closed_in_the_command(
    closed: tuple[int, ...], options: tuple[str, ...], tmp_path: Path
) -> None:
    program = f"""
import os
def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return "closed"
    return "open"
with open({str(tmp_path / "seen")!r}, "w") as file:
    print([is_open(number) for number in range(3) if number != file.fileno()], file=file)
"""
    command = ["sh", "-c", f"{shlex.join(python(program))}; exit 3"]
    seen = []
    for words in (command, exec_(*command, options=options)):
        assert run(without_descriptors(closed, words)).returncode == 3
        seen.append((tmp_path / "seen").read_text())
    assert seen[0] == seen[1]


@pytest.mark.parametrize("closed", [(2,), (0, 1, 2)], ids=str)
def test_without_standard_error_our_messages_go_nowhere(closed: tuple[int, ...]) -> None:
    ended = run(without_descriptors(closed, exec_("/does/not/exist")))
    assert (ended.returncode, ended.stdout) == (127, b"")


@guarded
def test_the_reader_of_the_output_sees_its_end_before_the_command_exits(options: tuple[str, ...]) -> None:
    """As directly: neither we nor the guard keep the pipe open."""
    with started(exec_("sh", "-c", "exec >&-; read line", options=options)) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b""
        assert process.poll() is None
        process.communicate(b"\n", timeout=10)


@guarded
def test_the_writer_of_the_input_gets_an_error_when_the_command_closes_it(options: tuple[str, ...]) -> None:
    with started(exec_("sh", "-c", "exec <&-; echo closed; sleep 100", options=options)) as process:
        assert line_of(process) == "closed"
        assert process.stdin is not None
        broken = threading.Event()

        def write() -> bool:
            assert process.stdin is not None
            try:
                os.write(process.stdin.fileno(), b"x")
            except BrokenPipeError:
                broken.set()
            return broken.is_set()

        assert wait_until(write)
        process.terminate()
        process.wait(10)


@guarded
def test_the_end_of_input_does_not_end_the_command(options: tuple[str, ...]) -> None:
    began = time.monotonic()
    ended = run(exec_("sh", "-c", "cat; sleep 0.3; echo done", options=options), input=b"x\n")
    assert ended.stdout == b"x\ndone\n"
    assert time.monotonic() - began >= 0.3


# What else is inherited ----------------------------------------------------------------------------------------


@guarded
@pytest.mark.parametrize(
    "ignored", [signal.SIGHUP, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1, signal.SIGCONT]
)
def test_an_ignored_signal_stays_ignored(ignored: int, options: tuple[str, ...]) -> None:
    command = ["sh", "-c", "grep SigIgn /proc/self/status; exit 3"]
    direct, by_exec = (
        run(with_ignored(ignored, words)) for words in (command, exec_(*command, options=options))
    )
    assert (by_exec.stdout, by_exec.returncode) == (direct.stdout, 3)


@guarded
def test_sigpipe_and_sigxfsz_have_their_default_in_the_command(options: tuple[str, ...]) -> None:
    """Python ignores them."""
    ended = run(exec_("sh", "-c", "kill -PIPE $$; echo survived", options=options))
    assert (ended.returncode, ended.stdout) == (-signal.SIGPIPE, b"")


@guarded
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1])
def test_a_blocked_signal_stays_blocked(number: int, options: tuple[str, ...]) -> None:
    command = ["sh", "-c", "grep SigBlk /proc/self/status; exit 3"]

    direct, by_exec = (
        run(with_blocked(number, words)) for words in (command, exec_(*command, options=options))
    )
    assert (by_exec.stdout, by_exec.returncode) == (direct.stdout, 3)


@guarded
def test_under_nohup_a_hang_up_stops_nothing(token: str, options: tuple[str, ...]) -> None:
    with started(["nohup", *exec_("sleep", f"300.{token}", options=options)]) as process:
        wait_for_sleepers(token)
        process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        assert process.poll() is None
        process.terminate()
        assert end_of(process) == -signal.SIGTERM


def test_a_socket_as_input_and_output(token: str) -> None:
    """As Node gives to its children."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(exec_("cat"), stdin=theirs.fileno(), stdout=theirs.fileno())
        theirs.close()
        ours.sendall(b"x" * 1000)
        ours.shutdown(socket.SHUT_WR)
        received = b""
        while data := ours.recv(4096):
            received += data
        assert process.wait(10) == 0
    assert received == b"x" * 1000


def test_nothing_is_left_in_the_process_table(token: str) -> None:
    """The guard goes with us."""
    assert run(exec_("sh", "-c", f"true 300.{token}; true")).returncode == 0
    assert running(token) == []


SLOW_AFTER_FORK = """
import os, sys, time
from quiesce.cli import main
fork = os.fork
def fork_and_wait():
    pid = fork()
    if pid and os.getpid() == front:
        time.sleep(0.5)
    return pid
front, os.fork = os.getpid(), fork_and_wait
sys.exit(main(sys.argv[1:]))
"""


@guarded
def test_a_command_that_has_ended_before_we_hear_of_its_start(options: tuple[str, ...]) -> None:
    ended = run([sys.executable, "-c", SLOW_AFTER_FORK, "exec", *options, "--", "sh", "-c", "exit 7"])
    assert (ended.returncode, ended.stderr) == (7, b"")


def test_its_start_costs_little() -> None:
    """Below 60 ms of CPU, with all of its processes, more than a Python that does nothing; 30 on a quiet machine."""

    def cost(command: list[str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(command)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    bare, ours = [sys.executable, "-c", ""], exec_("true")
    assert any(cost(ours) - cost(bare) < 0.06 for _ in range(10))
