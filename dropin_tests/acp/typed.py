"""A program of a user, for type checkers: the types are the SDK's, and ours where we add something."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from typing import Any, assert_type

import acp
import acp.core

from quiesce import StopReport
from quiesce.dropin.acp import (
    PROTOCOL_VERSION,
    Agent,
    InitializeResponse,
    PromptResponse,
    connect_to_agent,
    run_agent,
    spawn_agent_process,
    spawn_client_process,
    spawn_stdio_transport,
    text_block,
)
from quiesce.dropin.acp.core import AgentSideConnection, ClientSideConnection, Connection


class Mine(Agent):
    async def initialize(self, protocol_version: int, *args: Any, **kwargs: Any) -> InitializeResponse:
        theirs: acp.InitializeResponse = InitializeResponse(protocol_version=PROTOCOL_VERSION)
        return theirs


async def serve(agent: Agent) -> None:
    await run_agent(agent, use_unstable_protocol=True)


async def use(client: acp.Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async with connect_to_agent(client, writer, reader) as connection:
        assert_type(connection, ClientSideConnection)
        as_theirs: acp.core.ClientSideConnection = connection
        answer = await as_theirs.prompt(session_id="one", prompt=[text_block("Hello")])
        assert_type(answer, PromptResponse)
        assert_type(await connection.close(deadline=1), StopReport)
    assert_type(connection.report, StopReport | None)


async def spawn(client: acp.Client, agent: acp.Agent) -> None:
    async with spawn_agent_process(client, "agent", "--acp", cwd="/") as (connection, process):
        assert_type(connection, ClientSideConnection)
        assert_type(process, Process)
    held = await spawn_agent_process(client, "agent").open()
    assert_type(held.value[0], ClientSideConnection)
    assert_type(await held.close(), StopReport)
    async with spawn_client_process(agent, "client") as (agent_side, _):
        assert_type(agent_side, AgentSideConnection)
    async with spawn_stdio_transport("program") as (reader, writer, _):
        assert_type(reader, asyncio.StreamReader)
        low = Connection(handle, writer, reader)
        assert_type(await low.close(), StopReport)


async def handle(method: str, params: Any, is_notification: bool) -> Any:
    return None
