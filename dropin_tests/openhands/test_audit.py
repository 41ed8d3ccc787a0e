"""`quiesce.dropin.openhands`, stopped at every point: nothing is left, and no clean-up is cut."""

from __future__ import annotations

import asyncio
from typing import Any

from openhands.sdk.testing import TestLLM
from tests.kernel.audited import ledger, work

from dropin_tests.audited import audit_test
from dropin_tests.openhands.made_up import begin, call, make_agent, say, working
from quiesce.dropin.openhands.sdk import Agent, LocalConversation


class SlowModel(TestLLM):
    """Needs time for an answer, and for its clean-up."""

    __test__ = False

    async def acompletion(self, *args: Any, **kwargs: Any) -> Any:
        await work(0.05)
        return await super().acompletion(*args, **kwargs)


def conversation(at_once: int = 2) -> LocalConversation:
    working(lambda conversation: "worked")
    model = SlowModel.from_messages([call(times=at_once), say("done")])
    tools = make_agent().tools
    return begin(Agent(llm=model, tools=tools, tool_concurrency_limit=at_once))


async def a_run_with_two_tools_at_once() -> None:
    ledger.start()
    used = conversation()
    try:
        await used.arun()
    finally:
        ledger.report(used.close())


async def a_run_that_is_interrupted() -> None:
    ledger.start()
    used = conversation()
    later = asyncio.get_running_loop().call_later(0.03, used.interrupt)
    try:
        await used.arun()
    finally:
        later.cancel()
        ledger.report(used.close())


async def a_conversation_that_is_closed_while_it_runs() -> None:
    ledger.start()
    used = conversation()
    running = asyncio.create_task(used.arun())
    try:
        await asyncio.sleep(0.03)
    finally:
        ledger.report(await used.aclose())
        await asyncio.wait([running])


test_stopped_anywhere_nothing_is_left = audit_test(
    [
        a_run_with_two_tools_at_once,
        a_run_that_is_interrupted,
        a_conversation_that_is_closed_while_it_runs,
    ],
    real_io=True,  # the SDK works in threads
    sample=2,
)
