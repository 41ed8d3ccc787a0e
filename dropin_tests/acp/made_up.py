"""An agent and a client whose work is what a test says, linked by a socket, or to a test that speaks in lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from quiesce.dropin.acp import InitializeResponse, NewSessionResponse, PromptResponse, text_block
from quiesce.dropin.acp.core import AgentSideConnection, ClientSideConnection


async def answer_at_once(agent: Agent) -> None:
    """No work."""


class Agent:
    """Does `work` for each prompt; answers with the stop reason that it returns, or else with `end_turn`."""

    conn: Any

    def __init__(self, work: Callable[[Agent], Awaitable[object]] = answer_at_once) -> None:
        self.work = work
        self.cancelled: list[str] = []  # the sessions for which `session/cancel` has come
        self.began = asyncio.Event()
        self.cleaned_up = False

    def on_connect(self, conn: Any) -> None:
        self.conn = conn

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        return InitializeResponse(protocol_version=protocol_version)

    async def new_session(self, **_: Any) -> NewSessionResponse:
        return NewSessionResponse(session_id="one")

    async def prompt(self, **_: Any) -> PromptResponse:
        self.began.set()
        stop_reason: Any = await self.work(self)
        return PromptResponse(stop_reason=stop_reason or "end_turn")

    async def cancel(self, session_id: str, **_: Any) -> None:
        self.cancelled.append(session_id)


async def until_cancelled(agent: Agent) -> None:
    """Work that ends only by a cancel, and takes its time to clean up."""
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(0.05)
        agent.cleaned_up = True


async def answers_its_cancel(agent: Agent) -> str:
    """The same, answered as the protocol asks for: by a stop reason."""
    with contextlib.suppress(asyncio.CancelledError):
        await until_cancelled(agent)
    return "cancelled"


class Client:
    """Grants what it is asked for, when `decide` is done."""

    def __init__(self, decide: Callable[[], Awaitable[object]] | None = None) -> None:
        self.decide = decide
        self.asked = asyncio.Event()
        self.released: list[str] = []

    async def session_update(self, **_: Any) -> None:
        pass

    async def request_permission(self, **_: Any) -> Any:
        self.asked.set()
        if self.decide is not None:
            await self.decide()
        return {"outcome": {"outcome": "selected", "optionId": "yes"}}

    async def release_terminal(self, session_id: str, terminal_id: str, **_: Any) -> None:
        await asyncio.sleep(0.05)
        self.released.append(terminal_id)


async def streams() -> tuple[tuple[StreamWriter, StreamReader], tuple[StreamWriter, StreamReader]]:
    """The two ends of a socket, each in the order of the SDK."""
    ends = []
    for end in socket.socketpair():
        reader, writer = await asyncio.open_connection(sock=end)
        ends.append((writer, reader))
    return ends[0], ends[1]


@contextlib.asynccontextmanager
async def linked(agent: Any, client: Any) -> AsyncIterator[tuple[AgentSideConnection, ClientSideConnection]]:
    """Both connections; at the end they are closed, the client's first."""
    agents_end, clients_end = await streams()
    agent_side = AgentSideConnection(agent, *agents_end)
    client_side = ClientSideConnection(client, *clients_end)
    try:
        yield agent_side, client_side
    finally:
        await client_side.close()
        await agent_side.close()
        await close(agents_end[0], clients_end[0])


@contextlib.asynccontextmanager
async def raw_peer() -> AsyncIterator[tuple[tuple[StreamWriter, StreamReader], Lines]]:
    """Streams for a connection, and the other end as lines."""
    ours, theirs = await streams()
    try:
        yield ours, Lines(*theirs)
    finally:
        await close(ours[0], theirs[0])


class Lines:
    """One end of a connection, spoken by the test itself."""

    def __init__(self, writer: StreamWriter, reader: StreamReader) -> None:
        self.writer = writer
        self.reader = reader

    def send(self, **message: Any) -> None:
        self.writer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def prompt(self, number: int = 1) -> None:
        params = {"sessionId": "one", "prompt": [{"type": "text", "text": "Work."}]}
        self.send(id=number, method="session/prompt", params=params)

    async def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await asyncio.wait_for(self.reader.readline(), 5))
        return message


async def close(*writers: StreamWriter) -> None:
    for writer in writers:
        writer.close()
    for writer in writers:
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def prompted(client_side: ClientSideConnection) -> asyncio.Task[PromptResponse]:
    """A prompt under way, in a task of its own."""
    return asyncio.create_task(client_side.prompt(session_id="one", prompt=[text_block("Work.")]))


def others() -> list[str]:
    """The tasks of the event loop, without the current one."""
    return [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
