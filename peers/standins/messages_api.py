"""The Messages API, as far as the Claude Code CLI asks for it: `messages_api.py [LOG]`, prints its port.

The script is in the prompt: a line `call TOOL {json}` makes it call that tool, `say TEXT` makes it say that;
to the result of a tool, and to anything else, it says `Done.`. The last such word of the user's last message
counts: the CLI puts several prompts, and notes of its own, into one message, and has messages of the system
after it. A program that imports this may have other texts answered, too (`OTHERS`). Each request is a line in
LOG, if there is one: method, path, status.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

WORD = re.compile(r"^(?:call (?P<tool>\w+) (?P<input>\{.*\})|say (?P<text>.*))$", re.MULTILINE)
USAGE = {"input_tokens": 1, "output_tokens": 1}
NUMBERS = count(1)
LOG = Path(sys.argv[1]) if len(sys.argv) > 1 else None
# Of a text in which no line is such a word: what makes the answer to it, in place of `Done.`; None for others.
OTHERS: list[Callable[[str], dict[str, Any] | None]] = []


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """The block of content that follows from what the user has said last."""
    content = next(each["content"] for each in reversed(request["messages"]) if each["role"] == "user")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for block in reversed(blocks):
        if block["type"] == "tool_result":
            break
        for word in reversed([*WORD.finditer(block.get("text", ""))]):
            if word["text"] is not None:
                return {"type": "text", "text": word["text"]}
            return call(word["tool"], json.loads(word["input"]))
        for answer in OTHERS:
            if (made_up := answer(block.get("text", ""))) is not None:
                return made_up
    return {"type": "text", "text": "Done."}


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The block of content that is the call of a tool."""
    return {"type": "tool_use", "id": f"toolu_{next(NUMBERS)}", "name": name, "input": arguments}


def events_of(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same answer, in the pieces of a stream."""
    block = answer_to(request)
    yield {"type": "message_start", "message": {**message(request), "content": []}}
    if block["type"] == "text":
        empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
    else:
        empty = {**block, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    yield {"type": "content_block_start", "index": 0, "content_block": empty}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    ended = {"stop_reason": reason(block), "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": USAGE}
    yield {"type": "message_stop"}


def message(request: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"msg_{next(NUMBERS)}",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": USAGE,
    }


def reason(block: dict[str, Any]) -> str:
    return "tool_use" if block["type"] == "tool_use" else "end_turn"


def reply(method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
    """Status, kind and body of the answer."""
    where = path.partition("?")[0]
    if method == "POST" and where == "/v1/messages":
        request = json.loads(body)
        if request.get("stream"):
            stream = "".join(
                f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events_of(request)
            )
            return 200, "text/event-stream", stream.encode()
        block = answer_to(request)
        whole = {**message(request), "content": [block], "stop_reason": reason(block)}
        return 200, "application/json", json.dumps(whole).encode()
    if method == "POST" and where == "/v1/messages/count_tokens":
        return 200, "application/json", json.dumps({"input_tokens": 1}).encode()
    if method == "HEAD":
        return 200, "text/plain", b""
    error = {"type": "error", "error": {"type": "not_found_error", "message": f"no {where} here"}}
    return 404, "application/json", json.dumps(error).encode()


async def serve(reader: StreamReader, writer: StreamWriter) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            method, path, _ = head.split(b"\r\n", 1)[0].decode().split()
            length = re.search(rb"(?i)\ncontent-length: *(\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            status, kind, data = reply(method, path, body)
            if LOG is not None:
                with LOG.open("a") as log:
                    print(method, path, status, file=log)
            about = f"HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
            writer.write(about.encode() + data)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the client has gone
    finally:
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
