"""The test that stops scenarios at every point: the same for all that is built on the kernel.

How thorough it is depends on `tests.audit_level`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from quiesce.audit import AuditResult
from tests.audit_level import FULL
from tests.kernel.audited import Audited
from tests.world import world_names

SAMPLE = {"asyncio": 2, "asyncio-eager": 1, "trio": 1, "uvloop": 1}
WORLDS = world_names() if FULL else ["asyncio", "trio"]


@contextmanager
def quiet() -> Iterator[None]:
    """What the audit makes fail is not worth a line each."""
    logger = logging.getLogger("quiesce")
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = False


def audit_test(scenarios: Sequence[Audited]) -> Callable[..., None]:
    """A test of these scenarios: stopped anywhere, in every way, once and twice, nothing of them is left."""

    @pytest.mark.audit
    @pytest.mark.time_limit(300)
    @pytest.mark.parametrize("scenario", scenarios, ids=lambda scenario: scenario.name)
    @pytest.mark.parametrize("where", WORLDS)
    def test_stopped_anywhere_nothing_is_left(
        scenario: Audited, where: str, record_property: Callable[[str, object], None]
    ) -> None:
        with quiet():
            results = list(scenario.audits(where, SAMPLE[where]))
        for name, value in (("word", scenario.word), ("points", results[0].points)):
            record_property(name, value)
        record_property("runs", sum(result.runs for result in results))
        for result in results:
            assert_nothing_is_left(result, where)

    return test_stopped_anywhere_nothing_is_left


def assert_nothing_is_left(result: AuditResult, where: str) -> None:
    """It could be stopped, and what other people's `task.cancel()` of a child can do is cut a clean-up: see the limits of promise 3."""
    assert result.verdict in ("CLEAN", "FINDINGS"), str(result)
    assert not result.errors, str(result)
    if where != "trio":  # there the audit gets hold of scopes that are the kernel's own
        warnings = [
            finding for finding in result.findings if finding.severity == "warning" and not finding.ignored
        ]
        assert {finding.kind for finding in warnings} <= {"check"}, str(result)
