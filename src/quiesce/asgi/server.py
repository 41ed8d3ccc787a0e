"""The server as its requests see it: one scope, and the way it stops.

It stops in two steps, which serve different purposes. First the stop is announced: the token of the scope is
cancelled, and no new requests are accepted. The scope is still open, so that a request in flight can go on and open
what it needs to complete. When the time for that (`Grace.cooperate`) is over, the scope is stopped: all requests at
once, because none of them uses another, then the rest. A second signal skips that time, and each further one makes
the stop faster.
"""

from __future__ import annotations

import anyio

from quiesce import Grace, Reason, Scope, StopReport
from quiesce.kernel.inner import Timer, WaitQueue, core_of

from .types import AsgiScope

STATE = "quiesce_server"


class Server:
    """The object that `lifespan` puts into the state of the application."""

    def __init__(self, scope: Scope, cooperate: float, grace: Grace) -> None:
        self.scope = scope
        self._cooperate = cooperate
        self._grace = grace
        self._requests: dict[Scope, None] = {}
        self._is_stopping = False
        self._timer: Timer | None = None
        self._changed = WaitQueue()
        # If something else stops the scope, that too has to stop all requests at once.
        scope.token.on_cancel(self._on_scope_cancelled)

    @property
    def is_stopping(self) -> bool:
        """Whether new requests are refused."""
        return self.scope.token.cancelled

    def add(self, request: Scope) -> None:
        """Register a request in flight."""
        self._requests[request] = None

    def remove(self, request: Scope) -> None:
        """Remove a request that has ended."""
        self._requests.pop(request, None)
        self._wake()

    def stop(self, reason: Reason) -> None:
        """Begin to stop; if called again, stop faster. Must be called in the event loop's thread."""
        if self.is_stopping:
            self._stop_now()
            return
        self._is_stopping = True
        self.scope.token.cancel(reason)
        backend = core_of(self.scope).backend
        self._timer = backend.call_at(backend.now() + self._cooperate, self._stop_now)

    async def wait_until_stopped(self) -> None:
        """After `stop`, wait until the requests have ended or their time is over, and close the scope."""
        await self._changed.wait_until(lambda: not self._requests or self.scope.state != "open")
        await self.close(Reason("shutdown"))
        # The requests have been stopped; give their middleware a moment to report and answer.
        with anyio.move_on_after(self._grace.kill):
            await self._changed.wait_until(lambda: not self._requests)

    async def close(self, reason: Reason) -> StopReport:
        """Stop everything that is left, without further time to cooperate, and return the report."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.is_stopping:
            self._is_stopping = True
            self.scope.token.cancel(reason)
        self._stop_requests()
        return await self.scope.close(reason=self.scope.token.reason or reason, grace=self._grace)

    def _stop_now(self) -> None:
        self._stop_requests()
        self.scope.cancel(self.scope.token.reason)
        self._wake()

    def _wake(self) -> None:
        self._changed.wake_all()

    def _stop_requests(self) -> None:
        for request in list(self._requests):
            # A request that is being stopped already keeps the grace of that stop.
            request.cancel(self.scope.token.reason, grace=self._grace if request.reason is None else None)

    def _on_scope_cancelled(self) -> None:
        if not self._is_stopping:
            core_of(self.scope).backend.run_from_anywhere(self._stop_requests)


def server_of(asgi_scope: AsgiScope) -> Server | None:
    """Return the object that `lifespan` put into the server's state; None if there is none."""
    found = (asgi_scope.get("state") or {}).get(STATE)
    return found if isinstance(found, Server) else None
