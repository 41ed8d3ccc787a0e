"""Demand 7: handles keep results and errors; reasons reach the child and the report."""

from __future__ import annotations

import asyncio
import functools
import threading

import anyio
import pytest

from quiesce import CancelToken, ChildCancelled, Handle, Reason, Scope, current_token
from tests.kernel.temperaments import (
    cancellation,
    fails,
    forever,
    quick,
    sleeper,
    tidy_up,
    turns,
    virtual_worlds,
)
from tests.world import World, asyncio_only


async def test_a_finished_child_keeps_its_result() -> None:
    async with Scope() as scope:
        handle = scope.spawn(quick, 42)
        await handle.wait()
        assert handle.state == "finished"
        assert handle.done
        assert handle.result() == 42
        assert handle.error is None
    assert handle.result() == 42


async def test_a_failed_child_keeps_its_error_and_result_raises_it() -> None:
    scope = await Scope.open(on_error="report", on_child_error=lambda handle, error: None)
    handle = scope.spawn(fails, error := ValueError("mine"))
    await handle.wait()
    assert handle.state == "failed"
    assert handle.error is error
    for _ in range(2):
        with pytest.raises(ValueError, match="mine"):
            handle.result()
    await scope.close()


async def test_the_result_of_a_cancelled_child_is_an_ordinary_error_that_is_nobodys_cancel() -> None:
    scope = await Scope.open()
    handle = scope.spawn(sleeper, name="worker")
    await turns()
    handle.cancel(Reason("user", "Esc"))
    await handle.wait()
    assert handle.state == "cancelled"
    with pytest.raises(ChildCancelled, match=r"'worker' was cancelled.*Esc") as caught:
        handle.result()
    assert isinstance(caught.value, Exception)
    assert caught.value.reason == Reason("user", "Esc")
    assert handle.error is None
    await scope.close()


async def test_the_result_of_a_child_that_is_not_done_is_an_error_that_says_what_to_do(world: World) -> None:
    async with Scope() as scope:
        handle = scope.spawn(forever, name="worker")
        expected = "running" if world.name == "asyncio-eager" else "pending"
        assert handle.state == expected
        with pytest.raises(RuntimeError, match=rf"'worker' is still {expected}.*wait\(\)"):
            handle.result()
        await turns()
        assert handle.state == "running"
        with pytest.raises(RuntimeError, match="still running"):
            handle.result()
        assert not handle.done
        handle.cancel()


async def test_many_may_wait_for_one_child() -> None:
    woken: list[int] = []

    async def waits(n: int) -> None:
        await handle.wait()
        woken.append(n)

    async with Scope() as scope:
        handle = scope.spawn(anyio.sleep, 0.02)
        async with anyio.create_task_group() as group:
            for n in range(5):
                group.start_soon(waits, n)
        assert sorted(woken) == [0, 1, 2, 3, 4]
        await handle.wait()


async def test_a_waiter_that_is_cancelled_does_not_cancel_the_child_nor_the_other_waiters() -> None:
    woken: list[str] = []

    async def waits() -> None:
        await handle.wait()
        woken.append(handle.state)

    async with Scope() as scope:
        handle = scope.spawn(anyio.sleep, 0.03)
        async with anyio.create_task_group() as group:
            group.start_soon(waits)
            with anyio.move_on_after(0.01) as around:
                await handle.wait()
            assert around.cancelled_caught
            assert handle.state == "running"
        assert woken == ["finished"]


async def test_waiting_never_raises_the_childs_error() -> None:
    scope = await Scope.open(on_error="report", on_child_error=lambda handle, error: None)
    handle = scope.spawn(fails, ValueError(), 0.01)
    assert await handle.wait() is None  # type: ignore[func-returns-value]
    assert await handle.wait() is None  # type: ignore[func-returns-value]
    await scope.close()


async def test_cancel_cancels_that_child_alone_once_with_its_reason() -> None:
    log: list[str] = []
    seen: list[Reason | None] = []

    async def child() -> None:
        try:
            await forever()
        finally:
            seen.append(current_token().reason)
            await tidy_up(0.01)
            log.append("tidy")

    scope = await Scope.open()
    handle = scope.spawn(child)
    sibling = scope.spawn(sleeper, log)
    await turns()
    handle.cancel(Reason("timeout", "too slow"))
    handle.cancel("another")
    await handle.wait()
    assert log == ["tidy"]
    assert seen == [Reason("timeout", "too slow")]
    assert handle.reason == Reason("timeout", "too slow")
    assert sibling.state == "running"
    assert scope.state == "open"
    await scope.close()


async def test_cancelling_a_child_that_is_done_changes_nothing() -> None:
    scope = await Scope.open()
    handle = scope.spawn(quick, 1)
    await handle.wait()
    handle.cancel("late")
    await turns()
    assert handle.state == "finished"
    assert handle.result() == 1
    await scope.close()


@pytest.mark.real_time
async def test_cancel_from_another_thread() -> None:
    scope = await Scope.open()
    handle = scope.spawn(sleeper)
    await turns()
    thread = threading.Thread(target=handle.cancel, args=("from a thread",))
    thread.start()
    with anyio.fail_after(2):
        await handle.wait()
    thread.join()
    assert handle.state == "cancelled"
    assert handle.reason == Reason("user", "from a thread")
    await scope.close()


