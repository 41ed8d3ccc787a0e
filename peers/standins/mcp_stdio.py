"""An MCP server over stdio:

`mcp_stdio.py [deaf]`. It has a tool `echo`, which answers, and a tool `work`, which takes for ever.

A polite one exits at the end of its input. A deaf one ignores that, and SIGTERM, and has a child that is as deaf.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("child.py")
TOOLS = [
    {
        "name": name,
        "description": f"{name}.",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
    }
    for name in ("echo", "work")
]


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """A result; None for a request that is not answered."""
    if method == "initialize":
        version = params["protocolVersion"]
        info = {"name": "stand-in", "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        if params["name"] == "work":
            return None
        text = params.get("arguments", {}).get("text", "")
        return {"content": [{"type": "text", "text": text}], "isError": False}
    raise LookupError(method)


def serve() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            result = answer(message["method"], message.get("params") or {})
            if result is None:
                continue
            reply["result"] = result
        except LookupError as error:
            reply["error"] = {"code": -32601, "message": f"Method not found: {error.args[0]}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    if "deaf" in sys.argv[1:]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        subprocess.Popen([sys.executable, str(CHILD), "deaf"])
    serve()
    if "deaf" in sys.argv[1:]:
        time.sleep(120)
