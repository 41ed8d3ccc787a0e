"""Asks a web application of the examples what its page would, and prints the answers: `served MODULE`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from starlette.testclient import TestClient

TOOL = {
    "name": "generate_task_steps",
    "description": "Show steps to the user.",
    "parameters": {"type": "object", "properties": {"steps": {"type": "array", "items": {"type": "string"}}}},
}


def asked(text: str) -> dict[str, Any]:
    """What an AG-UI page sends, with a tool of its own."""
    return {
        "threadId": "thread",
        "runId": "run",
        "state": {},
        "messages": [{"id": "message", "role": "user", "content": text}],
        "tools": [TOOL],
        "context": [],
        "forwardedProps": {},
    }


def main(module: str) -> None:
    with TestClient(import_module(module).app) as page:
        for text in ("Hello.", "And again."):
            if ".ag_ui." in module:
                answer = page.post("/", json=asked(text))
            else:
                answer = page.post("/chat/", data={"prompt": text})
            answer.raise_for_status()
            print(answer.text)


if __name__ == "__main__":
    main(sys.argv[1])
