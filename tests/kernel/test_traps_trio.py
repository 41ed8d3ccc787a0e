"""The traps of trio, each with the proof that it does not snap here."""

from __future__ import annotations

import gc
import os
import signal
import threading
import warnings
from collections.abc import AsyncIterator
from contextvars import ContextVar

import pytest
import trio

from quiesce import CancelToken, Scope, current_scope
from tests.kernel.temperaments import fails, fails_in_clean_up, sleeper, turns
from tests.world import trio_only

pytestmark = trio_only
whose = ContextVar("whose", default="nobody")


async def test_trap_20_no_error_of_a_child_reaches_the_system_task() -> None:
    """Any exception there would be a TrioInternalError, and the end of everything."""

    class Odd(BaseException): ...

    scope = await Scope.open(on_error="report", on_child_error=lambda handle, error: None)
    errors = [ValueError(), Odd(), SystemExit(), BaseExceptionGroup("odd", [Odd()]), RuntimeError()]
    for error in errors:
        scope.spawn(fails, error)
        scope.spawn(fails_in_clean_up, error)
    await turns()
    report = await scope.close()
    assert len(report.errors) == 2 * len(errors)
    await trio.sleep(0.1)


async def test_trap_20_an_error_of_a_callback_does_not_reach_it_either() -> None:
    def broken(*args: object) -> None:
        raise ValueError("callback")

    token = CancelToken()
    token.on_cancel(broken)
    scope = await Scope.open(on_error="report", on_child_error=broken, token=token)
    scope.spawn(fails, KeyError())
    await turns()
    token.cancel()
    assert (await scope.close()).clean
    await trio.sleep(0.1)


async def test_trap_20_children_inherit_the_context_of_their_spawner() -> None:
    seen = []

    async def child() -> None:
        seen.append(whose.get())

    async def spawns(scope: Scope) -> None:
        whose.set("spawner")
        scope.spawn(child)

    async with Scope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spawns, scope)
        scope.spawn(child)
    assert sorted(seen) == ["nobody", "spawner"]


def test_trap_20_shielded_clean_up_runs_when_main_has_returned() -> None:
    log: list[str] = []
    kept = []

    async def main() -> None:
        kept.append(scope := await Scope.open())
        scope.spawn(sleeper, log, "child", 0.02)
        await turns()

    trio.run(main)
    assert log == ["child stops", "child is tidy"]


def test_trap_20_a_generator_finalised_at_the_end_of_the_run_may_close_or_open_a_scope() -> None:
    log: list[str] = []
    kept: list[object] = []

    async def numbers() -> AsyncIterator[int]:
        scope = await Scope.open()
        scope.spawn(sleeper, log)
        await turns()
        try:
            yield 1
        finally:
            try:
                await scope.close()
            finally:
                log.append(f"scope is {scope.state}")

    async def main() -> None:
        generator = numbers()
        kept.append(generator)
        await anext(generator)

    trio.run(main)
    assert log == ["sleeper stops", "sleeper is tidy", "scope is settled"]


async def test_trap_21_what_remains_of_a_group_does_not_escape() -> None:
    """The child's own nursery raises its cancellation together with an error: half of it is the scope's."""

    async def child() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails_in_clean_up, KeyError("inside"))
            await trio.sleep_forever()

    scope = await Scope.open(on_error="report", on_child_error=lambda handle, error: None)
    handle = scope.spawn(child)
    await turns()
    report = await scope.close()
    assert not report.left
    assert handle.state == "failed"
    assert isinstance(handle.error, BaseExceptionGroup)
    assert handle.error.subgroup(KeyError) is not None
    assert handle.error.subgroup(trio.Cancelled) is None
    await trio.sleep(0.1)


@pytest.mark.time_limit(8)
def test_trap_22_ctrl_c_reaches_main_whoever_was_running() -> None:
    log: list[str] = []

    async def spins() -> None:
        while True:  # the signal is as good as sure to arrive in here
            for _ in range(20_000):
                pass
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with Scope() as scope:
            scope.spawn(sleeper, log, "sibling", 0.01)
            scope.spawn(spins)
            timer.start()
            await trio.sleep(15)
            log.append("never")

    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    timer.join()
    assert log == ["sibling stops", "sibling is tidy"]


async def test_trap_23_a_finaliser_on_gc_runs_in_a_cancelled_scope_of_the_system() -> None:
    log: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        whose.set("generator")
        scope = await Scope.open()
        scope.spawn(sleeper, log, "child", 0.02)
        await turns()
        try:
            yield 1
        finally:
            try:
                await scope.close()
            except trio.Cancelled:
                log.append(f"cancelled after the drain, {whose.get()}")
                raise

    async def drop() -> None:
        await anext(numbers())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        await drop()
        gc.collect()
        with trio.fail_after(2):
            while len(log) < 3:
                await trio.sleep(0.01)
    assert log == ["child stops", "child is tidy", "cancelled after the drain, nobody"]
    assert current_scope().name == "root"


async def test_the_cancel_scopes_of_a_childs_task_are_left_as_they_were() -> None:
    """A block that is stopped leaves no cancelled scope behind for the next await."""
    for _ in range(3):
        with pytest.raises(ExceptionGroup):
            async with Scope() as scope:
                scope.spawn(fails, ValueError())
                await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(1) as timeout:
            await trio.sleep(0.1)
        assert not timeout.cancelled_caught
