"""However a query or a client is stopped: when control is back, the CLI's whole process tree has ended."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.audit_level import FULL
from tests.claude.clis import Cli
from tests.claude.faults import FAULTS
from tests.claude.test_stops import stopped
from tests.claude.ways_to_stop import CLIENT, QUERY, Way
from tests.world import asyncio_only

from quiesce import Grace, Scope

from .made_up import Dawdler, Stage, options_for

pytestmark = [asyncio_only, pytest.mark.real_time, pytest.mark.time_limit(60)]

WAYS = {**QUERY, **CLIENT}
BRISK = Grace(cancel=0.9, terminate=0.2, kill=0.9)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_a_cli_with_a_tool_at_work_has_ended(cli: Cli, way: Way) -> None:
    looks: list[int] = []

    def look() -> None:
        cli.assert_gone()
        looks.append(cli.ticks())

    options = options_for(cli, [["text", "hello"], cli.ticking()])
    await stopped(cli, way, Stage(options, cli.until_ticking, look))
    assert looks
    assert cli.ticks() == looks[0]
    if way in CLIENT.values():
        cli.assert_interrupted_first()


def matrix() -> list[Any]:
    """Each fault with a way to stop a query, and one to stop a client; with `make audit`, with every way."""
    found = []
    for number, fault in enumerate(FAULTS):
        for ways in (QUERY, CLIENT):
            for other, (name, way) in enumerate(ways.items()):
                if FULL or other == 5 * number % len(ways):
                    found.append(pytest.param(fault, way, id=f"{fault.replace(' ', '_')}-{name}"))
    return found


@pytest.mark.worlds("asyncio")
@pytest.mark.parametrize(("name", "way"), matrix())
async def test_a_bad_cli_has_ended(cli: Cli, name: str, way: Way) -> None:
    bad = FAULTS[name]
    dawdler = Dawdler(cli, 0.03)
    called: Any = {}
    if bad.ready == "asked":
        how = name.removeprefix("waits for a ").partition(" ")[0].rstrip(",")
        called = dawdler.called_by(how)
    options = options_for(cli, [["text", "hello"], *bad.steps(cli)], script=bad.script, **called)
    async with Scope("brisk", grace=BRISK):
        await stopped(cli, way, Stage(options, partial(bad.at_work, cli), cli.assert_gone))
    assert dawdler.cleaned == dawdler.begun
    assert bool(dawdler.begun) == bool(called)
