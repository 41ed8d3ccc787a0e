"""Queries and clients, judged by the audit: stopped anywhere, in every way, twice, nothing is left.

How thorough it is depends on `tests.audit_level`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.audit_level import EVERY_POINT, FULL
from tests.claude.audited import SCENARIOS
from tests.kernel.audited import WORLDS, Audited, ledger
from tests.kernel.audited.sampled import assert_nothing_is_left
from tests.world import world_names

NOT_OTHERS = "cancel,twice,thrice,shutdown,scope,timeout,raise"

pytestmark = [pytest.mark.audit, pytest.mark.time_limit(600 if FULL else 60)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of stops made by the audit are not worth a line each."""
    logging.getLogger("quiesce").disabled = True
    yield
    logging.getLogger("quiesce").disabled = False


def sweeps() -> list[object]:
    """Each scenario in each world; in a sample, each in one world, and each world with some."""
    found: list[object] = []
    for number, scenario in enumerate(SCENARIOS):
        for other, world in enumerate(world_names()):
            if FULL or (EVERY_POINT and world in ("asyncio", "trio")) or number % len(world_names()) == other:
                found.append(pytest.param(scenario, world, id=f"{scenario.__name__}-{world}"))
    return found


@pytest.mark.parametrize(("scenario", "where"), sweeps())
def test_stopped_anywhere_nothing_of_a_session_is_left(scenario: Callable[[], Any], where: str) -> None:
    audited = Audited("claude", scenario, WORLDS, {}, {}, False, {"check": ledger.check})
    if (
        where == "uvloop"
    ):  # where time is real, and a CLI whose own tasks are cancelled is given up after a minute
        results = [audited.audit(where, stops=NOT_OTHERS, depth=1, sample=5 if FULL else 1)]
    else:
        results = list(audited.audits(where))
    for result in results:
        assert_nothing_is_left(result, where)
