"""`WaitQueue`: nobody is woken too late, and no wake-up is lost; `when_ended`: a call at the end of a child."""

from __future__ import annotations

from collections import deque

import anyio

from quiesce import Handle, Reason, Scope
from quiesce.kernel.inner import WaitQueue, wait_settled, when_ended


async def until_waiting(queue: WaitQueue, number: int) -> None:
    while len(queue) < number:
        await anyio.sleep(0)


async def test_a_condition_that_holds_is_not_waited_for() -> None:
    queue = WaitQueue()
    await queue.wait_until(lambda: True)
    assert not queue


async def test_tasks_are_woken_in_the_order_in_which_they_came() -> None:
    queue, woken = WaitQueue(), list[int]()

    async def wait(number: int) -> None:
        await queue.wait()
        woken.append(number)

    async with Scope() as scope:
        for number in range(3):
            scope.spawn(wait, number)
            await until_waiting(queue, number + 1)
        for number in range(3):  # one at a time: trio runs those that it may run in any order
            assert queue.wake_one()
            while len(woken) == number:
                await anyio.sleep(0)
    assert woken == [0, 1, 2]
    assert not queue.wake_one()


async def test_who_waits_first_is_woken_before_those_who_wait_already() -> None:
    queue, woken = WaitQueue(), list[str]()

    async def wait(name: str, first: bool) -> None:
        await queue.wait(first=first)
        woken.append(name)

    async with Scope() as scope:
        scope.spawn(wait, "early", False)
        await until_waiting(queue, 1)
        scope.spawn(wait, "first", True)
        await until_waiting(queue, 2)
        for _ in range(2):
            queue.wake_one()
            await anyio.sleep(0.01)
    assert woken == ["first", "early"]


async def test_a_task_that_comes_while_others_are_woken_waits_for_the_next_wake_up() -> None:
    queue, wakes = WaitQueue(), list[int]()

    async def wait() -> None:
        for number in range(2):
            await queue.wait()
            wakes.append(number)

    async with Scope() as scope:
        scope.spawn(wait)
        await until_waiting(queue, 1)
        queue.wake_all()
        await until_waiting(queue, 1)
        assert wakes == [0]
        queue.wake_all()
    assert wakes == [0, 1]


async def test_a_task_that_is_cancelled_is_off_the_queue() -> None:
    queue = WaitQueue()
    with anyio.move_on_after(0.01):
        await queue.wait_until(lambda: False)
    assert not queue
    assert not queue.wake_one()


async def test_a_wake_up_of_a_task_that_is_cancelled_goes_to_the_next() -> None:
    """Each item is taken by one task. The first is woken for it and cancelled in the same turn."""
    queue, items, taken = WaitQueue(), deque[str](), list[str]()

    async def take(name: str) -> None:
        await queue.wait_until(lambda: items)
        taken.append(f"{name} took {items.popleft()}")

    async with Scope() as scope:
        first = scope.spawn(take, "first")
        await until_waiting(queue, 1)
        scope.spawn(take, "second")
        await until_waiting(queue, 2)
        items.append("it")
        queue.wake_one()
        first.cancel()
        await first.wait()
        if items:
            with anyio.fail_after(1):
                while not taken:
                    await anyio.sleep(0.001)
        else:
            scope.cancel()  # trio: woken is woken, and the cancel came after it
    assert taken in (["second took it"], ["first took it"])


async def test_a_call_is_made_when_a_child_has_ended_however_it_did() -> None:
    async def fail() -> None:
        raise LookupError("wrong")

    ended = list[str]()
    async with Scope(on_error="report", on_child_error=lambda handle, error: None) as scope:
        finished = scope.spawn(anyio.sleep, 0, name="finished")
        failed = scope.spawn(fail, name="failed")
        cancelled = scope.spawn(anyio.sleep, 1000, name="cancelled")
        for handle in (finished, failed, cancelled):
            when_ended(handle, lambda handle=handle: ended.append(f"{handle.name} {handle.state}"))  # type: ignore[misc]
        await finished.wait()
        await failed.wait()
        cancelled.cancel()
        await cancelled.wait()
    assert sorted(ended) == ["cancelled cancelled", "failed failed", "finished finished"]


async def test_a_call_is_made_for_a_child_that_was_cancelled_before_its_first_step() -> None:
    ended = list[Handle]()
    async with Scope() as scope:
        handle = scope.spawn(anyio.sleep, 1000)
        when_ended(handle, lambda: ended.append(handle))
        handle.cancel()
    assert ended == [handle]


async def test_a_call_is_made_at_once_for_a_child_that_has_ended() -> None:
    ended = list[str]()
    async with Scope() as scope:
        handle = scope.spawn(anyio.sleep, 0)
        await handle.wait()
        when_ended(handle, lambda: ended.append("it has"))
        assert ended == ["it has"]


async def test_a_call_comes_before_those_who_wait_for_the_child_go_on() -> None:
    order = list[str]()
    async with Scope() as scope:
        handle = scope.spawn(anyio.sleep, 0.01)
        when_ended(handle, lambda: order.append("called"))
        await handle.wait()
        order.append("waited")
    assert order == ["called", "waited"]


async def test_a_scope_that_is_being_stopped_can_be_waited_for_without_closing_it() -> None:
    scope, settled = await Scope.open("stopped"), list[str]()

    async def clean_up() -> None:
        try:
            await anyio.sleep(1000)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.01)

    async def look_on() -> None:
        await wait_settled(scope._opened())
        settled.append(scope.state)

    scope.spawn(clean_up)
    async with Scope("beside") as beside:
        beside.spawn(look_on)
        await anyio.sleep(0.001)
        assert not settled
        scope.cancel(Reason("user"))
    assert settled == ["settled"]
