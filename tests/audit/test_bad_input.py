"""Whatever is wrong with what it is given, the command says what, to what, and what to do, and exits with 2."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.audit.command_line import Answer, CommandLine

pytestmark = pytest.mark.slow


def broken(answer: Answer) -> str:
    """Everything it said, after checking that it is a plain refusal."""
    said = answer.out + answer.err
    assert answer.code == 2, said
    assert "Traceback" not in said
    assert "bug in quiesce" not in said
    return said


# What is named is not there


def test_a_module_that_does_not_exist_is_named_with_its_neighbours(command: CommandLine) -> None:
    command.write("some_jobs.py", "")
    said = broken(command.audit("some_job:scenario"))
    assert "there is no module 'some_job' in the current directory, nor installed" in said
    assert "did you mean some_jobs" in said


def test_a_module_that_a_package_does_not_have_is_told_from_a_missing_package(command: CommandLine) -> None:
    command.write("shop/__init__.py", "")
    command.write("shop/orders.py", "")
    said = broken(command.audit("shop.order"))
    assert "there is no module 'shop.order' in the package shop; did you mean orders?" in said


def test_a_dot_where_a_colon_belongs_is_said(command: CommandLine) -> None:
    command.write("dotted.py", "async def scenario(): pass")
    said = broken(command.audit("dotted.scenario"))
    assert "dotted is a module, not a package; for a name in it write dotted:scenario" in said


def test_a_missing_name_gets_close_ones(command: CommandLine) -> None:
    command.write("names.py", "async def scenario_of_sending(): pass")
    said = broken(command.audit("names.py:scenario_sending"))
    assert "names has no 'scenario_sending'; did you mean scenario_of_sending?" in said


def test_a_missing_file_gets_close_ones(command: CommandLine) -> None:
    command.write("leaks.py", "")
    said = broken(command.audit("leak.py"))
    assert "there is no file leak.py; did you mean leaks.py?" in said


def test_a_missing_folder_is_said(command: CommandLine) -> None:
    assert "there is no file or folder some/where" in broken(command.audit("some/where"))


def test_a_target_without_a_name_after_the_colon_is_refused(command: CommandLine) -> None:
    assert "a target is pkg.mod:scenario" in broken(command.audit("pkg.mod:"))


def test_a_file_without_scenarios_says_what_it_has(command: CommandLine) -> None:
    command.write("plain.py", "async def work(): pass")
    said = broken(command.audit("plain.py"))
    assert "there is no scenario in it: mark async functions with @scenario" in said
    assert "it has work, which can be named after a colon" in said


def test_an_empty_file_and_an_empty_folder_are_nothing_to_audit(command: CommandLine) -> None:
    command.write("empty.py", "")
    (command.folder / "nothing").mkdir()
    assert "there is no scenario in it" in broken(command.audit("empty.py"))
    assert "there is no scenario in any file below it" in broken(command.audit("nothing"))


def test_no_target_at_all_is_bad_usage(command: CommandLine) -> None:
    assert "TARGET" in broken(command.audit())


# It cannot be imported


def test_an_error_at_import_is_shown_with_its_place(command: CommandLine) -> None:
    command.write("early.py", "import sys\n\n\ndef set_up():\n    return 1 / 0\n\n\nset_up()\n")
    said = broken(command.audit("early.py"))
    assert "early.py: importing it failed: ZeroDivisionError: division by zero" in said
    assert "early.py:5 in set_up\n    return 1 / 0" in said
    assert "early.py:8 in <module>\n    set_up()" in said
    assert "importlib" not in said


def test_a_module_that_is_missing_in_an_import_is_not_taken_for_the_target(command: CommandLine) -> None:
    command.write("needy.py", "import no_such_thing_anywhere\n")
    for target in ("needy.py", "needy:scenario"):
        said = broken(command.audit(target))
        assert "importing it failed: ModuleNotFoundError: No module named 'no_such_thing_anywhere'" in said
        assert "needy.py:1 in <module>" in said


def test_a_syntax_error_is_shown_with_its_place(command: CommandLine) -> None:
    command.write("crooked.py", "async def scenario()\n    pass\n")
    said = broken(command.audit("crooked.py"))
    assert "SyntaxError: expected ':'" in said
    assert "crooked.py:1\n    async def scenario()" in said


def test_a_module_that_exits_when_imported_does_not_end_the_command(command: CommandLine) -> None:
    command.write("exits.py", "import sys\nsys.exit('no')\n")
    assert "importing it failed: SystemExit: no" in broken(command.audit("exits.py"))


def test_one_broken_file_does_not_keep_the_others_of_a_folder_from_being_audited(
    command: CommandLine,
) -> None:
    command.write("all/a.py", "scenario = 1 / 0")
    command.write("all/b.py", "async def scenario(): pass")
    answer = command.audit("all")
    assert "all/a.py: importing it failed: ZeroDivisionError" in broken(answer)
    assert "CLEAN all/b.py:scenario" in answer.out


# It is no scenario

NO_SCENARIO = {
    "def scenario(): pass": "scenario is not async: a scenario is an `async def` function",
    "async def scenario(host, port): pass": "scenario needs arguments (host, port)",
    "async def f(): pass\nscenario = f()": "f was called already: pass the function itself, without ()",
    "scenario = lambda: 5": "it returned a int, which cannot be awaited",
    "scenario = lambda: {}['key']": "calling it failed: KeyError: 'key'",
}


@pytest.mark.parametrize("source", NO_SCENARIO)
def test_what_is_no_scenario_is_told_why(command: CommandLine, source: str) -> None:
    command.write("wrong.py", source)
    said = broken(command.audit("wrong.py"))
    assert NO_SCENARIO[source] in said
    assert "wrong.py:scenario" in said


def test_a_name_that_is_no_function_is_refused(command: CommandLine) -> None:
    command.write("number.py", "limit = 5")
    assert "is a int, not an async function" in broken(command.audit("number.py:limit"))


def test_an_option_that_no_scenario_has_is_refused(command: CommandLine) -> None:
    source = "from quiesce.audit import scenario\n@scenario(stop='cancel')\nasync def sending(): pass\n"
    command.write("marked.py", source)
    said = broken(command.audit("marked.py"))
    assert "marked.py:sending: its @scenario has an option 'stop'; there are again, backend" in said


# It does not run

BROKEN_BASELINES = {
    "raise KeyError('gone')": "it raised KeyError: 'gone' at broken.py:5 in scenario",
    "raise SystemExit(3)": "it raised SystemExit: 3 at broken.py:5 in scenario",
    "raise KeyboardInterrupt": "it raised KeyboardInterrupt at broken.py:5 in scenario",
    "asyncio.current_task().cancel(); await asyncio.sleep(1)": "it cancelled itself",
    "await asyncio.Event().wait()": "it never ends: nothing can run any more at broken.py:5 in scenario",
    "while True: await asyncio.sleep(0)": "it never ends: stopped after",
    "await asyncio.open_connection('127.0.0.1', 9)": "it opens a connection",
    "socket.create_connection(('127.0.0.1', 9))": "it opens a connection to 127.0.0.1:9 at broken.py:5 in scenario",
    "subprocess.run(['true'])": "it starts the process true at broken.py:5 in scenario",
    "await asyncio.create_subprocess_exec('true')": "it opens a connection, a pipe or a process",
    "await asyncio.to_thread(print)": "it runs print in a thread",
    "input()": "it raised EOFError",
}


@pytest.mark.parametrize("line", BROKEN_BASELINES)
def test_a_scenario_that_does_not_run_by_itself_is_baseline_broken(command: CommandLine, line: str) -> None:
    command.write("broken.py", f"import asyncio, socket, subprocess\n\n\nasync def scenario():\n    {line}\n")
    answer = command.audit("broken.py")
    assert "BASELINE-BROKEN broken.py:scenario on asyncio" in answer.out
    assert BROKEN_BASELINES[line] in broken(answer)


def test_io_in_the_closed_world_says_how_to_allow_it(command: CommandLine) -> None:
    command.write("out.py", "import subprocess\n\nasync def scenario():\n    subprocess.run(['true'])\n")
    assert "use the real-I/O mode (real_io=True, --real-io), or a stand-in" in broken(command.audit("out.py"))
    assert command.audit("out.py", "--real-io", "--stops", "cancel", "--phases", "early").code == 0


@pytest.mark.parametrize("blocks", ["while True: pass", "time.sleep(3600)"])
def test_a_step_that_blocks_is_cut_off_and_named(command: CommandLine, blocks: str) -> None:
    command.write("blocks.py", f"import time\n\n\nasync def scenario():\n    {blocks}\n")
    said = broken(command.apart("audit", "blocks.py", "--run-limit", "2"))
    assert "BASELINE-BROKEN blocks.py:scenario" in said
    assert "it never ends: it was cut off after 2 s of real time at blocks.py:5 in scenario" in said


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_clean_up_that_blocks_is_a_hang_with_its_place(command: CommandLine, backend: str) -> None:
    source = """
        import anyio, time

        async def scenario():
            try:
                await anyio.sleep(1)
            except BaseException:
                time.sleep(3600)
                raise
    """
    command.write("slow.py", source)
    options = ["--stops", "cancel", "--phases", "early", "--run-limit", "2", "--backend", backend]
    answer = command.apart("audit", "slow.py", "--json", *options)
    assert answer.code == 1, answer.err
    (finding,) = json.loads(answer.out)["results"][0]["findings"]
    assert (finding["kind"], finding["what"], finding["runs"]) == ("hang", "scenario", 1)
    assert finding["example"]["stuck_at"][-1]["line"] == 8
    assert finding["example"]["detail"] == "it was cut off after 2 s of real time"
    again = command.shell(finding["replay"])
    assert again.code == 1, again.err
    assert "1. HANG scenario" in again.out


@pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
@pytest.mark.parametrize("leaving", ["SystemExit(3)", "KeyboardInterrupt"])
def test_leaving_the_process_when_stopped_is_a_replaced_cancellation(
    command: CommandLine, leaving: str, backend: str
) -> None:
    source = f"""
        import anyio

        async def scenario():
            try:
                await anyio.sleep(0.01)
            except BaseException:
                raise {leaving}
    """
    command.write("leaves.py", source)
    answer = command.audit("leaves.py", "--stops", "cancel", "--phases", "early", "--backend", backend)
    assert answer.code == 1, answer.out + answer.err
    assert "1. REPLACED scenario: a cancellation that came out as another error" in answer.out
    assert f"it was cancelled, and raised {leaving.replace('(3)', ': 3')}" in answer.out


@pytest.mark.parametrize(
    "source", ["time.perf_counter_ns() // 1000 % 2", "id(object()) // 16 % 2", "os.urandom(1)[0] % 2"]
)
def test_a_scenario_that_differs_from_run_to_run_is_said_to(command: CommandLine, source: str) -> None:
    text = f"""
        import asyncio, os, time

        kept = []

        async def scenario():
            for _ in range(40):
                kept.append(object())
                if {source}:
                    await asyncio.sleep(1)
                else:
                    await asyncio.sleep(2)
    """
    command.write("fickle.py", text)
    answer = command.audit("fickle.py")
    said = broken(answer)
    assert "NON-DETERMINISTIC fickle.py:scenario on asyncio" in said
    # Two runs that happen to agree do not hide it: later ones do not get to their points.
    assert ("in one run, scenario suspended at fickle.py:" in said) or ("did not reach the point" in said)


def test_a_scenario_that_counts_its_runs_is_said_to_differ(command: CommandLine) -> None:
    source = """
        import asyncio, itertools

        runs = itertools.count()

        async def scenario():
            await asyncio.sleep(next(runs))
            if next(runs) % 8 < 4:
                await asyncio.sleep(1)
    """
    command.write("counts.py", source)
    said = broken(command.audit("counts.py"))
    assert "NON-DETERMINISTIC counts.py:scenario on asyncio" in said


# It disturbs its surroundings


def test_what_a_scenario_prints_is_not_in_the_json(command: CommandLine) -> None:
    source = """
        import os, subprocess, sys
        print("imported")

        async def scenario():
            print("printed")
            os.write(1, b"written")
            sys.stderr.write("complained")
    """
    command.write("loud.py", source)
    answer = command.apart("audit", "loud.py", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["verdict"] == "CLEAN"
    assert "imported" in answer.err
    assert "printed" not in answer.err
    assert "written" not in answer.err
    shown = command.apart("audit", "loud.py", "--json", "--show-output")
    assert json.loads(shown.out)["verdict"] == "CLEAN"
    assert "printed" in shown.err
    assert "written" in shown.err


def test_a_scenario_that_closes_standard_output_does_not_take_the_report_with_it(
    command: CommandLine,
) -> None:
    command.write(
        "shuts.py", "import sys\n\nasync def scenario():\n    sys.stdout.close()\n    sys.stderr.close()\n"
    )
    answer = command.apart("audit", "shuts.py")
    assert answer.code == 0, answer.err
    assert "CLEAN shuts.py:scenario" in answer.out


def test_a_scenario_that_closes_descriptor_1_is_told_so(command: CommandLine) -> None:
    command.write("shuts.py", "import os\n\nasync def scenario():\n    os.close(1)\n")
    answer = command.apart("audit", "shuts.py")
    assert "OSError: [Errno 9]" in broken(answer)
    assert "BASELINE-BROKEN shuts.py:scenario" in answer.out


def test_a_scenario_that_changes_the_directory_finds_it_changed_back(command: CommandLine) -> None:
    source = """
        import os

        async def scenario():
            assert not os.getcwd().endswith("elsewhere")
            os.makedirs("elsewhere", exist_ok=True)
            os.chdir("elsewhere")
    """
    command.write("moves.py", source)
    answer = command.audit("moves.py")
    assert answer.code == 0, answer.out + answer.err
    assert "note: it changes the working directory, which the audit restored after each run" in answer.out
    assert os.getcwd() == str(command.folder)


def test_a_reader_that_goes_away_is_no_error(command: CommandLine) -> None:
    command.write("fine.py", "async def scenario(): pass\n")
    answer = command.shell("{ sleep 1; quiesce audit fine.py --no-progress; echo code $? >&2; } | true")
    assert "Traceback" not in answer.err
    assert "code 0" in answer.err


# Ctrl-C

LONG = """
    import asyncio, itertools, pathlib, time

    runs = itertools.count(1)

    async def scenario():
        if next(runs) > 3:  # those before it count the points
            pathlib.Path("running").touch()
        task = asyncio.create_task(asyncio.sleep(3600))
        for _ in range(200):
            await asyncio.sleep(1)
            time.sleep(0.0005)
