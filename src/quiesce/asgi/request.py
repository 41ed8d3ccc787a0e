"""One call in one endpoint, given up when the client has gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from quiesce import Grace, Scope
from quiesce.kernel.inner import (
    FAILED,
    FINISHED,
    check_grace,
    is_trouble,
    label_of,
    log_report,
    raise_unchanged,
)

from .connection import ClientGone
from .middleware import GONE, OVER, raised_below, wait_for_end

T = TypeVar("T")


async def unless_disconnected(
    request: Any, fn: Callable[..., Awaitable[T]], *args: Any, grace: Grace | None = None
) -> T:
    """`await fn(*args)`, unless the client goes first: then it is cancelled, and `ClientGone` is raised.

    ```python
    @app.post("/ask")
    async def ask(request: Request, question: Question):
        return await unless_disconnected(request, model.answer, question)
    ```

    For endpoints of applications without `StopOnDisconnect`. The body must have been read before (FastAPI does that for
    declared parameters): the next thing that the client can say is that it is gone.
    """
    check_grace(grace)
    owner = await Scope.open(f"call of {label_of(fn)}", on_error="report", on_child_error=raised_below)
    core = owner._opened()

    async def watch() -> None:
        while (await request.receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
            pass
        owner.cancel(GONE, grace=grace)

    call = owner.spawn(fn, *args)
    try:
        owner.spawn(watch)._label = None
        await wait_for_end(core, call)
    finally:
        if not core.is_over():
            await owner.close(reason=OVER)
        report = owner.report or core.report()
        if is_trouble(report):
            log_report(report)
    try:
        if call.state is FINISHED:
            result: T = call._value
            return result
        if call.state is FAILED:
            raise_unchanged(call._value)
        if owner.reason is GONE:
            raise ClientGone(f"the client has gone; {call.name} was stopped")
        raise RuntimeError(f"{call.name} was cancelled, and the client is still there ({owner.reason})")
    finally:
        del call
