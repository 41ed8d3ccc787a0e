"""The server's own scope: opened when it starts, closed when it stops."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

from quiesce import Grace, Reason, Scope, StopReport
from quiesce._safe.printed import logger
from quiesce.kernel.inner import check_grace, is_trouble, log_report

from .server import STATE, Server, server_of
from .signals import pass_signals_to

SHUTDOWN_GRACE = Grace(cooperate=2.0)
# As Starlette and FastAPI take it. Any: the application, and what it keeps in its state.
Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]


def lifespan(
    inner: Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]] | None = None,
    *,
    grace: Grace | None = None,
    signals: bool = True,
    on_stop: Callable[[StopReport], None] | None = None,
) -> Lifespan:
    """A lifespan for FastAPI and Starlette: everything that the application owns stops when the server does.

    ```python
    app = FastAPI(lifespan=quiesce.asgi.lifespan(grace=Grace(cooperate=20)))
    ```

    It opens a `Scope` that handlers can spawn into (`server_scope(request)`), and that owns every request which goes
    through `StopOnDisconnect`. SIGINT and SIGTERM stop it with the reason `shutdown`, besides what the server does with
    them: tokens are cancelled at once; requests in flight have `grace.cooperate` seconds (2 unless you say otherwise) to
    come to their end, and are cancelled then. New ones are refused. When the server asks the application to shut down,
    all that is left is cancelled and waited for, and `on_stop(report)` is called; without it, leftovers are logged.

    `inner` is a lifespan of your own: entered inside, and left before the scope closes, when requests are over.
    """
    check_grace(grace)
    given = grace or SHUTDOWN_GRACE
    # The time to cooperate is for requests in flight, as a whole: not for workers, and not inside of requests.
    stop_grace = Grace(cancel=given.cancel, terminate=given.terminate, kill=given.kill)

    @asynccontextmanager
    async def run(app: Any) -> AsyncIterator[Mapping[str, Any]]:
        scope = await Scope.open("server", on_error="report", grace=stop_grace)
        server = Server(scope, given.cooperate, stop_grace)
        undo = pass_signals_to(server) if signals else None
        try:
            if inner is None:
                yield {STATE: server}
            else:
                async with inner(app) as state:
                    yield {**(state or {}), STATE: server}
        finally:
            try:
                await server.close(Reason("shutdown", "the server ended"))
            finally:
                if undo is not None:
                    undo()
                if scope.report is not None:
                    _tell(scope.report, on_stop)

    return run


def server_scope(request: Any) -> Scope | None:
    """The scope that `lifespan` opened, for a request, a websocket or an ASGI scope; None if there is none."""
    server = server_of(getattr(request, "scope", request))
    return server.scope if server is not None else None


def _tell(report: StopReport, on_stop: Callable[[StopReport], None] | None) -> None:
    if on_stop is not None:
        try:
            on_stop(report)
        except Exception:
            logger.exception("on_stop of lifespan failed for %s", report)
    else:
        log_report(report, logging.WARNING if is_trouble(report) else logging.INFO)
