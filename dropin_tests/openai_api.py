"""A provider that makes its answers up: OpenAI's Responses and Chat Completions APIs, whole and streamed.

The answer depends on the request alone, so that a program gets the same answers each time it runs, and with
every library. The rules: asked for JSON of a schema, it makes up the smallest value of that; offered tools,
it calls one, or the one that it is told to, until the last message of the user is followed by an output, or if
a call is required, each of them in turn; and else it says a sentence. Prints its port.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = {
    "input_tokens": 10,
    "output_tokens": 5,
    "total_tokens": 15,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}
CHAT_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
TIMES = {"date": "2021-05-08", "date-time": "2021-05-08T12:00:00Z"}
OUTPUTS = ("function_call_output", "tool")  # in the one API and in the other


def value_of(schema: dict[str, Any], defs: dict[str, Any], name: str = "value") -> Any:
    """The smallest value that a JSON schema allows."""
    if "$ref" in schema:
        return value_of(defs[schema["$ref"].rpartition("/")[2]], defs, name)
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return value_of(schema[choice][0], defs, name)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("default") is not None:
        return schema["default"]
    if schema.get("format") in TIMES:
        return TIMES[schema["format"]]
    kind = schema.get("type", "object")
    if kind == "object":
        return {key: value_of(part, defs, key) for key, part in schema.get("properties", {}).items()}
    if kind == "array":
        return [value_of(schema.get("items", {"type": "string"}), defs, name)]
    least = schema.get("minimum", 0)
    return {
        "string": f"made-up {name}",
        "integer": max(least, 3),
        "number": max(least, 0.5),
        "boolean": True,
        "null": None,
    }[kind]


def made_up(schema: dict[str, Any]) -> str:
    return json.dumps(value_of(schema, schema.get("$defs", {})))


class Request:
    """What both APIs are asked, in the same words."""

    def __init__(self, body: dict[str, Any], *, chat: bool) -> None:
        self.streamed = bool(body.get("stream"))
        items = body["messages"] if chat else body.get("input", [])
        self.items: list[dict[str, Any]] = (
            [{"role": "user", "content": items}] if isinstance(items, str) else items
        )
        tools = body.get("tools") or []
        functions = [tool["function"] if chat else tool for tool in tools if tool["type"] == "function"]
        self.tools = {tool["name"]: tool["parameters"] for tool in functions}
        form = body.get("response_format", {}) if chat else body.get("text", {}).get("format", {})
        self.schema = (
            form.get("json_schema", form).get("schema") if form.get("type") == "json_schema" else None
        )
        choice = body.get("tool_choice")
        self.wanted = (
            (choice.get("name") or choice.get("function", {}).get("name"))
            if isinstance(choice, dict)
            else None
        )
        self.may_call = choice != "none"
        self.must_call = choice == "required"
        self.id = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:12]

    def answer(self) -> tuple[str, str]:
        """A tool and its arguments, or nothing and a text."""
        has_output = False
        called: list[str] = []  # since the last message of the user
        for item in self.items:
            kind = item.get("role") if item.get("role") in ("user", "tool") else item.get("type")
            has_output = kind in OUTPUTS or (has_output and kind != "user")
            calls: list[dict[str, Any]] = [item] if kind == "function_call" else item.get("tool_calls") or []
            names = [call.get("function", call)["name"] for call in calls]
            called = [] if kind == "user" else called + names
        left = [name for name in self.tools if name not in called] if self.must_call else [*self.tools]
        if left and self.may_call and (self.wanted or self.must_call or not has_output):
            name = self.wanted or left[0]
            return name, made_up(self.tools[name])
        if self.schema is not None:
            return "", made_up(self.schema)
        return "", f"This is a made-up answer to {len(self.items)} items."


def responses(request: Request, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a streamed response; the last one has the whole."""
    name, text = request.answer()
    part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item: dict[str, Any]
    if name:
        item = {
            "id": f"fc_{request.id}",
            "type": "function_call",
            "call_id": f"call_{request.id}",
            "name": name,
            "arguments": text,
            "status": "completed",
        }
    else:
        item = {
            "id": f"msg_{request.id}",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
    whole = {
        "id": f"resp_{request.id}",
        "object": "response",
        "created_at": 1,
        "model": body["model"],
        "output": [item],
        "status": "completed",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": USAGE,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "temperature": 1.0,
        "top_p": 1.0,
    }
    yield {
        "type": "response.created",
        "response": {**whole, "output": [], "status": "in_progress", "usage": None},
    }
    where: dict[str, Any] = {"item_id": item["id"], "output_index": 0}
    begun: dict[str, Any] = {
        **item,
        "status": "in_progress",
        **({"arguments": ""} if name else {"content": []}),
    }
    yield {"type": "response.output_item.added", "output_index": 0, "item": begun}
    if name:
        for piece in pieces(text):
            yield {"type": "response.function_call_arguments.delta", **where, "delta": piece}
        yield {"type": "response.function_call_arguments.done", **where, "name": name, "arguments": text}
    else:
        where["content_index"] = 0
        yield {"type": "response.content_part.added", **where, "part": {**part, "text": ""}}
        for piece in pieces(text):
            yield {"type": "response.output_text.delta", **where, "delta": piece, "logprobs": []}
        yield {"type": "response.output_text.done", **where, "text": text, "logprobs": []}
        yield {"type": "response.content_part.done", **where, "part": part}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    yield {"type": "response.completed", "response": whole}


def pieces(text: str) -> Iterator[str]:
    """Words with the blanks after them."""
    words = text.split(" ")
    for number, word in enumerate(words, 1):
        yield word if number == len(words) else word + " "


def chat(request: Request, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The chunks of a streamed completion; if it is not to be streamed, one: the whole."""
    name, text = request.answer()
    call = {"id": f"call_{request.id}", "type": "function", "function": {"name": name, "arguments": text}}
    envelope = {"id": f"chatcmpl-{request.id}", "created": 1, "model": body["model"]}
    reason = "tool_calls" if name else "stop"
    if not request.streamed:
        message = {
            "role": "assistant",
            "content": None if name else text,
            "tool_calls": [call] if name else None,
        }
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        yield {**envelope, "object": "chat.completion", "choices": [choice], "usage": CHAT_USAGE}
        return
    envelope["object"] = "chat.completion.chunk"
    deltas = (
        [{"tool_calls": [{"index": 0, **call}]}] if name else [{"content": piece} for piece in pieces(text)]
    )
    for delta in ({"role": "assistant"}, *deltas):
        yield {**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**envelope, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    yield {**envelope, "choices": [], "usage": CHAT_USAGE}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        is_chat = self.path.endswith("/chat/completions")
        if not is_chat and not self.path.endswith("/responses"):
            self.refuse()
            return
        request = Request(body, chat=is_chat)
        events = list((chat if is_chat else responses)(request, body))
        if not request.streamed:
            self.reply("application/json", json.dumps(events[-1] if is_chat else events[-1]["response"]))
            return
        lines = []
        for number, event in enumerate(events):
            if not is_chat:
                event["sequence_number"] = number
                lines.append(f"event: {event['type']}\n")
            lines.append(f"data: {json.dumps(event)}\n\n")
        self.reply("text/event-stream", "".join([*lines, "data: [DONE]\n\n" if is_chat else ""]))

    def do_GET(self) -> None:
        self.refuse()

    def refuse(self) -> None:
        error = {"error": {"message": f"{self.path} is not made up here", "type": "invalid_request_error"}}
        self.reply("application/json", json.dumps(error), 404)

    def reply(self, kind: str, text: str, status: int = 200) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None: ...


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
