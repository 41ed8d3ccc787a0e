"""An MCP server over stdio that misbehaves when told to: `mcp_server.py [deaf] [silent] [noisy] [--log FILE]`.

- tools: `echo` answers, `fail` answers that it has failed, `work` never answers but says how far it is, `die` exits with 3, `pid` tells its
  process id, `stop_reading` answers and then reads no more. Two pages of them.
- `deaf`: ignores the end of its input and SIGTERM, and has a child that is as deaf. `silent`: answers nothing at all.
- `noisy`: prints a line that is no message first.
- What it was told to cancel, and that it has seen the end of its input, is written to FILE.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

MODES = set(sys.argv[1:])
LOG = sys.argv[sys.argv.index("--log") + 1] if "--log" in MODES else os.devnull
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
NAMES = ["echo", "fail", "work", "die", "pid", "stop_reading", "with.dots/and slashes"]
TOOLS = [{"name": name, "description": f"{name}.", "inputSchema": SCHEMA} for name in NAMES]
TOOLS[0]["annotations"] = {"readOnlyHint": True}
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(120)"


def send(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def note(text: str) -> None:
    with open(LOG, "a") as file:
        file.write(text + "\n")


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """A result; None for a request that is not answered."""
    if method == "initialize":
        info = {"name": "misbehaving", "version": "1"}
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": info,
        }
    if method == "tools/list":
        return {"tools": TOOLS[2:]} if params.get("cursor") else {"tools": TOOLS[:2], "nextCursor": "more"}
    if method == "tools/call":
        return call(params["name"], params.get("arguments") or {}, params.get("_meta") or {})
    raise LookupError(method)


def call(name: str, arguments: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any] | None:
    if name == "work":
        if "progressToken" in meta:
            progress = {"progressToken": meta["progressToken"], "progress": 1, "message": "half way"}
            send({"method": "notifications/progress", "params": progress})
        return None
    if name == "die":
        print("I cannot go on", file=sys.stderr, flush=True)
        os.close(1)  # its client sees that before it can know of the exit
        time.sleep(0.1)
        os._exit(3)
    text = {"pid": str(os.getpid())}.get(name, arguments.get("text", ""))
    return {"content": [{"type": "text", "text": text}], "isError": name == "fail"}


def serve() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        params = message.get("params") or {}
        if message.get("method") == "notifications/cancelled":
            note(f"cancelled {params['requestId']}")
        if "id" not in message or "method" not in message or "silent" in MODES:
            continue
        try:
            result = answer(message["method"], params)
            if result is not None:
                send({"id": message["id"], "result": result})
        except LookupError as error:
            send({"id": message["id"], "error": {"code": -32601, "message": f"no method {error}"}})
        if params.get("name") == "stop_reading":
            time.sleep(120)
    note("end of input")


if __name__ == "__main__":
    if "deaf" in MODES:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", DEAF])
    if "noisy" in MODES:
        print("welcome!", flush=True)
    serve()
    if "deaf" in MODES:
        time.sleep(120)
