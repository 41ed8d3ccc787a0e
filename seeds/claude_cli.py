#!/usr/bin/env -S python3 -I -S
"""A stand-in for the Claude Code CLI: the stdio control protocol, without a model behind it.

One JSON object a line. It answers `initialize` and every other control request, and each user message with the messages
of a turn. At the end of its input it finishes and exits 0; SIGTERM ends it with 143, as with the real one.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

SESSION = "0c51d9a2-6f0e-4d62-9c5c-0b6b6d6a8f10"


def send(*messages: dict[str, Any]) -> None:
    """In one write, so that the reader gets them in one piece: runs can then be compared."""
    sys.stdout.write("".join(json.dumps(message) + "\n" for message in messages))
    sys.stdout.flush()


def answer_control(message: dict[str, Any]) -> None:
    subtype = message["request"].get("subtype")
    answers: dict[str, dict[str, Any]] = {
        "initialize": {"commands": [], "output_style": "default", "models": [], "account": {}},
        "interrupt": {"still_queued": []},
        "mcp_status": {"mcpServers": []},
    }
    response: dict[str, Any] = {"subtype": "success", "request_id": message["request_id"], "response": {}}
    if subtype in answers:
        response["response"] = answers[subtype]
    elif subtype not in ("set_model", "set_permission_mode", "stop_task"):
        text = f"Unsupported control request subtype: {subtype}"
        response = {"subtype": "error", "request_id": message["request_id"], "error": text}
    send({"type": "control_response", "response": response})


def take_turn() -> None:
    messages: list[dict[str, Any]] = [
        {"type": "system", "subtype": "init", "session_id": SESSION, "tools": [], "model": "stand-in"}
    ]
    for number, text in enumerate(("Hello", "there"), 1):
        content = [{"type": "text", "text": text}]
        body = {"id": f"msg_{number}", "role": "assistant", "model": "stand-in", "content": content}
        messages.append(
            {"type": "assistant", "message": body, "parent_tool_use_id": None, "session_id": SESSION}
        )
    messages.append(
        {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "duration_ms": 1,
            "duration_api_ms": 1,
            "num_turns": 1,
            "session_id": SESSION,
            "result": "Hello there",
            "total_cost_usd": 0.0,
            "usage": {},
        }
    )
    send(*messages)


def main() -> int:
    if "-v" in sys.argv[1:]:
        print("2.1.50 (Claude Code)")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for line in sys.stdin:
        if not line.strip():
            continue
        message = json.loads(line)
        if message["type"] == "control_request":
            answer_control(message)
        elif message["type"] == "user":
            take_turn()
    return 0


if __name__ == "__main__":
    sys.exit(main())
