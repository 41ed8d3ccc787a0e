"""Demand 3: `asyncio.run` or `trio.run` ends underneath. Clean-up is not cut, and nothing hangs."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest
import trio
import uvloop

from quiesce import Grace, Handle, Reason, Scope, StopReport, current_token, to_thread
from quiesce.kernel.scope.blocked_loop import BLOCKED_AFTER, POLL
from tests.kernel.temperaments import on_trio, sleeper, tidy_up, turns

Main = Callable[[], Coroutine[Any, Any, Any]]
Run = Callable[[Main], Any]


def eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.SelectorEventLoop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]
    return loop


def run_asyncio(factory: Callable[[], asyncio.AbstractEventLoop]) -> Run:
    def run(main: Main) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(main())

    return run


ASYNCIO = {"asyncio": run_asyncio(asyncio.SelectorEventLoop), "uvloop": run_asyncio(uvloop.new_event_loop)}
if sys.version_info >= (3, 12):
    ASYNCIO["asyncio-eager"] = run_asyncio(eager_loop)
ALL: dict[str, Run] = {**ASYNCIO, "trio": trio.run}

everywhere = pytest.mark.parametrize("run", ALL.values(), ids=ALL.keys())
on_asyncio = pytest.mark.parametrize("run", ASYNCIO.values(), ids=ASYNCIO.keys())


@everywhere
def test_a_scope_left_open_when_main_returns_is_cleaned_up_by_the_loops_own_end(run: Run) -> None:
    log: list[str] = []
    kept = []

    async def main() -> None:
        kept.append(scope := await Scope.open("left open"))
        scope.spawn(sleeper, log, "child", 0.05)
        await turns()

    run(main)
    assert log == ["child stops", "child is tidy"]


@everywhere
def test_the_end_of_the_loop_is_a_shutdown_for_those_it_ends(run: Run) -> None:
    seen: list[Reason | None] = []
    kept = []

    async def child() -> None:
        token = current_token()
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(token.reason)

    async def main() -> None:
        kept.append(scope := await Scope.open("left open"))
        scope.spawn(child)
        await turns()

    run(main)
    assert seen[0] is not None
    assert seen[0].kind == "shutdown"


@everywhere
def test_the_end_of_the_loop_reaches_a_child_that_has_not_taken_its_first_step(run: Run) -> None:
    kept: list[tuple[Scope, Handle]] = []

    async def opener(outer: Scope) -> None:
        while True:  # whenever the end comes, the last of these may not have begun
            scope = await Scope.open(scope=outer)
            kept.append((scope, scope.spawn(anyio.sleep, 0.3)))
            await turns(1)

    async def main() -> None:
        outer, openers = await Scope.open("outer"), await Scope.open("openers")
        kept.append((openers, openers.spawn(opener, outer)))
        await turns()

    for _ in range(8):  # trio runs the tasks of a turn in any order
        run(main)
    assert {handle.state for _, handle in kept} == {"cancelled"}


@everywhere
def test_a_stop_under_way_when_main_returns_is_not_cut(run: Run) -> None:
    log: list[str] = []
    kept = []

    async def main() -> None:
        kept.append(scope := await Scope.open())
        scope.spawn(sleeper, log, "child", 0.05)
        await turns()
        scope.cancel()
        await turns()
        assert log == ["child stops"]

    run(main)
    assert log == ["child stops", "child is tidy"]
    assert kept[0].state == "settled"


@on_asyncio
def test_a_close_under_way_in_another_task_drains_and_is_cancelled_after(run: Run) -> None:
    log: list[str] = []
    closers = []

    async def main() -> None:
        scope = await Scope.open()
        scope.spawn(sleeper, log, "child", 0.3)
        await turns()
        closers.append(asyncio.create_task(scope.close()))
        await asyncio.sleep(0.01)

    run(main)
    assert log == ["child stops", "child is tidy"]
    assert closers[0].cancelled()


@on_asyncio
def test_a_block_in_another_task_drains_when_the_loop_ends(run: Run) -> None:
    log: list[str] = []
    tasks = []

    async def hosts() -> None:
        async with Scope() as scope:
            scope.spawn(sleeper, log, "child", 0.05)
            await sleeper(log, "body", 0.02)

    async def main() -> None:
        tasks.append(asyncio.create_task(hosts()))
        await asyncio.sleep(0.01)

    run(main)
    assert sorted(log) == ["body is tidy", "body stops", "child is tidy", "child stops"]
    assert tasks[0].cancelled()


@everywhere
def test_an_error_out_of_main_passes_while_the_scopes_are_ended(run: Run) -> None:
    log: list[str] = []
    kept = []

    async def main() -> None:
        kept.append(scope := await Scope.open())
        scope.spawn(sleeper, log, "child", 0.02)
        await turns()
        raise ValueError("main")

    with pytest.raises(ValueError, match="main"):
        run(main)
    assert log == ["child stops", "child is tidy"]


@everywhere
def test_a_child_that_fails_while_the_loop_ends_is_contained(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    kept: list[Scope] = []
    handles: list[Handle] = []

    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            await tidy_up(0.01)
            raise ValueError("in clean-up")

    async def main() -> None:
        kept.append(scope := await Scope.open())
        handles.append(scope.spawn(child))
        await turns()

    run(main)
    assert handles[0].state == "failed"
    assert not [record for record in caplog.records if "never retrieved" in record.getMessage()]


@everywhere
def test_many_scopes_left_open_in_all_kinds_of_nesting_do_not_hang_the_end(run: Run) -> None:
    log: list[str] = []
    kept: list[Scope] = []

    async def child(depth: int) -> None:
        kept.append(scope := await Scope.open(f"depth {depth}"))
        scope.spawn(sleeper, log, f"grandchild {depth}", 0.01)
        if depth:
            scope.spawn(child, depth - 1)
        await anyio.sleep_forever()

    async def main() -> None:
        kept.append(scope := await Scope.open())
        scope.spawn(child, 3)
        await turns(20)

    run(main)
    assert len([line for line in log if "is tidy" in line]) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # they were left open, and are dropped now
        kept.clear()
        gc.collect()


@everywhere
def test_deadlines_hold_while_the_loop_ends(run: Run) -> None:
    """A clean-up that runs in the loop's last moments closes something stubborn, with a deadline."""
    reports: list[StopReport] = []
    kept = []
    let_go: anyio.Event

    async def stubborn() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            while not let_go.is_set():
                try:
                    with anyio.CancelScope(shield=True):
                        await let_go.wait()
                except asyncio.CancelledError:
                    pass

    async def child(inner: Scope) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                reports.append(await inner.close(deadline=0.05))
            let_go.set()

    async def main() -> None:
        nonlocal let_go
        let_go = anyio.Event()
        inner = await Scope.open("inner")
        outer = await Scope.open("outer")
        kept.extend([inner, outer])
        inner.spawn(stubborn, name="stubborn")
        outer.spawn(child, inner)
        await turns()

    run(main)
    assert [left.name for left in reports[0].left] == ["stubborn"]
    assert reports[0].elapsed < 4  # and not the five of the default


