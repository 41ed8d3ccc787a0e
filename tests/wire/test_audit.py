"""Peers, judged by the audit: stopped at any point, in every way, once and twice, nothing is left and every request has its answer.

A sample of the points runs with the other tests; `make audit` uses all of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator

import pytest

from tests.kernel.audited import Audited
from tests.wire.audited import SCENARIOS
from tests.world import world_names

FULL = os.environ.get("QUIESCE_AUDIT") == "full"
SAMPLE = {"asyncio": 2, "asyncio-eager": 1, "trio": 1, "uvloop": 1}
WORLDS = world_names() if FULL else ["asyncio", "trio"]

pytestmark = [pytest.mark.audit, pytest.mark.time_limit(110)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What the audit makes fail is not worth a line each."""
    logging.getLogger("quiesce").disabled = True
    yield
    logging.getLogger("quiesce").disabled = False


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("where", WORLDS)
def test_stopped_anywhere_nothing_is_left(
    scenario: Audited, where: str, record_property: Callable[[str, object], None]
) -> None:
    if not FULL:
        result = scenario.audit(where, depth=1, sample=SAMPLE[where])
    elif where == "uvloop":  # in real time
        result = scenario.audit(where, depth=1)
    else:
        result = scenario.audit(where)
    for name, value in (("word", scenario.word), ("points", result.points), ("runs", result.runs)):
        record_property(name, value)
    assert result.verdict in ("CLEAN", "FINDINGS"), str(result)
    assert not result.errors, str(result)
    if where != "trio":  # there the audit gets hold of scopes that are the kernel's own
        warnings = [finding for finding in result.findings if finding.severity == "warning"]
        # What other people's `task.cancel()` of a child can do is cut a clean-up: see the limits of promise 3.
        assert {finding.kind for finding in warnings} <= {"check"}, str(result)
