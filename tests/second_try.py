"""Run each test that failed a second time, alone, after the others: `python -m pytest -p tests.second_try`.

This is for the gate; people run tests without it. On a busy machine, one test in ten thousand fails for lack of time. A test that
passes the second time is flaky: it is kept with its first failure in the file that QUIESCE_FLAKY names, and the stage passes.
`scripts/gate.py` lists it, and decides how many are too many. A test that fails twice has failed.

The second try is a process of its own, with the same interpreter and environment, after every xdist worker has exited. Anything
that is not a failed test (a collection error, an interrupt, a crash of pytest itself) has no second try.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flaky import MOST, RECORD, Flaky, keep

CHOICES = ("--every-world", "--one-world")  # options that decide which tests there are
RULES = "tests.conftest"
LIMIT = 900  # seconds for the second try of one test


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return  # the process that started the xdist workers receives all their reports
    record = os.environ.get(RECORD)
    if not record:
        raise pytest.UsageError(f"set {RECORD} to the file in which flaky tests are kept")
    config.pluginmanager.register(SecondTry(config, Path(record)), "second-try")


class SecondTry:
    def __init__(self, config: pytest.Config, record: Path) -> None:
        self._record = record
        self._root = config.rootpath
        self._has_groups = config.getoption("dist", "no") == "loadgroup"
        self._options = [name for name in CHOICES if config.getoption(name, False)]
        if RULES in config.getoption("plugins"):  # for tests in other folders
            self._options += ["-p", RULES]
        self._failures: dict[str, str] = {}
        self._has_collection_errors = False
        self._verdicts: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        output = "".join(f"--- {title}\n{content}\n" for title, content in report.sections)
        # A test may fail and then fail to clean up: both are kept.
        before = self._failures.get(report.nodeid, "")
        self._failures[report.nodeid] = f"{before}{report.when}: {report.longreprtext}\n{output}"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._has_collection_errors = self._has_collection_errors or report.failed

    @pytest.hookimpl(trylast=True)  # xdist ends its workers in this hook, too
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus != pytest.ExitCode.TESTS_FAILED or self._has_collection_errors or not self._failures:
            return
        if len(self._failures) > MOST:
            self._verdicts.append(
                f"{len(self._failures)} tests failed, and a gate accepts at most {MOST} flaky ones: none was run again"
            )
        elif all([*self._run_again()]):
            session.exitstatus = pytest.ExitCode.OK

    def _run_again(self) -> Iterator[bool]:
        for node_id, first_failure in self._failures.items():
            # With `--dist loadgroup`, xdist appends the group to the name.
            name = node_id.rpartition("@")[0] if self._has_groups and "@" in node_id else node_id
            command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *self._options, name]
            try:
                done = subprocess.run(
                    command, cwd=self._root, capture_output=True, text=True, timeout=LIMIT, check=False
                )
            except subprocess.TimeoutExpired:
                self._verdicts.append(f"FAILED TWICE {name}: alone, it did not finish in {LIMIT} s")
                yield False
                continue
            if done.returncode == 0:
                keep(Flaky(name, first_failure), self._record)
                self._verdicts.append(f"FLAKY {name}: alone, it passed")
            else:
                self._verdicts.append(f"FAILED TWICE {name}: alone, it printed\n{done.stdout}{done.stderr}")
            yield done.returncode == 0

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._verdicts:
            terminalreporter.section("second try")
            for verdict in self._verdicts:
                terminalreporter.write_line(verdict)
