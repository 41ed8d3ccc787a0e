"""A model behind OpenAI's chat-completions API, and a plain slow stream: `model.py`, prints its port.

It says a word ten times a second for a minute, or thinks as long if it is not asked to stream. If the last
message is the user's and names one of the tools that are offered, it calls that tool instead, at once.
"""

from __future__ import annotations

import asyncio
import json
from asyncio import StreamReader, StreamWriter
from typing import Any

WORDS, PAUSE = 600, 0.1
NO_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def tool_call(request: dict[str, Any]) -> dict[str, Any] | None:
    last = request["messages"][-1]
    content = last.get("content")
    text = content if isinstance(content, str) else json.dumps(content)
    for tool in request.get("tools") or ():
        name = tool["function"]["name"]
        if last["role"] == "user" and name in text:
            return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    return None


def envelope(kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": None, **choice}
    return {"id": "1", "object": kind, "created": 1, "model": "stand-in", "choices": [choice]}


async def complete(request: dict[str, Any], writer: StreamWriter) -> None:
    call = tool_call(request)
    if not request.get("stream"):
        if call is None:
            await asyncio.sleep(WORDS * PAUSE)
        message = {
            "role": "assistant",
            "content": None if call else "done",
            "tool_calls": [call] if call else None,
        }
        choice = {"message": message, "finish_reason": "tool_calls" if call else "stop"}
        body = json.dumps({**envelope("chat.completion", choice), "usage": NO_USAGE}).encode()
        start(writer, "application/json", f"Content-Length: {len(body)}")
        writer.write(body)
        return
    start(writer, "text/event-stream")
    if call is not None:
        delta: dict[str, Any] = {"role": "assistant", "tool_calls": [{"index": 0, **call}]}
        event(writer, envelope("chat.completion.chunk", {"delta": delta}))
        event(writer, envelope("chat.completion.chunk", {"delta": {}, "finish_reason": "tool_calls"}))
    else:
        for _ in range(WORDS):
            delta = {"role": "assistant", "content": "word "}
            event(writer, envelope("chat.completion.chunk", {"delta": delta}))
            await writer.drain()
            await asyncio.sleep(PAUSE)
    chunk(writer, b"data: [DONE]\n\n")
    chunk(writer, b"")


def start(writer: StreamWriter, kind: str, length: str = "Transfer-Encoding: chunked") -> None:
    writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{length}\r\n\r\n".encode())


def event(writer: StreamWriter, message: dict[str, Any]) -> None:
    chunk(writer, b"data: " + json.dumps(message).encode() + b"\n\n")


def chunk(writer: StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


async def say_lines(writer: StreamWriter) -> None:
    start(writer, "text/plain")
    for number in range(WORDS):
        chunk(writer, b"line %d\n" % number)
        await writer.drain()
        await asyncio.sleep(PAUSE)
    chunk(writer, b"")


async def serve(reader: StreamReader, writer: StreamWriter) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next(
                (
                    int(line.split(b":")[1])
                    for line in head.lower().splitlines()
                    if line.startswith(b"content-length")
                ),
                0,
            )
            body = await reader.readexactly(length)
            if head.startswith(b"GET"):
                await say_lines(writer)
            else:
                await complete(json.loads(body), writer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the client has gone
    finally:
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
