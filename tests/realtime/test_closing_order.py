"""In which order a session is closed: it cancels its guardrails and tools, waits for them, and only then closes the model.

By the public API, with a real tool and a real guardrail. On trio the clean-up awaits inside `shielded`, as it must there.
"""

from __future__ import annotations

import gc
from typing import Any

import anyio
import pytest

from quiesce import Scope
from quiesce.realtime import RealtimeSession
from quiesce.realtime.testing import ScriptedRealtimeModel
from quiesce.testing import call
from tests.kernel.temperaments import virtual_worlds
from tests.realtime.scenes import EAGER_GUARDS, LONG, Part, agent


class WatchedModel(ScriptedRealtimeModel):
    """Notes what had ended when it was closed, and what the session still kept of it."""

    def __init__(self, turns: Any, *parts: Part) -> None:
        super().__init__(turns)
        self.parts = parts
        self.session: RealtimeSession | None = None
        self.at_close: list[tuple[bool, ...]] = []

    async def close(self) -> None:
        self.at_close.append(tuple(part.clean for part in self.parts))
        await super().close()


def at_work(*parts: Part) -> tuple[RealtimeSession, WatchedModel]:
    """A session whose first part is a guardrail that looks, and whose others are tools at work."""
    guard, *tools = parts
    model = WatchedModel([[LONG, *(call(tool.name) for tool in tools)]], *parts)
    made = agent(*(tool.tool for tool in tools), output_guardrails=[guard.guardrail])
    return RealtimeSession(model, made, run_config=EAGER_GUARDS), model  # type: ignore[arg-type]


def tracked(session: RealtimeSession) -> tuple[int, int]:
    """How many calls and responses the session keeps an account of."""
    return len(session._task.calls._calls), len(session._task.guards._responses)


async def begun(session: RealtimeSession, *parts: Part) -> None:
    await session.enter()
    await session.send_message("hello")
    for part in parts:
        await part.begun.wait()


async def test_when_close_returns_guardrail_and_tool_are_done_and_their_clean_ups_have_run() -> None:
    guard, tool = Part("guard"), Part("tool")
    session, model = at_work(guard, tool)
    await begun(session, guard, tool)
    children = session._task.work.children
    assert {child.name for child in children} == {"guardrail guard", "tool"}
    assert tracked(session) == (1, 1)
    report = await session.close()
    assert [child.done for child in children] == [True, True]
    assert (guard.clean, tool.clean) == (True, True)
    assert tracked(session) == (0, 0)
    assert model.at_close == [(True, True)]
    assert not model.connected
    assert report.clean, str(report)


@virtual_worlds
async def test_what_is_tracked_is_forgotten_only_when_it_has_ended() -> None:
    guard, tool = Part("guard", tidy=1), Part("tool", tidy=2)
    session, model = at_work(guard, tool)
    await begun(session, guard, tool)
    seen: list[tuple[float, tuple[int, int], int]] = []
    async with Scope() as scope:
        closing = scope.spawn(session.close)
        start = anyio.current_time()
        for _ in range(4):
            await anyio.sleep(0.6)
            seen.append((anyio.current_time() - start, tracked(session), model.closes))
        await closing.wait()
    calls = [tracked[0] for _, tracked, _ in seen]
    assert calls == [1, 1, 1, 0]  # its clean-up ends after two seconds
    assert [closes for *_, closes in seen] == [0, 0, 0, 1]


@pytest.mark.parametrize("who", ["guard", "tool"])
async def test_an_error_in_a_clean_up_is_in_the_report_and_keeps_nobody_from_cleaning_up(who: str) -> None:
    error = LookupError("the disk is full")
    guard = Part("guard", error=error if who == "guard" else None)
    tool = Part("tool", error=error if who == "tool" else None)
    other = Part("other", tidy=0.2)
    session, model = at_work(guard, tool, other)
    await begun(session, guard, tool, other)
    report = await session.close()
    assert report.errors == [error]
    assert "the disk is full" in str(report)
    assert report.clean, str(report)
    assert model.at_close == [(True, True, True)]


async def test_the_end_of_the_block_does_the_same() -> None:
    guard, tool = Part("guard"), Part("tool", error=LookupError("the disk is full"))
    session, model = at_work(guard, tool)
    async with session:
        await session.send_message("hello")
        await guard.begun.wait()
        await tool.begun.wait()
    assert model.at_close == [(True, True)]
    assert tracked(session) == (0, 0)
    assert session.report is not None
    assert [str(error) for error in session.report.errors] == ["the disk is full"]


async def test_nobody_hears_of_an_error_by_the_collector(caplog: pytest.LogCaptureFixture) -> None:
    """What the event loop complains of fails this test by itself: see tests/conftest.py."""
    guard = Part("guard", error=LookupError("one"))
    tool = Part("tool", error=LookupError("two"))
    session, _ = at_work(guard, tool)
    await begun(session, guard, tool)
    await session.close()
    del session
    gc.collect()
    said = [record.message for record in caplog.records if record.levelname != "DEBUG"]
    blocked = "the event loop's thread was blocked"  # by a machine that stood still
    assert [each for each in said if blocked not in each] == []


async def test_hundreds_of_tools_are_all_awaited() -> None:
    guard, *tools = [Part("guard"), *(Part(f"tool_{number}") for number in range(200))]
    session, model = at_work(guard, *tools)
    await begun(session, guard, *tools)
    report = await session.close()
    assert report.clean, str(report)
    assert model.at_close == [(True,) * 201]
    assert len(str(report)) < 2000
