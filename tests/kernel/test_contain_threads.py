"""Threads that work for a containment and do not end with it: they are waited for, and named."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest

from quiesce import Containment, Grace, Leftover, Scope, contain, current_token, to_thread
from quiesce.kernel.base.source_places import variables_of
from quiesce.kernel.contain import busy_threads
from quiesce.kernel.contain.busy_threads import all_work
from tests.world import asyncio_only

pytestmark = [asyncio_only, pytest.mark.real_time]

BRIEF = Grace(cancel=0.1, terminate=0.1, kill=0.1)
PATIENT = Grace(cancel=60)
SOON = 10.0  # seconds that a machine that stalls may take for what takes a tenth; who waits in vain waits for longer


class Tool:
    """Sync code that blocks until it is let go, and hears no cancellation."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.free = threading.Event()

    def run(self) -> str:
        self.began.set()
        self.free.wait(60)
        return "late"

    async def wait_until_it_runs(self) -> None:
        while not self.began.is_set():
            await asyncio.sleep(0.001)


@pytest.fixture
def tool() -> Iterator[Tool]:
    made = Tool()
    yield made
    made.free.set()


async def in_executor(fn: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, fn)


async def by_anyio(fn: Callable[[], Any]) -> Any:
    return await anyio.to_thread.run_sync(fn, abandon_on_cancel=True)


async def by_anyio_without_abandoning(fn: Callable[[], Any]) -> Any:
    return await anyio.to_thread.run_sync(fn)


async def in_a_thread_with_the_context(fn: Callable[[], Any]) -> Any:
    thread = threading.Thread(target=contextvars.copy_context().run, args=(fn,))
    thread.start()
    await asyncio.sleep(1000)


async def in_a_thread(fn: Callable[[], Any]) -> Any:
    threading.Thread(target=fn, name="helper").start()
    await asyncio.sleep(1000)


Way = Callable[[Callable[[], Any]], Awaitable[Any]]

KNOWN: list[Way] = [asyncio.to_thread, by_anyio, by_anyio_without_abandoning, in_a_thread_with_the_context]


async def stopped_while_at(
    way: Way, tool: Tool, grace: Grace = BRIEF, *, free_after: float = 15
) -> Containment:
    """A block whose body is cancelled while it is at the tool."""
    boxes: list[Containment] = []

    async def use() -> None:
        async with contain(grace=grace) as box:
            boxes.append(box)
            await way(tool.run)

    task = asyncio.ensure_future(use())
    await tool.wait_until_it_runs()
    task.cancel()
    timer = asyncio.get_running_loop().call_later(free_after, tool.free.set)
    await asyncio.wait([task])
    timer.cancel()
    assert task.cancelled()
    return boxes[0]


async def all_let_go(tool: Tool) -> None:
    """Let it end, and the loop hear of that."""
    tool.free.set()
    await asyncio.sleep(0.05)


def the_only_one(box: Containment) -> Leftover:
    assert box.report is not None
    (left,) = box.report.left
    return left


@pytest.mark.parametrize("way", KNOWN, ids=lambda way: way.__name__)
async def test_a_thread_that_runs_on_is_named_with_where_it_is(way: Way, tool: Tool) -> None:
    began = time.monotonic()
    box = await stopped_while_at(way, tool)
    assert 0.1 <= time.monotonic() - began < SOON
    left = the_only_one(box)
    assert left.kind == "thread"
    assert "perhaps" not in left.made_at
    assert "threading.py" in left.stuck_at
    if way is not in_a_thread_with_the_context:
        assert left.name == "Tool.run"
    await all_let_go(tool)


@pytest.mark.parametrize("way", KNOWN, ids=lambda way: way.__name__)
async def test_one_that_ends_in_its_time_is_waited_for(way: Way, tool: Tool) -> None:
    box = await stopped_while_at(way, tool, PATIENT, free_after=0.05)
    assert box.report is not None
    assert box.report.clean
    assert [outcome.state for outcome in box.report.outcomes] == ["finished"]
    assert box.report.elapsed < SOON


