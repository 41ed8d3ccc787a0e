"""The traps of cancellation on asyncio, each with the proof that it does not snap here.

The numbers are those of the list of async facts. 19, 25, 28, 29 and 30 are about threads, streams, processes
and other people's tasks, and are tested beside those.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator

import anyio
import pytest
import uvloop

from quiesce import Grace, Reason, Scope, current_scope, current_token
from tests.kernel.temperaments import (
    Stubborn,
    cancellation,
    fails,
    forever,
    quick,
    sleeper,
    tidy_up,
    turns,
    virtual_asyncio,
    virtual_worlds,
)
from tests.world import World, asyncio_only

real_time = pytest.mark.real_time


# Cancellation on asyncio ------------------------------------------------------------------------------------


async def test_trap_01_edge_versus_level(world: World) -> None:
    """One cancel a child on asyncio; on trio every await, as always there. Shielded clean-up works on both."""
    bare: list[str] = []
    shielded: list[str] = []

    async def child() -> None:
        try:
            await forever()
        finally:
            try:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0.01)
                shielded.append("ran")
            finally:
                await anyio.sleep(0)
                bare.append("ran")

    scope = await Scope.open()
    scope.spawn(child)
    await turns()
    assert (await scope.close()).clean
    assert shielded == ["ran"]
    assert bare == ([] if world.backend == "trio" else ["ran"])


@asyncio_only
async def test_trap_02_whose_cancel() -> None:
    """A closer that is cancelled while its child ends cancelled too does not mistake one for the other."""
    log = []

    async def closes(scope: Scope) -> None:
        try:
            await scope.close()
        except asyncio.CancelledError:
            log.append("cancelled")
            raise
        log.append("ran on")

    scope = await Scope.open()
    scope.spawn(sleeper, None, "child", 0.02)
    await turns()
    cancelled, spared = asyncio.create_task(closes(scope)), asyncio.create_task(closes(scope))
    await asyncio.sleep(0.01)
    cancelled.cancel()
    await asyncio.wait([cancelled, spared])
    assert cancelled.cancelled()
    assert not spared.cancelled()
    assert sorted(log) == ["cancelled", "ran on"]


@asyncio_only
async def test_trap_03_awaiting_a_task_forwards_your_cancel_to_it() -> None:
    """Neither waiting for a handle nor closing forwards the waiter's cancel."""
    log: list[str] = []
    scope = await Scope.open()
    handle = scope.spawn(sleeper, log, "child", 0.03)
    await turns()
    waiter = asyncio.create_task(handle.wait())
    await turns()
    waiter.cancel()
    await asyncio.wait([waiter])
    assert waiter.cancelled()
    assert handle.state == "running"
    closer = asyncio.create_task(scope.close())
    await asyncio.sleep(0.01)
    closer.cancel()
    await asyncio.wait([closer])
    assert log == ["child stops", "child is tidy"]


@asyncio_only
async def test_trap_04_cancelling_and_uncancel() -> None:
    """After a block that failed, the task is as if nothing had happened: no group cancels it again."""
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(ExceptionGroup):
        async with Scope() as scope:
            scope.spawn(fails, ValueError())
            await forever()
    assert task.cancelling() == 0
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails(KeyError("group"), 0.001))
            await asyncio.sleep(1)
    assert isinstance(caught.value.exceptions[0], KeyError)
    await asyncio.sleep(0)
    assert task.cancelling() == 0


@asyncio_only
async def test_trap_05_a_late_cancel_steals_results() -> None:
    """A waiter cancelled in the tick in which the child ends loses nothing: the handle has the result."""
    gate = asyncio.Event()

    async def child() -> str:
        await gate.wait()
        return "precious"

    async with Scope() as scope:
        handle = scope.spawn(child)
        await turns()
        waiter = asyncio.create_task(handle.wait())
        await turns()
        gate.set()
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.wait([waiter])
    assert waiter.cancelled()
    assert handle.result() == "precious"


async def test_trap_06_cancel_before_the_first_step() -> None:
    """The body may never run; the scope settles, waiters wake and the report has it all the same."""
    scope = await Scope.open()
    handles = [scope.spawn(sleeper, name=str(n)) for n in range(3)]
    handles[0].cancel("early")
    woken = []

    async def waits() -> None:
        await handles[1].wait()
        woken.append(handles[1].state)

    async with anyio.create_task_group() as group:
        group.start_soon(waits)
        report = await scope.close()
    assert [handle.state for handle in handles] == ["cancelled"] * 3
    assert report.clean
    assert report.ended == 3
    assert woken == ["cancelled"]


@virtual_asyncio
async def test_trap_07_asyncio_timeout() -> None:
    """Round a drain it raises TimeoutError, after it; across a yield our own blocks harm nobody."""
    log: list[str] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            async with Scope() as scope:
                scope.spawn(sleeper, log, "child", 1.0)
                await turns()
                raise ValueError("already on the way out")
    assert log == ["child stops", "child is tidy"]

    async def numbers() -> AsyncIterator[int]:
        async with Scope(grace=Grace(cancel=0.1)) as scope:
            scope.spawn(fails, ValueError("inside"), 0.1)
            yield 1
            yield 2

    generator = numbers()
    opener: asyncio.Task[int] = asyncio.create_task(anext(generator))  # type: ignore[arg-type]
    assert await opener == 1
    innocent = asyncio.create_task(asyncio.sleep(1, "undisturbed"))
    assert await innocent == "undisturbed"
    with pytest.raises(ExceptionGroup):
        async for _ in generator:
            pass


async def test_trap_08_gather_leaves_siblings_running() -> None:
    """The first failure cancels and drains the siblings before it is raised."""
    log: list[str] = []
    with pytest.raises(ExceptionGroup):
        async with Scope() as scope:
            scope.spawn(sleeper, log, "model call", 0.01)
            await turns()
            scope.spawn(fails, ValueError("guardrail"))
    assert log == ["model call stops", "model call is tidy"]


