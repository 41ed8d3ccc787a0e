#!/usr/bin/env -S python3 -I -S
"""The Claude Code CLI as its Python SDK sees it: the stdio control protocol, and a turn that lasts a minute.

A turn runs a tool, which is a process of its own, and says something ten times a second. As with the real
one, the end of its input in the middle of a turn changes nothing, nor does a reader that has gone; idle, it
exits. SIGTERM ends it, and its tool, with 143; `interrupt` ends the turn.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("child.py")
SESSION = "0c51d9a2-6f0e-4d62-9c5c-0b6b6d6a8f10"
TURN, PAUSE = 60.0, 0.1

tool: subprocess.Popen[bytes] | None = None


def send(message: dict[str, Any]) -> None:
    try:
        os.write(1, json.dumps(message).encode() + b"\n")
    except BrokenPipeError:
        pass


def begin_turn() -> float:
    global tool
    tool = subprocess.Popen([sys.executable, str(CHILD)], stdin=subprocess.DEVNULL)
    send({"type": "system", "subtype": "init", "session_id": SESSION, "tools": [], "model": "stand-in"})
    return time.monotonic() + TURN


def say_something() -> None:
    content = [{"type": "text", "text": "word"}]
    message = {"id": "msg_1", "role": "assistant", "model": "stand-in", "content": content}
    send({"type": "assistant", "message": message, "parent_tool_use_id": None, "session_id": SESSION})


def end_turn(*, is_error: bool) -> None:
    global tool
    if tool is not None:
        tool.kill()
        tool.wait()
        tool = None
    send(
        {
            "type": "result",
            "subtype": "error_during_execution" if is_error else "success",
            "is_error": is_error,
            "duration_ms": 1,
            "duration_api_ms": 1,
            "num_turns": 1,
            "session_id": SESSION,
            "total_cost_usd": 0.0,
            "usage": {},
        }
    )


def answer(message: dict[str, Any]) -> None:
    subtype = message["request"].get("subtype")
    answers: dict[str, dict[str, Any]] = {
        "initialize": {"commands": [], "output_style": "default", "models": [], "account": {}},
        "interrupt": {"still_queued": []},
        "mcp_status": {"mcpServers": []},
    }
    response: dict[str, Any] = {"request_id": message["request_id"]}
    if subtype in answers:
        response |= {"subtype": "success", "response": answers[subtype]}
    else:
        response |= {"subtype": "error", "error": f"Unsupported control request subtype: {subtype}"}
    send({"type": "control_response", "response": response})


def terminate(*_: object) -> None:
    if tool is not None:
        tool.kill()
    os._exit(143)


def main() -> int:
    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    unread, at_end, until = b"", False, 0.0
    while not at_end or until:
        ready, _, _ = select.select([] if at_end else [0], [], [], PAUSE if until else None)
        if ready:
            chunk = os.read(0, 65536)
            at_end = not chunk
            *lines, unread = (unread + chunk).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if message["type"] == "user":
                    until = begin_turn()
                elif message["type"] == "control_request":
                    answer(message)
                    if message["request"]["subtype"] == "interrupt" and until:
                        end_turn(is_error=True)
                        until = 0.0
        elif until:
            say_something()
        if until and time.monotonic() > until:
            end_turn(is_error=False)
            until = 0.0
    return 0


if __name__ == "__main__":
    sys.exit(main())
