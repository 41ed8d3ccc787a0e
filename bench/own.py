"""What it costs to own what others wrote, beside the same thing bare, in one run.

    make bench                          # with the others
    python bench/own.py contain mcp     # some parts: contain, mcp, stream, asgi, thread

Ratios are to the first column. docs/performance.md holds a result.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import platform
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import anyio
import anyio.to_thread
from measure import Batch, best_of, table

import quiesce
from quiesce.asgi import StopOnDisconnect


def on_asyncio(timed: Callable[[], Awaitable[float]]) -> float:
    async def main() -> float:
        return await timed()

    return asyncio.run(main())


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# A contained call


async def one_await() -> None:
    await asyncio.sleep(0)


async def ten_tasks() -> None:
    await asyncio.gather(*(one_await() for _ in range(10)))


async def a_millisecond() -> None:
    """About a millisecond of work in tasks: small for a call of an SDK."""
    for _ in range(10):
        await ten_tasks()


def bare(call: Callable[[], Awaitable[None]]) -> Batch:
    async def batch(n: int) -> None:
        for _ in range(n):
            await call()

    return batch


def contained(call: Callable[[], Awaitable[None]], processes: Any = "known") -> Batch:
    async def batch(n: int) -> None:
        for _ in range(n):
            async with quiesce.contain(processes=processes):
                await call()

    return batch


def contain() -> None:
    """A call inside `contain`, opened and closed for each."""
    rows = {}
    calls = {"one await": one_await, "10 tasks": ten_tasks, "10 times 10 tasks": a_millisecond}
    for label, call in calls.items():
        candidates = {
            "bare call": bare(call),
            "contain": contained(call),
            'contain, processes="none"': contained(call, "none"),
        }
        rows[label] = best_of(on_asyncio, candidates, 1, 60)
    table("A contained call", rows)


# An owned session, and a call of it


class Session:
    """A client as SDKs write them: requests and answers over streams, a task group, a timeout a call."""

    def __init__(self) -> None:
        self._requests, self._incoming = anyio.create_memory_object_stream[int](0)
        self._outgoing, self._answers = anyio.create_memory_object_stream[int](0)

    async def call(self, number: int) -> int:
        with anyio.fail_after(10):
            await self._requests.send(number)
            return await self._answers.receive()

    async def serve(self) -> None:
        async for number in self._incoming:
            await self._outgoing.send(number)


@contextlib.asynccontextmanager
async def session() -> AsyncIterator[Callable[[], Awaitable[object]]]:
    made = Session()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.serve)
        yield lambda: made.call(1)
        tasks.cancel_scope.cancel()


def mcp_session() -> Callable[[], contextlib.AbstractAsyncContextManager[Callable[[], Awaitable[object]]]]:
    """The same with the real mcp: a server and a client with the streams between them in memory."""
    from mcp import Client
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("bench")

    @server.tool()  # type: ignore[untyped-decorator, unused-ignore]
    def echo(text: str) -> str:
        return text

    @contextlib.asynccontextmanager
    async def connect() -> AsyncIterator[Callable[[], Awaitable[object]]]:
        async with Client(server, mode="legacy") as client:
            yield lambda: client.call_tool("echo", {"text": "hello"})

    return connect


Connect = Callable[[], contextlib.AbstractAsyncContextManager[Callable[[], Awaitable[object]]]]


def by_hand(connect: Connect) -> Batch:
    async def batch(n: int) -> None:
        async with connect() as call:
            for _ in range(n):
                await call()

    return batch


def by_hand_from_another_task(connect: Connect) -> Batch:
    """Opened and closed by one task, called by another: what anyio itself takes for that."""

    async def batch(n: int) -> None:
        async with connect() as call:

            async def use_it() -> None:
                for _ in range(n):
                    await call()

            await asyncio.create_task(use_it())

    return batch


def owned(connect: Connect) -> Batch:
    async def batch(n: int) -> None:
        held = await quiesce.own(connect()).open()
        for _ in range(n):
            await held.value()
        await held.close()

    return batch


def owned_from_another_task(connect: Connect) -> Batch:
    """As a web server does it: opened by one task, called by a second, closed by a third."""

    async def batch(n: int) -> None:
        holder: list[quiesce.Held[Callable[[], Awaitable[object]]]] = []

        async def open_it() -> None:
            holder.append(await quiesce.own(connect()).open())

        async def use_it() -> None:
            for _ in range(n):
                await holder[0].value()

        async def close_it() -> None:
            await holder[0].close()

        for part in (open_it, use_it, close_it):
            await asyncio.create_task(part())

    return batch


def mcp() -> None:
    """An owned session, called from one task and from others."""
    sessions: dict[str, Connect] = {"anyio session": session}
    if (installed := version_of("mcp")) is None:
        print("\nmcp is not installed here, so that only a session of streams and a task group is measured.")
    elif int(installed.split(".")[0]) < 2:
        print(f"\nmcp is {installed} here; its in-memory client is measured from 2.0 on.")
    else:
        sessions[f"mcp {installed}"] = mcp_session()
    rows = {}
    for name, connect in sessions.items():
        candidates = {
            "by hand, one task": by_hand(connect),
            "by hand, called from another": by_hand_from_another_task(connect),
            "own": owned(connect),
            "own, three tasks": owned_from_another_task(connect),
        }
        rows[f"{name}: open, 100 calls, close"] = best_of(on_asyncio, candidates, 100, 20)
        rows[f"{name}: open, one call, close"] = best_of(on_asyncio, candidates, 1, 60)
    table("An owned session, in memory", rows)


# A streamed event

CHUNK = json.dumps(
    {
        "id": "chatcmpl-0123456789",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "a-model",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": " word"}, "finish_reason": None}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11},
    }
)


async def numbers(n: int) -> AsyncIterator[object]:
    for number in range(n):
        yield number


async def events(n: int) -> AsyncIterator[object]:
    """A model's stream: a turn of the loop and a JSON document for each event."""
    for _ in range(n):
        await asyncio.sleep(0)
        yield json.loads(CHUNK)


