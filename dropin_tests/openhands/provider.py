"""A local server that speaks the protocol of OpenAI's chat completions, with made-up answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from quiesce.dropin.openhands.sdk import LLM


class Provider(ThreadingHTTPServer):
    """Answers each request with `text`; or with none, until the client disconnects, which it notes."""

    daemon_threads = False
    block_on_close = True

    def __init__(self, text: str | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.text = text
        self.asked = threading.Event()
        self.was_cut_off = threading.Event()

    def model(self, **options: Any) -> LLM:
        """A model of the SDK's that asks this server."""
        url = f"http://127.0.0.1:{self.server_port}/v1"
        costs = {
            "input_cost_per_token": 1e-6,
            "output_cost_per_token": 1e-6,
        }  # litellm does not know this model
        settings: dict[str, Any] = {"base_url": url, "api_key": "none", "num_retries": 0, **costs, **options}
        return LLM(model="openai/stand-in", **settings)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        provider: Any = self.server
        self.rfile.read(int(self.headers["Content-Length"]))
        provider.asked.set()
        if provider.text is None:
            self.connection.settimeout(30)
            if self.rfile.read(1) == b"":
                provider.was_cut_off.set()
            self.close_connection = True
            return
        message = {"role": "assistant", "content": provider.text}
        answer = {
            "id": "made-up",
            "object": "chat.completion",
            "created": 0,
            "model": "stand-in",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Nothing is said."""


@contextmanager
def serving(text: str | None) -> Iterator[Provider]:
    provider = Provider(text)
    thread = threading.Thread(target=provider.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield provider
    finally:
        provider.shutdown()
        thread.join()
        provider.server_close()
