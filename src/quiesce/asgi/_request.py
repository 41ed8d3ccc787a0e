"""One call in one endpoint, given up when the client has gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from quiesce.kernel._child import ChildCancelled
from quiesce.kernel._grace import Grace
from quiesce.kernel._scope import Scope

from ._middleware import GONE, _raised_below

T = TypeVar("T")


class ClientGone(Exception):
    """The client has gone, and what was being done for it has been stopped."""


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
    owner = await Scope.open("request", on_error="report", on_child_error=_raised_below, grace=grace)

    async def watch() -> None:
        while (await request.receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
            pass
        owner.cancel(GONE)

    call = None
    try:
        call = owner.spawn(fn, *args)
        owner.spawn(watch)
        await call.wait()
    finally:
        was_stopped = owner.reason is not None
        await owner.close()
    try:
        result: T = call.result()
    except ChildCancelled:
        if was_stopped:
            raise ClientGone(f"the client has gone; {call.name} was stopped") from None
        raise
    return result
