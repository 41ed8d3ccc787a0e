"""`quiesce.tree()`: what runs now, below its owner, with ages and where each waits."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, cast

import anyio
import pytest

import quiesce
from quiesce import Branch, Process, Scope, to_thread, tree
from quiesce.kernel.program import live_tree
from tests.world import asyncio_only


def found(kind: str, name: str, below: Branch | None = None) -> Branch:
    """The one branch of that kind and name."""
    matching = [branch for branch in (below or tree()).walk() if (branch.kind, branch.name) == (kind, name)]
    assert len(matching) == 1, f"{len(matching)} of {kind} {name!r} in\n{tree()}"
    return matching[0]


async def wait_here() -> None:
    await anyio.sleep(3600)


async def test_a_task_stands_below_its_scope_with_the_line_where_it_waits() -> None:
    async with Scope("crawl") as scope:
        scope.spawn(wait_here, name="fetch")
        await anyio.sleep(0.01)
        task = found("task", "fetch", found("scope", "crawl"))
        assert task.state == "running"
        assert "test_overview.py" in task.where
        assert task.where.endswith(" in wait_here")
        assert "test_a_task_stands_below_its_scope" in task.made_at
        assert task.reason is None
        scope.cancel()


async def test_a_scope_stands_below_the_task_that_opened_it() -> None:
    async def outer() -> None:
        async with Scope("inner") as inner:
            inner.spawn(wait_here, name="innermost")

    async with Scope("all") as scope:
        scope.spawn(outer, name="outer")
        await anyio.sleep(0.01)
        below = found("task", "outer", found("scope", "all"))
        assert [branch.name for branch in below.children] == ["inner"]
        found("task", "innermost", below)
        scope.cancel()


async def test_what_is_being_stopped_says_why() -> None:
    async def clean_up_slowly() -> None:
        try:
            await anyio.sleep(3600)
        finally:
            with anyio.CancelScope(shield=True):
                await looked_at.wait()

    looked_at = anyio.Event()
    scope = await Scope.open("doomed")
    scope.spawn(clean_up_slowly, name="slow")
    await anyio.sleep(0.01)
    scope.cancel("enough")
    await anyio.sleep(0.01)
    stopping = found("scope", "doomed")
    assert (stopping.state, stopping.reason) == ("stopping", "user: enough")
    task = found("task", "slow", stopping)
    assert (task.state, task.reason) == ("stopping", "user: enough")
    assert "scope 'doomed' stopping (user: enough)" in str(tree())
    looked_at.set()
    assert (await scope.close()).clean


async def test_what_has_ended_is_not_in_it() -> None:
    async with Scope("brief") as scope:
        handle = scope.spawn(anyio.sleep, 0, name="over soon")
        await handle.wait()
        assert "over soon" not in str(tree())
    assert "brief" not in str(tree())


@pytest.mark.real_time
async def test_the_age_of_a_task_counts_from_the_first_look_and_says_so() -> None:
    async with Scope("aging") as scope:
        scope.spawn(wait_here, name="old")
        await anyio.sleep(0.01)
        before = time.monotonic()
        assert found("task", "old").age is None
        await anyio.sleep(0.05)
        task = found("task", "old")
        assert task.age is not None
        assert 0.04 < task.age <= time.monotonic() - before
        assert not task.age_is_exact
        assert f"{task.age:.1f} s+" in task.line
        scope.cancel()


@pytest.mark.real_time
async def test_a_quick_look_is_enough_for_ages_to_be_known_later() -> None:
    async with Scope("noted") as scope:
        scope.spawn(wait_here, name="seen")
        await anyio.sleep(0.01)
        live_tree.note_ages()
        await anyio.sleep(0.02)
        assert found("task", "seen").age is not None
        assert found("scope", "noted").age is not None
        scope.cancel()


@pytest.mark.real_time
async def test_a_thread_stands_below_the_task_that_waits_for_it_and_knows_its_age() -> None:
    begun, leave = threading.Event(), threading.Event()

    def crunch() -> None:
        begun.set()
        leave.wait()

    async def call() -> None:
        await to_thread(crunch, name="cruncher")

    async with Scope("work") as scope:
        scope.spawn(call, name="caller")
        while not begun.is_set():
            await anyio.sleep(0.01)
        thread = found("thread", "cruncher", found("task", "caller"))
        assert thread.age is not None
        assert thread.age_is_exact
        assert "crunch" in thread.where or "threading.py" in thread.where
        leave.set()


@pytest.mark.real_time
async def test_a_process_is_there_with_its_descendants_and_command_lines() -> None:
    async with Process(["sh", "-c", "sleep 3621 & echo up; wait"], name="server") as process:
        assert await process.read() == b"up\n"
        server = found("process", "server")
        assert f"pid {process.pid}: sh -c 'sleep 3621" in server.where
        assert server.age is not None
        while [child.name for child in found("process", "server").children] != ["sleep"]:
            await anyio.sleep(0.01)  # forked, and still a shell
        assert found("process", "server").children[0].where.endswith("sleep 3621")
    assert "server" not in str(tree())


@pytest.mark.real_time
async def test_it_can_be_asked_from_another_thread() -> None:
    async with Scope("asked about") as scope:
        scope.spawn(wait_here, name="asleep")
        await anyio.sleep(0.01)
        seen: Branch = await to_thread(tree)
        assert found("task", "asleep", seen).where.endswith(" in wait_here")
        scope.cancel()


@asyncio_only
@pytest.mark.real_time
async def test_a_loop_that_is_blocked_can_be_looked_at_and_says_where() -> None:
    seen: list[Branch] = []
    blocked = False

    def look() -> None:
        while not blocked:
            time.sleep(0.001)
        seen.append(tree())

    def block_the_loop(looker: threading.Thread) -> None:
        nonlocal blocked
        looker.start()
        while not seen:
            blocked = True
        looker.join()

    async with Scope("blocked") as scope:
        scope.spawn(wait_here, name="innocent")
        await anyio.sleep(0.01)
        block_the_loop(threading.Thread(target=look))
        (loop,) = [branch for branch in seen[0].walk() if branch.kind == "loop"]
        assert "block_the_loop" in loop.where
        found("task", "innocent", loop)
        scope.cancel()


@pytest.mark.worlds("asyncio-eager")
async def test_a_child_that_has_finished_in_its_eager_start_can_be_looked_at() -> None:
    tasks: list[asyncio.Task[Any]] = []

    async def at_once() -> None:
        tasks.append(cast("asyncio.Task[Any]", asyncio.current_task()))

    async with Scope("busy") as scope:
        scope.spawn(at_once)
        (task,) = tasks
        assert task.done()
        assert task.get_coro() is not None  # as asyncio has it, this crashes on 3.12.1, and is None later


@pytest.mark.real_time
async def test_looking_from_a_thread_while_everything_changes_does_no_harm() -> None:
    over, looks, failures = threading.Event(), [0], list[BaseException]()

    def look() -> None:
        while not over.is_set():
            try:
                str(tree())
                looks[0] += 1
            except BaseException as error:
                failures.append(error)
                return

    async with Scope("busy") as scope:
        looker = threading.Thread(target=look)
        looker.start()
        try:
            while looks[0] < 20 and not failures:
                for _ in range(50):
                    scope.spawn(anyio.sleep, 0)
                async with Scope("passing") as passing:
                    passing.spawn(anyio.sleep, 0)
        finally:
            over.set()
            looker.join()
    assert failures == []


async def test_it_reads_as_a_tree() -> None:
    async with Scope("two") as scope:
        scope.spawn(wait_here, name="one")
        scope.spawn(wait_here, name="other")
        await anyio.sleep(0.01)
        lines = [
            line[line.index("scope 'two'") - 3 :] if "scope 'two'" in line else line
            for line in str(tree()).splitlines()
        ]
        place = next(place for place, line in enumerate(lines) if "scope 'two'" in line)
        assert lines[place + 1].lstrip("│ ").startswith("├─ task one")
        assert lines[place + 2].lstrip("│ ").startswith("└─ task other")
        scope.cancel()


def test_without_any_loop_there_is_only_the_program() -> None:
    assert [branch.kind for branch in tree().walk()] == ["program"]


def test_looking_keeps_nothing_alive() -> None:
    import gc
    import weakref

    seen: list[weakref.ref[object]] = []

    async def main() -> None:
        async with Scope("short") as scope:
            handle = scope.spawn(asyncio.sleep, 0)
            tree()
            tree()
            seen.append(weakref.ref(handle._task))  # type: ignore[attr-defined]

    quiesce.run(main)
    gc.collect()
    assert seen[0]() is None
