"""Conversations, judged by the audit: stopped at every point, in every way, nothing is left and nothing is half said.

How thorough it is depends on `tests.audit_level`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.agents.audited_conversation import SCENARIOS
from tests.audit_level import FULL
from tests.kernel.audited import Audited
from tests.world import world_names

SAMPLE = {"asyncio": 2, "trio": 1}
WHERE = world_names() if FULL else ["asyncio", "trio"]

pytestmark = [pytest.mark.audit, pytest.mark.time_limit(300)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What the audit breaks is logged, a thousand times over."""
    logging.getLogger("quiesce").disabled = True
    yield
    logging.getLogger("quiesce").disabled = False


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_stopped_anywhere_nothing_is_left(scenario: Audited, where: str) -> None:
    for result in scenario.audits(where, SAMPLE.get(where, 1)):
        assert result.verdict in ("CLEAN", "FINDINGS"), str(result)
        assert not result.errors, str(result)
        if result.is_complete:
            assert result.clean, str(result)
