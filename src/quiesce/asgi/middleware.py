"""The middleware: each request in a scope of its own, stopped when its client has gone.

- The handler runs in a task of its own. So the request can be over though the handler is not: one that ignores its cancel
  is named when the grace is over, and stays owned, by the server's scope if there is one.
- All requests are stopped at once when the server's scope is: each hears its token, none waits for the one before.
- What the handler raises is raised to the server: the error itself, not a group.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from quiesce import Grace, Handle, Reason, Scope, StopReport
from quiesce._safe.printed import logger
from quiesce.kernel.inner import (
    CANCELLED,
    EXPIRED,
    FAILED,
    ScopeCore,
    check_grace,
    is_cancel,
    is_trouble,
    log_report,
    raise_unchanged,
    when_ended,
)

from .connection import Connection
from .server import server_of
from .thread_hold import ThreadHold
from .types import AsgiApp, AsgiScope, Message, Receive, Send

WATCHED = "quiesce.watched"  # in the ASGI scope of a request that a middleware further out watches already
GONE = Reason("disconnect", "the client has gone")
OVER = Reason("parent", "the request is over")
GIVEN_UP = Reason("cancelled", "the server gave the request up")


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

    `on_stop(report, scope)` is called after each request that was stopped or left something behind, with the
    `StopReport` and the ASGI scope; without it, the report is logged (a warning if something is left). `grace` holds the
    deadlines of such a stop. A stop of the whole server has those of `lifespan`.
    """

    def __init__(
        self,
        app: AsgiApp,
        *,
        grace: Grace | None = None,
        on_stop: Callable[[StopReport, AsgiScope], None] | None = None,
    ) -> None:
        check_grace(grace)
        if on_stop is not None and not callable(on_stop):
            raise TypeError(f"on_stop must be a function of (report, scope), not {type(on_stop).__name__}")
        self.app = app
        self._grace = grace or Grace()
        self._on_stop = on_stop

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or WATCHED in scope:
            return await self.app(scope, receive, send)
        scope[WATCHED] = True
        connection = Connection(scope, receive, send)
        server = server_of(scope)
        if server is not None and server.is_ending:
            return await _say_that_it_is_over(connection, send)
        name = f"{scope.get('method', 'WEBSOCKET')} {scope.get('path', '')}"
        owner = await Scope.open(
            name,
            on_error="report",
            on_child_error=raised_below,
            grace=self._grace,
            scope=server.scope if server is not None else None,
        )
        if server is not None:
            server.add(owner)
        handler = owner.spawn(self.app, scope, connection.receive, connection.send, name=name)
        try:
            await self._until_over(owner, handler, connection, scope)
            if handler.state is FAILED:
                raise_unchanged(handler._value)
            if owner.reason is not OVER:
                await _say_that_it_is_over(connection, send)
            elif handler.state is CANCELLED:
                handler.result()  # raises: it cancelled itself, which only the server can make sense of
        finally:
            if server is not None:
                server.remove(owner)
            del handler  # an error has this frame in its traceback, which must not hold the error
        return None

    async def _until_over(
        self, owner: Scope, handler: Handle, connection: Connection, scope: AsgiScope
    ) -> None:
        """The handler has ended, or is given up; in either case what it owned has ended, or is reported."""
        core = owner._opened()
        connection.on_call = ThreadHold(handler).look
        try:
            if not handler.done and not core.closed:  # an eager task may have done it all by now
                watch = owner.spawn(_stop_when_gone, connection, owner, self._grace)
                watch._label = None  # plumbing, not to be named in reports
                await wait_for_end(core, handler, watch)
                if not connection.is_gone:
                    connection.leave_reading_to_the_application()
            await wait_for_end(core, handler)
        except BaseException as error:
            if not is_cancel(error):
                raise  # we are being thrown away, and cannot wait: the scope notices that
            owner.cancel(GIVEN_UP, grace=self._grace)
            try:
                await self._close(owner, connection, scope)
            finally:
                raise error
        await self._close(owner, connection, scope)

    async def _close(self, owner: Scope, connection: Connection, scope: AsgiScope) -> None:
        core = owner._opened()
        try:
            if core.state is not EXPIRED:
                await owner.close(reason=OVER, grace=self._grace)
        finally:
            connection.end()
            report = owner.report or core.report()
            if owner.reason is not OVER or is_trouble(report):
                self._tell(report, scope)

    def _tell(self, report: StopReport, scope: AsgiScope) -> None:
        if self._on_stop is not None:
            try:
                self._on_stop(report, scope)
            except Exception:
                logger.exception("on_stop of StopOnDisconnect failed for %s", report)
        else:
            log_report(report, logging.WARNING if is_trouble(report) else logging.INFO)


async def wait_for_end(core: ScopeCore, *children: Handle) -> None:
    """Until one of these children of `core` has ended, or its stop is out of time."""
    for child in children:
        when_ended(child, core.wake)
    await core.waiters.wait_until(lambda: any(child.done for child in children) or core.is_over())


async def _stop_when_gone(connection: Connection, owner: Scope, grace: Grace) -> None:
    if await connection.wait_until_gone():
        if not connection.is_answered and not (connection.is_websocket and connection.is_awaited):
            owner.cancel(GONE, grace=grace)
        connection.tell()


def raised_below(handle: Handle, error: BaseException) -> None:
    """The handler's error is raised to the server, which reports it."""


async def _say_that_it_is_over(connection: Connection, send: Send) -> None:
    """An answer for a request that has none, if only for those between us and the server: logs, other middleware."""
    if connection.is_begun:
        return
    messages: list[Message]
    if connection.is_websocket:
        messages = [] if connection.is_gone else [{"type": "websocket.close", "code": 1012}]
    elif connection.is_gone:
        messages = _response(499, b"the client has gone\n")
    else:
        messages = _response(503, b"the server is shutting down\n", (b"retry-after", b"1"))
    try:
        for message in messages:
            await send(message)
    except Exception:
        logger.debug("nobody took the answer to a request that is over", exc_info=True)


def _response(status: int, text: bytes, *headers: tuple[bytes, bytes]) -> list[Message]:
    told = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close"), *headers]
    return [
        {"type": "http.response.start", "status": status, "headers": told},
        {"type": "http.response.body", "body": text},
    ]
