"""The scope of the whole server: opened when it starts, closed when it stops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

from quiesce import Grace, Reason, Scope, StopReport
from quiesce.kernel.inner import check_grace

from .middleware import hand_over
from .server import STATE, Server, server_of
from .signals import pass_signals_to

SHUTDOWN_GRACE = Grace(cooperate=2.0)
# In the form that Starlette and FastAPI accept. Any: the application, and what it keeps in its state.
Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]


def lifespan(
    inner: Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]] | None = None,
    *,
    grace: Grace | None = None,
    signals: bool = True,
    on_stop: Callable[[StopReport], None] | None = None,
) -> Lifespan:
    """Return a lifespan for FastAPI and Starlette: everything that the application owns stops when the server does.

    ```python
    app = FastAPI(lifespan=quiesce.asgi.lifespan(grace=Grace(cooperate=20)))
    ```

    It opens a `Scope` that handlers can spawn into (`server_scope(request)`), and that owns every request that goes
    through `StopOnDisconnect`. SIGINT and SIGTERM stop it with the reason `shutdown`, in addition to what the server
    does with them: tokens are cancelled at once; requests in flight have `grace.cooperate` seconds (2 by default) to
    complete, and are then cancelled. New requests are refused. When the server asks the application to shut down,
    everything that is left is cancelled and waited for, and `on_stop(report)` is called; without it, leftovers are
    logged.

    `inner` is a lifespan of your own: it is entered inside the scope, and exited before the scope closes, after the
    requests have ended.
    """
    check_grace(grace)
    limits = grace or SHUTDOWN_GRACE
    # The time to cooperate applies once, to all requests in flight: not to workers, and not again inside each request.
    stop_grace = Grace(cancel=limits.cancel, terminate=limits.terminate, kill=limits.kill)

    @asynccontextmanager
    async def run(app: Any) -> AsyncIterator[Mapping[str, Any]]:
        scope = await Scope.open("server", on_error="report", grace=stop_grace)
        server = Server(scope, limits.cooperate, stop_grace)
        undo = pass_signals_to(server) if signals else None
        try:
            if inner is None:
                yield {STATE: server}
            else:
                async with inner(app) as state:
                    yield {**(state or {}), STATE: server}
        finally:
            try:
                await server.close(Reason("shutdown", "the server stopped"))
            finally:
                if undo is not None:
                    undo()
                if scope.report is not None:
                    hand_over(scope.report, "lifespan", on_stop)

    return run


def server_scope(request: Any) -> Scope | None:
    """Return the scope that `lifespan` opened, for a request, a websocket or an ASGI scope; None if there is none."""
    server = server_of(getattr(request, "scope", request))
    return server.scope if server is not None else None
