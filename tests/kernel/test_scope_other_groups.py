"""Scopes and other people's groups: inside of each other, stopped by each other."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from quiesce import Scope
from tests.kernel.temperaments import fails, sleeper, tidy_up, turns, virtual_worlds
from tests.world import asyncio_only


async def shielded_sleeper(log: list[str], name: str) -> None:
    """What a task of an anyio group has to do to clean up: anyio cancels by level on asyncio too."""
    try:
        await anyio.Event().wait()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.02)
        log.append(f"{name} is tidy")


async def test_an_anyio_group_in_a_child_is_drained_with_it() -> None:
    log: list[str] = []

    async def child() -> None:
        async with anyio.create_task_group() as group:
            for n in range(3):
                group.start_soon(shielded_sleeper, log, f"task {n}")
        log.append("never")

    scope = await Scope.open()
    handle = scope.spawn(child)
    await turns(5)
    report = await scope.close()
    assert report.clean
    assert handle.state == "cancelled"
    assert sorted(log) == ["task 0 is tidy", "task 1 is tidy", "task 2 is tidy"]


async def test_a_failing_task_of_an_anyio_group_in_a_child_is_the_childs_failure() -> None:
    async def child() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(fails, ValueError("in the group"), 0.01)

    with pytest.raises(ExceptionGroup) as caught:
        async with Scope() as scope:
            scope.spawn(child)
    [group] = caught.value.exceptions
    assert isinstance(group, ExceptionGroup)
    assert str(group.exceptions[0]) == "in the group"


async def test_a_block_in_a_task_of_an_anyio_group_that_is_cancelled_drains() -> None:
    log: list[str] = []

    async def task() -> None:
        async with Scope() as scope:
            scope.spawn(sleeper, log, "child", 0.03)
            await anyio.Event().wait()

    async with anyio.create_task_group() as group:
        group.start_soon(task)
        await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    assert log == ["child stops", "child is tidy"]


@virtual_worlds
async def test_a_block_around_an_anyio_group_that_fails() -> None:
    log: list[str] = []
    with pytest.raises(ExceptionGroup) as caught:
        async with Scope() as scope:
            scope.spawn(sleeper, log, "child", 0.5)
            async with anyio.create_task_group() as group:
                group.start_soon(fails, ValueError("in the group"), 0.1)
                await anyio.Event().wait()
    assert caught.value.subgroup(ValueError) is not None
    assert log == ["child stops", "child is tidy"]
    await anyio.sleep(0)


@asyncio_only
async def test_a_task_group_in_a_child_is_drained_with_it() -> None:
    log: list[str] = []

    async def child() -> None:
        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(sleeper(log, f"task {n}", 0.02))

    scope = await Scope.open()
    handle = scope.spawn(child)
    await turns(5)
    assert (await scope.close()).clean
    assert handle.state == "cancelled"
    assert sorted(line for line in log if "tidy" in line) == [f"task {n} is tidy" for n in range(3)]


@asyncio_only
async def test_a_block_in_a_task_of_a_task_group_that_aborts_drains() -> None:
    log: list[str] = []

    async def task() -> None:
        async with Scope() as scope:
            scope.spawn(sleeper, log, "child", 0.03)
            await anyio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(task())
            group.create_task(fails(ValueError("sibling"), 0.01))
    assert [str(error) for error in caught.value.exceptions] == ["sibling"]
    assert log == ["child stops", "child is tidy"]


@asyncio_only
async def test_a_block_whose_body_runs_a_task_group_is_interrupted_and_uncancelled() -> None:
    log: list[str] = []
    with pytest.raises(ExceptionGroup) as caught:
        async with Scope() as scope:
            scope.spawn(fails, ValueError("child"), 0.01)
            async with asyncio.TaskGroup() as group:
                group.create_task(sleeper(log, "task", 0.02))
    assert [str(error) for error in caught.value.exceptions] == ["child"]
    assert log == ["task stops", "task is tidy"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


@asyncio_only
async def test_what_is_gathered_in_a_child_is_cancelled_with_it() -> None:
    log: list[str] = []

    async def child() -> None:
        try:
            await asyncio.gather(sleeper(log, "one", 0.01), sleeper(log, "two", 0.02))
        finally:
            await tidy_up(0.03)
            log.append("child is tidy")

    scope = await Scope.open()
    scope.spawn(child)
    await turns(5)
    assert (await scope.close()).clean
    assert {"one is tidy", "two is tidy", "child is tidy"} <= set(log)
