"""The worlds themselves: their clocks, their eagerness, and how they hang."""

from __future__ import annotations

import asyncio
import contextvars
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator

import anyio
import anyio.to_thread
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import tests.world
from tests.world import Hung, LeftBehind, World, asyncio_only, trio_only, world_names

virtual_worlds = pytest.mark.worlds("asyncio", "asyncio-eager", "trio")


async def test_each_async_test_runs_where_its_world_says(world: World) -> None:
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        assert world.backend == "asyncio"
        loop = asyncio.get_running_loop()
        assert ("uvloop" in type(loop).__module__) == (world.name == "uvloop")
        assert (loop.get_task_factory() is not None) == (world.name == "asyncio-eager")
    else:
        assert world.backend == world.name == "trio"


def test_every_world_of_this_interpreter_is_in_the_matrix() -> None:
    eager = ["asyncio-eager"] if sys.version_info >= (3, 12) else []
    assert world_names() == ["asyncio", *eager, "uvloop", "trio"]


@asyncio_only
async def test_asyncio_only_means_every_asyncio_world(world: World) -> None:
    assert world.backend == "asyncio"
    assert asyncio.get_running_loop()


@trio_only
async def test_trio_only_means_trio(world: World) -> None:
    assert world.name == "trio"
    assert trio.lowlevel.current_task()


@pytest.mark.worlds("asyncio-eager")
async def test_eager_tasks_run_before_create_task_returns() -> None:
    seen = []

    async def note() -> None:
        seen.append("ran")

    task = asyncio.create_task(note())
    assert seen == ["ran"]
    await task


# Time -------------------------------------------------------------------------------------------------------


@virtual_worlds
async def test_a_long_sleep_takes_virtual_time_and_no_real_time(world: World) -> None:
    assert world.virtual
    real, virtual = time.monotonic(), anyio.current_time()
    await anyio.sleep(7 * 24 * 3600)
    assert anyio.current_time() - virtual == pytest.approx(7 * 24 * 3600)
    assert time.monotonic() - real < 5


@virtual_worlds
async def test_timers_fire_in_order_of_their_deadlines() -> None:
    woken = []

    async def sleeper(seconds: float) -> None:
        await anyio.sleep(seconds)
        woken.append(seconds)

    async with anyio.create_task_group() as group:
        for seconds in (3.0, 1.0, 1000.0, 2.0):
            group.start_soon(sleeper, seconds)
    assert woken == [1.0, 2.0, 3.0, 1000.0]


@virtual_worlds
async def test_a_timeout_fires_exactly_at_its_deadline() -> None:
    start = anyio.current_time()
    with anyio.move_on_after(30):
        await anyio.sleep_forever()
    assert anyio.current_time() - start == pytest.approx(30)


@virtual_worlds
async def test_time_stands_still_while_something_can_run() -> None:
    start = anyio.current_time()
    with anyio.move_on_after(0.001):
        for _ in range(100):
            await anyio.sleep(0)
    assert anyio.current_time() == pytest.approx(start)


@virtual_worlds
async def test_ready_io_comes_before_a_jump_of_the_clock() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.send(b"x")
        start = anyio.current_time()
        with anyio.fail_after(1):
            await anyio.wait_readable(right)
        assert anyio.current_time() == pytest.approx(start)


@pytest.mark.real_time
async def test_real_time_is_real(world: World) -> None:
    assert not world.virtual
    start = time.monotonic()
    await anyio.sleep(0.05)
    assert time.monotonic() - start >= 0.045


@pytest.mark.worlds("uvloop")
async def test_uvloop_always_has_the_real_clock(world: World) -> None:
    assert not world.virtual


@pytest.mark.virtual_time(grace=5)
@virtual_worlds
async def test_with_a_grace_the_clock_waits_for_a_thread() -> None:
    with anyio.fail_after(1):
        await anyio.to_thread.run_sync(time.sleep, 0.05)


@virtual_worlds
async def test_a_thread_can_wake_a_world_that_has_nothing_scheduled(world: World) -> None:
    event = anyio.Event()
    if world.backend == "trio":
        token = trio.lowlevel.current_trio_token()
        timer = threading.Timer(0.05, token.run_sync_soon, [event.set])
    else:
        timer = threading.Timer(0.05, asyncio.get_running_loop().call_soon_threadsafe, [event.set])
    timer.start()
    await event.wait()
    timer.join()


