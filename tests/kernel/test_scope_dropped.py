"""Demand 6: a scope that its users dropped without closing it."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest

from quiesce import CancelToken, Handle, Scope, current_scope, current_token
from tests.kernel.temperaments import an_innocent_bystander, fails, quick, sleeper, turns
from tests.world import asyncio_only


@contextmanager
def noting_warnings() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


async def test_a_dropped_scope_warns_with_where_it_was_made_and_its_children_are_cancelled() -> None:
    log: list[str] = []

    async def drop_one() -> Handle:
        scope = await Scope.open("forgotten")
        handle = scope.spawn(sleeper, log, "child", 0.01)
        await turns()
        return handle

    async with an_innocent_bystander():
        with noting_warnings() as caught:
            handle = await drop_one()
            gc.collect()
            await handle.wait()
    assert log == ["child stops", "child is tidy"]
    [warning] = [w for w in caught if w.category is ResourceWarning]
    assert "'forgotten'" in str(warning.message)
    assert "test_scope_dropped.py" in str(warning.message)
    assert "drop_one" in str(warning.message)
    assert handle.reason is not None
    assert handle.reason.kind == "parent"


async def test_dropped_in_another_threads_garbage_collection_the_loop_does_the_cancelling() -> None:
    log: list[str] = []
    threads = []

    async def child() -> None:
        token = current_token()
        try:
            await anyio.sleep_forever()
        finally:
            threads.append(threading.current_thread())
            log.append(str(token.reason))

    async def make() -> tuple[list[Scope], Handle]:
        scope = await Scope.open("forgotten")
        return [scope], scope.spawn(child)

    held, handle = await make()
    await turns()

    def drop() -> None:
        held.clear()
        gc.collect()

    with noting_warnings() as caught:
        thread = threading.Thread(target=drop)
        thread.start()
        thread.join()
        with anyio.fail_after(2):
            await handle.wait()
    assert threads == [threading.current_thread()]
    assert "dropped" in log[0]
    assert len([w for w in caught if w.category is ResourceWarning]) == 1


async def test_dropped_as_part_of_a_cycle() -> None:
    class Session:
        scope: Scope
        me: Session

    async def make() -> Handle:
        session = Session()
        session.me = session
        session.scope = await Scope.open("in a cycle")
        return session.scope.spawn(sleeper)

    with noting_warnings() as caught:
        handle = await make()
        await turns()
        gc.collect()
        await handle.wait()
    assert handle.state == "cancelled"
    assert len([w for w in caught if w.category is ResourceWarning]) == 1


async def test_when_warnings_are_errors_the_children_are_cancelled_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unraisable: list[str] = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: unraisable.append(str(args.exc_value)))

    async def make() -> Handle:
        scope = await Scope.open("forgotten")
        return scope.spawn(sleeper)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        handle = await make()
        await turns()
        gc.collect()
        await handle.wait()
    assert handle.state == "cancelled"
    assert any("forgotten" in text for text in unraisable)


async def test_a_child_that_asks_for_its_current_scope_holds_it() -> None:
    async def child() -> None:
        scope = current_scope()
        await anyio.sleep(0.03)
        assert scope.name == "held"

    async def make() -> Handle:
        scope = await Scope.open("held")
        handle = scope.spawn(child)
        await turns()
        return handle

    with noting_warnings() as caught:
        handle = await make()
        gc.collect()
        await handle.wait()
        gc.collect()
    assert handle.state == "finished"
    assert [w for w in caught if w.category is ResourceWarning] == []


async def test_a_scope_whose_children_have_ended_may_be_dropped_in_silence() -> None:
    async def make() -> None:
        scope = await Scope.open("empty")
        await scope.spawn(quick).wait()

    with noting_warnings() as caught:
        await make()
        gc.collect()
    assert caught == []


async def test_a_closed_or_stopping_scope_may_be_dropped_in_silence() -> None:
    async def make() -> Handle:
        scope = await Scope.open()
        handle = scope.spawn(sleeper, None, "child", 0.01)
        await turns()
        scope.cancel()
        return handle

    with noting_warnings() as caught:
        handle = await make()
        gc.collect()
        await handle.wait()
    assert caught == []


class Nothing:
    """Somebody's callback, to see whether the scope is still in memory."""

    def __call__(self, handle: Handle, error: BaseException) -> None:
        raise AssertionError(error)


async def open_one(token: CancelToken | None = None) -> tuple[Scope, weakref.ref[Nothing]]:
    callback = Nothing()
    scope = await Scope.open(on_error="report", on_child_error=callback, token=token)
    return scope, weakref.ref(callback)


async def test_a_dropped_scope_without_children_leaves_nothing_in_memory() -> None:
    scope, watch = await open_one()
    del scope
    gc.collect()
    assert watch() is None


async def test_a_closed_scope_leaves_nothing_in_memory() -> None:
    scope, watch = await open_one()
    scope.spawn(sleeper)
    await turns()
    await scope.close()
    del scope
    await turns()
    gc.collect()
    assert watch() is None


async def test_a_dropped_scope_leaves_nothing_behind_in_an_outer_token() -> None:
    token = CancelToken()
    scope, watch = await open_one(token)
    del scope
    gc.collect()
    assert watch() is None


async def test_a_scope_that_was_cancelled_and_dropped_leaves_nothing_behind_in_an_outer_token() -> None:
    token = CancelToken()
    scope, watch = await open_one(token)
    handle = scope.spawn(sleeper)
    await turns()
    scope.cancel()
    await handle.wait()
    del scope, handle
    await turns()
    gc.collect()
    assert watch() is None


async def test_a_dropped_scope_is_ended_with_its_children_and_forgotten() -> None:
    async def make() -> tuple[Handle, weakref.ref[Nothing]]:
        scope, watch = await open_one()
        return scope.spawn(sleeper), watch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning that is kept keeps what it warns of
        handle, watch = await make()
        await turns()
        gc.collect()
        await handle.wait()
        del handle
        await turns()
        gc.collect()
    assert watch() is None


@asyncio_only
async def test_the_error_of_a_child_in_a_dropped_scope_is_never_an_error_never_retrieved() -> None:
    """The world fails this test if its loop complains."""
    scope = await Scope.open("forgotten")
    handle = scope.spawn(fails, ValueError("unseen"))
    await handle.wait()
    assert handle.state == "failed"
    del handle, scope
    gc.collect()
    await asyncio.sleep(0)


async def test_one_that_its_owner_stops_before_the_drop_is_noticed_is_not_warned_of() -> None:
    outer = await Scope.open("outer")
    kept = [await Scope.open("inner", scope=outer)]
    kept[0].spawn(sleeper, None, "sleeper", 0.05)
    await turns()
    thread = threading.Thread(target=kept.clear)  # the loop hears of it in its next turn
    thread.start()
    thread.join()
    outer.cancel()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert (await outer.close()).clean
    assert [str(warning.message) for warning in caught] == []
