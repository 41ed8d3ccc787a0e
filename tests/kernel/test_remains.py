"""What is left of a scope, asked from any thread, and after its event loop has ended."""

from __future__ import annotations

import asyncio
import threading

import anyio

from quiesce import Scope
from quiesce.kernel.inner import children_left, has_lost_its_loop, leftovers_in, runs_inside
from tests.kernel.temperaments import Stubborn, sleeper, turns, virtual_worlds


async def test_a_part_of_a_scope_runs_inside_it_and_nobody_else_does() -> None:
    seen: dict[str, bool] = {}

    async def look(where: str, scope: Scope) -> None:
        seen[where] = runs_inside(scope)

    scope, other = await Scope.open("scope"), await Scope.open("other")
    await look("outside", scope)
    scope.spawn(look, "child", scope)
    other.spawn(look, "child of another", scope)
    nested = await Scope.open("nested", scope=scope)
    nested.spawn(look, "child of a nested one", scope)
    await turns()
    async with Scope("block") as block:
        await look("body", block)
    await other.close()
    await scope.close()
    assert seen == {
        "outside": False,
        "child": True,
        "child of another": False,
        "child of a nested one": True,
        "body": True,
    }


async def test_a_thread_that_nobody_started_for_it_does_not_run_inside() -> None:
    seen: list[bool] = []
    scope = await Scope.open()
    thread = threading.Thread(target=lambda: seen.append(runs_inside(scope)))
    thread.start()
    thread.join()
    assert seen == [False]
    await scope.close()


@virtual_worlds
async def test_what_is_left_is_named_from_any_thread_until_it_has_ended() -> None:
    named: list[list[str]] = []
    stubborn = Stubborn()
    scope = await Scope.open()
    nested = await Scope.open(scope=scope)
    scope.spawn(sleeper)
    nested.spawn(stubborn, name="stubborn")
    await turns()

    def look() -> None:
        named.append([left.name for left in leftovers_in(scope)])

    def look_in_a_thread() -> None:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    look_in_a_thread()
    await scope.close(deadline=0.1)
    look_in_a_thread()
    assert not has_lost_its_loop(scope)
    stubborn.let_go()
    await anyio.sleep(0.1)
    look_in_a_thread()
    assert named == [["sleeper", "stubborn"], ["stubborn"], []]
    assert (await scope.close()).clean


def test_tasks_of_a_loop_that_has_ended_are_not_left() -> None:
    kept: list[Scope] = []

    async def main() -> None:
        kept.append(await Scope.open())
        kept[0].spawn(sleeper)
        await turns()
        assert len(children_left(kept[0])) == 1

    asyncio.run(main())
    assert has_lost_its_loop(kept[0])
    assert children_left(kept[0]) == []
