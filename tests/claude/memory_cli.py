"""The fake CLI as a task of the test's own process, over a `memory_pair`: for virtual time, and for the audit.

It has no processes: its tools are counters that somebody has to stop. It reads as long as anybody writes, and is ended with its block.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import anyio

from quiesce import Scope
from quiesce.claude import ClaudeAgentOptions
from quiesce.wire import memory_pair
from tests.claude.fake_agent import FakeAgent

CAPACITY = 1 << 30  # as if nobody's pipe was ever full


class MemoryTool:
    """A tool at work."""

    def __init__(self, is_endless: bool) -> None:
        self.at_work = is_endless

    def ended(self) -> bool:
        return not self.at_work

    def stop(self) -> None:
        self.at_work = False


class MemoryCli:
    """A CLI that plays these turns: `async with` it, and give `transport` to a query or a client."""

    poll: float | None = None  # it is told of everything

    def __init__(self, *turns: list[Any], capacity: int = CAPACITY, **script: Any) -> None:
        self.transport, other = memory_pair(capacity=capacity)
        self._channel: Any = other._channel
        self._unwritten: list[bytes] = []
        self._flags: set[str] = set()
        self._scope = Scope("fake cli", on_error="report")
        self._exited = False
        self.ended = False  # it was stopped itself, or has come to its end
        self.events: list[tuple[str, Any]] = []
        self.tools: list[MemoryTool] = []
        self.agent = FakeAgent({"turns": list(turns), **script}, self)

    @property
    def options(self) -> ClaudeAgentOptions:
        """Options that leave out what a CLI in memory has no use for."""
        return ClaudeAgentOptions()

    # What the test sees

    def got(self, kind: str) -> list[dict[str, Any]]:
        """What it was sent, of one type."""
        return [frame for what, frame in self.events if what == "got" and frame["type"] == kind]

    def asked(self) -> list[str]:
        """The subtypes of the control requests that it was sent."""
        return [frame["request"]["subtype"] for frame in self.got("control_request")]

    def answers(self) -> list[dict[str, Any]]:
        """How its questions were answered."""
        return [frame["response"] for frame in self.got("control_response")]

    def has_unread(self, word: str) -> bool:
        """Whether it was sent something with this word in it that it has not read yet."""
        return any(word.encode() in chunk for chunk in self._channel._source.chunks)

    def raise_flag(self, name: str) -> None:
        self._flags.add(name)
        self._poke()

    def end_tool(self) -> None:
        """Its tool comes to its end."""
        self.tools[-1].stop()
        self._poke()

    def say(self, frame: dict[str, Any]) -> None:
        """Something that is in no turn."""
        self.agent._say(frame)
        self._poke()

    def _poke(self) -> None:
        """Let it look around: a blank line, which says nothing."""
        source = self._channel._source
        source.chunks.append(b"\n")
        source.changed()

    # The place of the agent

    def now(self) -> float:
        return anyio.current_time()

    def write(self, line: bytes) -> None:
        self._unwritten.append(line)

    def unwritten(self) -> int:
        return sum(map(len, self._unwritten))

    def complain(self, text: str) -> None:
        pass  # it has no stderr

    def exit(self, code: int) -> None:
        self._exited = True

    def flag(self, name: str) -> bool:
        return name in self._flags

    def start_tool(self, options: dict[str, Any]) -> MemoryTool:
        self.tools.append(tool := MemoryTool("times" not in options))
        return tool

    def start_grandchild(self, options: dict[str, Any]) -> None:
        raise NotImplementedError("there are no processes here")

    def happened(self, what: str, frame: object = None) -> None:
        self.events.append((what, frame))

    # Running

    async def _run(self) -> None:
        agent, rest = self.agent, b""
        try:
            while not agent.over and not self._exited:
                until = agent.until()
                data = None
                with anyio.move_on_after(None if until is None else max(0.0, until - self.now())):
                    data = await self._channel.receive()
                if data == b"" and not agent.input_ended:
                    agent.eof()
                elif data == b"":
                    await anyio.sleep_forever() if until is None else await anyio.sleep(until - self.now())
                elif data is not None:
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        agent.line(line)
                agent.step()
                while self._unwritten:
                    unwritten, self._unwritten = self._unwritten, []
                    try:
                        await self._channel.send(b"".join(unwritten))
                    except BrokenPipeError:
                        pass  # the real one takes no notice either
                    agent.step()
        finally:
            self.ended = True
            for tool in self.tools:
                tool.stop()
            self._channel.abort()

    async def __aenter__(self) -> Self:
        await self._scope.__aenter__()
        self._scope.spawn(self._run)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._scope.cancel("its block ended")
        await self._scope.__aexit__(kind, error, traceback)
