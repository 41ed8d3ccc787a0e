"""Waiting for handlers that may be waiting for us.

A handler may close its own peer. It then waits for the owner task of the connection, which waits for the handlers. One of the two must go on
first, and that is the handler: it has an answer to give, and the owner has to send that. Two `close()` would be let go the other way
round, or by chance; so the owner waits by this instead. It is still seen as one who waits, and nobody waits for it in vain.
"""

from __future__ import annotations

from quiesce import Scope
from quiesce.kernel.inner import current_node, enter_as_closer, leave_as_closer


async def drained(scope: Scope) -> None:
    """Wait until a scope that is being stopped is empty, or its time is over. A cancel cuts it short."""
    core, node = scope._opened(), current_node.get()
    assert node is not None  # the owner task
    enter_as_closer(core, node)
    try:
        while not core.is_over():
            waiter = core.backend.make_waiter()
            core.waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in core.waiters:
                    core.waiters.remove(waiter)
    finally:
        leave_as_closer(core, node)
