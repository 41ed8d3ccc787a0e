"""agent-client-protocol 0.8.1: `run_agent` over a pair of in-memory streams.

The client is a script on the other end: it answers each of the agent's answers with its next request, and hangs up
after the last. It has no task of its own, so every task that is left belongs to the package.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import acp
from acp.schema import AgentCapabilities, InitializeResponse, NewSessionResponse, PromptResponse

REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("initialize", {"protocolVersion": 1, "clientCapabilities": {}}),
    ("session/new", {"cwd": "/", "mcpServers": []}),
    ("session/prompt", {"sessionId": "one", "prompt": [{"type": "text", "text": "Say hello."}]}),
]


class Client(asyncio.Transport):
    """What the agent writes comes here; what the client says goes to the agent's reader."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__()
        self._reader = reader
        self._unread = b""
        self._next = 0
        self._closed = False

    def send_next(self) -> None:
        if self._next == len(REQUESTS):
            self._reader.feed_eof()
            return
        method, params = REQUESTS[self._next]
        message = {"jsonrpc": "2.0", "id": self._next, "method": method, "params": params}
        self._next += 1
        self._reader.feed_data(json.dumps(message).encode() + b"\n")

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._unread += bytes(data)
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message.get("id") == self._next - 1:
                assert "result" in message, f"the agent answered {message}"
                asyncio.get_running_loop().call_later(0.1, self.send_next)

    def close(self) -> None:
        self._closed = True

    def is_closing(self) -> bool:
        return self._closed


class Agent:
    """An agent that says one thing and needs a second for it."""

    def on_connect(self, client: Any) -> None:
        self._client = client

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        return InitializeResponse(protocol_version=protocol_version, agent_capabilities=AgentCapabilities())

    async def new_session(self, **_: Any) -> NewSessionResponse:
        return NewSessionResponse(session_id="one")

    async def prompt(self, session_id: str, **_: Any) -> PromptResponse:
        await asyncio.sleep(1)
        await self._client.session_update(session_id, acp.update_agent_message_text("hello"))
        return PromptResponse(stop_reason="end_turn")


async def serve_one_client() -> None:
    reader = asyncio.StreamReader()
    client = Client(reader)
    writer = asyncio.StreamWriter(
        client, asyncio.StreamReaderProtocol(reader), reader, asyncio.get_running_loop()
    )
    client.send_next()
    try:
        await acp.run_agent(Agent(), writer, reader)
    finally:
        writer.close()
