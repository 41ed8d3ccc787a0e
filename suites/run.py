"""Run the suites of packages that nobody here wrote, without and with `pytest --quiesce`: `make suites`.

    python3 suites/run.py [--quick] [--only PACKAGE]... [--fresh]

Each suite comes from the package's source distribution, and runs three times: twice as it is, and once with
`--quiesce` and a new baseline, which tells what is left behind and fails nothing for it. A test has to end
the same way all three times, and so has the whole. A test that ends differently the first two times depends
on luck, and is left out by name. So is one that fails without the plugin because the garbage collector came
by and found what some test before it had dropped: when that happens is chance.

All suites share one environment, made of suites/versions.txt and kept as those of `make seeds` are. It exits
1 if a test ends differently with the plugin, or if a suite cannot be run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]


from suites.table import GARBAGE, SUITES, Suite  # noqa: E402
from throwaway import NotInstalled, build_wheel, environments, locked, make_environment, pip, run  # noqa: E402

BUILD = environments("suites")
REPORTS = ROOT / "build" / "suites-reports"
RUN_LIMIT = 1200.0  # seconds for one run of one suite
SHOWN = 10  # tests that are named, of one kind


@dataclass
class Ran:
    outcomes: dict[str, str]
    cpu: float  # seconds
    status: int  # of the whole session
    looked_at: int  # tests that --quiesce watched; 0 without it


class Failed(Exception):
    """A suite that could not be run, and why."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Other people's suites, without and with --quiesce.")
    parser.add_argument("--only", metavar="PACKAGE", action="append", choices=[s.package for s in SUITES])
    parser.add_argument("--quick", action="store_true", help="only those that take a few seconds")
    parser.add_argument("--fresh", action="store_true", help="make the environment again")
    options = parser.parse_args()
    chosen = [
        suite
        for suite in SUITES
        if (options.only is None or suite.package in options.only) and (suite.is_quick or not options.quick)
    ]
    REPORTS.mkdir(parents=True, exist_ok=True)
    with locked(BUILD):
        try:
            wheel = build_wheel(BUILD / "wheel")
            make_environment(
                BUILD / "environment", ROOT / "suites" / "versions.txt", wheel, is_fresh=options.fresh
            )
        except NotInstalled as error:
            print(f"FAILED: the environment cannot be made.\n{error}")
            return 1
        rows, notes, is_bad = list[str](), list[str](), False
        for suite in chosen:
            try:
                row, more, differs = compare(suite)
            except (Failed, NotInstalled) as error:
                row, more, differs = (
                    f"| {suite.package} | {suite.version} | could not be run |",
                    [str(error)],
                    True,
                )
            print(row, flush=True)
            rows.append(row)
            notes += more
            is_bad = is_bad or differs
    print(
        "\n| package | version | tests | watched | without | with --quiesce | differ | depend on luck | found | CPU |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    print("\n".join([*rows, "", *notes]))
    return 1 if is_bad else 0


def compare(suite: Suite) -> tuple[str, list[str], bool]:
    """A row of the table, what there is to say about it, and whether a test ends differently."""
    source = fetch(suite)
    found = REPORTS / f"{suite.package}-found.json"
    found.unlink(missing_ok=True)
    first = run_suite(suite, source, "first")
    second = run_suite(suite, source, "second")
    watched = run_suite(suite, source, "quiesce", "--quiesce", f"--quiesce-write-baseline={found}")
    lucky = {
        name
        for name, outcome in first.outcomes.items()
        if outcome != second.outcomes.get(name) or GARBAGE in outcome
    }
    names = (first.outcomes.keys() | watched.outcomes.keys()) - lucky
    differ = sorted(name for name in names if first.outcomes.get(name) != watched.outcomes.get(name))
    entries = json.loads(found.read_text())["findings"]
    if not watched.looked_at:
        raise Failed(f"{suite.package}: --quiesce watched none of its tests, so that nothing was compared")
    row = (
        f"| {suite.package} | {suite.version} | {len(first.outcomes)} | {watched.looked_at} | {counts(first.outcomes)} | {counts(watched.outcomes)} "
        f"| {len(differ)} | {len(lucky)} | {len(entries)} | {watched.cpu / min(first.cpu, second.cpu):.2f} |"
    )
    notes = [
        f"{suite.package}: {name}: {first.outcomes.get(name, 'not run')} without, "
        f"{watched.outcomes.get(name, 'not run')} with --quiesce"
        for name in differ
    ]
    if first.status == second.status != watched.status:
        differ.append("the session")
        notes.append(f"{suite.package}: exit status {first.status} without, {watched.status} with --quiesce")
    notes += named(
        f"{suite.package}: not compared, as without the plugin it ends differently or fails by another test's garbage",
        sorted(lucky),
    )
    kinds = Counter(entry["finding"].split()[0] for entry in entries)
    if kinds:
        what = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
        notes.append(f"{suite.package}: left behind: {what}; see {found.relative_to(ROOT)}")
    return row, notes, bool(differ)


def named(what: str, names: list[str]) -> list[str]:
    more = [f"{what}: and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return [f"{what}: {name}" for name in names[:SHOWN]] + more


def counts(outcomes: Mapping[str, str]) -> str:
    return ", ".join(f"{number} {how}" for how, number in Counter(outcomes.values()).most_common())


def fetch(suite: Suite) -> Path:
    """The package's source distribution."""
    folder = BUILD / "sdists"
    folder.mkdir(exist_ok=True)
    sdist = folder / f"{suite.package}-{suite.version}.tar.gz"
    if not sdist.is_file():
        wanted = f"{suite.package}=={suite.version}"
        run([*pip(), "download", "--no-deps", "--no-binary", ":all:", "--dest", str(folder), wanted])
    return sdist


def run_suite(suite: Suite, source: Path, name: str, *options: str) -> Ran:
    """Run it in a fresh copy of its source, in a process group of its own that does not outlive it."""
    folder = BUILD / "work"
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    outcomes, log = REPORTS / f"{suite.package}-{name}.json", REPORTS / f"{suite.package}-{name}.log"
    outcomes.unlink(missing_ok=True)
    plugins = (*suite.plugins, "quiesce.audit.pytest_plugin", "suites.outcomes")
    loaded = [part for plugin in plugins for part in ("-p", plugin)]
    kept = {key: os.environ[key] for key in ("PATH", "LANG", "TMPDIR") if key in os.environ}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(
                    str(BUILD / "environment" / "bin" / "python"),
                    "-m",
                    "pytest",
                    "-q",
                    "-p",
                    "no:cacheprovider",
                ),
                *("-o", "addopts=", *loaded, *suite.options, *options),
            ],
            cwd=next(folder.iterdir()),
            env={
                **kept,
                "HOME": str(BUILD / "environment" / "home"),
                "OUTCOMES": str(outcomes),
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "PYTHONHASHSEED": "0",
                "PYTHONPATH": str(ROOT),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        before = os.times()
        try:
            process.wait(RUN_LIMIT)
        except subprocess.TimeoutExpired:
            raise Failed(
                f"{suite.package}: not done after {RUN_LIMIT:.0f} s: see {log.relative_to(ROOT)}"
            ) from None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        after = os.times()
    if not outcomes.is_file():
        raise Failed(f"{suite.package}: pytest did not get to its end: see {log.relative_to(ROOT)}")
    ended: dict[str, str] = json.loads(outcomes.read_text())
    if not ended:
        raise Failed(f"{suite.package}: no test ran: see {log.relative_to(ROOT)}")
    used = after.children_user - before.children_user + after.children_system - before.children_system
    said = re.search(r"quiesce: (\d+) async tests? watched", log.read_text(errors="replace"))
    return Ran(ended, used, process.returncode, int(said[1]) if said else 0)


if __name__ == "__main__":
    sys.exit(main())
