"""Both ends of one connection in one process, over a socketpair: each library's in the same words.

A pair is opened for a measurement and yields how to ask, how to tell, and how many were told so far.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from wire.bare import BareProtocol, BareStreams

TEXT = "It is not the strongest of the species that survives, nor the most intelligent; it is the one that can be stopped in time."
# As an agent tells it, piece by piece: with what is around it, a line of about 250 bytes.
UPDATE = {
    "sessionId": "session-0",
    "update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": TEXT}},
}


@dataclass
class Pair:
    """One connection, open."""

    ask: Callable[[int], Awaitable[object]]  # in the n-th conversation
    tell: Callable[[], Awaitable[object]]
    heard: Callable[[], int]


Open = Callable[[], AbstractAsyncContextManager[Pair]]


class Ear:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.count = 0

    def told(self, params: Any) -> None:
        self.count += 1

    async def told_async(self, params: Any) -> None:
        self.count += 1


async def echo(params: Any) -> Any:
    return params


# Without types: any JSON


@asynccontextmanager
async def peers() -> AsyncIterator[Pair]:
    """This library's."""
    from quiesce.wire import Peer, SocketTransport

    one, other = socket.socketpair()
    ear = Ear()
    async with (
        Peer(SocketTransport(one), {"echo": echo}, notifications={"session/update": ear.told_async}),
        Peer(SocketTransport(other)) as peer,
    ):
        yield Pair(
            lambda _: peer.request("echo", UPDATE),
            lambda: peer.notify("session/update", UPDATE),
            lambda: ear.count,
        )


@asynccontextmanager
async def bare_protocols() -> AsyncIterator[Pair]:
    one, other = socket.socketpair()
    ear, loop = Ear(), asyncio.get_running_loop()
    _, far = await loop.create_connection(lambda: BareProtocol(echo, ear.told), sock=one)
    _, near = await loop.create_connection(lambda: BareProtocol(echo, ear.told), sock=other)
    yield Pair(
        lambda _: near.request("echo", UPDATE),
        lambda: near.notify("session/update", UPDATE),
        lambda: ear.count,
    )
    await near.close()
    await far.close()


@asynccontextmanager
async def bare_streams() -> AsyncIterator[Pair]:
    one, other = socket.socketpair()
    ear = Ear()
    far = BareStreams(echo, ear.told, *await asyncio.open_connection(sock=one))
    near = BareStreams(echo, ear.told, *await asyncio.open_connection(sock=other))
    yield Pair(
        lambda _: near.request("echo", UPDATE),
        lambda: near.notify("session/update", UPDATE),
        lambda: ear.count,
    )
    await near.close()
    await far.close()


@asynccontextmanager
async def sdk_connections() -> AsyncIterator[Pair]:
    """agent-client-protocol's, below its types."""
    sdk: Any = importlib.import_module("acp.connection")
    one, other = socket.socketpair()
    ear = Ear()

    async def handle(method: str, params: Any, is_notification: bool) -> Any:
        if is_notification:
            ear.told(params)
            return None
        return params

    far_reader, far_writer = await asyncio.open_connection(sock=one)
    near_reader, near_writer = await asyncio.open_connection(sock=other)
    far = sdk.Connection(handle, far_writer, far_reader)
    near = sdk.Connection(handle, near_writer, near_reader)
    yield Pair(
        lambda _: near.send_request("echo", UPDATE),
        lambda: near.send_notification("session/update", UPDATE),
        lambda: ear.count,
    )
    await near.close()
    await far.close()
    await _closed(near_writer, far_writer)


# With types: an agent and its client


def _agent(module: Any) -> Any:
    """The same agent, in the words of `module`."""

    class Agent:
        async def prompt(self, session_id: str, prompt: list[Any], **meta: Any) -> Any:
            return module.PromptResponse(stop_reason="end_turn")

    return Agent()


def _client(ear: Ear) -> Any:
    class Client:
        async def session_update(self, session_id: str, update: Any, **meta: Any) -> None:
            ear.count += 1

    return Client()


def _typed(module: Any, agent_end: Any, client_end: Any, ear: Ear) -> Pair:
    return Pair(
        lambda number: client_end.prompt(session_id=f"session-{number}", prompt=[module.text_block(TEXT)]),
        lambda: agent_end.session_update("session-0", module.update_agent_message_text(TEXT)),
        lambda: ear.count,
    )


@asynccontextmanager
async def typed() -> AsyncIterator[Pair]:
    """This library's."""
    from quiesce import acp
    from quiesce.wire import SocketTransport

    one, other = socket.socketpair()
    ear = Ear()
    async with (
        acp.AgentSideConnection(_agent(acp), SocketTransport(one)) as agent_end,
        acp.ClientSideConnection(_client(ear), SocketTransport(other)) as client_end,
    ):
        yield _typed(acp, agent_end, client_end, ear)


@asynccontextmanager
async def sdk_typed() -> AsyncIterator[Pair]:
    """agent-client-protocol's."""
    sdk: Any = importlib.import_module("acp")
    agent_side: Any = importlib.import_module("acp.agent.connection")
    client_side: Any = importlib.import_module("acp.client.connection")
    one, other = socket.socketpair()
    ear = Ear()
    far_reader, far_writer = await asyncio.open_connection(sock=one)
    near_reader, near_writer = await asyncio.open_connection(sock=other)
    agent_end = agent_side.AgentSideConnection(_agent(sdk), far_writer, far_reader)
    client_end = client_side.ClientSideConnection(_client(ear), near_writer, near_reader)
    yield _typed(sdk, agent_end, client_end, ear)
    await client_end.close()
    await agent_end.close()
    await _closed(near_writer, far_writer)


async def _closed(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        await writer.wait_closed()
