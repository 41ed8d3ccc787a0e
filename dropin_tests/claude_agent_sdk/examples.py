"""The examples of claude-agent-sdk (see `dropin_tests.compared`), with the CLI that it brings.

    python -m dropin_tests.claude_agent_sdk.examples [--only NAME]... [--json]

It is the real CLI, and talks to a Messages API that makes its answers up, in a network namespace that has
nothing but loopback.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from peers.claude_cli import loopback

from dropin_tests.compared import Examples, Program, main, server

LEFT_OUT = {
    "streaming_mode_ipython.py": "snippets to be pasted, not a program",
    "streaming_mode_trio.py": "trio: the drop-in is for asyncio",
    "session_stores/": "stores: they need the client of a database, and a program that uses them",
}


def programs(path: str, text: str) -> Iterable[Program]:
    """Each example of a file; some files have several, by name."""
    if "__main__" not in text:
        return
    module = path.removesuffix(".py").replace("/", ".")
    names = re.findall(r'^        "(\w+)": example_\w+,', text, flags=re.MULTILINE)
    typed = "y\n" * 9 if "input(" in text else ""
    yield from [Program(module, (name,), typed) for name in names] or [Program(module, (), typed)]


@contextmanager
def provider() -> Iterator[Mapping[str, str]]:
    loopback.enter()
    with tempfile.TemporaryDirectory() as home, server(Path(__file__).parent / "provider.py") as port:
        yield {
            "HOME": home,
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}",
            "ANTHROPIC_API_KEY": "sk-ant-stand-in",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "IS_SANDBOX": "1",  # it may run as root
        }


if __name__ == "__main__":
    sys.exit(
        main(
            Examples(
                "claude-agent-sdk",
                "claude_agent_sdk",
                "quiesce.dropin.claude_agent_sdk",
                left_out=LEFT_OUT,
                programs=programs,
                serving=provider,
            )
        )
    )
