"""A stand-in for the native package that serves the embedded model: the same names, and the same wire, in plain Python.

It is imported in the server's process, as `xllamacpp`. What the prompt says decides how it answers:

- `for ever`: words without an end, until the connection is gone; `deaf`: it does not begin, and does not notice that either, and a file
  beside the weights says that it is at it;
- `die`: its process ends in the middle. Anything else is answered with what was asked, in capitals.

The file of weights decides how it starts: `slow` never does, `broken` raises.
"""

from __future__ import annotations

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

busy = 0


class CommonParams(SimpleNamespace):
    def __init__(self) -> None:
        super().__init__(
            model=SimpleNamespace(),
            cpuparams=SimpleNamespace(),
            cpuparams_batch=SimpleNamespace(),
            verbosity=3,
        )


class Server:
    def __init__(self, params: Any) -> None:
        os.write(1, b"noise on stdout\n")
        os.write(2, b"noise on stderr\n")
        kind = Path(params.model.path).read_bytes()
        if kind == b"slow":
            time.sleep(600)
        if kind == b"broken":
            raise RuntimeError("Failed to init server")
        Handler.weights = params.model.path
        Handler.key = params.api_keys[0]
        server = ThreadingHTTPServer((params.hostnames[0], params.port), Handler)
        self.listening_address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    key = ""
    weights = ""

    def do_GET(self) -> None:
        assert self.path == "/slots"
        self._begin("application/json")
        if self._is_allowed():
            self.wfile.write(json.dumps([{"id": 0, "is_processing": bool(busy)}]).encode())

    def do_POST(self) -> None:
        global busy
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self._is_allowed():
            self.send_error(401)
            return
        asked = body["messages"][-1]["content"]
        busy += 1
        try:
            self._answer(body, asked)
        except OSError:
            pass  # nobody wants it any more
        finally:
            busy -= 1

    def _answer(self, body: dict[str, Any], asked: str) -> None:
        if asked == "deaf":
            Path(f"{self.weights}.deaf").touch()
            time.sleep(600)
        self._begin("text/event-stream")
        if asked == "show the request":
            self._say(json.dumps(body))
        else:
            self._say(asked.upper())
        if asked == "die":
            os._exit(7)
        while asked == "for ever":
            self._say(" and on")
            time.sleep(0.001)
        self.wfile.write(b"data: [DONE]\n\n")

    def _is_allowed(self) -> bool:
        return self.headers.get("authorization") == f"Bearer {self.key}"

    def _begin(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.end_headers()

    def _say(self, text: str) -> None:
        chunk = {"choices": [{"index": 0, "delta": {"content": text}}]}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *args: Any) -> None:
        pass
