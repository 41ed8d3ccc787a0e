"""The middleware: runs each request in a scope of its own, which is stopped when the client disconnects.

- The handler runs in a task of its own. So the request can end although the handler has not: a handler that ignores its
  cancel is named when the grace has expired, and stays owned, by the server's scope if there is one.
- When the server's scope is stopped, all requests are stopped at once: each has its token cancelled, and none waits for
  another.
- An exception of the handler is raised to the server as it is, not in a group.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from quiesce import Grace, Handle, Reason, Scope, StopReport
from quiesce._safe.printed import logger
from quiesce.kernel.inner import (
    ScopeCore,
    check_grace,
    core_of,
    is_cancel,
    is_trouble,
    log_report,
    raise_unchanged,
    spawn_unnamed,
    when_ended,
)

from .connection import Connection
from .server import server_of
from .thread_hold import hold_while_in_thread
from .types import AsgiApp, AsgiScope, Message, Receive, Send

# In the ASGI scope of a request that an outer instance of the middleware watches already.
WATCHED = "quiesce.watched"
DISCONNECTED = Reason("disconnect", "the client disconnected")
ENDED = Reason("parent", "the request has ended")
CANCELLED_BY_SERVER = Reason("cancelled", "the server cancelled the request")


class StopOnDisconnect:
    """ASGI middleware that cancels the handler when its client disconnects, lets it clean up, and reports the stop.

    ```python
    app = FastAPI(lifespan=quiesce.asgi.lifespan())
    app.add_middleware(quiesce.asgi.StopOnDisconnect)
    ```

    The handler runs in a `Scope`: what it opens with `quiesce.stream`, `own`, `to_thread` or `Process` ends with it,
    and `current_token()` says why, in threads too. It does not matter whether the response has started, is streamed
    or is computed in one go, nor which other middleware is installed; make this one the outermost. A client that
    disconnects after it has received its whole answer stops nothing: background tasks keep running. A websocket's
    handler that is waiting for a message learns of the disconnect from that message; any other handler is cancelled.

    `on_stop(report, scope)` is called after each request that was stopped or left something over, with the
    `StopReport` and the ASGI scope; without it, the report is logged (as a warning if something is left over).
    `grace` has the deadlines of such a stop. A stop of the whole server has those of `lifespan`.
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
        if server is not None and server.is_stopping:
            return await _send_final_answer(connection, send)
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
            await self._run_to_end(owner, handler, connection, scope)
            if handler.error is not None:
                raise_unchanged(handler.error)
            if owner.reason is not ENDED:
                await _send_final_answer(connection, send)
            elif handler.state == "cancelled":
                # The handler cancelled itself, without a stop. Only the server can make sense of that, so raise it.
                handler.result()
        finally:
            if server is not None:
                server.remove(owner)
            # A raised error refers to this frame by its traceback; without this, the frame would refer to the error.
            del handler
        return None

    async def _run_to_end(
        self, owner: Scope, handler: Handle, connection: Connection, scope: AsgiScope
    ) -> None:
        """Wait until the handler has ended or its stop has expired; whatever it owned has then ended or is reported."""
        core = core_of(owner)
        connection.on_call = hold_while_in_thread(handler)
        try:
            # An eager task may have ended already.
            if not handler.done and not core.closed:
                watch = spawn_unnamed(owner, _stop_on_disconnect, connection, owner, self._grace)
                await wait_for_end(core, handler, watch)
                if not connection.disconnected:
                    connection.leave_reading_to_the_application()
            await wait_for_end(core, handler)
        except BaseException as error:
            if not is_cancel(error):
                # GeneratorExit, for one: this coroutine is being discarded and cannot wait. The scope notices that.
                raise
            owner.cancel(CANCELLED_BY_SERVER, grace=self._grace)
            try:
                await self._close(owner, connection, scope)
            finally:
                raise error
        await self._close(owner, connection, scope)

    async def _close(self, owner: Scope, connection: Connection, scope: AsgiScope) -> None:
        try:
            if owner.state != "expired":
                await owner.close(reason=ENDED, grace=self._grace)
        finally:
            connection.end()
            report = owner.report or core_of(owner).report()
            if owner.reason is not ENDED or is_trouble(report):
                hand_over(report, "StopOnDisconnect", self._on_stop, scope)


def hand_over(report: StopReport, giver: str, on_stop: Callable[..., None] | None, *more: object) -> None:
    """Call `on_stop(report, *more)`; without it, log the report."""
    if on_stop is None:
        log_report(report, logging.WARNING if is_trouble(report) else logging.INFO)
        return
    try:
        on_stop(report, *more)
    except Exception:
        logger.exception("on_stop of %s failed for %s", giver, report)


async def wait_for_end(core: ScopeCore, *children: Handle) -> None:
    """Wait until one of these children of `core` has ended, or the stop of `core` has expired."""
    for child in children:
        when_ended(child, core.wake)
    await core.waiters.wait_until(lambda: any(child.done for child in children) or core.is_over())


async def _stop_on_disconnect(connection: Connection, owner: Scope, grace: Grace) -> None:
    if await connection.wait_for_disconnect():
        if not connection.response_complete and not (connection.is_websocket and connection.is_awaited):
            owner.cancel(DISCONNECTED, grace=grace)
        connection.wake()


def raised_below(handle: Handle, error: BaseException) -> None:
    """Do nothing with the handler's error: it is raised to the server, which reports it."""


async def _send_final_answer(connection: Connection, send: Send) -> None:
    """Answer a request that has no answer yet, if only for logs and other middleware between us and the server."""
    if connection.response_started:
        return
    messages: list[Message]
    if connection.is_websocket:
        messages = [] if connection.disconnected else [{"type": "websocket.close", "code": 1012}]
    elif connection.disconnected:
        messages = _response(499, b"the client disconnected\n")
    else:
        messages = _response(503, b"the server is shutting down\n", (b"retry-after", b"1"))
    try:
        for message in messages:
            await send(message)
    except Exception:
        logger.debug("the answer to a request that has ended could not be sent", exc_info=True)


def _response(status: int, text: bytes, *headers: tuple[bytes, bytes]) -> list[Message]:
    all_headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"connection", b"close"),
        *headers,
    ]
    return [
        {"type": "http.response.start", "status": status, "headers": all_headers},
        {"type": "http.response.body", "body": text},
    ]