async def test_a_child_that_swallows_the_cancel_of_its_handle_has_finished() -> None:
    async def child() -> str:
        try:
            await forever()
        except cancellation():
            return "anyway"
        return "never"

    scope = await Scope.open()
    handle = scope.spawn(child)
    await turns()
    handle.cancel()
    await handle.wait()
    assert handle.result() == "anyway"
    await scope.close()


async def test_a_handle_has_a_name_and_knows_where_it_was_spawned() -> None:
    class Worker:
        async def run(self) -> None: ...

        async def __call__(self) -> None: ...

    async with Scope() as scope:
        handles: list[Handle] = [
            scope.spawn(quick),
            scope.spawn(quick, name="given"),
            scope.spawn(functools.partial(quick, 3)),
            scope.spawn(Worker().run),
            scope.spawn(Worker()),
        ]
    names = [handle.name.rpartition("<locals>.")[2] for handle in handles]
    assert names == ["quick", "given", "quick", "Worker.run", "Worker"]
    assert "test_handle.py" in handles[0].made_at
    assert "test_a_handle_has_a_name" in handles[0].made_at
    assert repr(handles[1]) == "<Handle 'given' finished>"


@asyncio_only
async def test_the_task_of_a_child_carries_its_name() -> None:
    names = []

    async def child() -> None:
        task = asyncio.current_task()
        assert task is not None
        names.append(task.get_name())
        await asyncio.sleep(0)

    async with Scope() as scope:
        scope.spawn(child, name="given")
        await turns()
    assert names == ["given"]


@asyncio_only
async def test_a_child_may_rename_its_task() -> None:
    names = []

    async def child() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.set_name("renamed")
        names.append(task.get_name())

    async with Scope() as scope:
        scope.spawn(child, name="given")
    assert names == ["renamed"]


@asyncio_only
async def test_a_plain_task_cancel_of_a_childs_task_passes_and_is_that_childs_end() -> None:
    tasks: list[asyncio.Task[object]] = []

    async def child() -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        await forever()

    async with Scope() as scope:
        handle = scope.spawn(child)
        await turns()
        tasks[0].cancel("somebody else's")
        await handle.wait()
        assert scope.state == "open"
    assert handle.state == "cancelled"


# Reasons, whichever way out ---------------------------------------------------------------------------------


async def reasons_of(stop: str) -> tuple[Reason | None, Reason | None, Reason | None]:
    """What a child's token, the scope and the report say after a stop of this kind."""
    seen: list[Reason | None] = []

    async def child() -> None:
        token = current_token()
        try:
            await forever()
        finally:
            seen.append(token.reason)

    token = CancelToken()
    scope = Scope("way out", token=token)
    with anyio.CancelScope() as around:
        try:
            async with scope:
                scope.spawn(child)
                await turns()
                match stop:
                    case "close":
                        await scope.close(reason=Reason("disconnect", "gone"))
                    case "cancel":
                        scope.cancel(Reason("shutdown", "SIGTERM"))
                    case "token":
                        token.cancel(Reason("timeout", "turn limit"))
                    case "around":
                        around.cancel()
                    case "failure":
                        scope.spawn(fails, ValueError("sibling"))
                    case "error":
                        raise ValueError("body")
                await anyio.sleep(0.05)
        except ExceptionGroup:
            pass
    assert scope.report is not None
    return seen[0], scope.reason, scope.report.reason


@virtual_worlds
@pytest.mark.parametrize(
    ("stop", "kind", "message"),
    [
        ("close", "disconnect", "gone"),
        ("cancel", "shutdown", "SIGTERM"),
        ("token", "timeout", "turn limit"),
        ("around", "cancelled", ""),
        ("failure", "error", "ValueError"),
        ("error", "error", "body"),
    ],
)
async def test_the_reason_reaches_the_child_the_scope_and_the_report(
    stop: str, kind: str, message: str
) -> None:
    child, scope, report = await reasons_of(stop)
    assert child is not None
    assert child.kind == kind
    assert message in child.message
    assert child == scope == report


async def test_the_end_of_a_scope_is_a_parents_reason_for_what_it_owned() -> None:
    seen: list[Reason | None] = []
    kept = []

    async def child() -> None:
        token = current_token()
        try:
            await forever()
        finally:
            seen.append(token.reason)

    async def opens() -> None:
        kept.append(inner := await Scope.open("inner"))
        inner.spawn(child)
        await turns()

    async with Scope("outer") as outer:
        outer.spawn(opens)
    assert seen[0] is not None
    assert seen[0].kind == "parent"
    assert "outer" in seen[0].message


async def test_the_first_reason_stays() -> None:
    scope = await Scope.open()
    scope.spawn(sleeper, None, "child", 0.02)
    await turns()
    scope.cancel("one")
    scope.cancel("two")
    report = await scope.close(reason="three")
    assert report.reason == scope.reason == scope.token.reason == Reason("user", "one")


async def test_awaiting_a_handle_itself_says_what_to_write_instead() -> None:
    async with Scope() as scope:
        handle = scope.spawn(quick)
        with pytest.raises(
            TypeError, match=r"`await handle\.wait\(\)`, then `handle\.result\(\)` \('quick'\)"
        ):
            await handle


async def test_those_who_stop_waiting_for_a_handle_leave_nothing_in_it() -> None:
    async with Scope() as scope:
        handle = scope.spawn(sleeper)
        for _ in range(10):
            with anyio.move_on_after(0.001):
                await handle.wait()
        assert not handle._at_end
        handle.cancel()
