"""Demand 8: tokens and threads, signals and loops that are gone."""

from __future__ import annotations

import gc
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import anyio
import anyio.to_thread
import pytest

from quiesce import CancelToken, Reason, Scope, current_token
from quiesce.kernel.inner import stop_asked_for
from tests.kernel.temperaments import Stubborn, forever, sleeper, turns, virtual_worlds
from tests.world import World, make_world, world_names

real_time = pytest.mark.real_time


@pytest.fixture
def jumpy_threads() -> Iterator[None]:
    """Switch threads as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(*fns: Callable[[], object]) -> None:
    """Run these at the same moment, each in a thread."""
    start = threading.Barrier(len(fns))
    errors: list[BaseException] = []

    def run(fn: Callable[[], object]) -> None:
        start.wait()
        try:
            fn()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(fn,)) for fn in fns]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(15)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@real_time
async def test_a_cancel_from_a_thread_wakes_async_waiters_at_once() -> None:
    token = CancelToken()
    cancelled_at: list[float] = []

    def cancel() -> None:
        time.sleep(0.05)
        cancelled_at.append(time.monotonic())
        token.cancel("from a thread")

    thread = threading.Thread(target=cancel)
    thread.start()
    with anyio.fail_after(15):
        reason = await token.child().wait()
    assert time.monotonic() - cancelled_at[0] < 5
    assert reason == Reason("user", "from a thread")
    thread.join()


def test_a_cancel_wakes_sync_waiters_at_once() -> None:
    token = CancelToken()
    woken: list[float] = []

    def waits(which: CancelToken) -> None:
        assert which.wait_sync(15) is True
        woken.append(time.monotonic())

    def cancels() -> None:
        time.sleep(0.05)
        at.append(time.monotonic())
        token.cancel()

    at: list[float] = []
    in_threads(lambda: waits(token), lambda: waits(token), lambda: waits(token.child()), cancels)
    assert len(woken) == 3
    assert all(when - at[0] < 5 for when in woken)


def test_waiting_in_a_thread_gives_up_after_its_timeout() -> None:
    token = CancelToken()
    start = time.monotonic()
    assert token.wait_sync(0.05) is False
    assert 0.04 < time.monotonic() - start < 10
    assert token.wait_sync(0) is False
    token.cancel()
    assert token.wait_sync(0) is True
    assert token.wait_sync() is True


def test_waiting_in_a_thread_may_have_no_end() -> None:
    token = CancelToken()
    timer = threading.Timer(0.05, token.cancel)
    timer.start()
    assert token.wait_sync(math.inf) is True
    timer.join()


def test_a_sync_waiter_that_gave_up_leaves_no_trace() -> None:
    token = CancelToken()
    for _ in range(100):
        token.wait_sync(0)
    assert not token._cells


@pytest.mark.usefixtures("jumpy_threads")
def test_of_many_threads_that_cancel_at_once_one_is_first_and_all_agree() -> None:
    for _ in range(60):
        token = CancelToken()
        first: list[bool] = []
        calls: list[int] = []
        token.on_cancel(lambda calls=calls: calls.append(1))  # type: ignore[misc]

        def cancel(n: int, token: CancelToken = token, first: list[bool] = first) -> None:
            first.append(token.cancel(f"thread {n}"))

        in_threads(*[partial(cancel, n) for n in range(4)])
        assert sum(first) == 1
        assert calls == [1]
        assert token.reason is not None
        assert token.reason.message.startswith("thread ")


@pytest.mark.usefixtures("jumpy_threads")
def test_callbacks_registered_while_another_thread_cancels_run_exactly_once() -> None:
    for _ in range(60):
        parent = CancelToken()
        child = parent.child()
        calls: list[int] = []

        def register(base: int, child: CancelToken = child, calls: list[int] = calls) -> None:
            for n in range(10):
                child.on_cancel(lambda n=n: calls.append(base + n))  # type: ignore[misc]

        in_threads(lambda: register(0), lambda: register(100), lambda parent=parent: parent.cancel())  # type: ignore[misc]
        assert sorted(calls) == [*range(10), *range(100, 110)]


@pytest.mark.usefixtures("jumpy_threads")
def test_callbacks_taken_back_while_another_thread_cancels_run_at_most_once_and_none_later() -> None:
    for _ in range(60):
        parent = CancelToken()
        child = parent.child()
        calls: list[int] = []
        backs = [child.on_cancel(partial(calls.append, n)) for n in range(20)]

        def take_back(backs: list[Callable[[], None]] = backs, calls: list[int] = calls) -> None:
            for back in backs:
                back()
            calls.append(-1)

        in_threads(take_back, lambda parent=parent: parent.cancel())  # type: ignore[misc]
        ran = [n for n in calls if n >= 0]
        assert len(ran) == len(set(ran))
        assert ran == sorted(ran)


@real_time
@pytest.mark.usefixtures("jumpy_threads")
async def test_no_wake_up_is_lost_between_waiting_and_a_cancel_from_a_thread() -> None:
    for n in range(100):
        token = CancelToken()
        thread = threading.Thread(target=token.cancel, args=(str(n),))
        thread.start()
        with anyio.fail_after(5):
            assert await token.child().wait() == Reason("user", str(n))
        thread.join()


@real_time
async def test_a_scope_cancelled_from_a_thread_stops_at_once() -> None:
    log: list[str] = []
    scope = await Scope.open()
    scope.spawn(sleeper, log)
    await turns()
    thread = threading.Thread(target=scope.cancel, args=("from a thread",))
    thread.start()
    with anyio.fail_after(2):
        while not log:
            await anyio.sleep(0.01)
    thread.join()
    assert (await scope.close()).reason == Reason("user", "from a thread")


@real_time
async def test_a_scope_cancelled_from_a_thread_while_its_loop_is_blocked_signals_its_tokens_at_once() -> None:
    """A tool in a thread that polls its token must not have to wait for the loop."""
    scope = await Scope.open()
    tokens: list[CancelToken] = [scope.token]

    async def child() -> None:
        tokens.append(current_token())
        await forever()

    scope.spawn(child)
    await turns()
    thread = threading.Thread(target=scope.cancel, args=("now",))
    thread.start()
    thread.join()  # in the loop's own thread: nothing of the loop runs meanwhile
    assert [token.reason for token in tokens] == [Reason("user", "now")] * 2
    assert (await scope.close()).reason == Reason("user", "now")


@virtual_worlds
async def test_a_cancel_from_a_thread_that_arrives_after_a_close_is_not_the_second_of_the_two() -> None:
    """It was asked for first; only asking again makes a stop faster."""
    stubborn = Stubborn()
    scope = await Scope.open()
    scope.spawn(stubborn)
    await turns()
    thread = threading.Thread(target=scope.cancel, args=("first",))
    thread.start()
    thread.join()
    report = await scope.close(deadline=1.0)
    stubborn.let_go()
    assert (await scope.close()).clean
    assert report.elapsed == pytest.approx(1.0)
    assert report.reason == Reason("user", "first")


@real_time
async def test_a_token_cancelled_from_a_thread_while_its_loop_is_blocked_is_seen_by_threads() -> None:
    token = CancelToken()
    scope = await Scope.open(token=token)
    inner = scope.token
    token.cancel("now")
    assert inner.reason == Reason("user", "now")
    await scope.close()


@real_time
async def test_a_thread_inherits_the_token_of_the_work_that_started_it() -> None:
    seen: list[object] = []

    async def child() -> None:
        token = current_token()
        seen.append(await anyio.to_thread.run_sync(lambda: current_token() is token))

    async with Scope() as scope:
        scope.spawn(child)
    assert seen == [True]


def test_a_token_outlives_the_loop_that_waited_on_it() -> None:
    for name in world_names():
        token = CancelToken()
        scopes: list[Scope] = []

        async def main(token: CancelToken = token, scopes: list[Scope] = scopes) -> None:
            with anyio.move_on_after(0.01):
                await token.wait()
            scopes.append(await Scope.open(token=token))

        make_world(name).run(main)
        calls: list[int] = []
        token.on_cancel(lambda calls=calls: calls.append(1))  # type: ignore[misc]
        assert token.cancel("after the loop") is True
        assert calls == [1]
        assert token.child().reason == Reason("user", "after the loop")
        assert scopes[0].token.cancelled


def test_a_token_waited_on_by_a_loop_that_was_torn_down_can_be_cancelled(world: World) -> None:
    token = CancelToken()
    held: list[object] = []

    async def main() -> None:
        scope = await Scope.open()
        held.append(scope)
        scope.spawn(token.wait)
        await turns()
        scope.cancel()
        await turns(5)

    world.run(main)
    token.cancel()
    assert token.cancelled


def test_one_token_stops_scopes_of_several_loops_at_once() -> None:
    token = CancelToken()
    reports: list[Reason | None] = []
    ready = threading.Barrier(3)

    def run(name: str) -> None:
        async def main() -> None:
            async with Scope(token=token) as scope:
                scope.spawn(sleeper)
                await turns()
                ready.wait(15)
                await forever()
            reports.append(scope.reason)

        make_world(name, virtual=False).run(main)

    def cancel() -> None:
        ready.wait(15)
        token.cancel("everywhere")

    in_threads(lambda: run("asyncio"), lambda: run("trio"), cancel)
    assert reports == [Reason("user", "everywhere")] * 2


# Signals ----------------------------------------------------------------------------------------------------


@pytest.fixture
def on_usr1() -> Iterator[Callable[[Callable[[], object]], None]]:
    before = signal.getsignal(signal.SIGUSR1)

    def install(fn: Callable[[], object]) -> None:
        signal.signal(signal.SIGUSR1, lambda signum, frame: fn())

    yield install
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_handler_cancels_the_token_its_own_thread_waits_on(
    on_usr1: Callable[[Callable[[], object]], None],
) -> None:
    token = CancelToken()
    on_usr1(lambda: token.cancel("signal"))
    # To this thread: whoever else is given it does not wake us.
    timer = threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1))
    timer.start()
    start = time.monotonic()
    assert token.wait_sync(15) is True
    assert time.monotonic() - start < 10
    timer.join()


def test_a_signal_handler_may_interrupt_any_operation_of_the_same_token(
    on_usr1: Callable[[Callable[[], object]], None],
) -> None:
    """No lock is held when the handler runs, so there is nothing to deadlock on."""
    calls: list[int] = []
    count = 0
    tokens = [CancelToken()]

    def handler() -> None:
        nonlocal count
        count += 1
        tokens[0].on_cancel(lambda: calls.append(1))
        tokens[0].cancel("signal")
        tokens[0] = CancelToken()

    on_usr1(handler)
    stop = threading.Event()

    def fire() -> None:
        while not stop.is_set():
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.0005)

    thread = threading.Thread(target=fire)
    thread.start()
    try:
        end, give_up_at = time.monotonic() + 0.4, time.monotonic() + 10
        while time.monotonic() < (end if count > 10 else give_up_at):
            token = tokens[0]
            child = token.child()
            child.on_cancel(lambda: None)()
            child.on_cancel(lambda: None)
            token.on_cancel(lambda: None)
            child.cancel()
            assert child.cancelled
    finally:
        stop.set()
        thread.join()
    assert count > 10
    assert len(calls) == count


@real_time
async def test_a_signal_handler_cancels_a_scope(on_usr1: Callable[[Callable[[], object]], None]) -> None:
    log: list[str] = []
    async with Scope() as scope:
        on_usr1(lambda: scope.cancel(Reason("shutdown", "SIGUSR1")))
        scope.spawn(sleeper, log)
        await turns()
        os.kill(os.getpid(), signal.SIGUSR1)
        with anyio.fail_after(15):
            await anyio.sleep(15)
    assert log == ["sleeper stops", "sleeper is tidy"]
    assert scope.reason == Reason("shutdown", "SIGUSR1")


def test_a_token_cancelled_by_the_collector_in_another_thread() -> None:
    token = CancelToken()
    threads: list[threading.Thread] = []

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            token.cancel("collected")

    token.on_cancel(lambda: threads.append(threading.current_thread()))
    Cycle()
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
    gc.collect()
    assert token.reason == Reason("user", "collected")
    assert len(threads) == 1


async def test_a_stop_that_another_thread_asks_for_by_an_outer_token_is_known_before_the_loop_has_a_turn() -> (
    None
):
    outer = CancelToken()
    async with Scope(token=outer) as scope:
        thread = threading.Thread(target=outer.cancel, args=("from a thread",))
        thread.start()
        thread.join()
        assert scope.reason is None
        assert str(stop_asked_for()) == "user: from a thread"
