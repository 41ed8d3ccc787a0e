"""Uses an example that waits for a page or a terminal, as its user would, and prints the answers: `used MODULE`."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from starlette.testclient import TestClient

ASKED = ("Hello.", "And again.")
TOOL = {
    "name": "generate_task_steps",
    "description": "Show steps to the user.",
    "parameters": {"type": "object", "properties": {"steps": {"type": "array", "items": {"type": "string"}}}},
}


def use_chat(example: ModuleType) -> None:
    with TestClient(example.app) as page:
        for text in ASKED:
            answer = page.post("/chat/", data={"prompt": text}).raise_for_status()
            # What the page shows in the end: how often the answer grows before is a matter of time.
            asked, *_, answered = answer.text.splitlines()
            print(asked, answered, sep="\n")


def use_ag_ui(example: ModuleType) -> None:
    """With a tool of the page's own."""
    with TestClient(example.app) as page:
        for text in ASKED:
            sent = {
                "threadId": "thread",
                "runId": "run",
                "state": {},
                "messages": [{"id": "message", "role": "user", "content": text}],
                "tools": [TOOL],
                "context": [],
                "forwardedProps": {},
            }
            print(page.post("/", json=sent).raise_for_status().text)


async def cancel_and_resume(example: ModuleType) -> None:
    """Cancel the first answer as soon as something of it is shown."""
    agent = example.Agent("openai:gpt-5-mini")
    history: list[Any] = []
    for number, text in enumerate(ASKED):
        token = example.CancellationToken()
        words: list[str] = []
        show = words.append if number else lambda word, token=token: token.cancel()
        history, was_cancelled = await example.stream_turn(agent, text, history, token, show)
        print("cancelled" if was_cancelled else "".join(words), *map(type, history))


if __name__ == "__main__":
    example = import_module(sys.argv[1])
    if ".ag_ui." in sys.argv[1]:
        use_ag_ui(example)
    elif sys.argv[1].endswith("chat_app"):
        use_chat(example)
    else:
        asyncio.run(cancel_and_resume(example))
