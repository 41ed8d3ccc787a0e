"""What `test_signals` serves: a stream without end from an upstream, a worker without end, a thread that does not listen.

Everything that ends says so on stdout, with the reason.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator

import anyio
import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

import quiesce
from quiesce import Grace, current_token
from quiesce.asgi import StopOnDisconnect, lifespan, server_scope


def say(*words: object) -> None:
    print(*words, flush=True)


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


async def endless(request: Request) -> StreamingResponse:
    server = server_scope(request)
    assert server is not None
    server.spawn(work)
    return StreamingResponse(quiesce.stream(words()))


def deaf(request: Request) -> PlainTextResponse:
    say("deaf begun")
    time.sleep(4)
    return PlainTextResponse("heard nothing")


app = Starlette(
    routes=[Route("/endless", endless), Route("/deaf", deaf)],
    middleware=[Middleware(StopOnDisconnect, on_stop=lambda report, scope: say("request:", report))],
    lifespan=lifespan(
        grace=Grace(cooperate=0.2, cancel=0.5, terminate=0.2, kill=0.1),
        on_stop=lambda report: say("server:", report),
    ),
)
