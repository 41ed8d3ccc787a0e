"""A containment without a block, which any task may close: what the drop-ins hold connections with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from quiesce import Grace, Scope, StopReport, contain
from quiesce.kernel.inner import OpenContainment, users_site
from tests.world import asyncio_only

pytestmark = asyncio_only


async def clean_up_slowly() -> None:
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(0.2)


async def opened() -> OpenContainment:
    containment = OpenContainment("connection", users_site())
    containment.run(asyncio.create_task, clean_up_slowly())
    await asyncio.sleep(0.1)
    return containment


def check(report: StopReport) -> None:
    assert report.clean
    assert report.ended == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_task_of_no_scope_closes_it() -> None:
    check(await (await opened()).close())


@pytest.mark.parametrize("block", [contain, Scope])
async def test_the_body_of_a_block_closes_it_that_was_opened_outside(block: Callable[[], Any]) -> None:
    containment = await opened()
    async with block():
        report = await containment.close()
    check(report)


async def test_a_child_of_a_scope_closes_it_that_was_opened_outside() -> None:
    containment = await opened()
    async with Scope() as scope:
        closing = scope.spawn(containment.close)
        await closing.wait()
    check(closing.result())


async def test_several_close_it_at_once() -> None:
    containment = await opened()
    async with Scope() as scope:
        closers = [scope.spawn(containment.close) for _ in range(3)]
        for closing in closers:
            await closing.wait()
    for closing in closers:
        check(closing.result())


async def test_it_is_closed_again_from_a_block() -> None:
    containment = await opened()
    async with contain():
        await containment.close()
        check(await containment.close())


@pytest.mark.worlds("asyncio")  # in real time it takes long
@pytest.mark.parametrize("seconds", [0.5, 20])
async def test_work_that_stops_itself_has_the_time_for_clean_up_of_this_stop(seconds: float) -> None:
    """And neither more nor less: that of the containment is 3 s."""

    async def stop_slowly() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await asyncio.sleep(3600)
        finally:
            had.append(loop.time() - began)

    had: list[float] = []
    containment = await opened()
    containment.stop_with(lambda: [asyncio.create_task(stop_slowly())])
    report = await containment.close(grace=Grace(cancel=seconds, terminate=seconds, kill=seconds))
    assert report.clean
    assert had == [pytest.approx(seconds, abs=0.1)]


async def test_a_second_close_makes_work_that_stops_itself_hurry() -> None:
    containment = await opened()
    containment.stop_with(lambda: [asyncio.create_task(asyncio.sleep(3600))])
    closing = asyncio.create_task(containment.close())
    await asyncio.sleep(0.1)
    assert (await containment.close(deadline=1.5)).clean
    assert (await closing).elapsed < 2


async def test_the_end_of_the_block_around_it_closes_it() -> None:
    async with Scope() as scope:
        containment = await opened()
    assert containment.report is not None
    check(containment.report)
    assert scope.report is not None
    assert scope.report.clean


async def test_children_of_the_block_around_it_use_it_until_they_end() -> None:
    async with Scope() as scope:
        containment = await opened()

        async def use() -> None:
            await asyncio.sleep(1)
            assert containment.report is None

        scope.spawn(use)
    assert containment.report is not None