"""
STUCK = """
    import pathlib, time

    async def scenario():
        pathlib.Path("running").touch()
        time.sleep(3600)
"""


def interrupt(command: CommandLine, *words: str) -> Answer:
    """Ctrl-C for a command once its scenario runs, which makes a file to say so."""
    process = subprocess.Popen(
        [sys.executable, "-m", "quiesce", "audit", *words],
        cwd=command.folder,
        env=command.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not (command.folder / "running").exists():
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=15)
    finally:
        process.kill()
        process.wait()
    return Answer(process.returncode, out, err)


def test_ctrl_c_ends_the_sweep_with_what_it_has(command: CommandLine) -> None:
    command.write("long.py", LONG)
    answer = interrupt(command, "long.py", "--json")
    assert answer.code == 130, answer.err
    assert "Traceback" not in answer.err
    document = json.loads(answer.out)
    assert document["interrupted"] is True
    (result,) = document["results"]
    assert result["complete"] is False
    assert result["scope"].startswith("some of the ")


@pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
def test_ctrl_c_in_a_step_that_blocks_ends_it_too(command: CommandLine, backend: str) -> None:
    command.write("stuck.py", STUCK)
    answer = interrupt(command, "stuck.py", "--backend", backend)
    assert answer.code == 130, answer.err
    assert "Traceback" not in answer.err
    assert "CLEAN so far stuck.py:scenario" in answer.out
    assert "interrupted" in answer.err


def test_signals_are_as_before_after_an_audit(command: CommandLine) -> None:
    source = """
        import signal, sys, threading
        from quiesce.audit import audit

        async def scenario(): pass

        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)
        audit(scenario).assert_clean()
        assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM))
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
        in_a_thread = threading.Thread(target=lambda: print(audit(scenario).verdict, "in a thread"))
        in_a_thread.start()
        in_a_thread.join()
    """
    path = command.write("signals.py", source)
    done = subprocess.run(
        [sys.executable, path],
        env=command.environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=15,
    )
    assert done.stdout == "CLEAN in a thread\n"


# Options

BAD_OPTIONS = {
    "--stops cancle": "there is no stop 'cancle'; did you mean cancel? There are cancel, twice",
    "--stops ,": "no stop was named; there are",
    "--phases lat": "there is no phase 'lat'; did you mean late?",
    "--backend tri": "there is no backend 'tri'; did you mean trio?",
    "--backend asyncio,curio": "there is no backend 'curio'",
    "--at nonsense": "'nonsense' is not a replay token; one looks like cancel/early/main:3@",
    "--at cancel/sometimes/scenario:1@abc": "is not a point; one looks like early/main:3",
    "--at explode/early/scenario:1@abc": "names a stop 'explode'; there are cancel",
    "--ignore leaked*": "has no reason: write it as 'PATTERN=why it does not count'",
    "--sample 0": "'0' is not a number above 0",
    "--time-limit soon": "'soon' is not a number above 0",
    "--run-limit -1": "'-1' is not a number above 0",
    "--depth 3": "argument --depth: invalid choice",
    "--baseline none.json": "there is no baseline file none.json: make one with --write-baseline none.json",
    "--html no/where/out.html": "to write out.html in",
    "--check nowhere:check": "there is no module 'nowhere'",
    "--check fine.py": "name the function",
    "--nonsense": "unrecognized arguments: --nonsense",
    "--list --json": "--list and --json cannot be used together",
    "--at cancel/early/scenario:1@abc --backend asyncio,trio": "use it with one --backend",
    "--stops close": "needs an async generator function or an async context manager",
    "--backend trio --stops shutdown": "does not exist on trio",
}


@pytest.mark.parametrize("options", BAD_OPTIONS)
def test_a_bad_option_is_refused_with_what_would_be_right(command: CommandLine, options: str) -> None:
    command.write("fine.py", "async def scenario(): pass\n")
    assert BAD_OPTIONS[options] in broken(command.audit("fine.py", *options.split()))


def test_a_backend_that_is_not_installed_names_the_extra(command: CommandLine) -> None:
    command.write("fine.py", "async def scenario(): pass\n")
    command.write("hide/trio.py", "raise ModuleNotFoundError('hidden', name='trio')\n")
    path = f"hide:{command.environment()['PYTHONPATH']}"
    said = broken(command.apart("audit", "fine.py", "--backend", "trio", PYTHONPATH=path))
    assert "fine.py:scenario: trio is not installed" in said
    assert "quiesce[trio]" in said


BAD_BASELINES = {
    "": "is not JSON",
    "[]": "is not a baseline file",
    '{"version": 99, "findings": []}': "has version 99, and this quiesce reads version 1",
    '{"version": 1}': 'has no list of "findings"',
    '{"version": 1, "findings": [{"scenario": "x"}]}': "entry 1 of the baseline file known.json is not",
}


@pytest.mark.parametrize("text", BAD_BASELINES)
def test_a_baseline_file_that_is_none_is_refused(command: CommandLine, text: str) -> None:
    command.write("fine.py", "async def scenario(): pass\n")
    command.write("known.json", text)
    assert BAD_BASELINES[text] in broken(command.audit("fine.py", "--baseline", "known.json"))


def test_a_token_for_several_scenarios_is_refused(command: CommandLine) -> None:
    command.write("two.py", "async def scenario_a(): pass\nasync def scenario_b(): pass\n")
    said = broken(command.audit("two.py", "--at", "cancel/early/scenario_a:1@abc"))
    assert "these are 2: two.py:scenario_a, two.py:scenario_b" in said


def test_an_unknown_command_is_refused_with_a_close_one(command: CommandLine) -> None:
    said = broken(command("audti"))
    assert "there is no command 'audti'; did you mean audit?" in said


def test_errors_are_in_the_json_too(command: CommandLine) -> None:
    command.write("fine.py", "async def scenario(): pass\n")
    answer = command.audit("fine.py", "nowhere.py", "--json")
    document = json.loads(answer.out)
    assert (document["verdict"], document["exit_code"], answer.code) == ("ERROR", 2, 2)
    assert [error["target"] for error in document["errors"]] == ["nowhere.py"]
    assert "there is no file nowhere.py" in document["errors"][0]["message"]
    assert [result["verdict"] for result in document["results"]] == ["CLEAN"]
