"""Runs that are stopped, in every way, have ended; and everything else is as with the SDK."""

from __future__ import annotations

import pytest
from peers.agents_matrix import POINTS, STOPS, cell
from tests.world import asyncio_only

from quiesce.dropin import agents as dropin

pytestmark = [pytest.mark.real_time, pytest.mark.time_limit(60)]


@asyncio_only
@pytest.mark.parametrize("stop", STOPS)
async def test_whatever_a_run_waits_for_it_has_ended_when_its_stop_is_over(stop: str) -> None:
    cells = [await cell(dropin, point, stop) for point in POINTS]
    assert [one for one in cells if one["faults"]] == []
