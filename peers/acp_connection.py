"""agent-client-protocol: a client with a prompt under way, and an agent that serves one."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import acp
from acp.schema import AgentCapabilities, InitializeResponse, NewSessionResponse, PromptResponse

import quiesce

# --8<-- [start:imports]
from quiesce import Scope, contain, own

# --8<-- [end:imports]
from quiesce.dropin import acp as dropin

from .ways import Close, Ready, Scenario, Way

AGENT = Path(__file__).with_name("standins") / "acp_agent.py"
NO_LOOP = "a connection is not a stream: there is nothing to break out of"
NO_CLOSE = "`run_agent` has no close of its own: it is stopped by the end of its input, or by a cancel"


class Editor:
    """The client's side: takes note of the first update."""

    def __init__(self) -> None:
        self.updated = asyncio.Event()

    def on_connect(self, agent: Any) -> None:
        pass

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updated.set()

    async def request_permission(self, **_: Any) -> Any:
        raise acp.RequestError.method_not_found("session/request_permission")


# --8<-- [start:connect]
@asynccontextmanager
async def connect(editor: Editor) -> AsyncIterator[acp.ClientSideConnection]:
    async with acp.spawn_agent_process(editor, sys.executable, str(AGENT)) as (connection, _process):
        await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        yield connection


# --8<-- [end:connect]
@asynccontextmanager
async def connect_dropin(editor: Editor) -> AsyncIterator[acp.ClientSideConnection]:
    async with dropin.spawn_agent_process(editor, sys.executable, str(AGENT)) as (connection, _process):
        await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        yield connection


Connect = Callable[[Editor], AbstractAsyncContextManager[acp.ClientSideConnection]]


async def prompt_until_stopped(connection: acp.ClientSideConnection, editor: Editor, ready: Ready) -> None:
    session = await connection.new_session(cwd="/", mcp_servers=[])
    work = asyncio.ensure_future(editor.updated.wait())
    work.add_done_callback(lambda _: ready())
    await connection.prompt(session_id=session.session_id, prompt=[acp.text_block("Work.")])


async def use(connect: Connect, ready: Ready) -> None:
    async with connect(editor := Editor()) as connection:
        await prompt_until_stopped(connection, editor, ready)


async def open_(connect: Connect) -> Close:
    stack, editor = AsyncExitStack(), Editor()
    connection = await stack.enter_async_context(connect(editor))
    _prompts.add(asyncio.create_task(prompt_until_stopped(connection, editor, lambda: None)))
    await editor.updated.wait()
    return stack.aclose


_prompts: set[asyncio.Task[None]] = set()

# --8<-- [start:use]
Work = Callable[[acp.ClientSideConnection], Awaitable[object]]


async def with_agent(editor: Editor, work: Work) -> None:
    async with contain():
        held = await own(connect(editor)).open()
        await work(held.value)


# --8<-- [end:use]
async def use_with(ready: Ready) -> None:
    editor = Editor()
    await with_agent(editor, lambda connection: prompt_until_stopped(connection, editor, ready))


# --8<-- [start:open]
async def open_with() -> Close:
    held = await own(connect(editor := Editor())).open()
    _prompts.add(asyncio.create_task(prompt_until_stopped(held.value, editor, lambda: None)))
    await editor.updated.wait()
    return held.close  # from any task


# --8<-- [end:open]
class Agent:
    """Answers a cancelled prompt as the protocol asks for: by its stop reason, not by an error."""

    def __init__(self, ready: Ready) -> None:
        self._ready = ready

    def on_connect(self, client: Any) -> None:
        pass

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        return InitializeResponse(protocol_version=protocol_version, agent_capabilities=AgentCapabilities())

    async def new_session(self, **_: Any) -> NewSessionResponse:
        return NewSessionResponse(session_id="one")

    async def prompt(self, **_: Any) -> PromptResponse:
        self._ready()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return PromptResponse(stop_reason="cancelled")
        return PromptResponse(stop_reason="end_turn")


@asynccontextmanager
async def a_client_that_prompts() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Both ends of a socket are ours; what the agent answers is not read, its buffer is large enough."""
    ours, theirs = socket.socketpair()
    requests: list[tuple[str, dict[str, Any]]] = [
        ("initialize", {"protocolVersion": 1, "clientCapabilities": {}}),
        ("session/new", {"cwd": "/", "mcpServers": []}),
        ("session/prompt", {"sessionId": "one", "prompt": [{"type": "text", "text": "Work."}]}),
    ]
    for number, (method, params) in enumerate(requests):
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        theirs.sendall(json.dumps(message).encode() + b"\n")
    reader, writer = await asyncio.open_connection(sock=ours)
    try:
        yield reader, writer
    finally:
        writer.close()
        theirs.close()


async def serve_without(run_agent: Callable[..., Awaitable[None]], ready: Ready) -> None:
    async with a_client_that_prompts() as (reader, writer):
        await run_agent(Agent(ready), writer, reader)


# --8<-- [start:serve]
async def serve_agent(agent: Agent, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async with contain(), Scope("agent") as scope:
        scope.spawn(acp.run_agent, agent, writer, reader)


# --8<-- [end:serve]
async def serve_with(ready: Ready) -> None:
    async with a_client_that_prompts() as (reader, writer):
        await serve_agent(Agent(ready), reader, writer)


def prompt() -> Scenario:
    return Scenario(
        "prompt",
        "a client with a prompt under way, the agent has started a command",
        without=Way(partial(use, connect), partial(open_, connect)),
        with_quiesce=Way(use_with, open_with, run=quiesce.run),
        dropin=Way(partial(use, connect_dropin), partial(open_, connect_dropin)),
        impossible={"break": NO_LOOP},
    )


def serve() -> Scenario:
    return Scenario(
        "serve",
        "`run_agent`, a prompt under way that is answered when it is cancelled",
        without=Way(partial(serve_without, acp.run_agent)),
        with_quiesce=Way(serve_with, run=quiesce.run),
        dropin=Way(partial(serve_without, dropin.run_agent)),
        impossible={"break": NO_LOOP, "elsewhere": NO_CLOSE, "order": NO_CLOSE},
    )
