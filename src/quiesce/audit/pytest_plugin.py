"""The pytest plugin: leak verdicts for async tests (`--quiesce`), and tests that are sweeps (`cancel_everywhere`).

pytest loads this module in every session of an environment that has quiesce. The plugin does nothing by default, and it
imports neither the audit nor an async library until an option or a marker needs one.
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
# In the stash of an item that the audit has taken over.
_SWEEPING = pytest.StashKey[object]()
# In the output of an xdist worker.
_DESELECTED = "quiesce_deselected"


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
    # The error of an xdist worker during collection is lost. In a worker the tests themselves fail, during set-up.
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

        # Not during collection: anyio's plugin replaces items after it.
        item.stash[_SWEEPING] = TestSweep(item, mark, item.config.stash[_LEDGER])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: Any) -> Generator[None, object, object]:
    # `tryfirst`, so that it raises before the wrappers of other plugins run: they would create a loop for the fixture.
    if _SWEEPING in request._pyfuncitem.stash:
        from quiesce.audit.pytest import stop_at_async

        stop_at_async(fixturedef, request)
    return (yield)


# The data of the session


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if ENTRY in item.stash:
        setattr(report, ATTRIBUTE, item.stash[ENTRY])
        del item.stash[ENTRY]
    return report


class _Reports:
    """Hooks whose arguments do not lead to the config, and so to the ledger."""

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
