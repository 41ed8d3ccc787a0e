"""`remote`: work that runs elsewhere. What was started there has ended when the stop is over."""

from __future__ import annotations

import anyio

from quiesce import Remote, Scope, remote

from . import audited, ledger, pause

running: list[str] = []


async def start() -> str:
    running.append("job")  # the request has arrived, whether its answer is waited for or not
    try:
        await pause(0.2)
    except Exception:  # a start that raises has started nothing
        running.remove("job")
        raise
    return "job"


async def cancel(job: str) -> None:
    await pause(0.1)


async def confirm(job: str) -> None:
    await pause(0.1)
    running.remove(job)


def job() -> Remote[str, None]:
    ledger.start()
    running.clear()
    return remote(start, cancel, confirm, name="job")


@audited("remote")
async def remote_work_as_a_block() -> None:
    work = job()
    try:
        async with work:
            await pause(1)
    finally:
        ledger.expect(not running, "the work runs on")
        ledger.report(work.report)


@audited("remote")
async def remote_work_that_ends_by_itself() -> None:
    work = job()
    try:
        async with work:
            await work.wait()
    finally:
        ledger.expect(not running, "the work runs on")
        ledger.report(work.report)


@audited("remote")
async def remote_work_closed_by_another_task() -> None:
    work = job()

    async def close() -> None:
        await pause(0.5)
        if not work.closed:
            ledger.report(await work.close())

    try:
        async with ledger.scope(Scope("around it")) as scope:
            await work.open()
            scope.spawn(close)
            await anyio.sleep(2)
    finally:
        ledger.expect(not running, "the work runs on")
