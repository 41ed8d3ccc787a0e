"""`quiesce audit` as people and programs use it."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from quiesce.audit import Progress
from quiesce.audit.command.progress import make_meter
from tests.audit.command_line import CommandLine

pytestmark = pytest.mark.slow

LEAKY = """
    import asyncio

    async def worker():
        await asyncio.sleep(5)
        await asyncio.get_running_loop().create_future()

    async def scenario_leaks():
        task = asyncio.create_task(worker())
        await asyncio.sleep(1)
        task.cancel()
"""
CLEAN = """
    import asyncio

    async def scenario_clean():
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(1))
"""
POOL = """
    import asyncio

    held = []

    def whole():
        lost, held[:] = len(held), []
        assert not lost, f"{lost} slot lost"

    async def scenario_pool():
        held.append(1)
        await asyncio.sleep(1)
        held.pop()
"""
KEY = "leaked worker"


def replay_of(text: str) -> str:
    found = re.search(r"^ +replay +(quiesce audit .*)$", text, re.MULTILINE)
    assert found is not None, text
    return found[1]


# Verdicts


def test_clean_code_exits_with_0_and_says_what_was_covered(command: CommandLine) -> None:
    command.write("clean.py", CLEAN)
    answer = command.audit("clean.py")
    assert answer.code == 0, answer.out
    assert answer.out.startswith(
        "CLEAN clean.py:scenario_clean on asyncio\n  no findings; all 2 suspension points"
    )


def test_findings_exit_with_1_and_are_explained(command: CommandLine) -> None:
    command.write("leaky.py", LEAKY)
    answer = command.audit("leaky.py")
    assert answer.code == 1, answer.out
    assert answer.out.startswith("FINDINGS leaky.py:scenario_leaks on asyncio\n  1 finding; ")
    assert "1. LEAKED worker: a task that never ends" in answer.out
    assert "made at     leaky.py:9 in scenario_leaks" in answer.out
    assert "stopped at  leaky.py:10 in scenario_leaks" in answer.out


def test_the_exit_code_is_the_worst_of_all(command: CommandLine) -> None:
    command.write("clean.py", CLEAN)
    command.write("leaky.py", LEAKY)
    command.write("broken.py", "async def scenario(): raise KeyError")
    assert command.audit("clean.py", "leaky.py").code == 1
    answer = command.audit("broken.py", "leaky.py", "clean.py")
    assert answer.code == 2
    assert answer.out.endswith("3 audits: 1 BASELINE-BROKEN, 1 FINDINGS, 1 CLEAN\n")


def test_quiet_is_a_line_for_each(command: CommandLine) -> None:
    command.write("clean.py", CLEAN)
    command.write("leaky.py", LEAKY)
    answer = command.audit("clean.py", "leaky.py", "--quiet")
    assert answer.out.splitlines() == [
        "CLEAN clean.py:scenario_clean on asyncio",
        "FINDINGS leaky.py:scenario_leaks on asyncio: 1 of 1 findings count",
    ]


def test_the_current_directory_can_be_imported_from(command: CommandLine) -> None:
    command.write("app/__init__.py", "")
    command.write("app/jobs.py", CLEAN)
    assert command.apart("audit", "app.jobs:scenario_clean").code == 0


def test_list_says_what_would_be_audited_and_runs_nothing(command: CommandLine) -> None:
    source = """
        from quiesce.audit import scenario

        @scenario(backend="asyncio,trio")
        async def both():
            raise AssertionError("it was run")

        async def scenario_items():
            yield 1
    """
    command.write("listed.py", source)
    answer = command.audit("listed.py", "--list")
    assert answer.code == 0
    assert answer.out.splitlines() == [
        "listed.py:both  a coroutine, on asyncio, trio",
        "listed.py:scenario_items  a generator, on asyncio",
    ]


# Options


def test_each_backend_that_is_named_is_run(command: CommandLine) -> None:
    command.write("any.py", "import anyio\n\nasync def scenario():\n    await anyio.sleep(1)\n")
    answer = command.audit("any.py", "--backend", "asyncio,trio", "--backend", "uvloop", "--json")
    assert answer.code == 0, answer.out + answer.err
    assert [result["world"] for result in json.loads(answer.out)["results"]] == ["asyncio", "trio", "uvloop"]


def test_the_command_line_wins_over_the_mark(command: CommandLine) -> None:
    source = """
        import asyncio
        from quiesce.audit import scenario

        @scenario(stops="cancel", phases="late")
        async def marked():
            await asyncio.sleep(1)
    """
    command.write("marked.py", source)

    def strips(*options: str) -> list[str]:
        document = json.loads(command.audit("marked.py", "--json", *options).out)
        return [f"{strip['stop']}/{strip['phase']}" for strip in document["results"][0]["strips"]]

    assert strips() == ["cancel/late"]
    assert strips("--phases", "early") == ["cancel/early"]
    assert strips("--stops", "timeout,cancel") == ["timeout/late", "cancel/late"]


def test_budget_options_leave_runs_out_and_say_so(command: CommandLine) -> None:
    command.write(
        "loop.py", "import asyncio\n\nasync def scenario():\n    for _ in range(30): await asyncio.sleep(1)\n"
    )

    def early(*options: str) -> tuple[int, str]:
        words = ("loop.py", "--stops", "cancel", "--phases", "early", "--json", *options)
        result = json.loads(command.audit(*words).out)["results"][0]
        return len(result["strips"][0]["marks"].replace("-", "")), result["scope"]

    assert early() == (30, "all 30 suspension points of this schedule (asyncio), 33 runs")
    assert early("--dedupe")[0] == 1
    assert early("--dedupe")[1].startswith("one per await chain of the 30")
    assert early("--sample", "7")[0] == 7
    assert early("--sample", "7")[1].startswith("some of the 30")
    assert early("--time-limit", "0.000001") == (
        0,
        "some of the 30 suspension points of this schedule (asyncio), 2 runs",
    )


def test_a_check_of_ones_own_is_part_of_the_replay_command(command: CommandLine) -> None:
    command.write("pool.py", POOL)
    assert command.audit("pool.py").code == 0
    answer = command.audit("pool.py", "--check", "pool.py:whole")
    assert answer.code == 1, answer.out
    assert "CHECK whole: the scenario's own check failed" in answer.out
    assert "says        1 slot lost" in answer.out
    assert " --check pool.py:whole --at " in replay_of(answer.out)
    assert "check=whole" in answer.out
    again = command.shell(replay_of(answer.out))
    assert (again.code, "1 slot lost" in again.out) == (1, True), again.err


def test_an_ignore_keeps_a_finding_from_failing_and_shows_its_reason(command: CommandLine) -> None:
    command.write("leaky.py", LEAKY)
    answer = command.audit("leaky.py", "--ignore", "leaked work*=known upstream")
    assert answer.code == 0, answer.out
    assert "ignored (known upstream): leaked worker: a task that never ends" in answer.out


def test_an_ignore_that_matches_nothing_any_more_fails(command: CommandLine) -> None:
    command.write("clean.py", CLEAN)
    answer = command.audit("clean.py", "--ignore", "leaked gone*=old")
    assert answer.code == 1
    assert "stale: the ignore 'leaked gone*' matches nothing" in answer.out


def test_an_ignore_that_matches_in_one_of_several_audits_is_not_stale(command: CommandLine) -> None:
    command.write("clean.py", CLEAN)
    command.write("leaky.py", LEAKY)
    answer = command.audit("clean.py", "leaky.py", "--ignore", "leaked worker*=known", "--json")
    document = json.loads(answer.out)
    assert (answer.code, document["stale_ignores"]) == (0, [])
    assert [result["verdict"] for result in document["results"]] == ["CLEAN", "CLEAN"]


# Replays


@pytest.mark.parametrize("options", [(), ("--backend", "trio"), ("--seed", "7"), ("--real-io",)])
def test_the_command_that_a_report_prints_makes_that_finding_again(
    command: CommandLine, options: tuple[str, ...]
) -> None:
    source = """
        import anyio

        async def scenario_eats():
            while True:
                try:
                    await anyio.sleep(1)
                except BaseException:
                    pass
                return
    """
    command.write("with space/eats it.py", source)
    answer = command.audit("with space/eats it.py", *options)
    assert answer.code == 1, answer.out + answer.err
    title = re.findall(r"^1\. .*$", answer.out, re.MULTILINE)
    again = command.shell(replay_of(answer.out))
    assert again.code == 1, again.out + again.err
    assert re.findall(r"^1\. .*$", again.out, re.MULTILINE) == title


def test_a_replay_of_a_changed_program_is_unresolved(command: CommandLine) -> None:
    path = command.write("leaky.py", LEAKY)
    replay = replay_of(command.audit("leaky.py").out)
    path.write_text(
        path.read_text().replace("await asyncio.sleep(1)", "await asyncio.wait_for(asyncio.sleep(1), 9)")
    )
    again = command.shell(replay)
    assert again.code == 2, again.out + again.err
    assert again.out.startswith("UNRESOLVED leaky.py:scenario_leaks on asyncio\n")
    path.write_text("async def scenario_leaks(): pass\n")
    gone = command.shell(replay)
    assert (gone.code, "there is no point early/scenario_leaks:1" in gone.out) == (2, True), gone.out


def test_a_change_elsewhere_in_the_file_does_not_matter_to_a_replay(command: CommandLine) -> None:
    path = command.write("leaky.py", LEAKY)
    replay = replay_of(command.audit("leaky.py").out)
    path.write_text("# moved down\n\n\n" + path.read_text() + "\n\nasync def scenario_more(): pass\n")
    again = command.shell(replay)
    assert (again.code, "1. LEAKED worker" in again.out) == (1, True), again.out + again.err


def test_a_replay_of_what_has_been_repaired_is_clean(command: CommandLine) -> None:
    path = command.write("leaky.py", LEAKY)
    replay = replay_of(command.audit("leaky.py").out)
    path.write_text(
        path.read_text().replace("    await asyncio.get_running_loop().create_future()", "    pass")
    )
    again = command.shell(replay)
    assert (again.code, "LEAKED" in again.out) == (1, False), again.out  # it ends by itself now, late
    # Of another length: for a file of the same second and length, Python uses the bytecode that it has.
    path.write_text(path.read_text().replace("    await asyncio.sleep(5)", "    await asyncio.sleep(0.0)"))
    assert command.shell(replay).code == 0


def test_a_replay_shows_what_the_scenario_prints(command: CommandLine) -> None:
    source = """
        import asyncio

        async def scenario():
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                print("eaten")
    """
    command.write("prints.py", source)
    answer = command.apart("audit", "prints.py", "--stops", "cancel")
    assert "eaten" not in answer.out
    assert "eaten\n" in command.shell(replay_of(answer.out)).out


def test_a_script_that_audits_itself_prints_a_replay_that_works(command: CommandLine) -> None:
    script = LEAKY + (
        "\n    if __name__ == '__main__':\n        from quiesce.audit import audit\n        print(audit(scenario_leaks))\n"
    )
    command.write("script.py", script)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=command.folder, env=command.environment(), capture_output=True, text=True, check=True
    )  # fmt: skip
    again = command.shell(replay_of(done.stdout))
    assert (again.code, "1. LEAKED worker" in again.out) == (1, True), again.out + again.err


# Baseline files


def test_an_existing_code_base_adopts_its_findings_and_fails_for_new_ones(command: CommandLine) -> None:
    path = command.write("leaky.py", LEAKY)
    adopting = command.audit("leaky.py", "--write-baseline", "known.json")
    assert adopting.code == 0, adopting.err
    assert "wrote 1 known finding to known.json" in adopting.err
    known = command.audit("leaky.py", "--baseline", "known.json")
    assert known.code == 0, known.out
    assert "known: leaked worker: a task that never ends" in known.out
    path.write_text(
        path.read_text().replace("async def worker", "async def other").replace("worker()", "other()")
    )
    sys.modules.pop("leaky")
    new = command.audit("leaky.py", "--baseline", "known.json")
    assert new.code == 1
    assert "1. LEAKED other" in new.out
    assert "gone: leaked worker" in new.out


def test_a_known_finding_is_known_though_its_lines_moved(command: CommandLine) -> None:
    path = command.write("leaky.py", LEAKY)
    assert command.audit("leaky.py", "--write-baseline", "known.json").code == 0
    path.write_text("# a\n# b\n" + path.read_text())
    answer = command.apart("audit", "leaky.py", "--baseline", "known.json")
    assert answer.code == 0, answer.out + Path("known.json").read_text()


def test_what_is_known_of_one_scenario_is_not_known_of_another(command: CommandLine) -> None:
    command.write("leaky.py", LEAKY)
    command.write("other.py", LEAKY)
    assert command.audit("leaky.py", "--write-baseline", "known.json").code == 0
    assert command.audit("leaky.py", "other.py", "--baseline", "known.json").code == 1


def test_writing_a_baseline_keeps_what_is_known_of_scenarios_that_were_not_audited(
    command: CommandLine,
) -> None:
    command.write("leaky.py", LEAKY)
    command.write("other.py", LEAKY)
    assert command.audit("leaky.py", "--write-baseline", "known.json").code == 0
    assert command.audit("other.py", "--write-baseline", "known.json").code == 0
    assert command.audit("leaky.py", "other.py", "--baseline", "known.json").code == 0
    document = json.loads(Path("known.json").read_text())
    assert document["version"] == 1
    assert [entry["scenario"] for entry in document["findings"]] == [
        "leaky.py:scenario_leaks",
        "other.py:scenario_leaks",
    ]


def test_a_known_finding_whose_stop_was_not_made_is_not_said_to_be_gone(command: CommandLine) -> None:
    command.write("leaky.py", LEAKY)
    assert command.audit("leaky.py", "--stops", "cancel", "--write-baseline", "known.json").code == 0
    answer = command.audit("leaky.py", "--stops", "shutdown", "--baseline", "known.json")
    assert (answer.code, "gone" in answer.out) == (0, False), answer.out


def test_adopting_does_not_hide_that_something_is_broken(command: CommandLine) -> None:
    command.write("broken.py", "async def scenario(): raise KeyError")
    assert command.audit("broken.py", "--write-baseline", "known.json").code == 2


# Files


def test_the_json_is_alone_on_standard_output_and_has_the_documented_shape(command: CommandLine) -> None:
    command.write("leaky.py", LEAKY)
    answer = command.audit("--json", "leaky.py")
    document = json.loads(answer.out)
    assert list(document) == [
        "version", "verdict", "exit_code", "interrupted", "results", "errors", "stale_ignores", "gone",
    ]  # fmt: skip
    assert (document["version"], document["verdict"], document["exit_code"]) == (1, "FINDINGS", 1)
    (result,) = document["results"]
    assert {"scenario", "target", "world", "verdict", "scope", "points", "runs", "strips", "findings"} <= set(
        result
    )
    assert {"stop": "cancel", "phase": "early", "depth": 1, "marks": "XX"} in result["strips"]
    (finding,) = result["findings"]
    assert finding["kind"] == "leaked"
    assert finding["replay"].startswith("quiesce audit leaky.py:scenario_leaks --at ")
    assert finding["made_at"][-1].keys() == {"file", "line", "function"}


def test_json_and_junit_and_html_go_to_files_beside_the_text(command: CommandLine) -> None:
    command.write("leaky.py", LEAKY)
    command.write("broken.py", "async def scenario(): raise KeyError('\\x00')")
    words = ["--json", "out.json", "--junit", "out.xml", "--html", "out.html"]
    answer = command.audit("leaky.py", "broken.py", "gone.py", *words)
    assert "FINDINGS leaky.py" in answer.out
    assert json.loads(Path("out.json").read_text())["exit_code"] == 2
    suite = ET.parse("out.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "2")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "leaked worker"
    assert "scenario_leaks" in Path("out.html").read_text()


def test_the_same_audit_says_the_same_in_every_process(command: CommandLine) -> None:
    command.write("leaky.py", LEAKY)
    answers = {command.apart("audit", "leaky.py", PYTHONHASHSEED=seed).out for seed in ("1", "2")}
    assert len(answers) == 1


# Progress


def in_a_terminal(command: CommandLine, *words: str, **environment: str) -> tuple[str, str]:
    """What it writes to a terminal that is its standard error, and to standard output."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "quiesce", "audit", *words],
        cwd=command.folder,
        env=command.environment(TERM="xterm", **environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(ours)
        out, _ = process.communicate(timeout=15)
    return shown.decode(), out.decode()


SLOW = """
    import asyncio, time

    async def scenario_slow():
        task = asyncio.create_task(asyncio.Event().wait())
        for _ in range(12):
            await asyncio.sleep(1)
            time.sleep(0.0008)
        task.cancel()
"""


def test_a_terminal_shows_a_bar_and_clears_it(command: CommandLine) -> None:
    pytest.importorskip("rich")
    command.write("slow.py", SLOW)
    shown, out = in_a_terminal(command, "slow.py")
    assert "slow.py:scenario_slow" in shown
    assert re.search(r"\d+/\d+", shown)
    assert re.search(r"[a-z]+/(early|late)", shown)  # whichever the refresh caught
    assert "1 finding" in shown
    assert "\x1b[2K" in shown  # erased
    assert "\x1b" not in out


def test_a_terminal_without_rich_shows_one_line(command: CommandLine) -> None:
    command.write("slow.py", SLOW)
    command.write("hide/rich.py", "raise ImportError('not here')")
    shown, _ = in_a_terminal(command, "slow.py", PYTHONPATH=f"hide:{command.environment()['PYTHONPATH']}")
    assert re.search(
        r"\rslow\.py:scenario_slow on asyncio: \d+/\d+ [a-z]+/[a-z]+, 1 finding, \d+ s left", shown
    )
    assert "\n" not in shown


def test_elsewhere_progress_is_a_few_lines_on_standard_error(command: CommandLine) -> None:
    command.write("clean.py", CLEAN)
    assert command("audit", "clean.py").err == "auditing clean.py:scenario_clean on asyncio\n"
    assert command("audit", "clean.py", "--no-progress").err == ""
    assert command("audit", "clean.py", "--quiet").err == ""


def test_a_long_sweep_says_now_and_then_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    stream = io.StringIO()
    meter = make_meter(stream, wanted=True, color=False)
    meter.begin("jobs.py:scenario on asyncio")
    for done in range(1, 101):
        now += 0.5
        meter.show(Progress(done, 100, "cancel/late", 2))
    meter.end()
    assert stream.getvalue().splitlines() == [
        "auditing jobs.py:scenario on asyncio",
        "  20/100 cancel/late, 2 findings, 40 s left",
        "  40/100 cancel/late, 2 findings, 30 s left",
        "  60/100 cancel/late, 2 findings, 20 s left",
        "  80/100 cancel/late, 2 findings, 10 s left",
        "  100/100 cancel/late, 2 findings, 0 s left",
    ]


def test_colour_is_for_terminals_unless_told(command: CommandLine) -> None:
    command.write("clean.py", CLEAN)
    assert "\x1b[1;32mCLEAN" in command.audit("clean.py", "--color", "always").out
    assert "\x1b" not in command.audit("clean.py").out


# The command itself


def test_help_and_version_are_quick_and_import_nothing_of_the_audit(command: CommandLine) -> None:
    code = (
        "import sys; from quiesce.cli import main; codes = [main(['--help']), main(['--version'])];"
        "print(codes, [m for m in sys.modules if m == 'asyncio' or m.startswith(('quiesce.a', 'quiesce.k'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=command.environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[0, 0] []"
    assert "audit      cancel any async code" in done.stdout
    assert "quiesce 0." in done.stdout


def test_without_a_command_it_shows_its_help_and_exits_with_2(command: CommandLine) -> None:
    answer = command()
    assert (answer.code, "usage: quiesce COMMAND" in answer.out) == (2, True)


def test_the_help_of_the_audit_names_every_exit_code(command: CommandLine) -> None:
    answer = command("audit", "--help")
    assert answer.code == 0
    assert "exit codes: 0 clean, 1 findings, 2 broken" in answer.out
