"""Scopes: blocks, opened and closed, nested, supervised; and their children."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio

from quiesce import CancelToken, Grace, Reason, Scope, ScopeClosed, current_scope, current_token, shielded

from . import DROPPED, audited, clock, fail, ledger, pause, tidy_up, work


@audited("Scope")
async def scope_block() -> None:
    ledger.start()
    async with ledger.scope(Scope("block")) as scope:
        first = scope.spawn(work, 1)
        scope.spawn(work, 2)
        await pause(0.5)
    ledger.expect(first.result() == 1, "the end of the block did not wait for the first child")


@audited("Scope")
async def scope_block_whose_child_fails() -> None:
    ledger.start()
    with suppress(ExceptionGroup):
        async with ledger.scope(Scope("failing")) as scope:
            scope.spawn(work, 5)
            scope.spawn(fail, 1)
            try:
                await pause(3)
            finally:
                await pause(0)


@audited("Scope")
async def scope_block_whose_body_fails() -> None:
    ledger.start()
    with suppress(LookupError, ExceptionGroup):
        async with ledger.scope(Scope("failing body")) as scope:
            scope.spawn(work, 5)
            await fail(1)


@audited("Scope")
async def scope_opened_and_closed() -> None:
    ledger.start()
    scope = ledger.scope(await Scope.open("opened"))
    try:
        scope.spawn(work, 5)
        scope.spawn(work, 1)
        await pause(2)
    finally:
        ledger.report(await scope.close(reason="the user went away"))


@audited("Scope")
async def scope_closed_by_another_task() -> None:
    ledger.start()
    scopes: list[Scope] = []

    async def opens() -> None:
        scopes.append(ledger.scope(await Scope.open("opened elsewhere")))
        scopes[0].spawn(work, 5)

    async def closes() -> None:
        if scopes:
            ledger.report(await scopes[0].close())

    try:
        async with Scope("openers") as tasks:
            tasks.spawn(opens)
        await pause(1)
        async with Scope("closers") as tasks:
            tasks.spawn(closes)
            tasks.spawn(closes)
    finally:
        await shielded(closes)


@audited("Scope")
async def scope_closed_by_its_own_child() -> None:
    ledger.start()

    async def closer() -> None:
        await pause(1)
        await scope.close(reason="from inside")

    async with ledger.scope(Scope("closed from inside")) as scope:
        scope.spawn(work, 5)
        scope.spawn(closer)
        await pause(4)


@audited("Scope")
async def scope_nested() -> None:
    ledger.start()

    async def inner() -> None:
        async with ledger.scope(Scope("inner")) as scope:
            scope.spawn(work, 1)
            await pause(0.5)

    async with ledger.scope(Scope("outer")) as outer:
        outer.spawn(inner)
        left_open = ledger.scope(await Scope.open("left to the outer one"))
        left_open.spawn(work, 10)
        await pause(1)


@audited("Scope")
async def scope_supervisor() -> None:
    ledger.start()
    told: list[BaseException] = []
    scope = Scope("supervisor", on_error="report", on_child_error=lambda _, error: told.append(error))
    async with ledger.scope(scope):
        failing = scope.spawn(fail, 0.5)
        scope.spawn(work, 1)
        await pause(0.1)
    ledger.expect(failing.error is None or failing.error in told, "the failure was not told")


@audited("Scope")
async def scope_spawned_into_in_a_clean_up() -> None:
    ledger.start()

    async def spawns_at_its_end() -> None:
        try:
            await work(1)
        finally:
            with suppress(ScopeClosed):  # refused if it is being stopped
                scope.spawn(work, 0.5)

    async with ledger.scope(Scope("spawned into late")) as scope:
        scope.spawn(spawns_at_its_end)
        await pause(0.1)


@audited("Scope")
async def scope_cancelled_by_a_token() -> None:
    ledger.start()
    token = CancelToken()
    async with ledger.scope(Scope("with a token", token=token)) as scope:
        scope.spawn(work, 5)
        await pause(0.5)
        token.cancel(Reason("timeout", "too slow"))
        await pause(5)


@audited("Scope", ignore={"late *": DROPPED}, ignore_on_trio={"late *": DROPPED})
async def scope_in_a_generator() -> AsyncIterator[int]:
    ledger.start()
    async with ledger.scope(Scope("in a generator")) as scope:
        scope.spawn(work, 1)
        for number in range(2):
            await pause(0.1)
            yield number


@audited("Scope", ignore={"late *": DROPPED}, ignore_on_trio={"late *": DROPPED})
@asynccontextmanager
async def session_of_an_opened_scope() -> AsyncIterator[Scope]:
    # As a client's: entered in one task, and left in another or by the collector.
    ledger.start()
    scope = ledger.scope(await Scope.open("session"))
    try:
        scope.spawn(work, 10)
        await pause(0.1)
        yield scope
    finally:
        ledger.report(await scope.close())


@audited("Scope")
async def scope_closed_by_a_grandchild_and_from_outside() -> None:
    ledger.start()

    async def closes() -> None:
        await pause(1)
        await outer.close(reason="from deep inside")

    async def parent() -> None:
        async with ledger.scope(Scope("inner")) as inner:
            inner.spawn(closes)
            inner.spawn(work, 5)
            await pause(4)

    async with ledger.scope(Scope("outer")) as outer:
        outer.spawn(parent)
        outer.spawn(work, 6)
        await pause(1)
        await outer.close(reason="from the body")


@audited("current_scope")
async def current_scope_of_a_child() -> None:
    ledger.start()

    async def tool() -> None:
        current_scope().spawn(work, 1)
        await pause(0.5)

    async with ledger.scope(Scope("turn")) as turn:
        ledger.expect(current_scope() is turn, "the block is not the current scope")
        turn.spawn(tool)
        await pause(0.1)


@audited("run")
async def the_root_scope_closed_at_the_end() -> None:
    # What `run` does in its loop: main is a child of the root scope, and that is closed when main has ended.
    ledger.start()
    root = current_scope()

    async def main() -> None:
        current_scope().spawn(work, 5)
        async with ledger.scope(Scope("app")) as app:
            app.spawn(work, 1)

    try:
        await root.spawn(main).wait()
    finally:
        ledger.report(await root.close())


@audited("Handle")
async def handle_waited_for_and_cancelled() -> None:
    ledger.start()
    async with ledger.scope(Scope("handles")) as scope:
        slow = scope.spawn(work, 10)
        quick = scope.spawn(work, 0.5)
        await quick.wait()
        slow.cancel(Reason("user", "Esc pressed"))
        slow.cancel("again")
        await slow.wait()
        ledger.expect(slow.done, f"{slow} was waited for")


@audited("Handle")
async def handle_whose_waiter_is_stopped() -> None:
    ledger.start()

    async def waits() -> None:
        await handle.wait()

    async with ledger.scope(Scope("children")) as scope:
        handle = scope.spawn(work, 2)
        with anyio.move_on_after(clock.seconds(1)):
            await handle.wait()
        scope.spawn(waits)


@audited("Grace")
async def grace_for_a_child_that_ignores_its_first_cancel() -> None:
    ledger.start()

    async def ignores() -> None:
        try:
            await pause(1)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await pause(3)
            raise

    second = clock.seconds(1)
    grace = Grace(cooperate=second / 2, cancel=second, terminate=second, kill=5 * second)
    scope = ledger.scope(await Scope.open("stubborn", grace=grace))
    try:
        scope.spawn(ignores)
        await pause(0.5)
    finally:
        ledger.report(await scope.close())


@audited("StopReport")
async def report_and_reason_of_a_stop() -> None:
    ledger.start()
    scope = ledger.scope(await Scope.open("reported", on_error="report", on_child_error=lambda _, __: None))
    try:
        children = [scope.spawn(fail, 0.1), scope.spawn(work, 10)]
        await pause(0.5)
        scope.cancel(Reason("disconnect", "socket closed"))
        report = await scope.close()
        ledger.expect(
            report.reason == Reason("disconnect", "socket closed"), f"the reason is {report.reason}"
        )
        failures = [child.error for child in children if child.state == "failed"]
        ledger.expect(list(report.errors) == failures, f"the errors are {report.errors}, of {failures}")
    finally:
        ledger.report(await scope.close())


@audited("CancelToken")
async def token_waited_for_by_many() -> None:
    ledger.start()
    token = CancelToken()
    heard: list[str] = []
    token.on_cancel(lambda: heard.append("callback"))
    child = token.child()

    async def waits(mine: CancelToken) -> None:
        heard.append((await mine.wait()).kind)

    async with ledger.scope(Scope("waiters")) as scope:
        scope.spawn(waits, token)
        scope.spawn(waits, child)
        with anyio.move_on_after(clock.seconds(0.2)):
            await child.wait()
        await pause(0.5)
        token.cancel("stop")
        await child.wait()
    ledger.expect(sorted(heard) == ["callback", "user", "user"], f"they heard {heard}")


@audited("current_token")
async def token_of_the_work_at_hand() -> None:
    ledger.start()

    async def looks() -> None:
        token = current_token()
        try:
            await pause(1)
        except anyio.get_cancelled_exc_class():
            ledger.expect(token.cancelled, "cancelled, and the token does not say so")
            await tidy_up()
            raise

    scope = ledger.scope(await Scope.open("tokens"))
    try:
        scope.spawn(looks)
        await pause(0.5)
    finally:
        ledger.report(await scope.close())
