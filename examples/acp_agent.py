"""An agent that an editor can start: `quiesce acp acp_agent:agent`, in this directory.

It needs no key, for its model answers from a script: it looks at a file of yours, asks whether it may run a
command, and says goodbye. For a real one put `OpenAIModel("gpt-5")` or `AnthropicModel("claude-sonnet-4-5")`
of `quiesce.models` in its place.
"""

from __future__ import annotations

import quiesce
from quiesce.acp.tools import edit_file, read_file, run_command, write_file
from quiesce.agents import Agent
from quiesce.models import ModelRequest, ToolCall, ToolResult, UserMessage
from quiesce.testing import ScriptedModel, call


async def answer(request: ModelRequest) -> list[str | ToolCall]:
    """What the model says: it looks at what was said last, as a real one would."""
    results = 0
    for item in reversed(request.items):
        if isinstance(item, UserMessage):
            break
        results += isinstance(item, ToolResult)
    if results == 0:
        return [
            "Let me see what this is about.",
            call("read_file", f"read_{len(request.items)}", path="README.md", limit=3),
        ]
    if results == 1:
        return ["And where we are.", call("run_command", f"run_{len(request.items)}", command="pwd")]
    return ["That was all. Ask me again, and I do the same."]


def make_agent() -> Agent[None]:
    """A new one for each client."""
    return Agent(
        name="example",
        instructions="You help with the files of this directory.",
        model=ScriptedModel([answer] * 100),
        tools=[read_file, write_file, edit_file, run_command],
    )


agent = make_agent()


if __name__ == "__main__":  # the same, without the command
    from quiesce.acp import serve_agent

    quiesce.run(lambda: serve_agent(agent))
