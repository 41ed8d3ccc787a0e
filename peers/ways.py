"""What a cell of the table runs: one scenario of an SDK, as it is documented, with quiesce around it, or as a drop-in.

A way of use says how to work until stopped, how to open something that somebody else will close, and how to
break out of a stream. What a way does not have cannot be stopped so; the scenario says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

Ready = Callable[[], object]  # called by the work when it is under way, and can be stopped
Close = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Way:
    """One way to use an SDK. `use` works until it is stopped."""

    use: Callable[[Ready], Coroutine[Any, Any, object]]
    open: Callable[[], Awaitable[Close]] | None = None  # opens, and returns what closes
    break_off: Callable[[Ready], Coroutine[Any, Any, object]] | None = None  # a loop that is left, once ready
    run: Callable[..., object] = field(default=lambda main: asyncio.run(main()))  # a program: Ctrl-C, kill


@dataclass(frozen=True)
class Scenario:
    name: str  # of its function in the module, and in the command line
    title: str
    without: Way
    with_quiesce: Way
    impossible: dict[str, str] = field(default_factory=dict)  # a stop that it does not have, and why
    limits: dict[str, str] = field(default_factory=dict)  # a stop that leaves something, and why it must
    dropin: Way | None = None  # the code of `without`, with one import changed; where there is a drop-in

    @property
    def sides(self) -> tuple[str, ...]:
        """The columns of its table, as `peers.cell` takes them."""
        return ("without", "with") if self.dropin is None else ("without", "with", "dropin")


def soon(ready: Ready) -> None:
    """Say `ready` when what comes next has been under way for a moment."""
    asyncio.get_running_loop().call_later(0.3, ready)


async def consume(items: AsyncIterable[object], ready: Ready = lambda: None) -> None:
    """Take every item; say `ready` at the first."""
    async for _ in items:
        ready()


async def start_consuming(items: AsyncIterable[object]) -> None:
    """Have a task take every item; it waits for the second when this returns."""
    begun = asyncio.Event()
    _consumers.add(asyncio.create_task(consume(items, begun.set), name="consumer"))
    await begun.wait()


_consumers: set[asyncio.Task[None]] = set()
