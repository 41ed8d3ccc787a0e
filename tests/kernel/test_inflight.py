"""Demand 16: handlers by id."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Hashable
from typing import Any

import anyio
import anyio.to_thread
import pytest

from quiesce import Grace, Handle, Inflight, Reason, Scope, ScopeClosed, current_token
from quiesce.kernel.calls.inflight import DuplicateId
from tests.kernel.temperaments import (
    Stubborn,
    an_innocent_bystander,
    fails,
    fails_in_clean_up,
    quick,
    sleeper,
    turns,
    virtual_worlds,
)
from tests.world import World, asyncio_only

# Starting and ending ----------------------------------------------------------------------------------------


async def test_an_id_is_known_while_its_handler_runs_and_forgotten_when_it_is_done() -> None:
    async with Inflight() as inflight:
        handle = inflight.start("a", anyio.sleep, 0.01)
        assert "a" in inflight
        assert inflight.get("a") is handle
        assert len(inflight) == 1
        await handle.wait()
        assert "a" not in inflight
        assert inflight.get("a") is None
        assert len(inflight) == 0


async def test_the_handle_keeps_the_result() -> None:
    async with Inflight() as inflight:
        handle = inflight.start(7, quick, "answer")
        await handle.wait()
        assert handle.result() == "answer"


async def test_an_id_may_be_used_again_when_its_handler_is_done() -> None:
    async with Inflight() as inflight:
        for number in range(3):
            handle = inflight.start("again", quick, number)
            await handle.wait()
            assert handle.result() == number


async def test_a_live_id_is_refused_and_the_handler_at_work_is_not_disturbed() -> None:
    log: list[str] = []
    async with Inflight("requests") as inflight:
        first = inflight.start("a", sleeper, log)
        with pytest.raises(DuplicateId, match=r"'requests' is still working on id 'a'.*test_inflight\.py"):
            inflight.start("a", quick)
        await turns()
        assert inflight.get("a") is first
        assert not first.done
        assert log == []


async def test_a_refused_start_starts_nothing() -> None:
    ran: list[str] = []

    async def handler() -> None:
        ran.append("ran")

    async with Inflight() as inflight:
        inflight.start("a", anyio.sleep, 0.01)
        with pytest.raises(DuplicateId):
            inflight.start("a", handler)
    with pytest.raises(ScopeClosed):
        inflight.start("b", handler)
    await turns()
    assert ran == []


@pytest.mark.parametrize("key", [1, "text", None, (1, "two"), frozenset({3}), b"bytes", 2.5, Grace()])
async def test_ids_are_whatever_is_hashable(key: Hashable) -> None:
    async with Inflight() as inflight:
        inflight.start(key, sleeper)
        assert key in inflight
        assert list(inflight) == [key]
        assert inflight.cancel(key)


async def test_ids_can_be_iterated_while_handlers_come_and_go() -> None:
    async with Inflight() as inflight:
        for number in range(5):
            inflight.start(number, sleeper)
        await turns()
        seen = []
        for key in inflight:
            seen.append(key)
            inflight.cancel(key)
            await turns()
        assert seen == [0, 1, 2, 3, 4]
        assert len(inflight) == 0


async def test_an_empty_one_is_still_true() -> None:
    async with Inflight() as inflight:
        assert len(inflight) == 0
        assert inflight


async def test_memory_stays_flat_over_a_hundred_thousand_starts(world: World) -> None:
    starts = 100_000 if world.name == "asyncio" else 5_000  # the same code; that many where it is quick

    async def many(count: int) -> None:
        for base in range(0, count, 500):
            for number in range(base, base + 500):
                inflight.start(number, quick)
            while len(inflight):
                await turns(1)

    async with Inflight() as inflight:
        await many(1_000)
        gc.collect()
        before = len(gc.get_objects())
        await many(starts)
        gc.collect()
        assert len(gc.get_objects()) - before < 100


# Cancelling -------------------------------------------------------------------------------------------------


async def test_cancel_by_id_with_a_reason() -> None:
    reasons: list[Reason | None] = []

    async def handler() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            reasons.append(current_token().reason)

    async with Inflight() as inflight:
        handle = inflight.start("a", handler)
        other = inflight.start("b", sleeper)
        await turns()
        assert inflight.cancel("a", Reason("user", "Esc pressed"))
        await handle.wait()
        assert handle.state == "cancelled"
        assert reasons == [Reason("user", "Esc pressed")]
        assert not other.done
        assert list(inflight) == ["b"]


async def test_an_unknown_id_is_a_no_op() -> None:
    async with Inflight() as inflight:
        assert inflight.cancel("never seen") is False
        inflight.start("a", quick)
        await turns()
        assert inflight.cancel("a") is False


async def test_an_id_stays_known_while_its_handler_cleans_up() -> None:
    log: list[str] = []
    async with Inflight() as inflight:
        handle = inflight.start("a", sleeper, log, "handler", 0.02)
        await turns()
        assert inflight.cancel("a")
        await turns()
        assert "a" in inflight
        with pytest.raises(DuplicateId):
            inflight.start("a", quick)
        await handle.wait()
        assert "a" not in inflight
        assert log == ["handler stops", "handler is tidy"]


@virtual_worlds
async def test_asking_again_does_not_cut_the_clean_up() -> None:
    log: list[str] = []
    async with Inflight() as inflight:
        handle = inflight.start("a", sleeper, log, "handler", 0.5)
        await turns()
        for _ in range(3):
            assert inflight.cancel("a")
            await anyio.sleep(0.1)
        await handle.wait()
    assert log == ["handler stops", "handler is tidy"]


async def test_a_cancel_before_the_first_step_is_forgotten_too() -> None:
    """Trap 6: the body never runs, so no `finally` in it could strike the id off."""
    async with Inflight() as inflight:
        handle = inflight.start("a", sleeper)
        inflight.cancel("a")
        await handle.wait()
        assert handle.state == "cancelled"
        assert "a" not in inflight
        assert inflight.start("a", quick) is not handle


async def test_a_cancel_in_the_same_tick_as_the_end_is_a_no_op() -> None:
    ended = anyio.Event()

    async def handler() -> str:
        await anyio.sleep(0.01)
        ended.set()
        return "kept"

    async with Inflight() as inflight:
        handle = inflight.start("a", handler)
        await ended.wait()
        assert inflight.cancel("a") is False
        await turns()
        assert handle.result() == "kept"


async def test_a_handler_that_cancels_itself_by_id() -> None:
    log: list[str] = []

    async def handler() -> None:
        log.append(f"cancelled myself: {inflight.cancel('me')}")
        await anyio.sleep_forever()
        log.append("not reached")

    async with Inflight() as inflight:
        handle = inflight.start("me", handler)
        await handle.wait()
        assert handle.state == "cancelled"
        assert len(inflight) == 0
    assert log == ["cancelled myself: True"]


@pytest.mark.real_time
async def test_cancel_from_another_thread() -> None:
    async with Inflight() as inflight:
        handle = inflight.start("a", sleeper)
        await turns()
        found = await anyio.to_thread.run_sync(inflight.cancel, "a", "from a thread")
        assert found
        await handle.wait()
        assert handle.state == "cancelled"
        assert handle.reason == Reason("user", "from a thread")


@pytest.mark.real_time
async def test_cancels_from_many_threads_while_handlers_come_and_go() -> None:
    async with Inflight() as inflight:
        over = threading.Event()

        def cancel_all_the_time() -> None:
            number = 0
            while not over.is_set():
                inflight.cancel(number % 50)
                number += 1

        threads = [threading.Thread(target=cancel_all_the_time) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for number in range(100):
                if number % 50 not in inflight:
                    inflight.start(number % 50, anyio.sleep, 0.001)
                if number % 10 == 0:
                    await anyio.sleep(0.001)
        finally:
            over.set()
            for thread in threads:
                await anyio.to_thread.run_sync(thread.join)
        while len(inflight):
            await anyio.sleep(0.001)
    assert inflight.report is not None
    assert inflight.report.clean
    assert len(inflight) == 0


# Errors -----------------------------------------------------------------------------------------------------


async def test_an_error_goes_to_the_callback_with_its_id_and_disturbs_nobody() -> None:
    errors: list[tuple[Any, BaseException]] = []
    error = ValueError("bad request")
    async with Inflight(on_error=lambda key, exc: errors.append((key, exc))) as inflight:
        other = inflight.start("b", sleeper)
        inflight.start("a", fails, error, 0.01)
        await anyio.sleep(0.02)
        assert not other.done
        assert "a" not in inflight
    assert errors == [("a", error)]


async def test_without_a_callback_an_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with Inflight("requests") as inflight:
        inflight.start("a", fails, ValueError("bad request"))
        await turns()
    assert "'requests'" in caplog.text
    assert "ValueError: bad request" in caplog.text


async def test_errors_are_in_the_report_and_never_raised() -> None:
    def ignore(key: Any, error: BaseException) -> None:
        pass

    inflight = await Inflight.open(on_error=ignore)
    inflight.start("a", fails, ValueError("early"))
    await turns()
    inflight.start("b", fails_in_clean_up, OSError("late"))
    await turns()
    report = await inflight.close()
    assert [repr(error) for error in report.errors] == ["ValueError('early')", "OSError('late')"]


async def test_a_callback_may_use_the_id_again() -> None:
    handles: list[Handle] = []
    tries = iter(range(3))

    def try_again(key: Any, error: BaseException) -> None:
        number = next(tries, None)
        if number is not None:
            handles.append(inflight.start(key, fails, ValueError(number)))

    async with Inflight(on_error=try_again) as inflight:
        inflight.start("a", fails, ValueError("first"))
        await turns(10)
    assert len(handles) == 3


async def test_a_callback_that_fails_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def broken(key: Any, error: BaseException) -> None:
        raise RuntimeError("broken callback")

    async with Inflight(on_error=broken) as inflight:
        inflight.start("a", fails, ValueError())
        await turns()
        assert "a" not in inflight
    assert "broken callback" in caplog.text


async def test_system_exit_in_a_handler_is_that_handlers_failure() -> None:
    errors: list[Any] = []
    async with Inflight(on_error=lambda key, error: errors.append((key, type(error)))) as inflight:
        inflight.start("a", fails, SystemExit(3))
        await turns()
    assert errors == [("a", SystemExit)]


# Closing ----------------------------------------------------------------------------------------------------


async def test_close_cancels_drains_and_reports() -> None:
    log: list[str] = []
    inflight = await Inflight.open("requests")
    for number in range(3):
        inflight.start(number, sleeper, log, f"handler {number}", 0.01)
    await turns()
    report = await inflight.close(reason="enough")
    assert sorted(log) == sorted(f"handler {n} {what}" for n in range(3) for what in ("stops", "is tidy"))
    assert report.clean
    assert report.name == "requests"
    assert str(report.reason) == "user: enough"
    assert sorted(outcome.name for outcome in report.outcomes) == ["sleeper 0", "sleeper 1", "sleeper 2"]
    assert len(inflight) == 0
    assert await inflight.close() is not None
    with pytest.raises(ScopeClosed, match=r"'requests'.*enough"):
        inflight.start("late", quick)


async def test_the_end_of_the_block_does_the_same() -> None:
    log: list[str] = []
    async with Inflight() as inflight:
        inflight.start("a", sleeper, log, "handler", 0.01)
        await turns()
    assert log == ["handler stops", "handler is tidy"]
    assert inflight.report is not None
    assert inflight.report.clean


async def test_an_error_in_the_block_is_raised_after_the_drain() -> None:
    log: list[str] = []
    error = ValueError("body")
    with pytest.raises(ValueError, match="body") as caught:
        async with Inflight() as inflight:
            inflight.start("a", sleeper, log, "handler", 0.01)
            await turns()
            raise error
    assert caught.value is error
    assert log == ["handler stops", "handler is tidy"]
    assert inflight.report is not None
    assert inflight.report.reason is not None
    assert inflight.report.reason.error is error


@asyncio_only
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_the_closer_cancelled_while_draining(times: int) -> None:
    log: list[str] = []

    async def use() -> None:
        async with Inflight() as inflight:
            inflight.start("a", sleeper, log, "handler", 0.05)
            await anyio.sleep_forever()

    task = asyncio.create_task(use())
    await anyio.sleep(0.01)
    for _ in range(times):
        task.cancel()
        await anyio.sleep(0.01)
    await asyncio.wait([task])
    assert task.cancelled()
    assert log == ["handler stops", "handler is tidy"]


@asyncio_only
@pytest.mark.parametrize("again_after", [None, 0, 1, 2])
async def test_cancelled_at_every_turn_of_the_loop_it_leaves_nothing(again_after: int | None) -> None:
    async def use() -> str:
        async with Inflight() as inflight:
            inflight.start("a", sleeper, log, "handler", 0.001)
            await turns(3)
        return "finished"

    for turn in range(1, 12):
        log: list[str] = []
        task = asyncio.ensure_future(use())
        await turns(turn)
        asked = task.cancel()
        if again_after is not None:
            await turns(again_after)
            task.cancel()
        await asyncio.wait([task])
        assert log in (["handler stops", "handler is tidy"], []), f"cancelled at turn {turn}"
        assert task.cancelled() if asked else task.result() == "finished"


async def test_a_cancelled_block() -> None:
    log: list[str] = []
    with anyio.move_on_after(0.02) as scope:
        async with Inflight() as inflight:
            inflight.start("a", sleeper, log, "handler", 0.02)
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert log == ["handler stops", "handler is tidy"]


@virtual_worlds
async def test_a_handler_that_refuses_is_named_and_stays_owned(caplog: pytest.LogCaptureFixture) -> None:
    stubborn = Stubborn()
    began = anyio.current_time()
    with caplog.at_level(logging.WARNING, "quiesce"):
        async with Inflight("requests", grace=Grace(cancel=0.1, terminate=0.1, kill=0.1)) as inflight:
            inflight.start(17, stubborn)
            await turns()
    assert anyio.current_time() - began == pytest.approx(0.3, abs=0.01)
    assert "Stubborn 17" in caplog.text
    assert 17 in inflight
    stubborn.let_go()
    assert (await inflight.close()).clean
    assert 17 not in inflight


async def test_a_handler_that_closes_it_from_inside() -> None:
    log: list[str] = []

    async def handler() -> None:
        report = await inflight.close()
        log.append(f"clean: {report.clean}")
        await anyio.sleep_forever()
        log.append("not reached")

    inflight = await Inflight.open(grace=Grace(cancel=5, terminate=5, kill=5))
    began = anyio.current_time()
    inflight.start("other", sleeper, log, "other", 0.01)
    handle = inflight.start("closer", handler)
    await handle.wait()
    assert log == ["other stops", "other is tidy", "clean: True"]
    assert handle.state == "cancelled"
    assert anyio.current_time() - began < 4
    assert (await inflight.close()).clean


async def test_a_handler_that_closes_the_scope_around_the_block() -> None:
    outer = await Scope.open(grace=Grace(cancel=5, terminate=5, kill=5))
    reports = []
    began = anyio.current_time()

    async def serve() -> None:
        async with Inflight(grace=Grace(cancel=5, terminate=5, kill=5)) as inflight:
            inflight.start("closer", handler)
            await anyio.sleep_forever()

    async def handler() -> None:
        reports.append(await outer.close())

    await outer.spawn(serve).wait()
    assert reports[0].clean
    assert anyio.current_time() - began < 4


async def test_its_owner_stops_it() -> None:
    log: list[str] = []
    owner = await Scope.open("owner")
    inflight = await Inflight.open(scope=owner)
    inflight.start("a", sleeper, log, "handler", 0.01)
    await turns()
    report = await owner.close()
    assert report.clean
    assert log == ["handler stops", "handler is tidy"]
    assert inflight.state == "settled"


async def test_one_that_is_dropped_without_close_is_noticed() -> None:
    log: list[str] = []
    inflight = await Inflight.open("forgotten")
    inflight.start("a", sleeper, log)
    await turns()
    held = [inflight]
    del inflight
    with pytest.warns(ResourceWarning, match=r"'forgotten'.*without close"):
        held.clear()
    await turns(5)
    assert log == ["sleeper stops", "sleeper is tidy"]


async def test_no_bystander_is_disturbed() -> None:
    async with an_innocent_bystander(), Inflight() as inflight:
        inflight.start("a", sleeper)
        inflight.start("b", sleeper)
        await turns()
        inflight.cancel("a")


# Bad use ----------------------------------------------------------------------------------------------------


async def test_an_unhashable_id_is_a_clear_error() -> None:
    async with Inflight() as inflight:
        for use in (inflight.cancel, inflight.get, inflight.__contains__):
            with pytest.raises(TypeError, match=r"an id must be hashable.*list is not"):
                use([])  # type: ignore[arg-type, operator]
        with pytest.raises(TypeError, match="an id must be hashable"):
            inflight.start({}, quick)  # type: ignore[arg-type]


async def test_a_coroutine_instead_of_a_function_is_a_clear_error() -> None:
    async with Inflight() as inflight:
        with pytest.raises(TypeError, match="not a coroutine"):
            inflight.start("a", quick(1))  # type: ignore[arg-type]
        assert len(inflight) == 0


async def test_one_that_is_not_open_is_a_clear_error() -> None:
    with pytest.raises(RuntimeError, match="not open yet"):
        Inflight("new").start("a", quick)


async def test_a_callback_that_is_none_is_a_clear_error() -> None:
    with pytest.raises(TypeError, match="on_error"):
        Inflight(on_error="log")  # type: ignore[arg-type]


def test_without_an_event_loop_it_cannot_be_opened() -> None:
    opening = Inflight.open()
    with pytest.raises(RuntimeError, match="running event loop"):
        opening.send(None)
