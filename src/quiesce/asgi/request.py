"""Stops one call in one endpoint when the client disconnects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from quiesce import Grace, Scope
from quiesce.kernel.inner import (
    check_grace,
    core_of,
    is_trouble,
    label_of,
    log_report,
    raise_unchanged,
    spawn_unnamed,
)

from .connection import ClientGone
from .middleware import DISCONNECTED, ENDED, raised_below, wait_for_end

T = TypeVar("T")


async def unless_disconnected(
    request: Any, fn: Callable[..., Awaitable[T]], *args: Any, grace: Grace | None = None
) -> T:
    """Return `await fn(*args)`; if the client disconnects first, cancel it and raise `ClientGone`.

    ```python
    @app.post("/ask")
    async def ask(request: Request, question: Question):
        return await unless_disconnected(request, model.answer, question)
    ```

    For endpoints of applications without `StopOnDisconnect`. The body must have been read before (FastAPI does that for
    declared parameters), so that the next message of the client is its disconnect.
    """
    check_grace(grace)
    owner = await Scope.open(f"call of {label_of(fn)}", on_error="report", on_child_error=raised_below)
    core = core_of(owner)

    async def watch() -> None:
        while (await request.receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
            pass
        owner.cancel(DISCONNECTED, grace=grace)

    call = owner.spawn(fn, *args)
    try:
        spawn_unnamed(owner, watch)
        await wait_for_end(core, call)
    finally:
        if not core.is_over():
            await owner.close(reason=ENDED)
        report = owner.report or core.report()
        if is_trouble(report):
            log_report(report)
    try:
        if call.state == "finished":
            result: T = call.result()
            return result
        if call.error is not None:
            raise_unchanged(call.error)
        if owner.reason is DISCONNECTED:
            raise ClientGone(f"the client disconnected; {call.name} was stopped")
        raise RuntimeError(
            f"{call.name} was cancelled, although the client has not disconnected ({owner.reason})"
        )
    finally:
        # A raised error refers to this frame by its traceback; without this, the frame would refer to the error.
        del call
