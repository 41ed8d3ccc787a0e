"""What is entered several times at once, and counts that: an agent, a server.

The SDK opens its connections for the first who enters, and closes them when the last has exited, in the tasks
of those: a run that ends, or is stopped, would take away what others still use. So an owner task opens and
closes them, in a containment that belongs to none of these users but to the whole event loop.
"""

from __future__ import annotations

import asyncio
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Self

from quiesce import Grace, Reason, Scope, StopReport
from quiesce.dropin.connected import Connection
from quiesce.kernel.inner import root_scope


class _Use:
    """From the first who has entered to the last who has exited, in one event loop."""

    def __init__(self, entered: object) -> None:
        self.of = id(entered)  # the SDK makes copies, which share nothing
        self.loop = asyncio.get_running_loop()
        self.users = 0
        self.is_over = False
        self.lock = asyncio.Lock()
        self.connection: Connection[Any] | None = None
        self.last: Connection[Any] | None = None  # for its report


class Entered:
    """Comes with a class of the SDK (`_theirs`) that counts who has entered it."""

    _theirs: ClassVar[Any]
    _use: _Use | None = None

    @property
    def report(self) -> StopReport | None:
        """What the last exit has stopped, and what is left; None before."""
        use = self._current()
        return use.last.report if use is not None and use.last is not None else None

    async def close(
        self,
        *,
        deadline: float | None = None,
        grace: Grace | None = None,
        reason: Reason | str | None = None,
    ) -> StopReport:
        """Exit it for all who have entered it, wait until everything that this has started has ended, and report."""
        use = self._current()
        if use is None or use.last is None:  # it was never entered
            return await (await Scope.open(type(self).__name__)).close(reason=reason)
        use.connection = None
        return await use.last.close(deadline=deadline, grace=grace, reason=reason)

    def _current(self) -> _Use | None:
        return self._use if self._use is not None and self._use.of == id(self) else None

    async def __aenter__(self) -> Self:
        use = self._current()
        if use is None or use.is_over or use.loop is not asyncio.get_running_loop():
            use = self._use = _Use(self)
        use.users += 1
        try:
            async with use.lock:
                if use.connection is None:
                    connection = Connection(
                        partial(self._theirs.__aenter__, self),
                        partial(self._theirs.__aexit__, self, None, None, None),
                        name=type(self).__name__,
                        scope=root_scope(),
                    )
                    await connection.open()
                    use.connection = use.last = connection
        except BaseException:
            await self._leave(use)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        use = self._current()
        assert use is not None, "it was not entered"
        await self._leave(use)

    async def _leave(self, use: _Use) -> None:
        use.users -= 1
        if use.users:
            return
        # If we are cancelled while we wait for the lock, nothing is lost: its holder is closing already.
        async with use.lock:
            if not use.users and use.connection is not None:
                connection, use.connection = use.connection, None
                await connection.close(reason=Reason("parent", "its last user has exited it"))
            use.is_over = not use.users
