"""All runs of `quiesce.dropin.pydantic_ai`, stopped at every point: nothing is left, and no clean-up is cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tests.kernel.audited import ledger, work

from dropin_tests.audited import audit_test
from dropin_tests.pydantic_ai.made_up import Scripted, call, say
from quiesce.dropin.pydantic_ai import Agent, WrapperAgent

UNAWAITED = "the SDK makes this coroutine before the task that is to await it has begun"
DROPPED = "the SDK leaves its own generator in a loop without closing it"


async def tidy() -> str:
    """Work, and tidy up if stopped."""
    await work(2)
    return "worked"


async def tidy_beside() -> str:
    """Work beside it."""
    await work(3)
    return "worked"


def worker() -> Agent:
    model = Scripted(
        [call("tidy"), call("tidy_beside")], [say("one two")], first=lambda: work(0.5), then=lambda: work(1)
    )
    return Agent(model, tools=[tidy, tidy_beside])


def check(report: Any) -> None:
    assert report is not None
    ledger.report(report)


async def a_run_with_tools() -> None:
    ledger.start()
    check((await worker().run("Go.")).report)


async def a_run_of_a_wrapper() -> None:
    ledger.start()
    check((await WrapperAgent(worker()).run("Go.")).report)


async def a_run_in_which_an_agent_asks_another() -> None:
    ledger.start()
    inner = worker()

    async def ask() -> str:
        """Ask."""
        return (await inner.run("Go.")).output

    agent = Agent(Scripted([call("ask")], [say("done")]), tools=[ask])
    check((await agent.run("Go.")).report)


async def a_streamed_run() -> None:
    ledger.start()
    async with worker().run_stream("Go.") as result:
        async for _ in result.stream_text(delta=True, debounce_by=None):
            pass
    check(result.report)


async def a_streamed_run_that_is_left_early() -> None:
    ledger.start()
    async with worker().run_stream("Go.") as result:
        async for _ in result.stream_text(delta=True, debounce_by=None):
            await asyncio.sleep(1)
            break
    check(result.report)


async def a_streamed_run_in_a_generator() -> None:
    async def texts() -> AsyncIterator[str]:
        async with worker().run_stream("Go.") as result:
            async for text in result.stream_text(delta=True, debounce_by=None):
                yield text

    ledger.start()
    async for _ in texts():
        pass


async def a_streamed_run_that_another_task_closes() -> None:
    ledger.start()
    async with worker().run_stream("Go.") as result:
        closing = asyncio.create_task(close_later(result))
        try:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                pass
        finally:
            closing.cancel()
            await asyncio.wait([closing])


async def close_later(result: Any) -> None:
    await asyncio.sleep(0.5)
    await result.close()


async def a_run_with_events() -> None:
    ledger.start()
    async with worker().run_stream_events("Go.") as events:
        async for _ in events:
            pass
    check(events.report)


async def a_run_with_events_that_is_left_early() -> None:
    ledger.start()
    async with worker().run_stream_events("Go.") as events:
        async for event in events:
            if event.event_kind == "function_tool_call":
                await asyncio.sleep(1)
                break
    check(events.report)


async def a_run_step_by_step() -> None:
    ledger.start()
    async with worker().iter("Go.") as run:
        async for _ in run:
            pass
    check(run.report)


async def an_agent_that_is_entered_by_two() -> None:
    ledger.start()
    agent = worker()

    async def use() -> None:
        async with agent:
            await agent.run("Go.")

    async with asyncio.TaskGroup() as group:
        group.create_task(use())
        group.create_task(use())
    check(agent.report)


test_stopped_anywhere_nothing_is_left = audit_test(
    [
        a_run_with_tools,
        a_run_of_a_wrapper,
        a_run_in_which_an_agent_asks_another,
        a_streamed_run,
        a_streamed_run_that_is_left_early,
        a_streamed_run_in_a_generator,
        a_streamed_run_that_another_task_closes,
        a_run_with_events,
        a_run_with_events_that_is_left_early,
        a_run_step_by_step,
        an_agent_that_is_entered_by_two,
    ],
    theirs={
        "unawaited *Capability.*": UNAWAITED,
        "unawaited *Toolset.*": UNAWAITED,
        "unawaited ModelRequestNode._stream.*": UNAWAITED,
        "unawaited _GraphIterator._run_tracked_task": UNAWAITED,
        "unawaited _outside_attempts": UNAWAITED,
        "unawaited gather.<locals>._run": UNAWAITED,
        "unclosed Unclosed <MemoryObjectSendStream>": "the SDK has its task close it, which has not begun",
        # The task of asyncio that closes it belongs to the run, and is waited for.
        "generator AgentStream.*": DROPPED,
        "generator CallToolsNode.*": DROPPED,
        "generator _*Processor.*": DROPPED,
        "generator _iter_completed_or_buffered": DROPPED,
        "generator _ungrouped_items": DROPPED,
        "generator group_by_temporal.*": DROPPED,
        "generator process_tool_calls": DROPPED,
    },
)
