"""`quiesce exec --report FILE`: what the stop did, as JSON; and its messages, when it is used wrongly."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.processes import token_of_processes

from .exec_commands import end_of, exec_, run, started, wait_for_sleepers, without_subreapers

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


@pytest.fixture
def token() -> Iterator[str]:
    with token_of_processes() as token:
        yield token


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return tmp_path / "report.json"


def read(report: Path) -> dict[str, Any]:
    assert [file.name for file in report.parent.iterdir()] == [report.name], "no other file is left"
    content = json.loads(report.read_text())
    assert isinstance(content, dict)
    return content


CLEAN = {"killed": [], "left": [], "unseen": [], "clean": True}


def test_a_command_that_has_ended_by_itself(report: Path) -> None:
    assert run(exec_("sh", "-c", "exit 3", options=["--report", str(report)])).returncode == 3
    content = read(report)
    assert content.pop("elapsed") < 2
    assert content == CLEAN | {
        "command": ["sh", "-c", "exit 3"],
        "exit_code": 3,
        "signal": None,
        "reason": None,
    }


def test_where_it_cannot_adopt_processes_it_says_that_something_may_be_left(report: Path) -> None:
    ended = run(without_subreapers(exec_("sh", "-c", "exit 3", options=["--report", str(report)])))
    assert ended.returncode == 3
    assert b"something may be left: the system does not let quiesce adopt processes" in ended.stderr
    content = read(report)
    assert (content["clean"], len(content["unseen"])) == (False, 1)


NAMES = {
    int(signal.SIGSEGV): "SIGSEGV",
    int(signal.SIGKILL): "SIGKILL",
    int(signal.SIGRTMIN): "SIGRTMIN",
    signal.SIGRTMIN + 3: "SIGRTMIN+3",
    33: "33",  # has no name, and no function of the C library takes it
}


@pytest.mark.parametrize("number", NAMES)
def test_a_command_that_a_signal_has_ended(number: int, report: Path) -> None:
    ended = run(exec_("sh", "-c", f"kill -{number} $$", options=["--report", str(report)]))
    assert ended.returncode == -number
    content = read(report)
    assert content["exit_code"] is None
    assert content["signal"] == NAMES[number]


REASONS = {
    signal.SIGTERM: {"kind": "shutdown", "message": "SIGTERM"},
    signal.SIGINT: {"kind": "user", "message": "SIGINT"},
    signal.SIGHUP: {"kind": "disconnect", "message": "SIGHUP"},
}


@pytest.mark.parametrize("number", REASONS)
def test_a_command_that_was_stopped(number: signal.Signals, report: Path, token: str) -> None:
    with started(exec_("sleep", f"300.{token}", options=["--report", str(report)])) as process:
        wait_for_sleepers(token)
        process.send_signal(number)
        end_of(process)
    content = read(report)
    assert content["reason"] == REASONS[number]
    assert content["signal"] == number.name
    assert content["clean"]


def test_what_was_killed_is_named(report: Path, token: str) -> None:
    options = ["--report", str(report), "--grace", "0.3"]
    script = f"trap '' TERM; sleep 300.{token} & exec sleep 300.{token}"
    with started(exec_("sh", "-c", script, options=options)) as process:
        wait_for_sleepers(token, 2)
        process.terminate()
        end_of(process)
    content = read(report)
    assert [line.partition(": ")[2] for line in content["killed"]] == [f"sleep 300.{token}"] * 2
    assert 0.3 <= content["elapsed"] < 3
    assert content["clean"]


def test_a_report_that_exists_is_replaced(report: Path) -> None:
    report.write_text("x" * 10_000)
    run(exec_("true", options=["--report", str(report)]))
    assert read(report)["exit_code"] == 0


def test_a_report_is_written_where_we_were_started(tmp_path: Path) -> None:
    run(exec_("sh", "-c", "cd /", options=["--report", "here.json"]), cwd=tmp_path)
    assert read(tmp_path / "here.json")["exit_code"] == 0


def test_a_command_that_is_no_text_can_be_reported(report: Path) -> None:
    run(exec_("printf", os.fsdecode(b"\xff"), options=["--report", str(report)]))
    assert read(report)["command"] == ["printf", "\udcff"]


def test_a_report_that_cannot_be_written_at_the_end_does_not_change_the_status(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    ended = run(exec_("sh", "-c", f"rmdir {folder}; exit 3", options=["--report", str(folder / "report")]))
    assert ended.returncode == 3
    assert ended.stderr.decode() == (
        f"quiesce exec: the report could not be written to {folder / 'report'}: No such file or directory\n"
    )


def test_a_link_is_followed_and_not_replaced(tmp_path: Path, report: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(report)
    report.write_text("x" * 10_000)
    run(exec_("true", options=["--report", str(link)]))
    assert json.loads(report.read_text())["exit_code"] == 0
    assert link.is_symlink()


# All of them through a link, so that a fault of ours replaces that, and not what stands in /dev.
@pytest.fixture
def link(tmp_path: Path) -> Path:
    return tmp_path / "link"


def test_a_pipe_is_written_to(link: Path) -> None:
    link.symlink_to("/proc/self/fd/1")
    ended = run(exec_("echo", "hello", options=["--report", str(link)]))
    assert ended.stdout.startswith(b"hello\n")
    assert json.loads(ended.stdout.removeprefix(b"hello\n"))["exit_code"] == 0


def test_a_pipe_that_nobody_reads_is_wrong_use(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    ended = run(exec_("true", options=["--report", str(tmp_path / "pipe")]))
    assert ended.returncode == 125
    assert b"cannot be written: No such device or address" in ended.stderr


def test_a_full_disk_does_not_change_the_status(link: Path) -> None:
    link.symlink_to("/dev/full")
    ended = run(exec_("sh", "-c", "exit 3", options=["--report", str(link)]))
    assert ended.returncode == 3
    assert ended.stderr.decode() == (
        f"quiesce exec: the report could not be written to {link}: No space left on device\n"
    )


def test_a_folder_that_was_removed_is_wrong_use(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    command = exec_("true", options=["--report", "here.json"])
    ended = run(["sh", "-c", f'rmdir {folder}; exec "$@"', "sh", *command], cwd=folder)
    assert ended.returncode == 125
    assert b"'here.json' cannot be written: No such file or directory" in ended.stderr


def test_what_could_not_be_started_is_reported(report: Path) -> None:
    report.write_text("stale")
    ended = run(exec_("does-not-exist", options=["--report", str(report)]))
    content = read(report)
    assert (ended.returncode, content["exit_code"]) == (127, 127)
    assert "no such program in PATH" in content["error"]


def test_standard_error_that_nobody_reads_does_not_keep_us() -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(theirs, b"x" * 65536)
    os.set_blocking(theirs, True)
    assert run(exec_("does-not-exist"), capture_output=False, stderr=theirs).returncode == 127
    os.close(ours)
    os.close(theirs)


def test_standard_error_that_cannot_be_written_does_not_change_the_status(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    leaves = exec_("sh", "-c", f"rmdir {folder}; exit 3", options=["--report", str(folder / "report")])
    with open("/dev/full", "wb") as full:
        assert run(leaves, capture_output=False, stderr=full).returncode == 3
        assert run(exec_("does-not-exist"), capture_output=False, stderr=full).returncode == 127


# Wrong use -----------------------------------------------------------------------------------------------------


def test_a_command_that_does_not_exist() -> None:
    ended = run(exec_("does-not-exist"), env={"PATH": "/bin"})
    assert ended.returncode == 127
    assert ended.stderr.startswith(
        b"quiesce exec: cannot start 'does-not-exist': no such program in PATH (/bin)"
    )
    assert ended.stderr.count(b"\n") == 1


def test_a_command_that_cannot_be_executed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("#!/bin/sh\necho run\n")
    assert run(exec_(str(file))).returncode == 126
    file.chmod(0o755)
    assert run(exec_(str(file))).stdout == b"run\n"


def test_a_folder_is_not_a_command(tmp_path: Path) -> None:
    ended = run(exec_(str(tmp_path)))
    assert ended.returncode == 126
    assert b"cannot start" in ended.stderr


def test_a_script_whose_interpreter_does_not_exist(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("#!/does/not/exist\n")
    file.chmod(0o755)
    ended = run(exec_(str(file)))
    assert ended.returncode == 127  # as with `env` and `timeout`
    assert b"exists, but the interpreter that its first line names does not" in ended.stderr


@pytest.mark.parametrize("name", ["./script", "script"])
def test_a_script_without_an_interpreter_line_is_run_by_a_shell(name: str, tmp_path: Path) -> None:
    file = tmp_path / "script"
    file.write_text('echo "$1"; exit 4\n')
    file.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    ended = run(exec_(name, "hello"), cwd=tmp_path, env=os.environ | {"PATH": path})
    assert (ended.returncode, ended.stdout) == (4, b"hello\n")


WRONG = {
    "no command": ([], "there is no command"),
    "nothing after --": (["--"], "there is no command"),
    "an empty command": (["--", ""], "there is no command"),
    "an unknown option": (["--wrong", "--", "true"], "--wrong"),
    "an abbreviated option": (["--gra", "1", "--", "true"], "--gra"),
    "a grace in words": (["--grace", "soon", "--", "true"], "'soon' is not a number of seconds"),
    "a negative grace": (["--grace", "-1", "--", "true"], "'-1' is not a number of seconds"),
    "a grace without end": (["--grace", "inf", "--", "true"], "'inf' is not a number of seconds"),
    "no number as grace": (["--grace", "nan", "--", "true"], "'nan' is not a number of seconds"),
    "a grace without a value": (["--grace"], "--grace"),
    "a signal that is passed on anyway": (
        ["--forward", "USR1", "--", "true"],
        "'USR1' is not one of TERM, INT, HUP",
    ),
    "a report in no folder": (
        ["--report", "/does/not/exist/report", "--", "true"],
        "'/does/not/exist/report' cannot be written: No such file or directory",
    ),
    "a folder as report": (["--report", "/tmp", "--", "true"], "cannot be written: Is a directory"),
}


@pytest.mark.parametrize(("words", "message"), WRONG.values(), ids=WRONG)
def test_wrong_use_is_explained(words: list[str], message: str) -> None:
    ended = run([*exec_()[:-1], *words])
    assert ended.returncode == 125
    assert ended.stdout == b""
    text = ended.stderr.decode()
    assert text.startswith("quiesce exec: error: ")
    assert message in text
    assert text.endswith("(quiesce exec --help lists the options)\n")
    assert text.count("\n") == 2


def test_the_two_dashes_may_be_left_out() -> None:
    assert run([*exec_()[:-1], "--grace", "1", "sh", "-c", "exit 3"]).returncode == 3


def test_options_of_the_command_are_its_own() -> None:
    assert run(exec_("echo", "--help", "--grace")).stdout == b"--help --grace\n"


def test_help_names_every_option_and_status() -> None:
    ended = run([*exec_()[:-1], "--help"])
    assert ended.returncode == 0
    for word in ("--grace", "--stop-on-eof", "--report", "--forward", "--no-guard", "125", "126", "127"):
        assert word in ended.stdout.decode()
