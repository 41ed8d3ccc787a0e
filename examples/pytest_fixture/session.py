"""A client as SDKs write them: a task group inside, with a task that reads the answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream


class Session:
    def __init__(
        self, requests: MemoryObjectSendStream[str], answers: MemoryObjectReceiveStream[str]
    ) -> None:
        self._requests = requests
        self._answers = answers

    async def call(self, method: str) -> str:
        await self._requests.send(method)
        return await self._answers.receive()


@asynccontextmanager
async def connect() -> AsyncIterator[Session]:
    requests, incoming = anyio.create_memory_object_stream[str]()
    outgoing, answers = anyio.create_memory_object_stream[str]()

    async def serve() -> None:
        async for method in incoming:
            await outgoing.send("pong" if method == "ping" else f"unknown method {method}")

    with requests, incoming, outgoing, answers:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            yield Session(requests, answers)
            tasks.cancel_scope.cancel()