@pytest.mark.parametrize("way", [asyncio.to_thread, by_anyio], ids=lambda way: way.__name__)
async def test_its_token_says_that_the_block_has_ended(way: Way) -> None:
    reasons: list[str] = []
    tool = Tool()

    def listens() -> None:
        tool.began.set()
        token = current_token()
        assert token.wait_sync(15)
        reasons.append(str(token.reason))

    tool.run = listens  # type: ignore[method-assign, assignment]
    box = await stopped_while_at(way, tool, PATIENT)
    assert box.report is not None
    assert box.report.clean
    assert len(reasons) == 1


async def test_work_of_an_executor_that_a_task_inside_awaits_is_known_by_it(tool: Tool) -> None:
    async with contain(grace=BRIEF) as box:
        task = asyncio.ensure_future(in_executor(tool.run))
        await tool.wait_until_it_runs()
    assert task.cancelled()
    left = the_only_one(box)
    assert (left.kind, left.name) == ("thread", "Tool.run")
    assert "perhaps" not in left.made_at
    await all_let_go(tool)


@pytest.mark.parametrize("way", [in_executor, in_a_thread], ids=lambda way: way.__name__)
async def test_one_of_which_nobody_can_say_whose_it_is_is_named_as_that(way: Way, tool: Tool) -> None:
    began = time.monotonic()
    box = await stopped_while_at(way, tool, PATIENT)
    assert time.monotonic() - began < SOON  # nor is it waited for
    left = the_only_one(box)
    assert left.kind == "thread"
    assert "perhaps" in left.made_at
    assert "threading.py" in left.stuck_at
    await all_let_go(tool)


@pytest.mark.parametrize(
    "way",
    [asyncio.to_thread, by_anyio, in_executor, to_thread],
    ids=["asyncio", "anyio", "executor", "quiesce"],
)
async def test_work_of_somebody_else_is_neither_waited_for_nor_named(way: Way, tool: Tool) -> None:
    async def outside() -> None:
        await begin.wait()
        await way(tool.run)

    begin = asyncio.Event()
    task = asyncio.ensure_future(outside())
    async with contain() as box:
        begin.set()
        await tool.wait_until_it_runs()
    assert box.report is not None
    assert box.report.clean
    assert box.report.outcomes == []
    await all_let_go(tool)
    await task


async def test_what_an_earlier_block_has_named_is_not_named_by_a_later_one(tool: Tool) -> None:
    await asyncio.to_thread(time.sleep, 0)  # the pool's thread is older than both
    assert "perhaps" in the_only_one(await stopped_while_at(in_executor, tool)).made_at
    async with contain() as box:
        await asyncio.sleep(0)
    assert box.report is not None
    assert box.report.clean
    await all_let_go(tool)


async def test_work_of_another_containment_is_that_ones(tool: Tool) -> None:
    async def other() -> None:
        async with contain(grace=BRIEF):
            await asyncio.to_thread(tool.run)

    task = asyncio.ensure_future(other())
    async with contain() as box:
        await tool.wait_until_it_runs()
    assert box.report is not None
    assert box.report.clean
    await all_let_go(tool)
    await task


async def test_threads_from_before_and_idle_ones_are_nobodys_business(tool: Tool) -> None:
    thread = threading.Thread(target=tool.run)
    thread.start()
    with ThreadPoolExecutor(2) as pool:
        async with contain() as box:
            await asyncio.to_thread(time.sleep, 0)
            await anyio.to_thread.run_sync(time.sleep, 0)
            await asyncio.get_running_loop().run_in_executor(pool, time.sleep, 0)
            await to_thread(time.sleep, 0)
    assert box.report is not None
    assert box.report.clean
    assert box.report.outcomes == []
    tool.free.set()
    thread.join()


