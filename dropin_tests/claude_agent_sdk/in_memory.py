"""The made-up CLI as a transport of the SDK, in this process: for virtual time, and for the audit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from tests.claude.fake_agent import FakeAgent
from tests.claude.memory_cli import MemoryTool

from quiesce.dropin.claude_agent_sdk import Transport

STEP = 0.01  # seconds that each thing takes which is awaited


class InMemory(Transport):
    """A CLI that plays these turns. It has no processes: its tools are at work until somebody stops them."""

    def __init__(self, *turns: list[Any], **script: Any) -> None:
        self.place = _Place()
        self._agent = FakeAgent({"turns": list(turns), **script}, self.place)
        self._timer: asyncio.TimerHandle | None = None
        self._is_ready = False

    async def connect(self) -> None:
        await asyncio.sleep(STEP)
        self._is_ready = True

    async def write(self, data: str) -> None:
        await asyncio.sleep(STEP)
        for line in data.splitlines():
            self._agent.line(line.encode())
        self._go_on()

    def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        return _Messages(self.place)

    async def end_input(self) -> None:
        self._agent.eof()
        self._go_on()

    async def close(self) -> None:
        """Its process ends, with all that it has started."""
        self._is_ready = False
        for tool in self.place.tools:
            tool.stop()
        self._agent.over = True
        self._go_on()
        await asyncio.sleep(STEP)

    def is_ready(self) -> bool:
        return self._is_ready

    def _go_on(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._agent.step()
        until = self._agent.until()
        if self._agent.over:
            self.place.said.put_nowait(None)
        elif until is not None:
            self._timer = asyncio.get_running_loop().call_at(until, self._go_on)


class _Messages(AsyncIterator[dict[str, Any]]):
    """Not a generator: the SDK does not close it."""

    def __init__(self, place: _Place) -> None:
        self._place = place

    async def __anext__(self) -> dict[str, Any]:
        message = await self._place.said.get()
        if message is None:
            raise StopAsyncIteration
        return message


class _Place:
    """Where the agent runs."""

    poll: float | None = None  # it is told of everything

    def __init__(self) -> None:
        self.said: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.tools: list[MemoryTool] = []
        self.heard: list[str] = []  # the subtypes of the requests that it was sent

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def write(self, line: bytes) -> None:
        self.said.put_nowait(json.loads(line))

    def unwritten(self) -> int:
        return 0

    def complain(self, text: str) -> None: ...

    def exit(self, code: int) -> None:
        self.said.put_nowait(None)

    def flag(self, name: str) -> bool:
        return False

    def start_tool(self, options: dict[str, Any]) -> MemoryTool:
        self.tools.append(tool := MemoryTool("times" not in options))
        return tool

    def start_grandchild(self, options: dict[str, Any]) -> None:
        raise NotImplementedError("there are no processes here")

    def happened(self, what: str, frame: Any = None) -> None:
        if what == "got" and frame["type"] == "control_request":
            self.heard.append(frame["request"]["subtype"])