@everywhere
def test_ctrl_c_stops_the_block_of_main_drains_it_and_passes(run: Run) -> None:
    log: list[str] = []

    async def main() -> None:
        async with Scope() as scope:
            scope.spawn(sleeper, log, "child", 0.05)
            await turns()
            signal.raise_signal(signal.SIGINT)
            await anyio.sleep(15)
            log.append("never")

    with pytest.raises(KeyboardInterrupt):
        run(main)
    assert log == ["child stops", "child is tidy"]


class Impatient(threading.Thread):
    """Presses Ctrl-C, and once more while a child cleans up, which does not end before that."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self._cleans_up = threading.Event()
        self._is_over = anyio.Event()
        if on_trio():
            self._call_soon: Callable[..., object] = trio.lowlevel.current_trio_token().run_sync_soon
        else:
            self._call_soon = asyncio.get_running_loop().call_soon_threadsafe

    def run(self) -> None:
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
        if self._cleans_up.wait(15):
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
            self._call_soon(self._is_over.set)

    async def child(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            self.log.append("child stops")
            self._cleans_up.set()
            with anyio.CancelScope(shield=on_trio()):
                await self._is_over.wait()
            self.log.append("child is tidy")


@everywhere
def test_ctrl_c_again_while_it_drains_does_not_cut_the_clean_up(run: Run) -> None:
    users: list[Impatient] = []

    async def main() -> None:
        async with Scope() as scope:
            users.append(user := Impatient())
            scope.spawn(user.child)
            await turns()
            user.start()
            await anyio.sleep(15)
            user.log.append("never")

    with pytest.raises(KeyboardInterrupt):
        run(main)
    users[0].join()
    assert users[0].log == ["child stops", "child is tidy"]


@everywhere
def test_ctrl_c_again_while_an_opened_scope_is_closed_does_not_cut_the_clean_up(run: Run) -> None:
    users: list[Impatient] = []

    async def main() -> None:
        scope = await Scope.open()
        try:
            users.append(user := Impatient())
            scope.spawn(user.child)
            await turns()
            user.start()
            await anyio.sleep(15)
        finally:
            await scope.close()

    with pytest.raises(KeyboardInterrupt):
        run(main)
    users[0].join()
    assert users[0].log == ["child stops", "child is tidy"]


@everywhere
def test_a_scope_closed_in_the_finally_of_main_settles_before_the_loop_ends(run: Run) -> None:
    log: list[str] = []
    states = []

    async def main() -> None:
        scope = await Scope.open(grace=Grace(cancel=1))
        try:
            scope.spawn(sleeper, log, "child", 0.02)
            await turns()
        finally:
            await scope.close()
            states.append(scope.state)

    run(main)
    assert states == ["settled"]
    assert log == ["child stops", "child is tidy"]


@everywhere
def test_a_loop_that_has_ended_in_the_middle_of_a_stop_is_not_said_to_be_blocked(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Its thread does something else by now, which holds up nobody."""
    let_go, kept = threading.Event(), list[Scope]()

    async def wait_in_a_thread() -> None:
        await to_thread(let_go.wait, 30)

    async def main() -> None:
        kept.append(scope := await Scope.open("left", grace=Grace(cancel=20)))
        inner = await Scope.open(scope=scope, grace=Grace(cancel=0.05, terminate=0.05, kill=0.05))
        kept.append(inner)
        inner.spawn(wait_in_a_thread)
        await anyio.sleep(0.05)
        scope.cancel("enough")

    run(main)
    assert str(kept[0]) == "<Scope 'left' stopping>"
    time.sleep(2 * (BLOCKED_AFTER + POLL))
    let_go.set()
    assert [record.getMessage() for record in caplog.records if "blocked" in record.getMessage()] == []


