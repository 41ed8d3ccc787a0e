"""A client for served agents: it keeps what it is told, and does what a test wants it to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from quiesce.acp import AgentSideConnection, ClientSideConnection, RequestError, text_block, to_dict
from quiesce.acp import schema as s
from quiesce.acp.served.served_agent import ServedAgent
from quiesce.agents import Agent
from quiesce.models import ToolCall, ToolResult
from quiesce.wire import memory_pair
from tests.agents.transcript_rules import problems

CWD = "/project"
FILES = s.FileSystemCapabilities(read_text_file=True, write_text_file=True)


class Client:
    """Keeps every update; `permission` decides, and `files` and `terminals` are what it has."""

    def __init__(self, capabilities: s.ClientCapabilities | None = None) -> None:
        self.capabilities = capabilities or s.ClientCapabilities()
        self.updates: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.permission: Callable[[], Awaitable[Any]] | str = "allow_once"
        self.files: dict[str, str] = {}
        self.reading: Callable[[], Awaitable[None]] | None = None
        self.terminals: dict[str, Terminal] = {}
        self.command: Callable[[str], Terminal] = Terminal
        self.requests: list[str] = []

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        self.updates.append(to_dict(update))

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **kwargs: Any
    ) -> s.RequestPermissionResponse:
        self.asked.append({**to_dict(tool_call), "options": [one.kind for one in options]})
        if isinstance(self.permission, str):
            return allowed(self.permission)
        answer = await self.permission()
        return answer if isinstance(answer, s.RequestPermissionResponse) else allowed(answer)

    async def read_text_file(
        self,
        session_id: str,
        path: str,
        line: int | None = None,
        limit: int | None = None,
        **kwargs: Any,
    ) -> s.ReadTextFileResponse:
        self.requests.append("fs/read_text_file")
        if self.reading is not None:
            await self.reading()
        if path not in self.files:
            raise RequestError.resource_not_found(path)
        lines = self.files[path].splitlines(keepends=True)[(line or 1) - 1 :]
        return s.ReadTextFileResponse(content="".join(lines[: len(lines) if limit is None else limit]))

    async def write_text_file(self, session_id: str, path: str, content: str, **kwargs: Any) -> None:
        self.requests.append("fs/write_text_file")
        self.files[path] = content

    async def create_terminal(
        self, session_id: str, command: str, args: list[str] | None = None, **kwargs: Any
    ) -> s.CreateTerminalResponse:
        name = f"terminal-{len(self.terminals) + 1}"
        self.terminals[name] = self.command((args or [""])[-1])
        return s.CreateTerminalResponse(terminal_id=name)

    async def terminal_output(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> s.TerminalOutputResponse:
        return s.TerminalOutputResponse(output=self.terminals[terminal_id].output, truncated=False)

    async def wait_for_terminal_exit(
        self, session_id: str, terminal_id: str, **kwargs: Any
    ) -> s.WaitForTerminalExitResponse:
        terminal = self.terminals[terminal_id]
        terminal.awaited.set()
        await terminal.ended.wait()
        return s.WaitForTerminalExitResponse(exit_code=terminal.exit_code)

    async def kill_terminal(self, session_id: str, terminal_id: str, **kwargs: Any) -> None:
        self.terminals[terminal_id].killed = True
        self.terminals[terminal_id].ended.set()

    async def release_terminal(self, session_id: str, terminal_id: str, **kwargs: Any) -> None:
        self.terminals[terminal_id].released = True

    # What it has seen

    def kinds(self) -> list[str]:
        return [one["sessionUpdate"] for one in self.updates]

    def text(self, kind: str = "agent_message_chunk") -> str:
        return "".join(one["content"]["text"] for one in self.updates if one["sessionUpdate"] == kind)

    def statuses(self, call_id: str) -> list[str]:
        """What became of a tool call, as it was told."""
        return [one["status"] for one in self.updates if one.get("toolCallId") == call_id and "status" in one]

    def last(self, call_id: str) -> dict[str, Any]:
        return [one for one in self.updates if one.get("toolCallId") == call_id][-1]


class Terminal:
    """A terminal of the client's whose command ends when a test says so."""

    def __init__(self, command: str, output: str = "", exit_code: int | None = None) -> None:
        self.command = command
        self.output = output
        self.exit_code = exit_code
        self.awaited, self.ended = anyio.Event(), anyio.Event()
        self.killed = self.released = False
        if exit_code is not None:
            self.ended.set()


def allowed(option_id: str) -> s.RequestPermissionResponse:
    return s.RequestPermissionResponse(outcome=s.AllowedOutcome(option_id=option_id))


class Talk:
    """A session on a connection, and its client."""

    def __init__(self, conn: ClientSideConnection, client: Client, served: ServedAgent) -> None:
        self.conn = conn
        self.client = client
        self.served = served
        self.session_id = ""

    async def say(self, text: str | list[Any] = "go", session_id: str | None = None) -> str:
        blocks = [text_block(text)] if isinstance(text, str) else text
        answer = await self.conn.prompt(session_id or self.session_id, blocks)
        return answer.stop_reason

    async def cancel_when(self, ready: Callable[[], Awaitable[object]], text: str = "go") -> str:
        """Say something, cancel the turn when it is ready for it, and return how it ended."""
        reasons: list[str] = []

        async def say() -> None:
            reasons.append(await self.say(text))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(say)
            await ready()
            await self.conn.cancel(self.session_id)
        return reasons[0]

    @property
    def items(self) -> list[Any]:
        return self.served._sessions[self.session_id].conversation.items

    def check_history(self) -> list[ToolResult]:
        """The history is one that a provider takes, with one result for each call; returns the results."""
        items = self.items
        check_items(items)
        return [item for item in items if isinstance(item, ToolResult)]


def check_items(items: list[Any]) -> None:
    assert problems(items, "items") == []
    calls = [item.call_id for item in items if isinstance(item, ToolCall)]
    assert [item.call_id for item in items if isinstance(item, ToolResult)] == calls


@asynccontextmanager
async def connected(
    agent: Agent[Any], client: Client | None = None, *, cwd: str | None = CWD, **options: Any
) -> AsyncIterator[Talk]:
    """A client connected to a served agent, with a session in `cwd`, unless that is None."""
    client = client or Client()
    one, other = memory_pair()
    async with ServedAgent(agent, **options) as served, AgentSideConnection(served, one) as conn:
        async with ClientSideConnection(client, other) as agent_side:
            talk = Talk(agent_side, client, served)
            await agent_side.initialize(protocol_version=1, client_capabilities=client.capabilities)
            if cwd is not None:
                talk.session_id = (await agent_side.new_session(cwd=cwd, mcp_servers=[])).session_id
            yield talk
        await conn.wait_closed()


async def until(condition: Callable[[], object]) -> None:
    """Wait for something to be so."""
    while not condition():
        await anyio.sleep(0.01)
