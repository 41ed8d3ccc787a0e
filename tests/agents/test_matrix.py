"""The matrix: a run is parked at every place where it can wait, and stopped there in every way.

When control is back nothing is left, every clean-up came to its end, the caller has its own cancel, and the history is valid: in the
result and in the session. One test a way and a world goes through all the places.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from quiesce.models import UserMessage
from tests.agents.await_points import POINTS
from tests.agents.scenes import Parked, assert_valid, session_with
from tests.agents.ways_to_stop import CALLERS, STREAMED, run_and_stop, stream_and_stop

pytestmark = [pytest.mark.worlds("asyncio", "trio"), pytest.mark.time_limit(60)]


async def at_every_point(stop: Callable[[str], Awaitable[None]]) -> None:
    """Stop a run at each; what went wrong, with where it did."""
    wrong: list[Exception] = []
    for at in POINTS:
        try:
            await stop(at)
        except Exception as error:
            error.add_note(f"parked at {at}")
            wrong.append(error)
    if wrong:
        raise ExceptionGroup(f"{len(wrong)} of {len(POINTS)} places", wrong)


@pytest.mark.parametrize("way", CALLERS)
async def test_a_run_stopped_anywhere_leaves_nothing_and_a_valid_history(way: str) -> None:
    async def stop(at: str) -> None:
        parked = Parked()
        agent, options = POINTS[at](parked)
        session = options.setdefault("session", await session_with())
        await run_and_stop(way, agent, options, parked)
        items = await session.get_items()
        assert_valid(items)
        assert items[:1] == ([] if at == "session_read" else [UserMessage("?")])

    await at_every_point(stop)


@pytest.mark.parametrize("way", STREAMED)
async def test_a_streamed_run_stopped_anywhere_leaves_nothing_and_a_valid_history(way: str) -> None:
    async def stop(at: str) -> None:
        parked = Parked()
        agent, options = POINTS[at](parked)
        session = options.setdefault("session", await session_with())
        result = await stream_and_stop(way, agent, options, parked)
        assert_valid(result.to_input_list())
        assert result.final_output is None
        assert result.is_complete
        assert result.report is not None
        assert result.report.clean
        assert await session.get_items() == ([] if at == "session_read" else result.to_input_list())

    await at_every_point(stop)
