"""`to_thread` and `Process`: real threads and processes, which take real time and are not the same from run to run."""

from __future__ import annotations

import time
from contextlib import suppress

import anyio

from quiesce import Grace, LineTooLong, PipeClosed, Process, Scope, TokenCancelled, current_token, to_thread

from . import audited, ledger

QUICK = Grace(cancel=0.2, terminate=2, kill=2)


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


@audited("Process", real_io=True)
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


@audited("Process", real_io=True)
async def process_tree_stopped_by_its_block() -> None:
    ledger.start()
    async with Process(["sh", "-c", "sleep 60 & echo ready; wait"], grace=QUICK) as shell:
        async for _ in shell.lines():
            break


@audited("Process", real_io=True)
async def process_opened_and_closed() -> None:
    ledger.start()
    process = await Process.open(["sleep", "60"], grace=QUICK)
    try:
        await anyio.sleep(0.01)
    finally:
        ledger.report(await process.close())
