"""What `test_signals` serves: a stream without end from an upstream, a worker without end, a thread that does not listen.

Everything that ends says so on stdout, with the reason.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator

import anyio
import httpx
from fastapi import FastAPI, Request
from starlette.responses import StreamingResponse

import quiesce
from quiesce import Grace, current_token
from quiesce.asgi import StopOnDisconnect, lifespan, server_scope


def say(*words: object) -> None:
    print(*words, flush=True)


GRACE = Grace(cooperate=0.2, cancel=0.5, terminate=0.2, kill=0.1)
app = FastAPI(lifespan=lifespan(grace=GRACE, on_stop=lambda report: say("server:", report)))
app.add_middleware(StopOnDisconnect, on_stop=lambda report, scope: say("request:", report))


async def words() -> AsyncIterator[bytes]:
    try:
        async with httpx.AsyncClient() as client, client.stream("GET", os.environ["UPSTREAM"]) as answer:
            async for chunk in answer.aiter_bytes():
                yield chunk
    finally:
        say("stream ended,", current_token().reason)


async def work() -> None:
    try:
        await anyio.sleep_forever()
    finally:
        say("worker ended,", current_token().reason)


@app.get("/endless")
async def endless(request: Request) -> StreamingResponse:
    server = server_scope(request)
    assert server is not None
    server.spawn(work)
    return StreamingResponse(quiesce.stream(words()))


@app.get("/deaf")
def deaf() -> None:
    say("deaf begun")
    time.sleep(1.5)
