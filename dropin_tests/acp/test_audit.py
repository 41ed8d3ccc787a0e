"""Everything public of `quiesce.dropin.acp`, stopped at every point: nothing is left, and no clean-up is cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from acp._transport import memory_transport_pair
from tests.kernel.audited import ledger, work

from dropin_tests.acp.made_up import Agent, Client, prompted
from dropin_tests.audited import audit_test
from quiesce.dropin.acp import connect_to_agent, run_agent, text_block
from quiesce.dropin.acp.core import AgentSideConnection, ClientSideConnection, Connection


async def one_turn(agent: Agent) -> None:
    await work(2)


async def asks(agent: Agent) -> None:
    call: Any = {"toolCallId": "c"}
    await agent.conn.request_permission(session_id="one", tool_call=call, options=[])
    await work(1)


async def tidies_up_by_a_call(agent: Agent) -> None:
    try:
        await work(2)
    finally:
        await agent.conn.release_terminal(session_id="one", terminal_id="t")


async def leaves_a_task(agent: Agent) -> None:
    asyncio.create_task(work(5))  # noqa: RUF006
    await work(1)


async def closes_its_connection(agent: Agent) -> None:
    await agent.conn.close()
    await work(1)


@asynccontextmanager
async def both(agent: Agent, client: Any = None) -> AsyncIterator[ClientSideConnection]:
    """Both sides, as blocks, with nothing in between: the clock is not real."""
    agents_end, clients_end = memory_transport_pair()
    async with (
        AgentSideConnection(agent, agents_end) as agent_side,
        connect_to_agent(client or Client(), clients_end) as client_side,
    ):
        yield client_side
    ledger.report(client_side.report)
    ledger.report(agent_side.report)


async def prompt(client_side: ClientSideConnection) -> None:
    await client_side.prompt(session_id="one", prompt=[text_block("Work.")])


async def a_prompt() -> None:
    ledger.start()
    async with both(Agent(one_turn)) as client_side:
        await client_side.initialize(protocol_version=1)
        await prompt(client_side)


async def a_prompt_with_a_question() -> None:
    ledger.start()
    async with both(Agent(asks), Client(lambda: work(1))) as client_side:
        await prompt(client_side)


async def a_prompt_that_tidies_up_by_a_call() -> None:
    ledger.start()
    async with both(Agent(tidies_up_by_a_call)) as client_side:
        await prompt(client_side)


async def a_prompt_that_leaves_a_task() -> None:
    ledger.start()
    async with both(Agent(leaves_a_task)) as client_side:
        await prompt(client_side)


async def a_prompt_with_a_limit() -> None:
    ledger.start()
    async with both(Agent(one_turn)) as client_side:
        try:
            async with asyncio.timeout(1):
                await prompt(client_side)
        except TimeoutError:
            return
        raise AssertionError("it was not too late")


async def a_prompt_under_way_when_the_block_ends() -> None:
    ledger.start()
    async with both(agent := Agent(one_turn)) as client_side:
        prompting = prompted(client_side)
        try:
            await agent.began.wait()
        except BaseException:
            prompting.cancel()
            raise
    await asyncio.wait([prompting])


async def a_prompt_that_closes_its_connection() -> None:
    ledger.start()
    async with both(Agent(closes_its_connection)) as client_side:
        await prompt(client_side)


async def an_agent_that_runs() -> None:
    ledger.start()
    agents_end, clients_end = memory_transport_pair()
    params = {"sessionId": "one", "prompt": []}
    await clients_end.send({"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": params})
    asyncio.get_running_loop().call_later(1, clients_end._outbox.put_nowait, None)
    await run_agent(Agent(one_turn), agents_end)


async def a_connection_of_ones_own() -> None:
    async def handle(method: str, params: Any, is_notification: bool) -> Any:
        await work(2)

    ledger.start()
    ours, theirs = memory_transport_pair()
    async with Connection(handle, ours) as one, Connection(handle, theirs) as other:
        await one.send_notification("note")
        await other.send_request("ask")
    ledger.report(one.report)
    ledger.report(other.report)


test_stopped_anywhere_nothing_is_left = audit_test(
    [
        a_prompt,
        a_prompt_with_a_question,
        a_prompt_that_tidies_up_by_a_call,
        a_prompt_that_leaves_a_task,
        a_prompt_with_a_limit,
        a_prompt_under_way_when_the_block_ends,
        a_prompt_that_closes_its_connection,
        an_agent_that_runs,
        a_connection_of_ones_own,
    ]
)
