"""The examples of agent-client-protocol (see `dropin_tests.compared`): clients with agents, and agents alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dropin_tests.compared import Examples, Program, main

REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("initialize", {"protocolVersion": 1}),
    ("session/new", {"cwd": "/", "mcpServers": []}),
    ("session/list", {}),
]
TYPED = "".join(
    json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n"
    for number, (method, params) in enumerate(REQUESTS)
)
AGENTS = ("agent.py", "echo_agent.py")


def programs(path: str, text: str) -> Iterable[Program]:
    name = Path(path).stem
    if name == "client":
        for agent in AGENTS:
            yield Program(name, (agent,), "Hello.\nAnd again.\n")
    elif name == "gemini":
        yield Program(name, ("--prompt", "Hello."))
        yield Program(name, (), "Hello.\n:cancel\nAnd again.\n:exit\n")
    else:
        yield Program(name, (), TYPED if f"{name}.py" in AGENTS else "Hello.\n")


@contextmanager
def an_agent_for_gemini() -> Iterator[Mapping[str, str]]:
    """A command that is an agent: the one that echoes, of the same examples."""
    with TemporaryDirectory() as folder:
        command = Path(folder) / "gemini"
        command.write_text("#!/bin/sh\nexec python echo_agent.py\n")
        command.chmod(0o755)
        yield {"ACP_GEMINI_BIN": str(command)}


if __name__ == "__main__":
    sys.exit(
        main(
            Examples(
                "agent-client-protocol",
                "acp",
                "quiesce.dropin.acp",
                import_from=("examples",),
                programs=programs,
                serving=an_agent_for_gemini,
            )
        )
    )