# Runs -------------------------------------------------------------------------------------------------------


def test_run_returns_what_the_coroutine_returned(world: World) -> None:
    async def main() -> str:
        await anyio.sleep(0)
        return "done"

    assert world.run(main) == "done"


def test_run_raises_what_the_coroutine_raised(world: World) -> None:
    async def main() -> None:
        raise LookupError("lost")

    with pytest.raises(LookupError, match="lost"):
        world.run(main)


def test_a_run_sees_the_context_of_its_caller(world: World) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("outside")

    async def main() -> str:
        return variable.get()

    assert world.run(main) == "outside"


@asyncio_only
def test_leftover_tasks_are_cancelled_as_asyncio_run_does(world: World) -> None:
    seen = []

    async def stubborn() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main() -> None:
        tasks.append(asyncio.create_task(stubborn(), name="stubborn"))
        await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    with pytest.raises(LeftBehind, match=r"task 'stubborn'.*stubborn"):
        world.run(main)
    assert seen == ["cancelled"]


@trio_only
def test_a_leftover_system_task_is_named(world: World) -> None:
    async def main() -> None:
        trio.lowlevel.spawn_system_task(trio.sleep, 3600, name="stray")

    with pytest.raises(LeftBehind, match="task 'stray'"):
        world.run(main)


@trio_only
def test_the_owner_of_a_scope_may_stay_but_not_its_children(world: World) -> None:
    async def owner() -> None:
        async with trio.open_nursery() as nursery:
            if with_child:
                nursery.start_soon(trio.sleep, 3600, name="orphan")
            await trio.sleep(3600)

    async def main() -> None:
        trio.lowlevel.spawn_system_task(owner, name="quiesce owner of a scope")
        await trio.testing.wait_all_tasks_blocked()

    with_child = False
    world.run(main)
    with_child = True
    with pytest.raises(LeftBehind, match="orphan") as caught:
        world.run(main)
    assert "quiesce owner" not in str(caught.value)


def test_a_failing_test_also_tells_of_the_tasks_it_left(world: World) -> None:
    async def main() -> None:
        if world.backend == "trio":
            trio.lowlevel.spawn_system_task(trio.sleep, 3600, name="stray")
        else:
            tasks.append(asyncio.create_task(asyncio.sleep(3600), name="stray"))
        raise LookupError("lost")

    tasks: list[asyncio.Task[None]] = []
    with pytest.raises(LookupError) as caught:
        world.run(main)
    assert any("'stray'" in note for note in caught.value.__notes__)


@virtual_worlds
def test_a_run_with_nothing_left_to_happen_is_hung_and_says_where(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tests.world, "IDLE_LIMIT", 0.1)

    async def waits_for_nothing() -> None:
        await anyio.Event().wait()

    with pytest.raises(Hung, match="waits_for_nothing"):
        world.run(waits_for_nothing)


@virtual_worlds
def test_an_endless_sleep_is_a_hang_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tests.world, "IDLE_LIMIT", 0.1)
    with pytest.raises(Hung, match="sleep_forever"):
        world.run(anyio.sleep_forever)


@pytest.mark.worlds("asyncio")
def test_a_stack_goes_down_through_generators_to_the_await(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tests.world, "IDLE_LIMIT", 0.1)

    async def numbers() -> AsyncIterator[int]:
        yield 1
        await anyio.Event().wait()

    async def consume() -> None:
        async for _ in numbers():
            pass

    with pytest.raises(Hung) as caught:
        world.run(consume)
    assert "consume" in str(caught.value)
    assert "numbers" in str(caught.value)
    assert "Event.wait" in str(caught.value)


# Hypothesis -------------------------------------------------------------------------------------------------


@given(st.integers(0, 100))
async def test_each_example_of_a_property_runs_in_a_world_of_its_own(world: World, seconds: int) -> None:
    start = anyio.current_time()
    await anyio.sleep(seconds if world.virtual else 0)
    if world.virtual:
        assert anyio.current_time() - start == pytest.approx(seconds)
