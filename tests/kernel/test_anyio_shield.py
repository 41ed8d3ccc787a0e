"""anyio's shields keep a stop's first cancel out, on asyncio as on trio: until they are left, or the time for clean-up is over."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import anyio
import anyio.to_thread
import pytest

from quiesce import Grace, Scope, contain, own
from quiesce.kernel.loops import anyio_shields
from tests.kernel.temperaments import cancellation, turns, virtual_worlds
from tests.world import asyncio_only

SHORT = Grace(cancel=0.2, terminate=0.5, kill=0.5)


async def protected(log: list[str], seconds: float = 0.1) -> None:
    """Work that must not be cut, between two pieces that may."""
    try:
        with anyio.CancelScope(shield=True):
            try:
                await anyio.sleep(seconds)
                log.append("done")
            except cancellation():
                log.append("cut")
                raise
        await anyio.sleep(10)
        log.append("went on")
    except cancellation():
        log.append("stopped")
        raise


@virtual_worlds
async def test_a_child_is_cancelled_when_it_has_left_its_shield() -> None:
    log: list[str] = []
    scope = await Scope.open()
    child = scope.spawn(protected, log)
    await turns()
    report = await scope.close()
    assert log == ["done", "stopped"]
    assert child.state == "cancelled"
    assert report.clean
    assert report.elapsed == pytest.approx(0.1, abs=0.02)


@virtual_worlds
async def test_a_child_that_is_cancelled_alone_too() -> None:
    log: list[str] = []
    async with Scope() as scope:
        child = scope.spawn(protected, log)
        await turns()
        child.cancel()
        await child.wait()
    assert log == ["done", "stopped"]


@virtual_worlds
async def test_through_several_shields_one_inside_the_other() -> None:
    log: list[str] = []

    async def deeper() -> None:
        with anyio.CancelScope(shield=True):
            with anyio.CancelScope(), anyio.CancelScope(shield=True):
                await anyio.sleep(0.1)
            await anyio.sleep(0.1)
            log.append("both")
        await anyio.sleep_forever()

    scope = await Scope.open()
    scope.spawn(deeper)
    await turns()
    report = await scope.close()
    assert log == ["both"]
    assert report.elapsed == pytest.approx(0.2, abs=0.02)


@virtual_worlds
async def test_one_shield_after_the_other() -> None:
    """Between them there is an await: that is where the cancel arrives."""
    rounds = 0

    async def loop() -> None:
        nonlocal rounds
        while True:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.1)
            rounds += 1
            await anyio.sleep(0)

    scope = await Scope.open()
    scope.spawn(loop)
    await turns()
    report = await scope.close()
    assert rounds == 1
    assert report.clean


@virtual_worlds
async def test_the_body_of_a_block_is_cancelled_when_it_has_left_its_shield() -> None:
    log: list[str] = []

    async def fail() -> None:
        await anyio.sleep(0)
        raise ValueError("enough")

    with pytest.raises(ExceptionGroup, match="unhandled"):
        async with Scope() as scope:
            scope.spawn(fail)
            await protected(log)
    assert log == ["done", "stopped"]


@virtual_worlds
async def test_a_shield_that_a_child_enters_after_it_has_stopped_its_own_scope() -> None:
    log: list[str] = []

    async def child() -> None:
        scope.cancel()
        await protected(log)

    scope = await Scope.open()
    scope.spawn(child)
    await turns()
    await scope.close()
    assert log == ["done", "stopped"]


@virtual_worlds
async def test_a_shield_that_a_body_enters_after_it_has_stopped_its_own_scope() -> None:
    log: list[str] = []
    async with Scope() as scope:
        scope.cancel()
        await protected(log)
    assert log == ["done", "stopped"]


@virtual_worlds
async def test_a_shield_that_a_body_enters_after_a_child_has_failed_in_its_first_step() -> None:
    """An eager child fails before `spawn` returns."""
    log: list[str] = []

    async def fail() -> None:
        raise ValueError("enough")

    with pytest.raises(ExceptionGroup, match="unhandled"):
        async with Scope() as scope:
            scope.spawn(fail)
            await protected(log)
    assert log == ["done", "stopped"]


@virtual_worlds
async def test_a_block_that_is_left_together_with_its_shield_leaves_no_complaint() -> None:
    log: list[str] = []
    async with Scope() as scope:
        scope.cancel("enough")
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.1)
            log.append("done")
    await turns()  # in which the loop would complain
    assert log == ["done"]


@asyncio_only
async def test_a_generator_that_stops_its_own_scope_and_hands_out_a_value_is_cancelled_all_the_same() -> None:
    async def words() -> AsyncGenerator[str]:
        async with Scope() as scope:
            scope.cancel("enough")
            yield "word"
            await anyio.sleep(10)

    heard: list[str] = []
    with pytest.raises(asyncio.CancelledError):
        async with aclosing(words()) as stream:
            async for word in stream:
                heard.append(word)
                await anyio.sleep(0.01)
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
    assert heard == ["word"]


if sys.version_info >= (3, 12):  # before, no task is eager

    @asyncio_only
    async def test_a_shield_that_a_child_enters_after_a_task_that_it_started_eagerly_has_stopped_the_scope() -> (
        None
    ):
        log: list[str] = []

        async def stop(scope: Scope) -> None:
            scope.cancel("enough")

        async def child(scope: Scope) -> None:
            asyncio.Task(stop(scope), loop=asyncio.get_running_loop(), eager_start=True)  # type: ignore[call-arg, unused-ignore]
            await protected(log)

        async with Scope() as scope:
            scope.spawn(child, scope)
        assert log == ["done", "stopped"]


@virtual_worlds
async def test_a_stop_that_came_first_is_at_the_next_await_where_there_is_no_shield() -> None:
    log: list[str] = []

    async def child() -> None:
        scope.cancel()
        try:
            await anyio.sleep(0)
        except cancellation():
            async with Scope():  # in clean-up
                log.append("child")
            raise

    scope = await Scope.open()
    scope.spawn(child)
    await turns()
    await scope.close()
    async with Scope() as scope:
        scope.cancel()
        async with Scope():  # in clean-up, before the cancel has come
            log.append("body")
        await anyio.sleep(0)
        log.append("went on")
    async with Scope() as scope:
        scope.cancel()  # and out, without an await
    await anyio.sleep(0)
    assert log == ["child", "body"]


@virtual_worlds
async def test_a_shield_around_the_block_does_not_keep_its_own_stop_out() -> None:
    async def fail() -> None:
        raise ValueError("enough")

    before = anyio.current_time()
    with pytest.raises(ExceptionGroup, match="unhandled"), anyio.CancelScope(shield=True):
        async with Scope() as scope:
            scope.spawn(fail)
            await anyio.sleep(10)
    assert anyio.current_time() - before < 1


@virtual_worlds
async def test_an_owner_that_is_being_entered() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def resource() -> AsyncIterator[None]:
        await protected(log)
        yield

    scope = await Scope.open()

    async def opens() -> None:
        async with own(resource()):
            pass

    scope.spawn(opens)
    await turns()
    report = await scope.close()
    assert log == ["done", "stopped"]
    assert report.clean


@asyncio_only
async def test_a_task_in_a_containment() -> None:
    log: list[str] = []
    async with contain() as box:
        task = asyncio.create_task(protected(log))
        await turns()
    assert log == ["done", "stopped"]
    assert task.cancelled()
    assert box.report is not None
    assert box.report.clean


@virtual_worlds
async def test_a_shield_that_lasts_longer_than_the_time_for_clean_up_is_cut_on_asyncio_and_left_on_trio(
    world: object,
) -> None:
    log: list[str] = []
    scope = await Scope.open(grace=SHORT)
    scope.spawn(protected, log, 5.0)
    await turns()
    report = await scope.close()
    if "trio" in str(world):
        assert not report.clean
        assert (await scope.close(grace=Grace(cancel=10))).clean
        assert log == ["done", "stopped"]
    else:
        assert log == ["cut", "stopped"]
        assert report.elapsed == pytest.approx(0.2, abs=0.05)


@asyncio_only
async def test_one_that_is_cut_is_not_cancelled_once_more_when_it_leaves_its_shield() -> None:
    cancels: list[float] = []

    async def child() -> None:
        with anyio.CancelScope(shield=True):
            try:
                await anyio.sleep(10)
            except asyncio.CancelledError:
                cancels.append(anyio.current_time())
        try:
            await anyio.sleep(0.1)
        except asyncio.CancelledError:
            cancels.append(anyio.current_time())

    scope = await Scope.open(grace=SHORT)
    scope.spawn(child)
    await turns()
    assert (await scope.close()).clean
    assert len(cancels) == 1


@virtual_worlds
async def test_a_shield_of_one_tick_costs_one_tick() -> None:
    ticks = 0

    async def child() -> None:
        while True:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0)
            await anyio.sleep(0)

    async def count() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await anyio.sleep(0)

    async with Scope() as counting:
        counting.spawn(count)
        scope = await Scope.open()
        scope.spawn(child)
        await turns()
        ticks = 0
        await scope.close()
        assert ticks < 6
        counting.cancel()


@pytest.mark.real_time
async def test_a_thread_of_anyios_is_waited_for_as_ours_are() -> None:
    ended: list[str] = []

    def work() -> None:
        time.sleep(0.2)
        ended.append("thread")

    async def child() -> None:
        await anyio.to_thread.run_sync(work)

    scope = await Scope.open()
    handle = scope.spawn(child)
    await anyio.sleep(0.05)
    report = await scope.close()
    assert ended == ["thread"]
    assert report.clean
    assert handle.done


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # anyio: the shield is left without its task
def test_a_shield_that_is_never_left_keeps_nothing_alive_when_its_task_is_destroyed() -> None:
    class Thing:
        pass

    things: list[weakref.ref[Thing]] = []

    async def child() -> None:
        thing = Thing()
        things.append(weakref.ref(thing))
        with anyio.CancelScope(shield=True):
            await anyio.sleep_forever()

    async def main() -> None:
        scope = await Scope.open()
        scope.spawn(child)
        await turns()
        scope.cancel()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # "Task was destroyed but it is pending"
    loop.run_until_complete(main())
    loop.close()
    (destroyed,) = asyncio.all_tasks(loop)
    anyio_shields.table().pop(destroyed)  # anyio's own table keeps it, whether anybody watches or not
    del loop, destroyed
    gc.collect()  # destroys the task, whose clean-up then fails
    gc.collect()  # and that error, with the frames of its traceback
    assert [thing() for thing in things] == [None]


@asyncio_only
async def test_with_a_version_of_anyio_that_is_not_known_shields_are_not_seen_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Elsewhere:
        CancelScope = object

    monkeypatch.setattr(anyio_shields, "_states", None)
    monkeypatch.setattr(anyio_shields, "_entries", None)
    monkeypatch.setitem(sys.modules, anyio_shields._BACKEND, Elsewhere)
    with caplog.at_level(logging.WARNING, "quiesce"):
        log: list[str] = []
        for _ in range(2):
            scope = await Scope.open()
            scope.spawn(_shielded_by_hand, log)
            await turns()
            assert (await scope.close()).clean
    assert log == ["cut", "cut"]
    assert len([record for record in caplog.records if "anyio" in record.getMessage()]) == 1


async def _shielded_by_hand(log: list[str]) -> None:
    try:
        await asyncio.sleep(1)
    finally:
        log.append("cut")
