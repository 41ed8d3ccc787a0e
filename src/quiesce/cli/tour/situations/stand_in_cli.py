"""A stand-in for the Claude Code CLI: the stdio control protocol, and an agent that never finishes.

The agent takes a step every few milliseconds, sends a message about it, and adds a byte to a file, by which the
tour counts its steps. An interrupt ends the turn; the end of its input ends the program. It runs as a program of
its own, and imports nothing of quiesce.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import Any

SESSION = "6a3b7f0e-0a52-4a53-8d0c-4d8c2f6f1c11"


def send(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def step(number: int, steps_file: str) -> None:
    with open(steps_file, "ab") as file:
        file.write(b".")
    content = [{"type": "text", "text": f"step {number}"}]
    body = {"id": f"msg_{number}", "role": "assistant", "model": "stand-in", "content": content}
    send({"type": "assistant", "message": body, "parent_tool_use_id": None, "session_id": SESSION})


def end_turn(steps: int) -> None:
    cost = {"total_cost_usd": 0.0, "usage": {}, "duration_ms": 1, "duration_api_ms": 1}
    send(
        {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "num_turns": steps,
            "session_id": SESSION,
            "result": "",
            **cost,
        }
    )


def main() -> int:
    steps_file, pause = os.environ["QUIESCE_TOUR_STEPS"], float(os.environ["QUIESCE_TOUR_PAUSE"])
    if "-v" in sys.argv[1:] or "--version" in sys.argv[1:]:
        print("2.1.50 (Claude Code)")
        return 0
    unread = b""
    is_working, steps, next_step = False, 0, 0.0
    while True:
        timeout = max(0.0, next_step - time.monotonic()) if is_working else None
        if select.select([0], [], [], timeout)[0]:
            data = os.read(0, 65536)
            if not data:
                return 0
            *lines, unread = (unread + data).split(b"\n")
            for message in map(json.loads, filter(None, lines)):
                if message["type"] == "user":
                    is_working = True
                    send(
                        {
                            "type": "system",
                            "subtype": "init",
                            "session_id": SESSION,
                            "tools": [],
                            "model": "stand-in",
                        }
                    )
                elif message["type"] == "control_request":
                    if message["request"]["subtype"] == "interrupt" and is_working:
                        is_working = False
                        end_turn(steps)
                    answer = {"subtype": "success", "request_id": message["request_id"], "response": {}}
                    send({"type": "control_response", "response": answer})
        if is_working and time.monotonic() >= next_step:
            steps += 1
            step(steps, steps_file)
            next_step = time.monotonic() + pause


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(1)
