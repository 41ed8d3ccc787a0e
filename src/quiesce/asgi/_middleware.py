"""The middleware: each request in a scope of its own, stopped when its client has gone."""

from __future__ import annotations

import logging
from collections.abc import Callable

from quiesce.kernel._child import ChildCancelled, Handle
from quiesce.kernel._core import ScopeClosed
from quiesce.kernel._grace import Grace, check_grace
from quiesce.kernel._reason import Reason
from quiesce.kernel._report import StopReport
from quiesce.kernel._scope import Scope

from ._connection import Connection
from ._lifespan import server_scope
from ._types import AsgiApp, AsgiScope, Receive, Send

logger = logging.getLogger("quiesce")

GONE = Reason("disconnect", "the client has gone")


class StopOnDisconnect:
    """ASGI middleware: when the client has gone, the handler is cancelled, cleans up, and is reported.

    ```python
    app = FastAPI(lifespan=quiesce.asgi.lifespan())
    app.add_middleware(quiesce.asgi.StopOnDisconnect)
    ```

    The handler runs in a `Scope`: what it opens with `quiesce.stream`, `own`, `to_thread`, `Process` ends with it, and
    `current_token()` says why, also in threads. It does not matter whether the response has begun, streams, or is
    computed in one go, nor which middleware stands between; put this one outermost. A client that goes after it has
    its whole answer stops nothing: background tasks run on. A websocket's handler that is waiting for a message
    gets to know by that; any other is cancelled.

    `on_stop(report, scope)` is called after each request that was stopped, with the `StopReport` and the ASGI scope;
    without it, a request that left something behind is logged. `grace` holds the deadlines of such a stop.
    """

    def __init__(
        self,
        app: AsgiApp,
        *,
        grace: Grace | None = None,
        on_stop: Callable[[StopReport, AsgiScope], None] | None = None,
    ) -> None:
        check_grace(grace)
        self.app = app
        self._grace = grace
        self._on_stop = on_stop

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        connection = Connection(scope, receive, send)
        name = f"{scope.get('method', 'WEBSOCKET')} {scope.get('path', '')}"
        try:
            owner = await Scope.open(
                name, on_error="report", on_child_error=_raised_below, grace=self._grace, scope=server_scope(scope)
            )
        except ScopeClosed:
            return await _refuse(scope, send)
        handler: Handle | None = None
        try:
            handler = owner.spawn(self.app, scope, connection.receive, connection.send, name="handler")
            owner.spawn(_stop_when_gone, connection, owner, name="the watch for the client")
            await handler.wait()
        finally:
            was_stopped = owner.reason is not None
            report = await owner.close(reason=Reason("parent", "the request is over"))
            if was_stopped:
                self._tell(report, scope)
        try:
            handler.result()
        except ChildCancelled:
            if not was_stopped:
                raise  # it cancelled itself, which only the server can make sense of
            if not connection.is_gone and not connection.is_begun:
                await _refuse(scope, send)
        return None

    def _tell(self, report: StopReport, scope: AsgiScope) -> None:
        if self._on_stop is not None:
            try:
                self._on_stop(report, scope)
            except Exception:
                logger.exception("on_stop of StopOnDisconnect failed for %s", report.name)
        elif not report.clean:
            logger.warning("%s", report)


async def _stop_when_gone(connection: Connection, owner: Scope) -> None:
    await connection.wait_until_gone()
    if not connection.is_answered and not (connection.is_websocket and connection.is_awaited):
        owner.cancel(GONE)


def _raised_below(handle: Handle, error: BaseException) -> None:
    """The handler's error is raised to the server, which reports it."""


async def _refuse(scope: AsgiScope, send: Send) -> None:
    """The server is stopping, and nothing may start any more."""
    if scope["type"] == "websocket":
        return await send({"type": "websocket.close", "code": 1012})
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close"), (b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": b"the server is shutting down\n"})
    return None