async def test_a_thread_that_serves_the_program_is_not_the_blocks_that_needed_it_first(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy_threads, "_services", set[str]())
    busy_threads.serves_the_program(__name__)
    async with contain(grace=BRIEF) as box:
        service = threading.Thread(target=tool.run)
        service.start()
        await tool.wait_until_it_runs()
    assert box.report is not None
    assert box.report.clean, str(box.report)
    tool.free.set()
    service.join()


async def test_a_thread_of_quiesce_belongs_to_its_scope_and_is_named_once(tool: Tool) -> None:
    box = await stopped_while_at(to_thread, tool)
    left = the_only_one(box)
    assert (left.kind, left.name) == ("thread", "Tool.run")
    await all_let_go(tool)


async def test_one_that_runs_on_stays_owned(tool: Tool) -> None:
    owner = await Scope.open("owner", grace=BRIEF)

    async def use() -> None:
        async with contain(scope=owner):
            await asyncio.to_thread(tool.run)

    task = asyncio.ensure_future(use())
    await tool.wait_until_it_runs()
    task.cancel()
    await asyncio.wait([task])
    report = await owner.close()
    assert [(left.kind, left.name) for left in report.left] == [("thread", "Tool.run")]
    tool.free.set()
    assert (await owner.close(deadline=15)).clean


async def test_of_two_containments_one_in_the_other_it_is_named_once_by_each(tool: Tool) -> None:
    boxes: list[Containment] = []

    async def use() -> None:
        async with contain(grace=BRIEF, name="outer") as outer:
            boxes.append(outer)
            async with contain(grace=BRIEF, name="inner") as inner:
                boxes.append(inner)
                await asyncio.to_thread(tool.run)

    task = asyncio.ensure_future(use())
    await tool.wait_until_it_runs()
    task.cancel()
    await asyncio.wait([task])
    for box in boxes:
        assert the_only_one(box).name == "Tool.run"
    await all_let_go(tool)


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_cancelled_again_and_again_it_waits_no_longer(times: int, tool: Tool) -> None:
    async def use() -> None:
        async with contain(grace=BRIEF):
            await asyncio.to_thread(tool.run)

    task = asyncio.ensure_future(use())
    await tool.wait_until_it_runs()
    began = time.monotonic()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.01)
    await asyncio.wait([task])
    assert time.monotonic() - began < SOON
    assert task.cancelled()
    await all_let_go(tool)


async def test_a_task_that_is_kept_keeps_its_thread(tool: Tool) -> None:
    async with contain(keep=lambda task: True) as box:
        task = asyncio.ensure_future(asyncio.to_thread(tool.run))
        await tool.wait_until_it_runs()
    assert box.report is not None
    assert box.report.clean
    assert not task.done()
    tool.free.set()
    assert await task == "late"


@pytest.mark.parametrize("way", [asyncio.to_thread, by_anyio, in_executor], ids=lambda way: way.__name__)
async def test_a_look_at_a_thread_keeps_nothing_of_its_work_alive(way: Way) -> None:
    tool = Tool()
    is_alive = weakref.ref(tool)
    task = asyncio.ensure_future(way(tool.run))
    await tool.wait_until_it_runs()
    assert any(work.pooled and work.label for work in all_work())
    tool.free.set()
    await task
    del task, tool
    give_up_at = time.monotonic() + SOON
    while is_alive() and time.monotonic() < give_up_at:
        await asyncio.sleep(0.001)
        gc.collect()
    assert is_alive() is None


def test_variables_of_a_frame_are_copies_and_those_of_a_module_stay() -> None:
    def function(given: int) -> dict[str, Any]:
        frame = sys._getframe()
        found = variables_of(frame)
        del given
        return {"found": found["given"], "now": variables_of(frame).get("given")}

    assert function(7) == {"found": 7, "now": None}
    module: dict[str, Any] = {"variables_of": variables_of, "sys": sys}
    exec("x = 1\nfound = variables_of(sys._getframe())\nsame = x", module)
    assert module["found"]["x"] == module["same"] == 1
