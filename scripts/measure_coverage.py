"""Run the tests under coverage.py, print the figures of each package of the library, and write HTML to build/coverage.

Arguments go to pytest. What the figures count: lines and branches, in the processes of the tests and in every
Python program that they start. What they miss: programs that are killed before they can save what they ran,
and those that start without `site` (the guard process of the kernel, the search of the chat).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "coverage"
# Tests that fail because they are measured, by the beginnings of their names, each with the reason.
LEFT_OUT = (
    # The program runs as a user who may not write the figures: coverage.py warns, where the test expects one warning.
    "tests/kernel/test_unseen.py::test_where_not_all_processes_are_shown_no_report_is_clean[/proc hides",
    # The tracer keeps the last frame of a pool's thread, and with it the arguments that the test wants to see freed.
    "tests/kernel/test_contain_threads.py::test_a_look_at_a_thread_keeps_nothing_of_its_work_alive",
)


def main() -> int:
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    left_out = [f"--deselect={name}" for name in LEFT_OUT]
    status = coverage("run", "-m", "pytest", *left_out, *sys.argv[1:])
    for command in (["combine", "--quiet"], ["html", "--quiet"], ["json", "--quiet"]):
        if failed := coverage(*command):
            return failed
    report = json.loads((BUILD / "coverage.json").read_text())
    print("\n".join(figures(report["files"])))
    print(f"\nline by line: {BUILD.relative_to(ROOT)}/index.html")
    return status


def coverage(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "coverage", *arguments], cwd=ROOT, check=False).returncode


def figures(files: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A table with one line per package, the least covered first; `files` as coverage.py writes them in JSON."""
    packages: defaultdict[str, Counter[str]] = defaultdict(Counter)
    total: Counter[str] = Counter()
    for name, file in files.items():
        summary = Counter({key: value for key, value in file["summary"].items() if isinstance(value, int)})
        packages[package_of(name)].update(summary)
        total.update(summary)
    yield f"{'package':<12}{'lines':>16}{'branches':>16}{'both':>8}"
    for name, counts in sorted(packages.items(), key=lambda item: share(item[1])):
        yield line(name, counts)
    yield line("all", total)


def package_of(name: str) -> str:
    """`kernel` for src/quiesce/kernel/scope/scope.py; modules at the top are `quiesce`;

    `quiesce_chat` is one package.
    """
    inside = PurePath(name).parts[2:]
    return inside[0] if len(inside) > 1 else "quiesce"


def line(name: str, counts: Counter[str]) -> str:
    lines = f"{counts['covered_lines']}/{counts['num_statements']}"
    branches = f"{counts['covered_branches']}/{counts['num_branches']}"
    return f"{name:<12}{lines:>16}{branches:>16}{share(counts):>8.1%}"


def share(counts: Counter[str]) -> float:
    """What coverage.py calls the coverage, with branches: of all lines and branches, those that ran."""
    return (counts["covered_lines"] + counts["covered_branches"]) / (
        counts["num_statements"] + counts["num_branches"] or 1
    )


if __name__ == "__main__":
    sys.exit(main())
