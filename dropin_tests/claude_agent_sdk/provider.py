"""The Messages API for the SDK's examples: `provider.py`, prints its port. It calls the tools that they ask for."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent.parent))

from peers.standins import messages_api

# A text that a user sends, and the call that answers it; `{1}` is the first group of the pattern.
CALLS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (r"Run (?:the bash|this bash|this) command: (.+)", "Bash", {"command": "{1}", "description": "As told"}),
    (r"bash echo command that says '(.+)'", "Bash", {"command": "echo '{1}'", "description": "Say it"}),
    (r"Write the text '(.+)' to a file called (\S+)", "Write", {"file_path": "{2}", "content": "{1}"}),
    (
        r"[Cc]reate a (?:simple )?(?:file called )?(hello\.txt)",
        "Write",
        {"file_path": "{1}", "content": "Hello"},
    ),
    (r"List the files in the current directory", "Bash", {"command": "ls -d .", "description": "List"}),
    (r"Calculate (\d+) \+ (\d+)", "mcp__calc__add", {"a": 15, "b": 27}),
    (r"(\d+) divided by (\d+)", "mcp__calc__divide", {"a": 100, "b": 7}),
    (r"square root of 144", "mcp__calc__sqrt", {"n": 144}),
    (r"raised to the power", "mcp__calc__power", {"base": 2, "exponent": 8}),
)


def answer(text: str) -> dict[str, Any] | None:
    """The call of a tool that a text asks for, if it does."""
    for pattern, name, arguments in CALLS:
        if found := re.search(pattern, text):
            groups = ("", *found.groups())
            given = {
                key: value.format(*groups) if isinstance(value, str) else value
                for key, value in arguments.items()
            }
            return messages_api.call(name, given)
    return None


if __name__ == "__main__":
    messages_api.OTHERS.append(answer)
    asyncio.run(messages_api.main())
