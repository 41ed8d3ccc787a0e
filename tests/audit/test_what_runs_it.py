"""What the audit has to know of the machinery around a scenario: loops at rest, pools, tasks made by hand."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable

import anyio
import pytest

from quiesce import Scope
from quiesce.audit import audit
from quiesce.audit.watch.failures import refusal
from quiesce.audit.watch.no_io import RefusedIO
from quiesce.audit.watch.threads import busy_threads
from quiesce.kernel.threads.idle_threads import run_in_thread


@pytest.mark.parametrize("where", ["asyncio", "uvloop"])
def test_all_tasks_are_cancelled_while_the_loop_does_not_run_as_asyncio_run_does_it(where: str) -> None:
    seen: list[bool] = []

    class Asking(asyncio.Task[None]):
        def cancel(self, msg: object = None) -> bool:
            seen.append(self.get_loop().is_running() or asyncio._get_running_loop() is not None)
            return super().cancel(msg)

    async def scenario() -> None:
        await Asking(asyncio.sleep(0.01))

    audit(scenario, stops="shutdown", backend=where).assert_clean()
    assert seen
    assert not any(seen)


if sys.version_info >= (3, 12):

    def test_a_task_that_its_own_class_starts_eagerly_is_seen() -> None:
        class Eager(asyncio.Task[None]):
            pass

        kept: list[object] = []

        async def scenario() -> None:
            loop = asyncio.get_running_loop()
            left = Eager(anyio.sleep_forever(), loop=loop, eager_start=True)  # type: ignore[call-arg, unused-ignore]
            kept.append(left)
            await asyncio.sleep(1)
            left.cancel()
            await asyncio.wait([left])

        result = audit(scenario, stops="cancel", phases="early", backend="asyncio-eager")
        assert {finding.kind for finding in result.findings} == {"leaked"}, str(result)
        assert result.points == 3, str(result)
        where = scenario.__code__.co_firstlineno + 2
        assert [place.line for place in result.findings[0].made_at] == [where], str(result)


def test_a_thread_of_a_pool_is_judged_by_what_it_does_and_not_by_when_it_was_made() -> None:
    ended, go_on = threading.Event(), threading.Event()

    def work() -> Callable[[], None]:
        go_on.wait()
        return ended.set

    for _ in range(2):  # the second call is given to the thread of the first
        ended.clear()
        go_on.clear()
        before = {thread for thread, _ in busy_threads()}
        run_in_thread("at work", work)
        assert [thread.name for thread, _ in busy_threads(before)] == ["at work"]
        go_on.set()
        assert ended.wait(5)
        give_up_at = time.monotonic() + 5
        while busy_threads(before) and time.monotonic() < give_up_at:
            time.sleep(0.001)
        assert not busy_threads(before)


def test_what_waits_for_a_future_that_nobody_fails_is_not_made_to_fail() -> None:
    async def scenario() -> None:
        async with Scope() as scope:
            scope.spawn(asyncio.sleep, 1)

    result = audit(scenario, stops="raise")
    stopped_at = [str(cell.where[-1]) for strip in result.strips for cell in strip.cells]
    assert stopped_at
    assert all("asyncio/tasks.py" in place for place in stopped_at), stopped_at


def test_a_circle_of_errors_is_gone_round_once() -> None:
    cause, effect = LookupError("a"), ExceptionGroup("b", [ValueError("c")])
    effect.exceptions[0].__context__ = cause
    cause.__cause__ = effect
    assert not refusal(effect)
    cause.__context__ = RefusedIO("it opens a connection")
    cause.__cause__ = None
    assert refusal(effect) == "it opens a connection"