@everywhere
def test_two_runs_one_after_the_other_share_nothing(run: Run) -> None:
    kept: list[Scope] = []

    async def main() -> None:
        scope = await Scope.open()
        kept.append(scope)
        scope.spawn(sleeper)
        await turns()
        await scope.close()

    run(main)
    run(main)
    assert [scope.state for scope in kept] == ["settled", "settled"]

    async def wrong() -> None:
        await kept[0].close()

    with pytest.raises(RuntimeError, match="another event loop"):
        run(wrong)


@everywhere
def test_cancelling_a_scope_after_its_loop_is_closed_is_harmless(run: Run) -> None:
    kept: list[Scope] = []

    async def main() -> None:
        scope = await Scope.open()
        kept.append(scope)
        scope.spawn(sleeper)
        await turns()

    run(main)
    kept[0].cancel("late")
    assert kept[0].token.cancelled


def test_a_trio_run_that_ends_while_nobody_used_a_scope_is_left_alone() -> None:
    async def main() -> str:
        return "done"

    assert trio.run(main) == "done"


def test_the_end_of_a_trio_run_waits_for_a_childs_clean_up_and_not_for_ever() -> None:
    """The owner naps under a shield until its next timer; the last child's end has to wake it."""
    log: list[str] = []
    kept: list[Scope] = []

    async def main() -> None:
        kept.append(await Scope.open())
        kept[0].spawn(sleeper, log, "child", 0.05)
        await trio.sleep(0.01)

    began = time.monotonic()
    trio.run(main)
    assert time.monotonic() - began < 2.9
    assert log == ["child stops", "child is tidy"]


def test_a_coroutine_that_is_thrown_away_in_a_block_after_its_loop_has_ended_does_not_go_on() -> None:
    reached: list[str] = []

    async def use() -> None:
        async with Scope("abandoned"):
            reached.append("the body")
            await asyncio.Event().wait()
        reached.append("after the block")

    async def begin() -> asyncio.Task[None]:
        task = asyncio.ensure_future(use())
        await turns()
        return task

    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(begin())
    loop.close()
    coroutine: Any = task.get_coro()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine.close()
    assert reached == ["the body"]
