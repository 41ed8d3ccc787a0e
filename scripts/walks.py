"""Through which rooms a piece of work goes: three walks, each a real run that is watched.

    .venv/bin/python scripts/walks.py            # the rooms of each walk, in the order in which they are first entered
    .venv/bin/python scripts/walks.py --modules  # and the modules of each room

Counted are the modules whose functions are called on the way, in whichever thread; not those that are only
imported, nor the caller's own. Each walk is made twice and the second one is watched, so that what is done
once in a process does not count.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any, Self

import quiesce
from quiesce import Scope
from quiesce.acp import serve_agent
from quiesce.agents import Agent, Conversation, Runner, function_tool
from quiesce.testing import ScriptedModel, call
from quiesce.wire import stdio

Walk = Callable[[], Awaitable[None]]


class Steps:
    """Which functions of quiesce are called while it is entered."""

    def __init__(self) -> None:
        self.calls = 0
        self.functions: dict[tuple[str, str], None] = {}

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and isinstance(name, str) and name.startswith("quiesce."):
            self.calls += 1
            self.functions[name, frame.f_code.co_qualname] = None

    def __enter__(self) -> Self:
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    @property
    def modules(self) -> list[str]:
        """The modules, in the order in which they were first entered."""
        return list(dict.fromkeys(module for module, _ in self.functions))

    @property
    def rooms(self) -> dict[str, list[str]]:
        """The rooms, in that order, each with its modules."""
        found: dict[str, list[str]] = {}
        for module in self.modules:
            parts = module.split(".")
            found.setdefault(".".join(parts[1:3]) if len(parts) > 3 else parts[1], []).append(parts[-1])
        return found


@function_tool
async def look(path: str) -> str:
    """Look at a file."""
    return f"{path}: 3 lines"


@function_tool
async def wait() -> str:
    """Wait for ever."""
    working.set()
    await asyncio.Event().wait()
    raise AssertionError


working = threading.Event()


def agent(tool: Any) -> Agent[Any]:
    """One that calls a tool, and then answers."""
    arguments = {"path": "a.txt"} if tool is look else {}
    return Agent(
        name="walker", model=ScriptedModel([[call(tool.name, "1", **arguments)], "done"]), tools=[tool]
    )


async def run_to_its_end() -> None:
    """`Runner.run`: a model's answer, a tool call, the final answer."""
    walker = agent(look)
    with watched or Steps():
        result = await Runner.run(walker, "go")
    assert result.final_output == "done"


async def interrupt_from_a_thread() -> None:
    """`Conversation.interrupt()` from another thread, while a tool is at work, until all has settled."""
    working.clear()
    conversation = Conversation(agent(wait))
    await conversation.asend_message("go")
    async with Scope("walk") as scope:
        run = scope.spawn(conversation.arun)
        while not working.is_set():  # noqa: ASYNC110 - set by a thread
            await asyncio.sleep(0.001)
        with watched or Steps():
            interrupter = threading.Thread(target=conversation.interrupt)
            interrupter.start()
            await run.wait()
            interrupter.join()
    await conversation.close()


async def prompt_over_acp() -> None:
    """An ACP prompt, from the bytes that an editor writes to the bytes of the answer."""
    (to_agent, from_editor), (to_editor, from_agent) = os.pipe(), os.pipe()
    editor = Editor(from_editor, to_editor)
    os.dup2(to_agent, 0)
    async with Scope("walk") as scope:
        scope.spawn(lambda: serve_agent(agent(look), stdio(protect=False, write_fd=from_agent)))
        await editor.ask("initialize", {"protocolVersion": 1})
        session = await editor.ask("session/new", {"cwd": "/", "mcpServers": []})
        prompt = [{"type": "text", "text": "go"}]
        with watched or Steps():
            answer = await editor.ask("session/prompt", {"sessionId": session["sessionId"], "prompt": prompt})
        assert answer["stopReason"] == "end_turn", answer
        os.close(from_editor)
    for each in (to_agent, to_editor):
        os.close(each)


class Editor:
    """The other side, by hand, so that none of its steps are ours."""

    def __init__(self, writes: int, reads: int) -> None:
        self._writes, self._reads, self._number = writes, reads, 0

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        """One request, and its result; what comes before it is passed over."""
        self._number += 1
        request = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        os.write(self._writes, json.dumps(request).encode() + b"\n")
        rest = b""
        while True:
            rest += await self._read()
            *lines, rest = rest.split(b"\n")
            for line in lines:
                message = json.loads(line)
                if message.get("id") == self._number and "method" not in message:
                    return message["result"]

    async def _read(self) -> bytes:
        readable = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._reads, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._reads)
        return os.read(self._reads, 65536)


watched: Steps | None = None
WALKS: dict[str, Walk] = {
    "Runner.run": run_to_its_end,
    "Conversation.interrupt()": interrupt_from_a_thread,
    "an ACP prompt": prompt_over_acp,
}


async def watch(walk: Walk) -> Steps:
    """What is called on the way."""
    global watched
    await walk()
    watched = steps = Steps()
    try:
        await walk()
    finally:
        watched = None
    return steps


async def main() -> None:
    """Print the walks."""
    for name, walk in WALKS.items():
        steps = await watch(walk)
        rooms = steps.rooms
        print(
            f"{name}: {steps.calls} calls of {len(steps.functions)} functions "
            f"in {len(steps.modules)} modules of {len(rooms)} rooms"
        )
        for room, modules in rooms.items():
            print(
                f"  {room}" + (f": {', '.join(modules)}" if "--modules" in sys.argv else f" ({len(modules)})")
            )


if __name__ == "__main__":
    quiesce.run(main)
