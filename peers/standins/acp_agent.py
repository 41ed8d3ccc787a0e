"""An agent that speaks the Agent Client Protocol over stdio, and works on a prompt until it is told to stop.

For the prompt it starts a process, as an agent does that runs a command. While it works, the end of its input changes
nothing; SIGTERM ends it, and leaves that process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("child.py")


def reply(identity: object, result: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", "id": identity, "result": result}), flush=True)


def main() -> None:
    prompt: object = None
    command: subprocess.Popen[bytes] | None = None
    for line in sys.stdin:
        message = json.loads(line)
        method = message.get("method")
        if method == "initialize":
            reply(message["id"], {"protocolVersion": 1, "agentCapabilities": {}})
        elif method == "session/new":
            reply(message["id"], {"sessionId": "one"})
        elif method == "session/prompt":
            prompt = message["id"]
            command = subprocess.Popen([sys.executable, str(CHILD)], stdin=subprocess.DEVNULL)
            content = {"type": "text", "text": "working"}
            update = {"sessionUpdate": "agent_message_chunk", "content": content}
            note = {"sessionId": "one", "update": update}
            print(json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": note}), flush=True)
        elif method == "session/cancel" and command is not None:
            command.kill()
            command.wait()
            reply(prompt, {"stopReason": "cancelled"})
            prompt = command = None
        elif "id" in message and method is not None:
            error = {"code": -32601, "message": f"Method not found: {method}"}
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
    if prompt is not None:
        time.sleep(120)


if __name__ == "__main__":
    main()
