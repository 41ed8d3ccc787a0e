"""The plugin's options, ini values and markers: read once, and refused with an explanation if they make no sense.

This module imports nothing of the audit, because pytest loads it in every process that has quiesce installed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SWEEP = "cancel_everywhere"
IGNORE = "quiesce_ignore"
SWEEP_OPTIONS = frozenset(
    {
        "again",
        "backend",
        "check",
        "dedupe",
        "depth",
        "ignore",
        "limits",
        "patience",
        "phases",
        "real_io",
        "sample",
        "seed",
        "stops",
        "time_limit",
    }
)
MARKERS = (
    f"{SWEEP}(stops=, phases=, depth=, backend=, check=, real_io=, patience=, sample=, dedupe=, ignore=): stop this "
    "async test at every point where it can be stopped, and check each time that nothing is left over",
    f"{IGNORE}(*patterns, reason): findings of quiesce that do not count, such as 'leaked Client._poll*', and why",
)
# Between a pattern and its reason on one line.
SEPARATOR = " -- "


@dataclass(frozen=True, slots=True)
class Ignore:
    """A pattern for findings that do not count. `node` is the test or file that declares it, "" for the session."""

    pattern: str
    reason: str
    node: str
    #: Declared on exactly this test, and stale if this test does not show it.
    is_own: bool


class Settings:
    """The options of a session."""

    def __init__(self, config: pytest.Config) -> None:
        self.is_on = bool(config.getoption("quiesce") or config.getini("quiesce"))
        self.at: str | None = config.getoption("quiesce_at")
        self.html: str | None = config.getoption("quiesce_html")
        self.write: str | None = config.getoption("quiesce_write_baseline")
        self.baseline: str | None = (
            config.getoption("quiesce_baseline") or config.getini("quiesce_baseline") or None
        )
        if self.baseline is not None:
            self.baseline = str(_from_root(config, self.baseline))
        lines = [*config.getini("quiesce_ignore"), *(config.getoption("quiesce_ignore") or ())]
        self.ignores = [_read_line(line) for line in lines]


def add_options(parser: pytest.Parser) -> None:
    """Add the plugin's command-line options and ini values."""
    group = parser.getgroup("quiesce", "leak verdicts and cancellation sweeps")
    group.addoption(
        "--quiesce",
        action="store_true",
        default=None,
        help="fail every async test that leaves tasks, threads, processes or descriptors behind",
    )
    group.addoption(
        "--quiesce-at",
        metavar="TOKEN",
        help=f"repeat one run of a @pytest.mark.{SWEEP} test, named by a token in its report",
    )
    group.addoption(
        "--quiesce-ignore",
        action="append",
        metavar=f"'PATTERN{SEPARATOR}REASON'",
        help="a finding that does not count, for the whole session; the session fails if it matches nothing any more",
    )
    group.addoption(
        "--quiesce-baseline", metavar="FILE", help="findings in FILE are known and do not fail their tests"
    )
    group.addoption(
        "--quiesce-write-baseline",
        metavar="FILE",
        help="write the findings to FILE, and let no test fail because of them",
    )
    group.addoption(
        "--quiesce-html", metavar="FILE", help="write a report of all sweeps and findings to FILE"
    )
    parser.addini("quiesce", "the same as --quiesce", type="bool", default=False)
    parser.addini("quiesce_baseline", "the same as --quiesce-baseline", type="string", default="")
    parser.addini(
        "quiesce_ignore",
        f"findings that do not count, one per line: pattern{SEPARATOR}reason",
        type="linelist",
        default=[],
    )


def _from_root(config: pytest.Config, path: str) -> Path:
    """Resolve a path: an ini value relative to the root directory, an option relative to the current directory."""
    if config.getoption("quiesce_baseline"):
        return config.invocation_params.dir / path
    return config.rootpath / path


def _read_line(line: str) -> Ignore:
    pattern, found, reason = line.partition(SEPARATOR)
    if not found or not pattern.strip() or not reason.strip():
        raise pytest.UsageError(
            f"the quiesce ignore {line!r} has no reason: "
            f"write it as 'leaked Client._poll*{SEPARATOR}why it does not count'"
        )
    return Ignore(pattern.strip(), reason.strip(), "", is_own=False)


def is_async(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and is_async_function(item.obj)


def is_async_function(function: Any) -> bool:
    """Whether a test function is async, or is a hypothesis test around an async function."""
    inner = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    return inspect.iscoroutinefunction(inner)


def sweep_marker(item: pytest.Item) -> pytest.Mark | None:
    return item.get_closest_marker(SWEEP)


def ignores_of(item: pytest.Item) -> list[Ignore]:
    """The ignores from the test's markers, the nearest first."""
    found: list[Ignore] = []
    for node, mark in item.iter_markers_with_node(IGNORE):
        is_own = node is item and not hasattr(item, "callspec")
        where = item.nodeid if is_own else node.nodeid
        # A parametrised test: the ignore is stale only if the test shows nothing with any of its parameters.
        if node is item and not is_own:
            where = item.nodeid.partition("[")[0]
        found += [Ignore(pattern, mark.kwargs.get("reason", ""), where, is_own) for pattern in mark.args]
    sweep = sweep_marker(item)
    if sweep is not None:
        ignores = sweep.kwargs.get("ignore") or {}
        found += [Ignore(pattern, reason, item.nodeid, is_own=True) for pattern, reason in ignores.items()]
    return found


def check_markers(items: list[pytest.Item]) -> None:
    """Raise `pytest.UsageError` for markers that make no sense, before any test runs."""
    problems = [problem for item in items for problem in problems_of(item)]
    if problems:
        raise pytest.UsageError("\n".join(dict.fromkeys(problems)))


def problems_of(item: pytest.Item) -> Iterator[str]:
    """Messages about what is wrong with the markers of a test."""
    for mark in item.iter_markers(IGNORE):
        reason = mark.kwargs.get("reason")
        example = f"@pytest.mark.{IGNORE}('leaked Client._poll*', reason='...')"
        if not mark.args or not all(isinstance(pattern, str) for pattern in mark.args):
            yield f"{item.nodeid}: {IGNORE} names no finding: write {example}"
        elif not isinstance(reason, str) or not reason.strip() or set(mark.kwargs) != {"reason"}:
            yield f"{item.nodeid}: {IGNORE}({mark.args[0]!r}) has no reason: write {example}"
    sweep = sweep_marker(item)
    if sweep is not None:
        from .sweep import problems_of_sweep

        for problem in problems_of_sweep(item, sweep):
            yield f"{item.nodeid}: {SWEEP}: {problem}"
