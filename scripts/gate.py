"""Run everything that must pass before a change is accepted: `bash .ci/run`; and what takes hours: `make nightly`.

    python3 scripts/gate.py [--nightly] [--only STAGE]... [--list]

Stages run in an order that finds the cheap faults first, and the first failure ends the run. Stages that use
at most one core, because they install, wait or compile, are in a group and run three at a time; the output of
such a stage is shown when it has ended. The next group begins when the whole group before it has ended.

A busy machine does not fail the gate. A test that fails is run again alone (tests/second_try.py); a stage
that runs programs instead of tests is run again as a whole. If it passes then, it is flaky: the last lines
list it, and build/gate keeps its first failure. A second failure fails the gate, and so do more than five
flaky tests.

Environments and downloads are cached in the folder that QUIESCE_CACHE names, ~/.cache/quiesce if it is not
set; set it to nothing for no cache. The cache holds what was installed, by a hash of what it was made from.
It holds no results: every test runs each time.

The last lines are a table of the stages with their seconds. The output of each stage is also in build/gate.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import IO, Literal

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.flaky import MOST, RECORD, Flaky, keep, kept  # noqa: E402

HOURS = 3600.0
FAILURE_LINES = 200  # of a stage's output, kept as its first failure
SHOWN_LINES = 8  # of a first failure, in the last lines
LIGHT_AT_ONCE = 3
# With MAKEFLAGS and the others, `make nightly ARGS=...` would pass its arguments to the `make` of every stage.
NOT_FOR_STAGES = ("PYTHONDONTWRITEBYTECODE", "MAKEFLAGS", "MAKEOVERRIDES", "ARGS")
EXIT_WITHIN = 30.0  # seconds, for a stage that is terminated


@dataclass(frozen=True)
class Stage:
    """One command. `again` says what is run again if it fails: the tests that failed, all of it, or nothing.

    `group`: it leaves the cores idle for most of its time, and runs side by side with its neighbours of the same group.
    """

    name: str
    command: Sequence[str]
    again: Literal["tests", "all", "nothing"] = "tests"
    settings: Mapping[str, str] = field(default_factory=dict)
    limit: float = 0.5 * HOURS
    group: str = ""


@dataclass(frozen=True)
class Ran:
    stage: Stage
    seconds: float
    passed: bool | None  # None: it was ended because another stage of its group had failed


def make(
    target: str,
    again: Literal["tests", "all", "nothing"] = "tests",
    limit: float = 0.5 * HOURS,
    group: str = "",
    **settings: str,
) -> Stage:
    return Stage(target, ["make", "--no-print-directory", target], again, settings, limit, group)


PYTHON = os.environ.get("PYTHON", "python3")


def installs(name: str, *command: str, **settings: str) -> Stage:
    """Installing mostly means waiting for downloads, so everything that later stages need is installed at the
    same time.
    """
    return Stage(name, command, "all", {"ONLY_SET_UP": "1", **settings}, group="set-up")


SET_UP = installs("set-up", "scripts/environment", PYTHON, ".venv", "test,lint,docs,cli")
EACH_CHANGE = (
    SET_UP,
    installs("set-up-others", "scripts/test-all", TESTED=PYTHON),
    installs("set-up-next", "scripts/test-next", PYTHONS="3.15"),
    # None of these depends on how fast the machine is: the sweeps of the audit run in virtual time.
    make("lint", "nothing", group="checks"),
    make("docs", "nothing", group="checks"),
    make("test-docs", group="checks"),
    make("audit-once", group="checks", WORKERS="3"),
    make("seeds", "all", group="checks"),
    make("test-wheel", "all", group="checks"),
    make("peers-fast", "all", group="checks"),
    make("zombies-fast", "all", group="checks"),
    make("test"),
    make("test-slow"),
    make("test-others"),
    make("test-taskgroups"),
    make("test-next", PYTHONS="3.15", ARGS="tests/kernel tests/cli/exec tests/audit/test_what_runs_it.py"),
    make("test-ui", group="others' programs"),
    make("test-interop", group="others' programs", QUIESCE_INTEROP="each"),
    make("test-embedded", group="others' programs"),
    make("test-dropin", group="others' programs"),
    make("test-database", group="others' programs"),
)
NIGHTLY = (
    SET_UP,
    installs("set-up-others", "scripts/test-all"),
    installs("set-up-next", "scripts/test-next"),
    make("mutants", "nothing", limit=2 * HOURS),
    make("audit", limit=3 * HOURS),
    make("test-all", limit=3 * HOURS),
    make("test-taskgroups"),
    make("test-next", limit=3 * HOURS),
    make("test-interop"),
    make("test-dropin", limit=3 * HOURS, ARGS="--examples"),
    make("test-docker", "all"),
    make("test-database", ARGS="-m slow"),
    make("peers", "all", limit=3 * HOURS),
    make("zombies", "all", limit=2 * HOURS),
    make("suites", "all", limit=3 * HOURS),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run everything that must pass before a change is accepted.")
    parser.add_argument("--nightly", action="store_true", help="run the stages that take hours instead")
    parser.add_argument(
        "--only", metavar="STAGE", action="append", default=[], help="run this stage; may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="list the stages, and run none")
    options = parser.parse_args()
    stages = NIGHTLY if options.nightly else EACH_CHANGE
    names = [stage.name for stage in stages]
    if unknown := [name for name in options.only if name not in names]:
        parser.error(f"there is no stage {', '.join(unknown)}; the stages are {', '.join(names)}")
    if options.list:
        print(*names, sep="\n")
        return 0
    chosen = [stage for stage in stages if not options.only or stage.name in options.only]
    # A stage has a session of its own: a signal to the gate would not reach it.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    return Gate(ROOT, cache_folder()).run(chosen)


def cache_folder() -> Path | None:
    named = os.environ.get("QUIESCE_CACHE")
    if named is None:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quiesce"
    return Path(named).absolute() if named else None


class Gate:
    """Runs stages in the folder `root` and decides whether they passed. Their output is kept in build/gate there."""

    def __init__(self, root: Path, cache: Path | None) -> None:
        self._root = root
        self._folder = root / "build" / "gate"
        self._record = self._folder / "flaky.jsonl"
        self._running: set[subprocess.Popen[bytes]] = set()
        # Set when a stage has failed, or the gate is being stopped: no further stage is started.
        self._over = threading.Event()
        self._printing = threading.Lock()
        # Without bytecode, each of the thousands of programs that the tests start would compile the library again.
        self._settings = {name: os.environ[name] for name in os.environ if name not in NOT_FOR_STAGES}
        self._settings |= {
            "QUIESCE_CACHE": str(cache or ""),
            "QUIESCE_EXAMPLES": "repeatable",  # Hypothesis draws the same ones each time
            "SECOND_TRY": "-p tests.second_try",
            RECORD: str(self._record),
        }

    def run(self, stages: Sequence[Stage]) -> int:
        """Run them, print the results, and return the exit status."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for old in self._folder.iterdir():
            old.unlink()
        began, ran = time.monotonic(), list[Ran]()
        for name, group in groupby(stages, key=lambda stage: stage.group):
            with ThreadPoolExecutor(LIGHT_AT_ONCE if name else 1) as pool:
                try:
                    ran += [one for one in pool.map(self._run_unless_over, group) if one is not None]
                except BaseException:  # before the pool waits for its threads
                    self._end_all()
                    raise
        flaky = kept(self._record)
        seconds = time.monotonic() - began
        print("\n" + "\n".join([*self._flaky_lines(flaky), "", *table(ran, stages, seconds)]))
        if failed := [one.stage.name for one in ran if one.passed is False]:
            print(f"FAILED: {', '.join(failed)}")
        elif len(flaky) > MOST:
            print(f"FAILED: {len(flaky)} tests are flaky; at most {MOST} are accepted")
        else:
            print("All stages passed.")
            return 0
        return 1

    def _run_unless_over(self, stage: Stage) -> Ran | None:
        if self._over.is_set():
            return None
        ran = self._run_stage(stage)
        if not ran.passed and self._over.is_set():
            return replace(ran, passed=None)
        if not ran.passed or len(kept(self._record)) > MOST:
            self._end_all()
        return ran

    def _end_all(self) -> None:
        self._over.set()
        for process in list(self._running):
            end(process)

    def _run_stage(self, stage: Stage) -> Ran:
        began = time.monotonic()
        print(f"\n################ {stage.name}", flush=True)
        log = self._folder / f"{stage.name}.log"
        passed = self._execute(stage, log)
        if not passed and stage.again == "all" and not self._over.is_set():
            print(f"\n################ {stage.name}: failed, and runs again", flush=True)
            first = log.rename(log.with_suffix(".first.log"))
            passed = self._execute(stage, log)
            if passed:
                lines = first.read_text(errors="replace").splitlines()
                keep(Flaky(stage.name, "\n".join(lines[-FAILURE_LINES:])), self._record)
        seconds = time.monotonic() - began
        with self._printing:
            if stage.group:
                print(f"\n################ output of {stage.name}", flush=True)
                sys.stdout.buffer.write(log.read_bytes())
            print(f"################ {stage.name}: {how(passed)} in {seconds:.0f} s", flush=True)
        return Ran(stage, seconds, passed)

    def _execute(self, stage: Stage, log: Path) -> bool:
        """Run its command; return whether it succeeded in time.

        Its output is logged, and shown unless other stages run.
        """
        settings = {**self._settings, **stage.settings}
        process = subprocess.Popen(
            stage.command,
            cwd=self._root,
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        self._running.add(process)
        shows = not stage.group
        copying = threading.Thread(target=copy, args=[process.stdout, log, shows], daemon=True)
        copying.start()
        try:
            passed = process.wait(stage.limit) == 0
        except subprocess.TimeoutExpired:
            print(f"\n################ {stage.name}: not done after {stage.limit:.0f} s", flush=True)
            passed = False
        finally:
            end(process)
            self._running.discard(process)
            copying.join(EXIT_WITHIN)  # a leftover process may keep the pipe open
        return passed

    def _flaky_lines(self, flaky: Sequence[Flaky]) -> Iterator[str]:
        yield f"flaky: {len(flaky) or 'none'}"
        for number, one in enumerate(flaky, 1):
            path = self._folder / f"flaky-{number}.txt"
            path.write_text(f"{one.name}\n\n{one.first_failure}\n")
            yield f"  {one.name} failed, and passed when it ran alone; its first failure, in {path.relative_to(self._root)}, ends:"
            lines = [line for line in one.first_failure.splitlines() if line.strip()]
            yield from (f"    | {line[:200]}" for line in lines[-SHOWN_LINES:])


def copy(source: IO[bytes], log: Path, shows: bool) -> None:
    """Write what comes out of a pipe to `log`, and show it if `shows`."""
    with source, log.open("wb") as file:
        while piece := os.read(source.fileno(), 65536):
            file.write(piece)
            if shows:
                sys.stdout.buffer.write(piece)
                sys.stdout.flush()


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop it, with its process group, unless it has exited."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, signum)
            try:
                process.wait(EXIT_WITHIN)
            except subprocess.TimeoutExpired:
                continue


def how(passed: bool | None) -> str:
    return "passed" if passed else "FAILED" if passed is False else "ended"


def table(ran: Sequence[Ran], stages: Sequence[Stage], seconds: float) -> Iterator[str]:
    width = max(len(stage.name) for stage in stages)
    by_name = {one.stage.name: one for one in ran}
    yield f"{'stage':<{width}}  seconds"
    for stage in stages:
        one = by_name.get(stage.name)
        if one is None:
            yield f"{stage.name:<{width}}        -  not run"
        else:
            beside = ", beside another" if stage.group else ""
            yield f"{stage.name:<{width}}  {one.seconds:7.0f}  {how(one.passed)}{beside}"
    yield f"{'in all':<{width}}  {seconds:7.0f}  ({seconds / 60:.1f} minutes)"


if __name__ == "__main__":
    sys.exit(main())
