"""The run's grace bounds all that a stop waits for: the drain, the session or the store, the hooks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from quiesce import Grace, Scope
from quiesce.agents import (
    MemorySession,
    MemoryStore,
    RunConfig,
    RunHooks,
    Runner,
    RunResultStreaming,
    function_tool,
)
from quiesce.agents.store import Event
from quiesce.agents.store.memory import MemoryLog
from quiesce.models import Item, UserMessage
from quiesce.testing import call
from tests.agents.conversations import running, talk
from tests.agents.scenes import assert_valid, consumed, guarded_input, outcomes, scripted, trips
from tests.kernel.temperaments import Stubborn, forever, virtual_worlds

pytestmark = virtual_worlds

GRACE = Grace(cancel=0.6, terminate=0.2, kill=0.2)
CONFIG = RunConfig(grace=GRACE)
LITTLE = 1e-6  # of a clock that adds up fractions


class Slow(MemorySession):
    """A session whose every access waits for something."""

    __slots__ = ("_wait", "armed")

    def __init__(self, wait: Callable[[], Awaitable[object]]) -> None:
        super().__init__("slow")
        self._wait = wait
        self.armed = True

    async def add_items(self, items: Any) -> None:
        if self.armed:
            await self._wait()
        await super().add_items(items)


class SlowHooks(RunHooks[Any]):
    def __init__(self, wait: Callable[[], Awaitable[object]], *when: str) -> None:
        for name in when:
            setattr(self, name, lambda *_: wait())


@asynccontextmanager
async def bounded(seconds: float) -> AsyncGenerator[None, None]:
    """What is inside takes no longer than that."""
    began = anyio.current_time()
    yield
    assert anyio.current_time() - began <= seconds + LITTLE


async def cancel_after_a_second(result: RunResultStreaming) -> None:
    await anyio.sleep(1)
    result.cancel()


@function_tool
async def wait_for_ever() -> str:
    await forever()
    return "never"


async def test_a_session_that_hangs_takes_no_longer_than_the_grace_of_the_run() -> None:
    async with bounded(1 + GRACE.total):
        with anyio.move_on_after(1):
            await Runner.run(scripted("ok"), "?", session=Slow(forever), run_config=CONFIG)


async def test_a_session_that_hangs_only_when_the_run_settles_takes_no_longer_either() -> None:
    session = Slow(forever)
    session.armed = False
    async with bounded(1 + GRACE.total):
        with anyio.move_on_after(1):
            async with anyio.create_task_group() as group:

                async def arm() -> None:
                    await anyio.sleep(0.5)
                    session.armed = True

                group.start_soon(arm)
                agent = scripted(call("wait_for_ever"), tools=[wait_for_ever])
                await Runner.run(agent, "?", session=session, run_config=CONFIG)


async def test_nor_after_a_guardrail_that_trips() -> None:
    agent = scripted(
        call("wait_for_ever"), tools=[wait_for_ever], input_guardrails=[guarded_input(trips(), 1)]
    )
    async with bounded(1 + GRACE.total):
        with pytest.raises(Exception, match="was triggered") as caught:
            await Runner.run(agent, "?", session=Slow(forever), run_config=CONFIG)
    assert any("_save_and_tell" in note for note in caught.value.__notes__)


async def test_nor_in_a_streamed_run_that_is_closed() -> None:
    async with Scope("app"):
        result = Runner.run_streamed(scripted("ok"), "?", session=Slow(forever), run_config=CONFIG)
        async with consumed(result):
            await anyio.sleep(1)
            async with bounded(GRACE.total):
                await result.close()


@pytest.mark.parametrize("hook", ["on_cancel", "on_settled"])
async def test_a_hook_that_hangs_takes_no_longer_than_the_grace_of_the_run(hook: str) -> None:
    async with bounded(1 + GRACE.total):
        with anyio.move_on_after(1):
            agent = scripted(call("wait_for_ever"), tools=[wait_for_ever])
            await Runner.run(agent, "?", hooks=SlowHooks(forever, hook), run_config=CONFIG)


async def test_the_hooks_of_a_run_that_came_to_its_end_are_not_hurried() -> None:
    told: list[str] = []

    async def slowly() -> None:
        await anyio.sleep(2)
        told.append("settled")

    await Runner.run(scripted("ok"), "?", hooks=SlowHooks(slowly, "on_settled"), run_config=CONFIG)
    assert told == ["settled"]


async def test_a_session_that_ignores_its_cancel_is_named_and_not_written_to_a_second_time() -> None:
    stubborn = Stubborn()
    session = Slow(stubborn)
    async with Scope("app", grace=GRACE, on_error="report") as app:
        result = Runner.run_streamed(scripted("ok"), "?", session=session, run_config=CONFIG)
        with pytest.raises(RuntimeError, match="'slow' has not ended an earlier add_items"):
            app.spawn(cancel_after_a_second, result)
            async with bounded(1 + GRACE.total):
                async for _ in result.stream_events():
                    pass
        assert result.report is not None
        assert [left.name for left in result.report.left] == ["Engine.drive"]
        assert "1 items were not saved" in result.report.notes[-1]
        stubborn.let_go()
    assert await session.get_items() == [UserMessage("?")]


async def test_a_session_that_ignores_its_cancel_when_the_run_settles_is_named() -> None:
    stubborn = Stubborn()
    session = Slow(stubborn)
    session.armed = False
    async with Scope("app", grace=GRACE, on_error="report") as app:
        agent = scripted(call("wait_for_ever"), tools=[wait_for_ever])
        result = Runner.run_streamed(agent, "?", session=session, run_config=CONFIG)
        with pytest.raises(TimeoutError, match="still waits, at tests"):
            app.spawn(cancel_after_a_second, result)
            async with bounded(1 + GRACE.total):
                async for event in result.stream_events():
                    session.armed |= event.type == "run_item_stream_event"  # its first item is saved
        assert result.report is not None
        assert "still waits, at tests" in result.report.notes[-1]
        stubborn.let_go()


@pytest.mark.parametrize("needs", [0.0, 0.15])
async def test_a_leftover_that_has_used_up_the_grace_does_not_keep_the_session_from_being_complete(
    needs: float,
) -> None:
    stubborn, session = Stubborn(), Slow(lambda: anyio.sleep(needs))

    @function_tool
    async def deaf() -> str:
        await stubborn()
        return "late"

    async with Scope("app", grace=GRACE):
        with anyio.move_on_after(1):
            await Runner.run(scripted(call("deaf"), tools=[deaf]), "?", session=session, run_config=CONFIG)
        items = await session.get_items()
        assert_valid(items)
        assert len(outcomes(items)) == 1
        stubborn.let_go()


# Conversations


class SlowStore(MemoryStore):
    """In memory, but from a moment on each append waits for something."""

    __slots__ = ("armed", "wait")

    def __init__(self, wait: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self.wait = wait
        self.armed = False

    def open(self, conversation_id: str) -> MemoryLog:
        return _SlowLog(self, conversation_id)


class _SlowLog(MemoryLog):
    __slots__ = ()

    async def append(self, events: Sequence[Event], *, after: int | None = None) -> int:
        store = self._store
        assert isinstance(store, SlowStore)
        if store.armed:
            await store.wait()
        return self.append_sync(events, after=after)


async def test_a_store_that_hangs_bounds_neither_an_interrupt_nor_the_close() -> None:
    store = SlowStore(forever)
    conversation = talk(call("wait_for_ever"), tools=(wait_for_ever,), store=store, grace=GRACE)
    async with running(conversation):
        await anyio.sleep(1)
        store.armed = True
        async with bounded(GRACE.total):
            await conversation.interrupt()
    assert conversation.status == "paused"
    async with bounded(GRACE.total):
        await conversation.close()
    items: list[Item] = conversation.items
    assert_valid(items)


async def test_what_a_store_that_hung_did_not_take_is_written_when_it_works_again() -> None:
    store = SlowStore(forever)
    conversation = talk(call("wait_for_ever"), tools=(wait_for_ever,), store=store, grace=GRACE)
    async with running(conversation):
        await anyio.sleep(1)
        store.armed = True
        await conversation.interrupt()
    store.armed = False
    await conversation.close()
    reopened = talk(store=store, conversation_id=conversation.id, said=None)
    assert reopened.items == conversation.items
    assert outcomes(reopened.items) == ["interrupted"]