@asyncio_only
async def test_trap_09_asyncio_shield() -> None:
    """Children are strongly owned, and `finally: await close()` has finished when it ends, cancelled thrice."""
    log: list[str] = []

    async def user() -> None:
        scope = await Scope.open()
        try:
            scope.spawn(sleeper, log, "child", 0.05)
            await forever()
        finally:
            try:
                await scope.close()
            finally:
                log.append(scope.state)

    task = asyncio.create_task(user())
    await turns(5)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.005)
        gc.collect()
    await asyncio.wait([task])
    assert task.cancelled()
    assert log == ["child stops", "child is tidy", "settled"]


async def test_trap_10_systemexit_in_a_child() -> None:
    """It is that child's failure, not the end of the loop."""
    scope = await Scope.open(on_error="report", on_child_error=lambda handle, error: None)
    handle = scope.spawn(fails, SystemExit(3))
    sibling = scope.spawn(anyio.sleep, 0.01)
    await handle.wait()
    await sibling.wait()
    assert isinstance(handle.error, SystemExit)
    assert sibling.state == "finished"
    assert (await scope.close()).errors == [handle.error]


@pytest.mark.parametrize("factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_trap_10_keyboardinterrupt_in_a_child_passes(factory: type[asyncio.SelectorEventLoop]) -> None:
    log: list[str] = []

    async def main() -> None:
        async with Scope() as scope:
            scope.spawn(sleeper, log, "sibling", 0.01)
            await turns()
            scope.spawn(fails, KeyboardInterrupt())
            await forever()

    with pytest.raises(KeyboardInterrupt), asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
    assert log == ["sibling stops", "sibling is tidy"]


@real_time
@asyncio_only
async def test_trap_11_asyncio_run_has_no_exit_deadline() -> None:
    """Close with a deadline before main returns, and the deadline is the deadline."""
    stubborn = Stubborn()
    scope = await Scope.open()
    scope.spawn(stubborn)
    await turns()
    start = time.monotonic()
    report = await scope.close(deadline=0.05)
    assert time.monotonic() - start < 4  # and not the five of the default
    assert len(report.left) == 1
    stubborn.let_go()
    await scope.close()


async def test_trap_12_race_in_one_tick() -> None:
    """Of those that fail in one tick the first is the reason, and none is lost; who has won keeps its result."""
    gate = anyio.Event()
    order: list[int] = []

    async def fails_at_the_gate(number: int) -> None:
        try:
            await gate.wait()
        finally:  # woken, or cancelled by the failure of the other in the same tick
            order.append(number)
            raise ValueError(number)

    async def wins_at_the_gate() -> str:
        try:
            await gate.wait()
        except cancellation():
            pass
        return "won"

    with pytest.raises(ExceptionGroup) as caught:
        async with Scope() as scope:
            winner = scope.spawn(wins_at_the_gate)
            for number in (1, 2, 3):
                scope.spawn(fails_at_the_gate, number)
            await turns()
            gate.set()
            await forever()
    assert [error.args for error in caught.value.exceptions] == [(number,) for number in order]
    assert len(order) == 3
    assert scope.reason is not None
    assert scope.reason.error is caught.value.exceptions[0]
    assert winner.result() == "won"


@asyncio_only
async def test_trap_13_cancel_messages() -> None:
    """The reason is on the token, whole, whichever message of several was delivered."""
    seen: list[object] = []

    async def child() -> None:
        try:
            await forever()
        except asyncio.CancelledError as error:
            seen.append(current_token().reason)
            seen.append(str(error))
            raise

    scope = await Scope.open()
    handle = scope.spawn(child)
    await turns()
    reason = Reason("error", "because", ValueError("the whole object"))
    handle.cancel(reason)
    scope.cancel("second")
    await scope.close(reason="third")
    assert seen[0] is reason
    assert "because" in str(seen[1])


@pytest.mark.worlds("asyncio-eager")
async def test_trap_14_eager_tasks_that_end_fail_or_close_inside_spawn() -> None:
    async def closes(scope: Scope) -> str:
        await scope.close()
        return "closed"

    scope = await Scope.open()
    handle = scope.spawn(quick, 1)
    assert handle.state == "finished"
    assert handle.result() == 1
    assert scope.children == ()
    handle = scope.spawn(closes, scope)
    assert handle.result() == "closed"
    assert scope.state == "settled"

    with pytest.raises(ExceptionGroup):
        async with Scope() as block:
            assert block.spawn(fails, ValueError()).state == "failed"
            assert block.state in ("stopping", "settled")
            await forever()
    assert block.state == "settled"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.worlds("asyncio-eager")
async def test_trap_14_an_eager_child_that_cancels_its_own_scope_inside_spawn() -> None:
    log: list[str] = []

    async def child() -> None:
        current_scope().cancel("by myself")
        log.append("not yet")
        await sleeper(log)

    scope = await Scope.open()
    handle = scope.spawn(child)
    await handle.wait()
    assert log == ["not yet", "sleeper stops", "sleeper is tidy"] or log == ["not yet"]
    assert handle.state == "cancelled"
    assert (await scope.close()).reason == Reason("user", "by myself")


@virtual_worlds
async def test_an_await_in_a_clean_up_comes_to_its_end_in_every_world() -> None:
    """`tidy_up` does what it says, or else half of the tests beside this one would show nothing."""
    done = []

    async def child() -> None:
        try:
            await forever()
        finally:
            await tidy_up(1)
            done.append(1)

    scope = await Scope.open()
    scope.spawn(child)
    await turns()
    await scope.close()
    assert done == [1]
