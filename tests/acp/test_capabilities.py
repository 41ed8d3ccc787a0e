"""What the two sides have agreed on: what the other has not said that it can is not even sent."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from quiesce.acp import PROTOCOL_VERSION, InitializeResponse, RequestError, schema
from tests.acp.pairs import AClient, AnAgent, agent_by_lines, client_by_lines, connected


def offering(**capabilities: Any) -> AnAgent:
    """An agent that says it can do this."""

    async def initialize(protocol_version: int, **kwargs: Any) -> InitializeResponse:
        return InitializeResponse(
            protocol_version=protocol_version, agent_capabilities=schema.AgentCapabilities(**capabilities)
        )

    return AnAgent(initialize=initialize)


ASKED_OF_AGENTS = {
    "load_session": (("/project", "s"), "load_session"),
    "resume_session": (("s", "/project"), "session_capabilities.resume"),
    "list_sessions": ((), "session_capabilities.list"),
    "close_session": (("s",), "session_capabilities.close"),
    "delete_session": (("s",), "session_capabilities.delete"),
    "logout": ((), "auth.logout"),
}


@pytest.mark.parametrize("name", ASKED_OF_AGENTS)
async def test_what_an_agent_has_not_offered_is_not_asked_of_it(name: str) -> None:
    arguments, capability = ASKED_OF_AGENTS[name]
    sent: list[Any] = []
    async with connected(offering(), observers=[sent.append]) as (_, client):
        await client.initialize(protocol_version=PROTOCOL_VERSION)
        before = len(sent)
        with pytest.raises(
            RequestError, match=f"was not sent: the agent has not announced.*{capability}"
        ) as caught:
            await getattr(client, name)(*arguments)
        await anyio.sleep(0.01)
        assert len(sent) == before
    assert caught.value.code == -32601


async def test_what_it_has_offered_is_asked() -> None:
    agent = offering(load_session=True)

    async def load_session(session_id: str, **kwargs: Any) -> schema.LoadSessionResponse:
        return schema.LoadSessionResponse(field_meta={"loaded": session_id})

    agent.load_session = load_session  # type: ignore[attr-defined]
    async with connected(agent) as (_, client):
        await client.initialize(protocol_version=PROTOCOL_VERSION)
        assert client.agent_capabilities is not None
        assert client.agent_capabilities.load_session
        assert (await client.load_session("/project", "s")).field_meta == {"loaded": "s"}


async def test_before_they_have_spoken_of_it_everything_is_asked() -> None:
    async with connected(AnAgent()) as (_, client):
        assert client.agent_capabilities is None
        with pytest.raises(RequestError, match="Method not found"):
            await client.list_sessions()


ASKED_OF_CLIENTS = {
    "read_text_file": (("s", "/a"), "fs.read_text_file"),
    "write_text_file": (("s", "/a", "text"), "fs.write_text_file"),
    "create_terminal": (("s", "ls"), "terminal"),
    "terminal_output": (("s", "t"), "terminal"),
    "wait_for_terminal_exit": (("s", "t"), "terminal"),
    "kill_terminal": (("s", "t"), "terminal"),
    "release_terminal": (("s", "t"), "terminal"),
}


@pytest.mark.parametrize("name", ASKED_OF_CLIENTS)
async def test_what_a_client_cannot_do_is_not_asked_of_it(name: str) -> None:
    arguments, capability = ASKED_OF_CLIENTS[name]
    agent = AnAgent()
    async with connected(agent) as (agent_side, client):
        await client.initialize(protocol_version=PROTOCOL_VERSION)
        assert agent_side.client_capabilities == schema.ClientCapabilities()
        with pytest.raises(RequestError, match=f"was not sent: the client has not announced.*{capability}"):
            await getattr(agent_side, name)(*arguments)


async def test_what_a_client_can_do_is_asked_and_permission_always() -> None:
    async def read_text_file(path: str, **kwargs: Any) -> schema.ReadTextFileResponse:
        return schema.ReadTextFileResponse(content=f"text of {path}")

    agent = AnAgent()
    async with connected(agent, AClient(read_text_file=read_text_file)) as (agent_side, client):
        await client.initialize(
            protocol_version=PROTOCOL_VERSION,
            client_capabilities=schema.ClientCapabilities(
                fs=schema.FileSystemCapabilities(read_text_file=True)
            ),
        )
        assert (await agent_side.read_text_file("s", "/a")).content == "text of /a"
        assert (await agent.ask("s")).outcome.outcome == "selected"


async def test_capabilities_that_make_no_sense_are_none() -> None:
    """As everywhere in the protocol: what is not understood is left out, and the rest is taken."""
    params = {"protocolVersion": 1, "clientCapabilities": {"fs": 7, "terminal": True}}
    async with agent_by_lines(AnAgent()) as (lines, agent_side):
        await lines.send({"id": 1, "method": "initialize", "params": params})
        assert (await lines.answer(1))["result"]["protocolVersion"] == 1
        assert agent_side.client_capabilities is not None
        assert agent_side.client_capabilities.terminal


async def test_an_agent_that_says_nothing_of_its_capabilities_has_none() -> None:
    async with client_by_lines(AClient()) as (lines, client), anyio.create_task_group() as group:
        group.start_soon(client.initialize, PROTOCOL_VERSION)
        number = (await lines.receive())["id"]
        await lines.send({"id": number, "result": {"protocolVersion": 1}})
        while client.agent_capabilities is None:
            await anyio.sleep(0)
        with pytest.raises(RequestError, match="was not sent"):
            await client.load_session("/project", "s")
