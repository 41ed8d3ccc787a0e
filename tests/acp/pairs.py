"""Agents and clients as tests need them, and ways to bring them together: by a memory pair, by streams, or line by line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from quiesce.acp import (
    PROTOCOL_VERSION,
    AgentSideConnection,
    ClientSideConnection,
    InitializeResponse,
    NewSessionResponse,
    PermissionOption,
    PromptResponse,
    text_block,
    update_agent_message_text,
)
from quiesce.acp.schema import AgentCapabilities, AllowedOutcome, RequestPermissionResponse, ToolCallUpdate
from quiesce.wire import memory_pair

ALLOW = [PermissionOption(option_id="yes", name="Yes", kind="allow_once")]
HELLO = [text_block("hello")]


class AnAgent:
    """An agent whose handlers are what a test says: `AnAgent(prompt=...)`."""

    client: AgentSideConnection

    def __init__(self, **handlers: Callable[..., Any]) -> None:
        self.sessions = 0
        self.cancels: list[str] = []
        for name, handler in handlers.items():
            setattr(self, name, handler)

    def on_connect(self, conn: AgentSideConnection) -> None:
        self.client = conn

    async def initialize(self, protocol_version: int, **kwargs: Any) -> InitializeResponse:
        return InitializeResponse(
            protocol_version=protocol_version, agent_capabilities=AgentCapabilities(load_session=True)
        )

    async def new_session(self, cwd: str, **kwargs: Any) -> NewSessionResponse:
        self.sessions += 1
        return NewSessionResponse(session_id=f"session-{self.sessions}")

    async def prompt(self, session_id: str, **kwargs: Any) -> PromptResponse:
        await self.say(session_id, "hi")
        return PromptResponse(stop_reason="end_turn")

    async def cancel(self, session_id: str, **kwargs: Any) -> None:
        self.cancels.append(session_id)

    async def say(self, session_id: str, text: str) -> None:
        await self.client.session_update(session_id, update_agent_message_text(text))

    async def ask(self, session_id: str, tool_call_id: str = "call-1") -> RequestPermissionResponse:
        tool_call = ToolCallUpdate(tool_call_id=tool_call_id)
        return await self.client.request_permission(session_id, tool_call, ALLOW)


class AClient:
    """A client that keeps what it is told, and allows everything; other handlers as a test says."""

    agent: ClientSideConnection

    def __init__(self, **handlers: Callable[..., Any]) -> None:
        self.told: list[str] = []
        for name, handler in handlers.items():
            setattr(self, name, handler)

    def on_connect(self, conn: ClientSideConnection) -> None:
        self.agent = conn

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        self.told.append(getattr(getattr(update, "content", None), "text", update.session_update))

    async def request_permission(self, session_id: str, **kwargs: Any) -> RequestPermissionResponse:
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id="yes"))


class Pause:
    """Where a handler stands still until it is cancelled or let go, and says so."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self._let_go = anyio.Event()
        self.ended: list[str] = []

    async def __call__(self) -> None:
        self.reached.set()
        try:
            await self._let_go.wait()
        except BaseException as error:
            self.ended.append(type(error).__name__)
            raise
        self.ended.append("let go")

    def let_go(self) -> None:
        self._let_go.set()


@asynccontextmanager
async def connected(
    agent: Any, client: Any = None, **options: Any
) -> AsyncIterator[tuple[AgentSideConnection, ClientSideConnection]]:
    """Both ends of one connection: the agent's, and the client's."""
    one, other = memory_pair()
    async with (
        AgentSideConnection(agent, one, listening=False, **options) as agent_side,
        ClientSideConnection(client or AClient(), other, listening=False) as client_side,
    ):
        yield agent_side, client_side


@asynccontextmanager
async def in_session(
    agent: AnAgent, client: Any = None, **options: Any
) -> AsyncIterator[tuple[ClientSideConnection, str]]:
    """The client's end, initialized, and a session."""
    async with connected(agent, client, **options) as (_, client_side):
        await client_side.initialize(protocol_version=PROTOCOL_VERSION)
        session = await client_side.new_session(cwd="/project", mcp_servers=[])
        yield client_side, session.session_id


class Lines:
    """The other side of a connection, line by line: for what no well-behaved client or agent would send, or not so."""

    def __init__(self, transport: Any) -> None:
        self._channel = transport._channel
        self._rest = b""
        self._came: list[dict[str, Any]] = []

    async def send(self, *messages: dict[str, Any]) -> None:
        """All of them in one piece."""
        await self._channel.send(
            b"".join(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n" for message in messages)
        )

    async def receive(self) -> dict[str, Any]:
        """The next message; `EOFError` at the end."""
        while not self._came:
            data = await self._channel.receive()
            if not data:
                raise EOFError
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._came = [json.loads(line) for line in lines if line]
        return self._came.pop(0)

    async def until(self, is_it: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """All messages up to the one that `is_it`."""
        found = [await self.receive()]
        while not is_it(found[-1]):
            found.append(await self.receive())
        return found

    async def answer(self, number: int | str) -> dict[str, Any]:
        """The answer to the request with this id."""
        found = await self.until(lambda message: message.get("id") == number and "method" not in message)
        return found[-1]

    async def rest(self) -> list[dict[str, Any]]:
        """Everything until the end."""
        found = []
        try:
            while True:
                found.append(await self.receive())
        except EOFError:
            return found

    def hang_up(self) -> None:
        self._channel.abort()


@asynccontextmanager
async def agent_by_lines(agent: Any, **options: Any) -> AsyncIterator[tuple[Lines, AgentSideConnection]]:
    """An agent, and its client line by line."""
    one, other = memory_pair()
    lines = Lines(other)
    async with AgentSideConnection(agent, one, listening=False, **options) as connection:
        yield lines, connection


@asynccontextmanager
async def client_by_lines(client: Any, **options: Any) -> AsyncIterator[tuple[Lines, ClientSideConnection]]:
    """A client, and its agent line by line."""
    one, other = memory_pair()
    lines = Lines(other)
    async with ClientSideConnection(client, one, listening=False, **options) as connection:
        yield lines, connection


def prompt(number: int | str, session_id: str = "s") -> dict[str, Any]:
    """A `session/prompt`, as it is on the wire."""
    params = {"sessionId": session_id, "prompt": [{"type": "text", "text": "hello"}]}
    return {"id": number, "method": "session/prompt", "params": params}


def cancel(session_id: str = "s") -> dict[str, Any]:
    """A `session/cancel`."""
    return {"method": "session/cancel", "params": {"sessionId": session_id}}


async def turns(count: int = 10) -> None:
    """Let everybody else run a few times."""
    for _ in range(count):
        await anyio.sleep(0)


async def shielded_wait(event: anyio.Event) -> None:
    """Wait in a clean-up: on trio that takes a shield."""
    with anyio.CancelScope(shield=True):
        await event.wait()


Handler = Callable[..., Awaitable[Any]]
