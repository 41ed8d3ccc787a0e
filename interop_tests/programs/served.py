"""An agent of quiesce, to be served by `quiesce acp`: the model alone is a script, and does what the user says.

`say WORDS`, `think` (for ever), `read PATH`, `write PATH WORDS`, `run COMMAND LINE`, `wait` (a tool that has no end).
"""

from __future__ import annotations

from typing import Any

import anyio

from quiesce import Process
from quiesce.acp.tools import read_file, run_command, write_file
from quiesce.agents import Agent, function_tool
from quiesce.models import ToolResult, UserMessage
from quiesce.testing import ScriptedModel, call


@function_tool
async def wait() -> str:
    """Wait for a command that never ends."""
    async with Process(["sleep", "3600"]) as command:
        await command.wait()
    return "it has ended"


async def answer(request: Any) -> Any:
    last = [item for item in request.items if isinstance(item, UserMessage | ToolResult)][-1]
    if isinstance(last, ToolResult):
        return f"it says: {last.output}"
    word, _, rest = str(last.content).partition(" ")
    number = f"call_{len(request.items)}"
    if word == "think":
        await anyio.sleep_forever()
    if word == "read":
        return call("read_file", number, path=rest)
    if word == "write":
        path, _, content = rest.partition(" ")
        return call("write_file", number, path=path, content=content)
    if word == "run":
        return call("run_command", number, command=rest)
    if word == "wait":
        return call("wait", number)
    return f"you said: {rest}"


def make_agent() -> Agent[Any]:
    return Agent(
        name="served",
        model=ScriptedModel([answer] * 1000),
        tools=[read_file, write_file, run_command, wait],
    )
