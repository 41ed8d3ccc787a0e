"""A tool that never looks at anything, in a module that a child process imports quickly."""

from __future__ import annotations

from pathlib import Path

from quiesce.agents.agent.tool import function_tool


@function_tool(isolation="process")
def spin(path: str) -> str:
    """Cannot cooperate."""
    Path(path).touch()
    while True:
        pass
