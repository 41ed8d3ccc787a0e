"""The kernel, judged by the audit: every word is stopped in every way, and nothing is left.

How thorough it is depends on `tests.audit_level`. What starts real processes is sampled even in the full audit.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator

import pytest

import quiesce
from quiesce.audit import AuditResult
from tests.audit_level import FULL
from tests.kernel.audited import Audited, all_scenarios
from tests.world import world_names

# How many points of each strip are used, where not all are. A run on trio or uvloop takes five to ten times as long.
SAMPLE = {"asyncio": 3, "asyncio-eager": 2, "trio": 1, "uvloop": 1}
SAMPLE_OF_PROCESSES = 3

pytestmark = [pytest.mark.audit, pytest.mark.time_limit(300)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The kernel logs what nobody looked at, and here that is thousands of errors made by the audit."""
    logging.getLogger("quiesce").disabled = True
    yield
    logging.getLogger("quiesce").disabled = False


def sweeps() -> list[object]:
    """Each scenario in each world; a first scenario a word where time is real and this is not the full audit."""
    found: list[object] = []
    seen: set[tuple[str, str, bool]] = set()
    for scenario in all_scenarios():
        for world in world_names():
            is_slow = world == "uvloop" or scenario.processes
            key = scenario.word, world, scenario.processes
            if world not in scenario.worlds or (not FULL and is_slow and key in seen):
                continue
            if not FULL and scenario.processes and world != "asyncio":
                continue
            seen.add(key)
            found.append(pytest.param(scenario, world, id=f"{scenario.name}-{world}"))
    return found


def sweep(scenario: Audited, world: str) -> Iterator[AuditResult]:
    if scenario.processes:
        # `descendant` on trio cancels scopes of the kernel's own, which nobody else could get hold of: there it would
        # only show that a tree whose watcher is taken away is not waited for.
        stops = scenario.options.get("stops", "cancel,scope,timeout,raise" if world == "trio" else "all")
        yield scenario.audit(world, stops=stops, depth=1, sample=SAMPLE_OF_PROCESSES if FULL else 1)
    elif FULL:
        yield scenario.audit(world)
    else:
        yield from scenario.audits(world, SAMPLE[world])


@pytest.mark.parametrize(("scenario", "where"), sweeps())
def test_stopped_anywhere_nothing_is_left(
    scenario: Audited, where: str, record_property: Callable[[str, object], None]
) -> None:
    for result in sweep(scenario, where):
        for name, value in (("word", scenario.word), ("points", result.points), ("runs", result.runs)):
            record_property(name, value)  # for `--junitxml`: docs/audit/kernel.md has the numbers
        assert result.verdict in ("CLEAN", "FINDINGS"), str(result)
        assert not result.errors, str(result)
        if result.is_complete:
            assert result.clean, str(result)  # no ignore is out of date either
        if where != "trio":
            assert_others_can_only_cut_a_clean_up(result)


def assert_others_can_only_cut_a_clean_up(result: AuditResult) -> None:
    """What a foreign `task.cancel()` of a child does is a warning: see the limits of promise 3.

    On trio the audit gets hold of scopes that are the kernel's own, and that nobody else could cancel.
    """
    warnings = [
        finding for finding in result.findings if finding.severity == "warning" and not finding.ignored
    ]
    assert {finding.kind for finding in warnings} <= {"check"}, str(result)


def test_every_word_of_the_kernel_has_a_scenario() -> None:
    audited = {scenario.word for scenario in all_scenarios()}
    # A `Reason` is a part of what `StopReport` and `CancelToken` are audited with; a look at what runs waits for nothing.
    plain_data = {"Reason", "Branch", "tree"}
    given_by_a_word = {"Containment", "Held", "Leftover", "Outcome", "Remote", "Stream"}
    words = {
        name
        for name in importlib.import_module("quiesce").__all__
        if not (
            isinstance(getattr(quiesce, name), type) and issubclass(getattr(quiesce, name), BaseException)
        )
    }
    assert words - plain_data - given_by_a_word == audited
