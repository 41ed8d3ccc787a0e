"""Somebody who closes a scope from wherever it is called, and keeps all that happened to it."""

from __future__ import annotations

import anyio

from quiesce import Scope, StopReport
from tests.kernel.temperaments import cancellation

SOON = 4.0  # a drain without a deadlock, on a machine that stalls; the ladder of the scopes here takes 5 s


async def settles(scope: Scope) -> StopReport:
    """Close from outside once somebody inside has, and see that it does not take until the deadline."""
    start = anyio.current_time()
    report = await scope.close()
    assert anyio.current_time() - start < SOON
    assert report.clean, str(report)
    assert scope.state == "settled"
    return report


class Closer:
    """Closes `scope` from wherever it is called, and keeps all that happened to it."""

    def __init__(self, log: list[str] | None = None, name: str = "closer") -> None:
        self.log = [] if log is None else log
        self.name = name
        self.took = -1.0
        self.report: StopReport | None = None
        self.cancelled_after = False

    async def __call__(self, scope: Scope) -> None:
        start = anyio.current_time()
        self.report = await scope.close(reason=self.name)
        self.took = anyio.current_time() - start
        self.log.append(f"{self.name} closed")
        try:
            await anyio.sleep(0.01)
        except cancellation():
            self.cancelled_after = True
            raise

    async def when_cancelled(self, scope: Scope) -> None:
        """Close as many a `finally` does: after one's own cancel has come."""
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await self(scope)

    @property
    def was_quick(self) -> bool:
        return 0 <= self.took < SOON
