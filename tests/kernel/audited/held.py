"""`own`: other people's context managers, held by a task of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Self

import anyio

from quiesce import Held, NotHeld, Scope, own
from quiesce.kernel.inner import SessionFace, start_holding, users_site

from . import ASYNCIO, DROPPED, STARTED_LATE, audited, ledger, pause, tidy_up, work

NEVER_STARTED = {"unawaited sleep_forever*": STARTED_LATE}


@asynccontextmanager
async def connection() -> AsyncIterator[str]:
    await pause(0.5)
    try:
        yield "connection"
    finally:
        await tidy_up()


@asynccontextmanager
async def client() -> AsyncIterator[str]:
    """As MCP's clients are: a task group inside, bound to the task that enters it."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.sleep_forever)
        yield "client"
        tasks.cancel_scope.cancel()


class Session(SessionFace[str]):
    """What users hold of a connection, from before it is connected."""

    def start(self) -> None:
        self._holding = start_holding(connection(), "session", users_site())

    async def __aenter__(self) -> Self:
        self.start()
        await self._held().wait_until_entered()
        return self


@audited("own")
async def a_session_as_a_block() -> None:
    ledger.start()
    async with ledger.scope(Scope("around it")), Session() as session:
        await pause(1)
        ledger.expect(not session.closed, "it is closed")
    ledger.report(session.report)


@audited("own")
async def a_session_closed_by_another_task_while_it_opens() -> None:
    ledger.start()
    session = Session()

    async def opens() -> None:
        with suppress(NotHeld):
            await session._held().wait_until_entered()

    async with ledger.scope(Scope("around it")) as scope:
        session.start()
        scope.spawn(opens)
        await pause(0.1)
        ledger.report(await session.close())


@audited("own")
async def own_as_a_block() -> None:
    ledger.start()
    async with own(connection()) as value:
        await pause(1)
        ledger.expect(value == "connection", f"the value is {value}")


@audited("own", ignore=NEVER_STARTED)
async def own_with_a_task_group_inside() -> None:
    ledger.start()
    async with own(client()):
        await pause(1)


@audited("own", ignore=NEVER_STARTED)
async def own_opened_and_closed_by_another_task() -> None:
    ledger.start()
    held: list[Held[str]] = []

    async def opens() -> None:
        held.append(await own(client(), scope=owner).open())

    async def closes() -> None:
        await held[0].close()

    async with ledger.scope(Scope("owner")) as owner:
        async with Scope("openers") as tasks:
            tasks.spawn(opens)
        await pause(1)
        async with Scope("closers") as tasks:
            tasks.spawn(closes)
            tasks.spawn(closes)


@audited("own", ignore=NEVER_STARTED)
async def own_closed_first_in_first_out() -> None:
    ledger.start()
    async with ledger.scope(Scope("around them")):
        first = await own(connection()).open()
        second = await own(client()).open()
        await pause(1)
        await first.close()
        await second.close()


@audited("own")
async def own_left_to_the_scope() -> None:
    ledger.start()
    async with ledger.scope(Scope("app")) as scope:
        held = await own(connection()).open()
        scope.spawn(work, 1)
        await pause(0.5)
        ledger.expect(held.value == "connection", "it is not held")


@audited("own", ignore={"unawaited *.crash*": STARTED_LATE})
async def own_what_fails_inside() -> None:
    ledger.start()

    @asynccontextmanager
    async def crashes() -> AsyncIterator[str]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(crash)
            yield "soon gone"

    async def crash() -> None:
        await pause(1)
        raise LookupError("it crashed")

    with suppress(ExceptionGroup, NotHeld):
        async with own(crashes()):
            await pause(5)


@audited("own")
async def own_whose_body_fails() -> None:
    ledger.start()
    with suppress(LookupError):
        async with own(connection()):
            await pause(1)
            raise LookupError("in the body")


@audited("own", worlds=ASYNCIO, ignore={"late *": DROPPED})
@asynccontextmanager
async def own_as_a_block_in_a_context_manager() -> AsyncIterator[str]:
    # Not on trio: there a block is left by the task that entered it, or says that it must be.
    ledger.start()
    async with own(connection()) as value:
        await pause(0.1)
        yield value


@audited("own", ignore={"late *": DROPPED}, ignore_on_trio={"late *": DROPPED})
@asynccontextmanager
async def own_opened_in_a_context_manager() -> AsyncIterator[str]:
    ledger.start()
    held = await own(connection()).open()
    try:
        yield held.value
    finally:
        ledger.report(await held.close())


@audited("own")
async def own_one_inside_another() -> None:
    ledger.start()

    @asynccontextmanager
    async def pool() -> AsyncIterator[str]:
        async with own(connection()) as inner:
            await pause(0.1)
            yield inner

    async with own(pool()):
        await pause(0.5)
