"""A server and its client in memory: just what ASGI says, no sockets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import anyio

from quiesce import StopReport
from quiesce.asgi import StopOnDisconnect
from quiesce.asgi.types import AsgiApp, AsgiScope, Message


class Client:
    """One request, as a server hands it to an application; `go()` is the client's leave."""

    def __init__(
        self,
        *body: bytes,
        kind: str = "http",
        path: str = "/ask",
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        self.scope: AsgiScope = {
            "type": kind,
            "method": "POST",
            "path": path,
            "headers": headers,
            "state": {},
        }
        if kind == "websocket":
            del self.scope["method"]
        self.sent: list[Message] = []
        self.taken = 0
        self._kind = kind
        self._queue: deque[Message] = deque()
        self._has_gone = False
        self._changed = anyio.Event()
        if kind == "http":
            for part in body:
                self.upload(part)
            self._queue.append({"type": "http.request", "body": b"", "more_body": False})

    def upload(self, part: bytes) -> None:
        self._queue.append({"type": "http.request", "body": part, "more_body": True})

    def say(self, text: str) -> None:
        self._queue.append({"type": "websocket.receive", "text": text})
        self._changed.set()

    def go(self) -> None:
        self._has_gone = True
        self._changed.set()

    async def receive(self) -> Message:
        while not self._queue:
            if self._has_gone or self.is_answered:
                return {"type": f"{self._kind}.disconnect"}
            self._changed = anyio.Event()
            await self._changed.wait()
        self.taken += 1
        return self._queue.popleft()

    async def send(self, message: Message) -> None:
        await anyio.lowlevel.checkpoint()
        self.sent.append(message)
        if self.is_answered:
            self._changed.set()

    @property
    def is_answered(self) -> bool:
        return any(m["type"] == "http.response.body" and not m.get("more_body") for m in self.sent)

    @property
    def status(self) -> int | None:
        return next((m["status"] for m in self.sent if m["type"] == "http.response.start"), None)

    @property
    def body(self) -> bytes:
        return b"".join(m.get("body", b"") for m in self.sent if m["type"] == "http.response.body")

    async def ask(self, app: AsgiApp) -> None:
        """The request from its begin to its end, as the server sees it."""
        await app(self.scope, self.receive, self.send)


class Reports(list[StopReport]):
    """What a middleware has reported."""

    def take(self, report: StopReport, scope: AsgiScope) -> None:
        self.append(report)

    @property
    def kinds(self) -> list[str]:
        return [report.reason.kind for report in self if report.reason is not None]


def watched(app: AsgiApp, **options: Any) -> tuple[AsgiApp, Reports]:
    """`app` behind the middleware, and what that reports."""
    reports = Reports()
    return StopOnDisconnect(app, on_stop=reports.take, **options), reports


async def after(seconds: float, do: Callable[[], object]) -> None:
    await anyio.sleep(seconds)
    do()


async def answer(send: Callable[[Message], Any], text: bytes = b"done", *, more: bool = False) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": text, "more_body": more})


async def be_deaf(seconds: float) -> None:
    """Ignore every cancel for so long."""
    ends_at = anyio.current_time() + seconds
    with anyio.CancelScope(shield=True):
        while (left := ends_at - anyio.current_time()) > 0:
            try:
                await anyio.sleep(left)
            except anyio.get_cancelled_exc_class():
                pass
