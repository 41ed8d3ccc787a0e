"""The pytest plugin: leak verdicts for async tests (`--quiesce`), and tests that are sweeps (`cancel_everywhere`).

pytest loads this module in every session of an environment that has quiesce. It is off unless asked, and it imports
neither the audit nor an async library until a test or an option asks for one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import pytest

from quiesce.audit.pytest import (
    ATTRIBUTE,
    ENTRY,
    MARKERS,
    Ledger,
    Settings,
    add_options,
    check_markers,
    problems_of,
    sweep_marker,
)

_LEDGER = pytest.StashKey[Ledger]()
_SWEEPING = pytest.StashKey[object]()  # of an item that the audit has taken over
_DESELECTED = "quiesce_deselected"  # in what a worker of xdist says at its end


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    settings = Settings(config)
    ledger = config.stash[_LEDGER] = Ledger(config, settings)
    config.pluginmanager.register(_Reports(ledger), "quiesce-reports")
    if settings.is_on:
        from quiesce.audit.pytest import Watching

        config.pluginmanager.register(Watching(ledger), "quiesce-watching")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # A worker of xdist that refuses tells nobody why: there the tests themselves fail.
    if not hasattr(config, "workerinput"):
        check_markers(items)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    if items:
        items[0].config.stash[_LEDGER].deselected += len(items)


# Sweeps


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if hasattr(item.config, "workerinput") and (problems := list(problems_of(item))):
        pytest.fail("\n".join(problems), pytrace=False)
    mark = sweep_marker(item)
    if mark is not None and isinstance(item, pytest.Function):
        from quiesce.audit.pytest import TestSweep

        # Not at collection: anyio's plugin makes items anew when that is over.
        item.stash[_SWEEPING] = TestSweep(item, mark, item.config.stash[_LEDGER])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: Any) -> Generator[None, object, object]:
    # Raised before anybody else's wrapper sees it: other plugins would make a loop for the fixture.
    if _SWEEPING in request._pyfuncitem.stash:
        from quiesce.audit.pytest import stop_at_async

        stop_at_async(fixturedef, request)
    return (yield)


# The account of the session


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if ENTRY in item.stash:
        setattr(report, ATTRIBUTE, item.stash[ENTRY])
        del item.stash[ENTRY]
    return report


class _Reports:
    """Hooks that are not told whose session it is."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._ledger.add(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._ledger.deselected += getattr(node, "workeroutput", {}).get(_DESELECTED, 0)


def pytest_sessionfinish(session: pytest.Session) -> None:
    ledger = session.config.stash[_LEDGER]
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is None:
        ledger.close(session)
    else:
        output[_DESELECTED] = ledger.deselected


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for line in config.stash[_LEDGER].summary():
        terminalreporter.write_line(line)
