"""The server's own scope: opened when it starts, closed when it stops.

A server that is told to end waits for its connections first and asks the application afterwards, so that a stream without
end keeps it up for ever. The signal itself must therefore reach the requests. Servers take signals in different ways (a handler,
a file descriptor, a task); a handler that calls the one before it disturbs none of them.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import FrameType
from typing import Any, TypeAlias

from quiesce.kernel._grace import Grace, check_grace
from quiesce.kernel._reason import Reason
from quiesce.kernel._report import StopReport
from quiesce.kernel._scope import Scope

from ._types import AsgiScope

logger = logging.getLogger("quiesce")

STATE = "quiesce_scope"
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
    app = FastAPI(lifespan=quiesce.asgi.lifespan(grace=Grace(cooperate=5)))
    ```

    It opens a `Scope` that handlers can spawn into (`server_scope(request)`), and that owns every request which goes
    through `StopOnDisconnect`. SIGINT and SIGTERM stop it at once with the reason `shutdown`, besides what the server
    does with them: requests have `grace.cooperate` seconds to end by themselves (their token is cancelled), then they
    are cancelled. When the server asks the application to shut down, the scope is closed, and `on_stop(report)` is called;
    without it, leftovers are logged. `inner` is a lifespan of your own, entered inside.
    """
    check_grace(grace)

    @asynccontextmanager
    async def run(app: Any) -> AsyncIterator[Mapping[str, Any]]:
        scope = await Scope.open("server", on_error="report", grace=grace)
        undo = _pass_signals(scope) if signals else None
        try:
            if inner is None:
                yield {STATE: scope}
            else:
                async with inner(app) as state:
                    yield {**(state or {}), STATE: scope}
        finally:
            if undo is not None:
                undo()
            report = await scope.close(reason=Reason("shutdown", "the server ended"))
            if on_stop is not None:
                on_stop(report)
            elif not report.clean:
                logger.warning("%s", report)

    return run


def server_scope(request: Any) -> Scope | None:
    """The scope that `lifespan` opened, for a request or an ASGI scope; None if there is none."""
    asgi_scope: AsgiScope = getattr(request, "scope", request)
    found = (asgi_scope.get("state") or {}).get(STATE)
    return found if isinstance(found, Scope) else None


def _pass_signals(scope: Scope) -> Callable[[], None] | None:
    """Stop `scope` on SIGINT and SIGTERM, and let whoever had them before have them too."""
    if threading.current_thread() is not threading.main_thread():
        return None
    before: dict[signal.Signals, Any] = {}

    def stop(signum: int, frame: FrameType | None) -> None:
        scope.cancel(Reason("shutdown", signal.Signals(signum).name))
        handler = before[signal.Signals(signum)]
        if callable(handler):
            handler(signum, frame)
        elif handler is signal.SIG_DFL:
            undo()
            signal.raise_signal(signum)

    def undo() -> None:
        for number, handler in before.items():
            if signal.getsignal(number) is stop:
                signal.signal(number, handler)

    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if handler is not None:  # None: installed from C, and not to be called from here
            before[number] = handler
            signal.signal(number, stop)
    return undo
