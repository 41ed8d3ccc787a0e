"""The tour. Each situation really leaks the ordinary way, and really leaves nothing with quiesce; and it can be shown to anybody, or to nobody.

Of what a situation leaves the tour rids itself: what were left after a test would fail it, as everywhere here.
"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quiesce.cli import main
from quiesce.cli.tour.command import play
from quiesce.cli.tour.situations import tool as tool_module
from quiesce.cli.tour.situations.catalogue import SITUATIONS, Side, Situation
from quiesce.cli.tour.stage.lanes import Lane
from quiesce.cli.tour.stage.stage import Played
from tests.test_docs import marked, wait_until_gone

NAMES = [situation.name for situation in SITUATIONS]
TOUR = [sys.executable, "-W", "default", "-m", "quiesce", "tour"]


def situation(name: str) -> Situation:
    return next(each for each in SITUATIONS if each.name == name)


def lane(played: Played, name: str) -> Lane:
    return next(lane for lane in played.lanes if lane.name == name)


def left(played: Played) -> set[tuple[str, str]]:
    return {(left.kind, left.name) for left in played.left}


@contextmanager
def no_process_left() -> Iterator[dict[str, str]]:
    """An environment for a tour, of which no process may be left."""
    mark = uuid.uuid4().hex
    environment = {**os.environ, "QUIESCE_TEST_MARK": mark}
    for name in ("COLUMNS", "NO_COLOR", "PYTHONIOENCODING"):
        environment.pop(name, None)
    yield environment
    assert not wait_until_gone(mark)


def tour(
    *words: str, closed_input: bool = False, within: float = 60.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    with no_process_left() as ours:
        return subprocess.run(
            [*TOUR, *words],
            env={**ours, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=within,
            check=False,
            preexec_fn=(lambda: os.close(0)) if closed_input else None,
        )


# The ordinary way


def test_a_guardrail_that_fails_leaves_the_model_call_running() -> None:
    played = play(situation("guardrail"), "ordinary", speed=4)
    assert played.raised == "ConnectionError: the policy service is down"
    assert left(played) == {("task", "model call")}
    assert lane(played, "model call").stop_seen is None
    assert re.fullmatch(r"the model call produced [1-9]\d* more tokens for nobody", played.facts[0])


def test_a_session_is_closed_while_its_tasks_clean_up() -> None:
    played = play(situation("session"), "ordinary", speed=4)
    assert left(played) == {("task", "tool call"), ("task", "output guardrail")}
    assert played.back is not None
    assert all(lane.ended is not None and lane.ended > played.back for lane in played.lanes)
    assert len(played.complaints) == 2
    assert "received 0" in played.facts[0]


def test_a_tool_never_sees_the_token_that_was_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_module, "STEP", 1.0)  # so long is it before the tool looks again
    played = play(situation("tool"), "ordinary")
    assert left(played) == {("thread", "tool")}
    assert "tool.py" in played.left[0].at
    assert lane(played, "tool").stop_seen is None


def test_a_break_cancels_the_task_that_read_the_stream_and_leaves_the_process() -> None:
    played = play(situation("stream"), "ordinary")
    assert left(played) == {("process", "claude")}
    assert [lane.name for lane in played.harmed] == ["your task"]
    assert any("cancel scope in a different task" in complaint for complaint in played.complaints)


def test_a_cancelled_connection_leaves_its_loops_and_its_handler() -> None:
    played = play(situation("connection"), "ordinary")
    assert left(played) == {("task", "send loop"), ("task", "dispatch loop"), ("task", "prompt handler")}
    assert all(lane.stop_seen is None and lane.is_running for lane in played.lanes)


# With quiesce


@pytest.mark.parametrize("name", NAMES)
def test_with_quiesce_nothing_is_left_and_the_report_says_so(name: str) -> None:
    played = play(situation(name), "quiesce", speed=2)
    assert played.is_clean, (played.left, played.complaints, str(played.report))
    assert played.report is not None
    assert played.report.clean
    assert played.lanes
    assert played.back is not None
    for each in played.lanes:
        assert each.ended is not None
        assert each.innocent or each.ended <= played.back
    assert not re.search(r"[1-9]\d* more", played.facts[0])


def test_with_quiesce_the_same_error_is_raised_and_every_goodbye_is_heard() -> None:
    assert (
        play(situation("guardrail"), "quiesce", speed=8).raised
        == "ConnectionError: the policy service is down"
    )
    assert "received 2" in play(situation("session"), "quiesce").facts[0]


def test_what_was_left_would_not_be_called_clean() -> None:
    played = Played()
    assert played.is_clean
    played.complaints.append("Task was destroyed but it is pending!")
    assert not played.is_clean


# As somebody sees it


@pytest.mark.time_limit(150)
@pytest.mark.slow
def test_the_whole_tour_needs_neither_a_terminal_nor_input() -> None:
    done = tour(closed_input=True)  # at its own speed: faster, a busy machine may be too late for a leak
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    whole, _ = done.stdout.split("Five situations")
    assert "First: does a whole program stop?" in whole
    assert re.search(
        r"^SIGTERM +\S+ s, SIGTERM, 1 process left +\S+ s, SIGTERM, nothing left$", whole, re.MULTILINE
    )
    assert re.search(
        r"^client killed +2 processes still running after 2 s .* nothing left$", whole, re.MULTILINE
    )
    assert "-m http.server" in whole
    for number, each in enumerate(SITUATIONS, 1):
        assert f"{number}/5 {each.title}\n" in done.stdout
        assert f"{each.seed}: {each.thread}" in " ".join(done.stdout.split())
        assert re.search(
            rf"^{each.name} .* left.* nothing left, in \d\.\d{{3}} s$", done.stdout, re.MULTILINE
        )
    assert done.stdout.count("  the ordinary way: ") == done.stdout.count("  with quiesce: ") == 5
    assert done.stdout.count("    report  scope ") == 5
    assert "quiesce chat" in done.stdout


@pytest.mark.slow
@pytest.mark.time_limit(150)
def test_it_begins_with_a_program_of_the_reader() -> None:
    done = tour("--speed", "10", "--", "sh", "-c", "exec sleep 60", within=140)
    assert "Your program, sh -c 'exec sleep 60', stopped in eight ways" in " ".join(done.stdout.split())
    assert re.search(
        r"^SIGKILL .* SIGKILL, nothing left .* SIGKILL, nothing left$", done.stdout, re.MULTILINE
    )
    assert "5/5 " in done.stdout


def test_a_program_of_the_reader_that_cannot_run_ends_it_with_the_reason() -> None:
    done = tour("--", "no-such-program-here")
    assert done.returncode == 2
    assert "cannot start 'no-such-program-here'" in done.stderr
    assert "1/5" not in done.stdout


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_it_fits_into_forty_columns(encoding: str) -> None:
    done = tour("--speed", "10", "--only", "session", COLUMNS="40", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 40
    assert done.stdout.isascii() == (encoding == "ascii")


def test_json_is_for_machines() -> None:
    done = tour("--json", "--speed", "2", "--only", "guardrail")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["clean"] is True
    (each,) = told["situations"]
    assert {name: each[name] for name in ("name", "seed", "thread")} == {
        "name": "guardrail",
        "seed": "openai-agents #3564",
        "thread": "https://github.com/openai/openai-agents-python/pull/3564",
    }
    assert not each["ordinary"]["clean"]
    assert each["quiesce"]["clean"]
    assert each["ordinary"]["left"][0]["name"] == "model call"
    assert each["ordinary"]["report"] is None
    assert each["quiesce"]["report"].startswith("scope 'run of assistant' stopped (error: ")
    hows = {
        side: {lane["name"]: lane["how"] for lane in each[side]["lanes"]} for side in ("ordinary", "quiesce")
    }
    assert hows == {
        "ordinary": {"model call": "still runs", "guardrail": "failed"},
        "quiesce": {"model call": "cancelled", "guardrail": "failed"},
    }
    for side in ("ordinary", "quiesce"):
        assert 0 < each[side]["control_is_back"] < each[side]["lasted"]


def test_the_situations_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tour", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == NAMES


@pytest.mark.parametrize("side", ["ordinary", "quiesce"])
@pytest.mark.parametrize("each", SITUATIONS, ids=NAMES)
def test_the_code_that_is_shown_is_there(each: Situation, side: Side) -> None:
    assert re.match(r"(async def|class) \w+", each.code(side))
    assert len(each.code(side).splitlines()) < 50


@pytest.mark.parametrize("each", SITUATIONS, ids=NAMES)
def test_the_thread_that_is_named_is_the_one_of_the_readme(
    each: Situation, request: pytest.FixtureRequest
) -> None:
    """And nothing that only a clone has, such as a page of the docs by its path."""
    assert each.thread.endswith(each.seed.rpartition("#")[2])
    assert f"({each.thread})" in (request.config.rootpath / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--only", "strem"], "there is no situation 'strem'; did you mean stream?"),
        (["--speed", "100"], "'100' is not a number from 0.1 to 10"),
        (["--speed", "fast"], "'fast' is not a number from 0.1 to 10"),
        (["--only", "tool", "--", "true"], "--only and --json leave out"),
        (["--json", "--", "true"], "--only and --json leave out"),
    ],
)
def test_wrong_usage_is_said(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tour", *words]) == 2
    assert says in capsys.readouterr().err


# Ctrl-C, and other signals


def playing(environment: dict[str, str], *words: str) -> subprocess.Popen[str]:
    """The tour as a program of its own, whose output is read as it comes."""
    return subprocess.Popen(
        [*TOUR, *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("heading", ["the ordinary way", "with quiesce"])
def test_a_signal_ends_it_and_leaves_no_process_and_no_folder(
    heading: str, number: signal.Signals, tmp_path: Path
) -> None:
    """In the situation that has a child process, when that is there."""
    with no_process_left() as environment:
        environment["TMPDIR"] = str(tmp_path)
        with playing(environment, "--only", "stream", "--speed", "0.25") as program:
            assert program.stdout is not None
            assert program.stderr is not None
            while heading not in (line := program.stdout.readline()):
                assert line
            wait_for_cli(environment["QUIESCE_TEST_MARK"], program.pid)
            assert list(tmp_path.glob("quiesce-tour-*"))
            program.send_signal(number)
            if number == signal.SIGHUP:
                program.send_signal(number)  # as from a terminal that is closed
            program.stdout.read()
            said = program.stderr.read()
            assert "Traceback" not in said
            assert said.endswith("quiesce tour: interrupted\n") == (number == signal.SIGINT)
            # A second one that comes when all is stopped, and the handlers are given back, ends what is left: Python itself.
            late = {-signal.SIGHUP} if number == signal.SIGHUP else set()
            assert program.wait(20) in {128 + number} | late
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_in_its_first_part_ends_the_program_too(number: signal.Signals) -> None:
    with no_process_left() as environment, playing(environment, "--", "sleep", "60") as program:
        give_up_at = time.monotonic() + 20
        while not any(
            command_of(pid).startswith(b"sleep\0") for pid in marked(environment["QUIESCE_TEST_MARK"])
        ):
            assert time.monotonic() < give_up_at
            time.sleep(0.02)
        program.send_signal(number)
        program.communicate(timeout=20)
        assert program.returncode in (-number, 128 + number)


def wait_for_cli(mark: str, tour: int) -> None:
    give_up_at = time.monotonic() + 10
    while not any(b"stand_in_cli" in command_of(pid) for pid in marked(mark) if pid != tour):
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


def command_of(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


# At a terminal


def at_a_terminal(*words: str, ends_by: signal.Signals | None = None, **environment: str) -> tuple[str, int]:
    """What it writes to a terminal of 80 columns; if it is to end by a signal, that comes when a timeline grows."""
    ours, theirs = pty.openpty()
    shown = b""
    with no_process_left() as inherited:
        program = subprocess.Popen(
            [*TOUR, *words],
            env={**inherited, "TERM": "xterm-256color", "COLUMNS": "80", **environment},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            try:
                while data := terminal.read(65536):
                    shown += data
                    if ends_by is not None and shown.count(b"\x1b[2K") > 5:
                        program.send_signal(ends_by)
                        ends_by = None
            except OSError:  # how a terminal says that nobody writes any more
                pass
        status = program.wait(20)
    return shown.decode(), status


def test_at_a_terminal_the_timelines_grow_in_colour() -> None:
    shown, status = at_a_terminal("--only", "guardrail", "--speed", "5")
    assert status == 0
    assert shown.count("\x1b[2K") > 5  # drawn over, again and again
    assert "\x1b[1;31m" in shown
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")  # the cursor is back
    assert "quiesce chat" in shown


def test_a_signal_at_a_terminal_gives_the_cursor_back() -> None:
    shown, status = at_a_terminal("--only", "stream", "--speed", "0.5", ends_by=signal.SIGTERM)
    assert status == 128 + signal.SIGTERM
    assert "\x1b[?25l" in shown
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")


def test_at_a_terminal_that_wants_no_colour_there_is_none() -> None:
    shown, status = at_a_terminal("--only", "guardrail", "--speed", "10", NO_COLOR="1")
    assert status == 0
    assert re.findall(r"\x1b\[[0-9;]*3[0-7]m", shown) == []


def test_who_has_seen_enough_may_hang_up() -> None:
    with (
        no_process_left() as environment,
        playing(environment, "--only", "guardrail", "--speed", "10") as program,
    ):
        assert program.stdout is not None
        assert program.stderr is not None
        assert program.stdout.readline()
        program.stdout.close()
        assert program.stderr.read() == ""
        assert program.wait(20) == 0


def test_a_full_disk_is_said_in_a_line() -> None:
    with no_process_left() as environment, open("/dev/full", "w") as full:
        done = subprocess.run(
            [*TOUR, "--only", "guardrail", "--speed", "10"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("quiesce tour: [Errno 28]")
    assert done.stderr.count("\n") == 1
