"""The server, as its requests see it: one scope, and a way to end.

It ends in two steps, because they are for different things. First everybody hears of it: the token of the scope is
cancelled, and nothing new is let in; but the scope is open, and a request in flight can go on and open what it needs to
come to its end. When the time for that (`Grace.cooperate`) is over, the scope is stopped: all requests at once,
since none of them uses another, then the rest. A second signal does not wait for that, and each further one makes
the stop faster.
"""

from __future__ import annotations

import anyio

from quiesce import Grace, Reason, Scope, StopReport
from quiesce.kernel.inner import Timer, WaitQueue

from .types import AsgiScope

STATE = "quiesce_server"


class Server:
    """What `lifespan` puts into the state of the application."""

    def __init__(self, scope: Scope, cooperate: float, grace: Grace) -> None:
        self.scope = scope
        self._cooperate = cooperate
        self._grace = grace
        self._requests: dict[Scope, None] = {}
        self._is_ending = False
        self._timer: Timer | None = None
        self._changed = WaitQueue()
        # Whoever else stops the scope stops all requests at once, too.
        scope.token.on_cancel(self._scope_is_stopped)

    @property
    def is_ending(self) -> bool:
        """Whether nothing new is let in."""
        return self.scope.token.cancelled

    def add(self, request: Scope) -> None:
        """A request in flight."""
        self._requests[request] = None

    def remove(self, request: Scope) -> None:
        """It is over."""
        self._requests.pop(request, None)
        self._wake()

    def end(self, reason: Reason) -> None:
        """Begin to end; asked again, end faster. In the loop's own thread."""
        if self.is_ending:
            self._stop()
            return
        self._is_ending = True
        self.scope.token.cancel(reason)
        backend = self.scope._opened().backend
        self._timer = backend.call_at(backend.now() + self._cooperate, self._stop)

    async def wait_until_ended(self) -> None:
        """After `end`: wait for the requests in their time, close, and let what was stopped say so."""
        await self._changed.wait_until(lambda: not self._requests or self.scope.state != "open")
        await self.close(Reason("shutdown"))
        with anyio.move_on_after(self._grace.kill):
            await self._changed.wait_until(lambda: not self._requests)

    async def close(self, reason: Reason) -> StopReport:
        """The last of it: the server has waited for its requests as long as it cares to."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.is_ending:
            self._is_ending = True
            self.scope.token.cancel(reason)
        self._stop_requests()
        return await self.scope.close(reason=self.scope.token.reason or reason, grace=self._grace)

    def _stop(self) -> None:
        self._stop_requests()
        self.scope.cancel(self.scope.token.reason)
        self._wake()

    def _wake(self) -> None:
        self._changed.wake_all()

    def _stop_requests(self) -> None:
        for request in list(self._requests):
            request.cancel(self.scope.token.reason, grace=self._grace if request.reason is None else None)

    def _scope_is_stopped(self) -> None:
        if not self._is_ending:
            self.scope._opened().backend.run_from_anywhere(self._stop_requests)


def server_of(asgi_scope: AsgiScope) -> Server | None:
    """What `lifespan` put into the state of the server."""
    found = (asgi_scope.get("state") or {}).get(STATE)
    return found if isinstance(found, Server) else None
