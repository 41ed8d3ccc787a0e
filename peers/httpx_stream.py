"""httpx, a streamed response, as a generator of its lines."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import httpx

import quiesce

# --8<-- [start:imports]
from quiesce import stream

# --8<-- [end:imports]
from .ways import Close, Ready, Scenario, Way, consume, start_consuming

URL = f"http://127.0.0.1:{os.environ.get('PEERS_MODEL')}/lines"


# --8<-- [start:lines]
async def read_lines(url: str) -> AsyncIterator[str]:
    async with httpx.AsyncClient(timeout=None) as client, client.stream("GET", url) as response:
        async for line in response.aiter_lines():
            yield line


# --8<-- [end:lines]
async def use(ready: Ready) -> None:
    await consume(read_lines(URL), ready)


async def open_() -> Close:
    lines = read_lines(URL)
    await start_consuming(lines)
    return lines.aclose  # type: ignore[attr-defined]


async def break_off(ready: Ready) -> None:
    async for _ in read_lines(URL):
        ready()
        break


# --8<-- [start:use]
async def first_line(url: str) -> str:
    async with stream(read_lines(url)) as lines:
        async for line in lines:
            return line  # the response and the client are closed before the caller goes on
    raise EOFError(url)


# --8<-- [end:use]
async def use_with(ready: Ready) -> None:
    async with stream(read_lines(URL)) as lines:
        await consume(lines, ready)


# --8<-- [start:open]
async def open_with() -> Close:
    lines = stream(read_lines(URL))
    await start_consuming(lines)  # one task reads it
    return lines.close  # another stops it: the reader sees the end of the stream


# --8<-- [end:open]
async def break_off_with(ready: Ready) -> None:
    await first_line(URL)
    ready()


def lines() -> Scenario:
    return Scenario(
        "lines",
        "a streamed response",
        without=Way(use, open_, break_off),
        with_quiesce=Way(use_with, open_with, break_off_with, run=quiesce.run),
    )
