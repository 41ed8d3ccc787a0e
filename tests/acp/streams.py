"""asyncio's streams, as users of agent-client-protocol have them, and what an event loop complains of."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def stream_pair() -> AsyncIterator[tuple[Streams, Streams]]:
    """Two ends of one socket, each a reader and a writer. Whoever takes an end closes it; what nobody took is closed here."""
    one, other = socket.socketpair()
    ends = await asyncio.open_connection(sock=one), await asyncio.open_connection(sock=other)
    try:
        yield ends
    finally:
        for _, writer in ends:
            writer.transport.abort()
        await asyncio.sleep(0)


@contextmanager
def complaints() -> Iterator[list[str]]:
    """What the event loop's exception handler is told, until everything that was dropped has been collected."""
    loop = asyncio.get_running_loop()
    told: list[str] = []

    def tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        told.append(str(context["message"]))

    before = loop.get_exception_handler()
    loop.set_exception_handler(tell)
    try:
        yield told
        gc.collect()
    finally:
        loop.set_exception_handler(before)
