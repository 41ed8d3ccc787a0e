"""Servers for the tests: processes over stdio, and one over HTTP that lives as long as the test process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mcp

SERVED = Path(__file__).with_name("served.py")
STAND_IN = Path(__file__).parent.parent.parent / "peers" / "standins" / "mcp_stdio.py"
MARK = {"QUIESCE_TEST_SERVER_OF": str(os.getpid())}  # in the environment of servers and of what they start


def over_stdio(kind: str = "polite") -> mcp.StdioServerParameters:
    """A server that exits at the end of its input; a `deaf` one ignores that, and SIGTERM, as does its child."""
    return mcp.StdioServerParameters(command=sys.executable, args=[str(STAND_IN), kind], env=MARK)


def made_with_the_sdk() -> mcp.StdioServerParameters:
    """A server that the SDK itself runs."""
    return mcp.StdioServerParameters(command=sys.executable, args=[str(SERVED), "stdio"], env=MARK)


def silent() -> mcp.StdioServerParameters:
    """A process that never answers."""
    return mcp.StdioServerParameters(
        command=sys.executable, args=["-c", "import time; time.sleep(1000)"], env=MARK
    )


def says_goodbye() -> mcp.StdioServerParameters:
    """A server that sends another message when its input has ended: mcp 1.x then fails when it is closed."""
    message = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})
    program = f"import sys; sys.path.insert(0, {str(STAND_IN.parent)!r}); import mcp_stdio as m; m.serve(); print({message!r})"
    return mcp.StdioServerParameters(command=sys.executable, args=["-c", program], env=MARK)


@contextmanager
def over_http() -> Iterator[str]:
    """The address of a server; /mcp or /sse comes behind it."""
    server = subprocess.Popen([sys.executable, str(SERVED), "http"], stdout=subprocess.PIPE, text=True)
    with server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.kill()


def processes() -> list[str]:
    """The command lines of the servers over stdio, and of their children, wherever they are."""
    mark = "=".join(*MARK.items()).encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (path / "environ").read_bytes().split(b"\0"):
                found.append((path / "cmdline").read_text().replace("\0", " ").strip())
        except OSError:
            continue  # it has exited, or is of another user
    return found
