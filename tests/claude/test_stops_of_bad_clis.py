"""A CLI that does something wrong, stopped: nothing is left, in any way to stop it.

With the other tests, each fault is stopped in one way; with `make audit`, in every way.
"""

from __future__ import annotations

from functools import partial

import pytest

from quiesce import Grace
from tests.audit_level import FULL
from tests.claude.clis import Cli
from tests.claude.faults import FAULTS
from tests.claude.test_stops import stopped
from tests.claude.ways_to_stop import CLIENT, QUERY, Stage, Way

WAYS = {**QUERY, **CLIENT}

pytestmark = [pytest.mark.real_time, pytest.mark.audit]


def matrix() -> list[object]:
    found: list[object] = []
    for number, fault in enumerate(FAULTS):
        for other, way in enumerate(WAYS):
            if FULL or other == (5 * number) % len(WAYS):
                found.append(pytest.param(fault, WAYS[way], id=f"{fault.replace(' ', '_')}-{way}"))
    return found


@pytest.mark.parametrize(("fault", "way"), matrix())
async def test_nothing_is_left(cli: Cli, fault: str, way: Way) -> None:
    looks: list[int] = []

    def look() -> None:
        cli.assert_gone()
        looks.append(cli.ticks())

    bad = FAULTS[fault]
    stage = Stage(bad.options(cli), partial(bad.at_work, cli), look, Grace(cancel=0.3, terminate=0.1, kill=5))
    await stopped(cli, way, stage)
    assert looks
    assert cli.ticks() == looks[0]
    cli.assert_interrupted_first()
    if bad.ready == "asked":
        assert cli.is_up("tidy")  # what was at work for it has cleaned up
        assert not [answer for answer in cli.answers() if answer["request_id"].startswith("ask")]