Source = Callable[[int], AsyncIterator[object]]


def iterate_bare(source: Source) -> Batch:
    async def batch(n: int) -> None:
        async for _ in source(n):
            pass

    return batch


def iterate_queue(source: Source) -> Batch:
    """What people write: a task that iterates, and a queue of one."""

    async def batch(n: int) -> None:
        queue: asyncio.Queue[object] = asyncio.Queue(1)
        end = object()

        async def pump() -> None:
            async for item in source(n):
                await queue.put(item)
            await queue.put(end)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pump())
            while await queue.get() is not end:
                pass

    return batch


def iterate_stream(source: Source, prefetch: int = 0) -> Batch:
    async def batch(n: int) -> None:
        async with quiesce.stream(source(n), prefetch=prefetch) as items:
            async for _ in items:
                pass

    return batch


def stream() -> None:
    """A thousand events through `stream`."""
    rows = {}
    sources: dict[str, Source] = {"1000 numbers": numbers, "1000 events, awaited and parsed": events}
    for label, source in sources.items():
        candidates = {
            "bare async for": iterate_bare(source),
            "task + asyncio.Queue": iterate_queue(source),
            "stream": iterate_stream(source),
            "stream, prefetch=16": iterate_stream(source, 16),
        }
        rows[label] = best_of(on_asyncio, candidates, 1000, 30)
    table("A streamed event", rows)


# A request

App = Callable[[Any, Any, Any], Awaitable[None]]
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}


async def plain(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send(START)
    await send({"type": "http.response.body", "body": b"hello"})


async def streaming(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send(START)
    for _ in range(100):
        await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"chunk", "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def starlette_app() -> App:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def endpoint(request: Request) -> JSONResponse:
        return JSONResponse({"got": await request.json()})

    return Starlette(routes=[Route("/", endpoint, methods=["POST"])])


def requests(app: App) -> Batch:
    """Requests as a server makes them: a body, and then a wait for a disconnect that does not come."""

    async def batch(n: int) -> None:
        for_ever = asyncio.get_running_loop().create_future()
        for _ in range(n):
            unread = [{"type": "http.request", "body": b'{"question": "hello"}', "more_body": False}]

            async def receive(unread: list[dict[str, object]] = unread) -> object:
                if unread:
                    return unread.pop()
                return await asyncio.shield(for_ever)

            async def send(message: object) -> None:
                pass

            scope = {
                "type": "http",
                "asgi": {"version": "3.0"},
                "http_version": "1.1",
                "method": "POST",
                "scheme": "http",
                "path": "/",
                "raw_path": b"/",
                "query_string": b"",
                "root_path": "",
                "headers": [(b"content-type", b"application/json")],
                "client": ("127.0.0.1", 1),
                "server": ("127.0.0.1", 2),
            }
            await app(scope, receive, send)

    return batch


def asgi() -> None:
    """A request through the middleware, without sockets."""
    apps: dict[str, App] = {"a plain response": plain, "a stream of 100 chunks": streaming}
    if (installed := version_of("starlette")) is not None:
        apps[f"Starlette {installed}, JSON in and out"] = starlette_app()
    rows = {}
    for label, app in apps.items():
        candidates = {"bare app": requests(app), "StopOnDisconnect": requests(StopOnDisconnect(app))}
        rows[label] = best_of(on_asyncio, candidates, 10, 60)
    table("10 requests", rows)


# A thread


def quick() -> None:
    pass


def through(to_thread: Callable[[Callable[[], None]], Awaitable[None]]) -> Batch:
    async def batch(n: int) -> None:
        for _ in range(n):
            await to_thread(quick)

    return batch


def thread() -> None:
    """`to_thread` of a function that does nothing."""
    candidates = {
        "asyncio.to_thread": through(asyncio.to_thread),
        "to_thread": through(quiesce.to_thread),
        "anyio.to_thread": through(anyio.to_thread.run_sync),
    }
    table("A call in a thread", {"100 calls": best_of(on_asyncio, candidates, 100, 20)})


PARTS: dict[str, Callable[[], None]] = {
    "contain": contain,
    "mcp": mcp,
    "stream": stream,
    "asgi": asgi,
    "thread": thread,
}


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        sys.exit(f"unknown part {unknown[0]!r}; there are {', '.join(PARTS)}")
    print(
        f"CPython {platform.python_version()}, anyio {version('anyio')}. "
        "CPU time, best of interleaved rounds; ratios to the first column."
    )
    for name in names or PARTS:
        PARTS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
