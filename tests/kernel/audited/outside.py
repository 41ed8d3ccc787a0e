"""Real threads and processes, of the kernel's own and of others: they take real time and are not the same from run to run."""

from __future__ import annotations

import asyncio
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio

from quiesce import (
    Grace,
    LineTooLong,
    PipeClosed,
    Process,
    Scope,
    TokenCancelled,
    contain,
    current_token,
    own,
    stream,
    to_thread,
)

from . import ASYNCIO, audited, ledger

QUICK = Grace(cancel=0.2, terminate=2, kill=2)
STERN = Grace(
    cancel=0.05, terminate=0.05, kill=30
)  # the last is long enough for the kernel, on whatever clock


def listens(seconds: float = 0.02) -> str:
    """A thread that looks at its token."""
    token = current_token()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        token.raise_if_cancelled()
        token.wait_sync(0.005)
    return "done"


@audited("to_thread", real_io=True)
async def thread_that_listens() -> None:
    ledger.start()
    ledger.expect(await to_thread(listens) == "done", "the result is lost")


@audited("to_thread", real_io=True)
async def threads_in_a_scope() -> None:
    ledger.start()

    async def tool() -> None:
        with suppress(TokenCancelled):
            await to_thread(listens, 0.02)

    async with ledger.scope(Scope("tools")) as scope:
        scope.spawn(tool)
        scope.spawn(tool)
        await anyio.sleep(0.01)


@audited("to_thread", real_io=True)
async def thread_that_does_not_listen() -> None:
    ledger.start()
    await to_thread(time.sleep, 0.02)


@audited("Process", real_io=True, processes=True)
async def process_talked_to() -> None:
    ledger.start()
    with suppress(PipeClosed, LineTooLong):
        async with Process(["cat"], stdin="pipe", grace=QUICK) as cat:
            await cat.write(b"hello\n")
            async with anyio.create_task_group():
                async for line in cat.lines():
                    ledger.expect(line == b"hello", f"the line is {line!r}")
                    break
            cat.close_stdin()
            await cat.wait()


@audited("Process", real_io=True, processes=True)
async def process_tree_stopped_by_its_block() -> None:
    ledger.start()
    async with Process(["sh", "-c", "sleep 60 & echo ready; wait"], grace=QUICK) as shell:
        async for _ in shell.lines():
            break


@audited("Process", real_io=True, processes=True)
async def process_opened_and_closed() -> None:
    ledger.start()
    process = await Process.open(["sleep", "60"], grace=QUICK)
    try:
        await anyio.sleep(0.01)
    finally:
        ledger.report(await process.close())


# Processes that others have started, on asyncio, and that they leave or cannot end in time.

# Not `shutdown` and `descendant`: they also stop the task by which asyncio connects the pipes of a new process, and asyncio
# then waits for ever, or leaves them open.
STOPS = "cancel,twice,thrice,scope,timeout,raise"


async def start_server(script: str) -> asyncio.subprocess.Process:
    """As SDKs do it, with asyncio's own means; uncut by a stop, in the middle of which asyncio leaks by itself."""
    starting = asyncio.ensure_future(asyncio.create_subprocess_exec("sh", "-c", script, stdin=PIPE))
    try:
        return await asyncio.shield(starting)
    except BaseException:
        await starting
        raise


LEFT = "sleep 60 & wait"
DEAF = "trap '' TERM HUP; sleep 60 & while :; do wait; done"


@asynccontextmanager
async def leaves_its_server() -> AsyncIterator[str]:
    await start_server(LEFT)
    yield "client"


@asynccontextmanager
async def waits_for_its_server() -> AsyncIterator[str]:
    server = await start_server(DEAF)
    try:
        yield "client"
    finally:
        assert server.stdin is not None
        server.stdin.close()
        await server.wait()


async def words_of_a_server() -> AsyncIterator[str]:
    await start_server(LEFT)
    for word in ("to", "be"):
        yield word
        await anyio.sleep(0.01)


@audited("own", worlds=ASYNCIO, real_io=True, processes=True, stops=STOPS)
async def own_what_leaves_its_process() -> None:
    ledger.start()
    async with own(leaves_its_server(), grace=QUICK):
        await anyio.sleep(0.01)


@audited("own", worlds=ASYNCIO, real_io=True, processes=True, stops=STOPS)
async def own_what_waits_for_a_process_that_does_not_end() -> None:
    ledger.start()
    held = await own(waits_for_its_server(), grace=STERN).open()
    try:
        await anyio.sleep(0.01)
    finally:
        ledger.report(await held.close())


@audited("stream", worlds=ASYNCIO, real_io=True, processes=True, stops=STOPS)
async def stream_of_what_leaves_its_process() -> None:
    ledger.start()
    async with stream(words_of_a_server(), grace=QUICK) as words:
        async for _ in words:
            await anyio.sleep(0.01)


@audited("contain", worlds=ASYNCIO, real_io=True, processes=True, stops=STOPS)
async def contain_what_leaves_its_process() -> None:
    ledger.start()
    async with contain(grace=QUICK) as box:
        await start_server(LEFT)
        await anyio.sleep(0.01)
    ledger.report(box.report)
