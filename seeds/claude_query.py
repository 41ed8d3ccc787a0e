"""claude-agent-sdk 0.1.50:

`query()` through the package's own transport, with a stand-in for the CLI as a real child process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

from claude_agent_sdk import ClaudeAgentOptions, Message, query

CLI = Path(__file__).with_name("claude_cli.py")


async def read_answers() -> AsyncIterator[Message]:
    """Hand on the messages of one query, for the audit to consume and to break off."""
    answers = query(prompt="Say hello.", options=ClaudeAgentOptions(cli_path=CLI))
    async with aclosing(answers):
        async for message in answers:
            yield message
