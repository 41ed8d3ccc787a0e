"""However it is stopped: the CLI is interrupted first, and when control is back its whole process tree is gone."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from quiesce import Grace, Scope
from quiesce.claude import ClaudeSDKClient
from tests.claude.clis import Cli
from tests.claude.faults import FAULTS
from tests.claude.ways_to_stop import CLIENT, QUERY, Stage, Way

pytestmark = pytest.mark.real_time


async def stopped(cli: Cli, way: Way, stage: Stage) -> None:
    """Stop it in this way, beside an innocent task of the same owner, which must not be touched."""
    innocent: list[str] = []

    async def live_on() -> None:
        while not innocent:
            await anyio.sleep(0.001)
        innocent.append("lived on")

    async with Scope("the user's") as users:
        beside = users.spawn(live_on)
        await way(stage)
        assert beside.state == "running"
        innocent.append("go")
    assert innocent == ["go", "lived on"]


@pytest.mark.parametrize("way", [*QUERY.values(), *CLIENT.values()], ids=[*QUERY, *CLIENT])
async def test_a_cli_with_a_tool_at_work_is_interrupted_and_gone(cli: Cli, way: Way) -> None:
    looks: list[int] = []

    def look() -> None:
        cli.assert_gone()
        looks.append(cli.ticks())

    options = cli.options([["text", "hello"], cli.ticking()])
    await stopped(cli, way, Stage(options, cli.until_ticking, look))
    assert looks
    assert cli.ticks() == looks[0]  # nobody was left who could have ticked
    cli.assert_interrupted_first()
    if not cli.happened("signal"):  # as a machine that is slow enough, and many cancels, bring about
        assert cli.happened("said")[-1]["subtype"] == "error_during_execution"  # and had heard of it


async def test_a_prompt_that_waits_is_not_begun_when_the_cli_is_stopped(cli: Cli) -> None:
    """An interrupt ends one turn, and the end of its input does not keep the CLI from the next."""
    patient = Grace(cancel=30)
    options = cli.options([["text", "hello"], cli.ticking()], [["hang"]])
    async with ClaudeSDKClient(options, grace=patient) as client:
        await client.query("one")
        await cli.until_ticking()
        await client.query("two")
    cli.assert_gone()
    assert client.report is not None
    assert client.report.elapsed < 15
    assert cli.happened("signal") == ["SIGTERM"]


@pytest.mark.parametrize("way", [CLIENT["disconnected_by_another_task"], QUERY["closed_by_another_task"]])
async def test_how_a_cli_ends_that_we_have_ended_is_nobodys_error(cli: Cli, way: Way) -> None:
    """It exits with 143, as it was told to; whoever reads gets the end of the messages."""
    fault = FAULTS["waits for a hook, and never answers"]
    grace = Grace(cancel=0.3, terminate=9, kill=5)
    await way(Stage(fault.options(cli), partial(fault.at_work, cli), cli.assert_gone, grace))
    assert cli.happened("signal") == ["SIGTERM"]
    assert cli.happened("exit") == [143]
