"""Demand 8: the signal stays. One token, its tree, its callbacks."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable
from contextvars import copy_context

import anyio
import pytest

from quiesce import CancelToken, Reason, Scope, TokenCancelled, current_token
from quiesce.kernel.scope import work_with
from tests.kernel.temperaments import forever, sleeper, turns

# Signal -----------------------------------------------------------------------------------------------------


def test_a_fresh_token_is_not_cancelled() -> None:
    token = CancelToken()
    assert not token.cancelled
    assert token.reason is None
    assert token.raise_if_cancelled() is None  # type: ignore[func-returns-value]
    assert repr(token) == "<CancelToken active>"


def test_a_cancelled_token_is_cancelled_for_good_with_its_first_reason() -> None:
    token = CancelToken()
    assert token.cancel(Reason("user", "Esc pressed")) is True
    assert token.cancel("another") is False
    assert token.cancelled
    assert token.reason == Reason("user", "Esc pressed")
    assert repr(token) == "<CancelToken cancelled, user: Esc pressed>"
    with pytest.raises(TokenCancelled, match="Esc pressed") as caught:
        token.raise_if_cancelled()
    assert caught.value.reason == Reason("user", "Esc pressed")


def test_there_is_no_way_to_take_a_cancel_back() -> None:
    token = CancelToken()
    token.cancel()
    with pytest.raises(AttributeError):
        token.cancelled = False  # type: ignore[misc]
    with pytest.raises(AttributeError):
        token.reason = None  # type: ignore[misc]
    assert not {name for name in dir(token) if name in {"reset", "clear", "uncancel", "renew"}}


def test_a_string_is_a_users_reason_and_nothing_is_a_user() -> None:
    one, two = CancelToken(), CancelToken()
    one.cancel("stop that")
    two.cancel()
    assert one.reason == Reason("user", "stop that")
    assert two.reason == Reason("user")


# Tree -------------------------------------------------------------------------------------------------------


def test_a_parent_cancels_its_children_with_its_reason_and_no_child_its_parent() -> None:
    parent = CancelToken()
    child = parent.child()
    grandchild = child.child()
    sibling = parent.child()
    child.cancel("child only")
    assert grandchild.reason == Reason("user", "child only")
    assert not parent.cancelled
    assert not sibling.cancelled
    parent.cancel("all")
    assert sibling.reason == Reason("user", "all")
    assert child.reason == Reason("user", "child only")
    assert grandchild.reason == Reason("user", "child only")


def test_a_child_made_of_a_cancelled_token_is_born_cancelled() -> None:
    parent = CancelToken()
    parent.cancel("before")
    child = parent.child()
    assert child.reason == Reason("user", "before")
    assert child.cancel("own") is False
    assert child.reason == Reason("user", "before")


def test_cancelling_a_child_after_its_parent_is_too_late() -> None:
    parent = CancelToken()
    child = parent.child()
    parent.cancel("parent")
    assert child.cancel("child") is False
    assert child.reason == Reason("user", "parent")


def test_a_child_captured_by_a_tool_stays_cancelled_while_the_next_run_is_fresh() -> None:
    conversation = CancelToken()
    first_run = conversation.child()
    captured = first_run.child()
    first_run.cancel("interrupted")
    second_run = conversation.child()
    assert captured.cancelled
    assert first_run.cancelled
    assert not second_run.cancelled
    assert not conversation.cancelled


async def test_the_token_of_a_child_that_has_ended_stays_what_it_was() -> None:
    tokens: list[CancelToken] = []

    async def child() -> None:
        tokens.append(current_token())
        await forever()

    one = await Scope.open()
    one.spawn(child)
    await turns()
    await one.close(reason="over")
    two = await Scope.open()
    two.spawn(child)
    await turns()
    assert tokens[0].reason == Reason("user", "over")
    assert not tokens[1].cancelled
    await two.close()


# Callbacks --------------------------------------------------------------------------------------------------


def test_callbacks_run_once_in_order_of_registration_in_the_cancelling_call() -> None:
    token = CancelToken()
    calls: list[int] = []
    for n in range(5):
        token.on_cancel(lambda n=n: calls.append(n))  # type: ignore[misc]
    assert calls == []
    token.cancel()
    assert calls == [0, 1, 2, 3, 4]
    token.cancel()
    assert calls == [0, 1, 2, 3, 4]


def test_a_callback_on_a_cancelled_token_runs_at_once_and_once() -> None:
    token = CancelToken()
    token.cancel()
    calls: list[str] = []
    take_back = token.on_cancel(lambda: calls.append("late"))
    assert calls == ["late"]
    take_back()
    token.cancel()
    assert calls == ["late"]


def test_a_callback_that_was_taken_back_does_not_run() -> None:
    token = CancelToken()
    calls: list[str] = []
    keep = token.on_cancel(lambda: calls.append("kept"))
    take_back = token.on_cancel(lambda: calls.append("taken back"))
    take_back()
    take_back()
    token.cancel()
    assert calls == ["kept"]
    keep()


def test_what_was_taken_back_is_not_kept_by_the_function_that_took_it_back() -> None:
    class Callback:
        def __call__(self) -> None: ...

    token, callback = CancelToken(), Callback()
    is_kept = weakref.ref(callback)
    take_back = token.on_cancel(callback)
    del callback
    gc.collect()
    assert is_kept() is not None
    take_back()
    assert is_kept() is None


def test_callbacks_on_a_cancelled_token_leave_nothing_in_it() -> None:
    token = CancelToken()
    token.cancel()
    for _ in range(10):
        token.on_cancel(lambda: None)
    assert not token._cells


def test_the_same_function_registered_twice_runs_twice_and_each_is_taken_back_alone() -> None:
    token = CancelToken()
    calls: list[int] = []

    def note() -> None:
        calls.append(1)

    token.on_cancel(note)
    token.on_cancel(note)()
    token.cancel()
    assert calls == [1]


def test_errors_of_callbacks_are_logged_and_stop_nobody(caplog: pytest.LogCaptureFixture) -> None:
    token = CancelToken()
    calls: list[str] = []

    def broken() -> None:
        raise ValueError("callback")

    token.on_cancel(broken)
    token.on_cancel(lambda: calls.append("after"))
    assert token.cancel() is True
    assert calls == ["after"]
    [record] = caplog.records
    assert record.name == "quiesce"
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "callback"
    caplog.clear()
    token.on_cancel(broken)
    assert len(caplog.records) == 1


def test_a_keyboardinterrupt_in_a_callback_passes_after_the_others_have_run() -> None:
    token = CancelToken()
    calls: list[str] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    token.on_cancel(interrupted)
    token.on_cancel(lambda: calls.append("after"))
    with pytest.raises(KeyboardInterrupt):
        token.cancel("why")
    assert calls == ["after"]
    assert token.reason == Reason("user", "why")


def test_callbacks_of_children_run_with_their_parents() -> None:
    parent = CancelToken()
    calls: list[str] = []
    parent.on_cancel(lambda: calls.append("parent 1"))
    child = parent.child()
    grandchild = child.child()
    grandchild.on_cancel(lambda: calls.append("grandchild"))
    child.on_cancel(lambda: calls.append("child"))
    parent.on_cancel(lambda: calls.append("parent 2"))
    parent.cancel()
    assert sorted(calls) == ["child", "grandchild", "parent 1", "parent 2"]
    assert calls.index("parent 1") < calls.index("parent 2")


def test_a_callback_sees_the_token_cancelled_and_may_use_it() -> None:
    token = CancelToken()
    seen: list[object] = []

    def callback() -> None:
        seen.append(token.reason)
        seen.append(token.cancel("again"))
        token.on_cancel(lambda: seen.append("nested"))
        seen.append(token.child().cancelled)
        token.on_cancel(lambda: None)()

    token.on_cancel(callback)
    token.on_cancel(lambda: seen.append("second"))
    token.cancel("first")
    assert seen[0] == Reason("user", "first")
    assert sorted(map(str, seen[1:])) == ["False", "True", "nested", "second"]


def test_a_callback_that_takes_back_a_later_one_prevents_it() -> None:
    token = CancelToken()
    calls: list[str] = []
    backs: list[Callable[[], None]] = []

    def take_back_the_later_one() -> None:
        backs[0]()

    token.on_cancel(take_back_the_later_one)
    backs.append(token.on_cancel(lambda: calls.append("never")))
    token.cancel()
    assert calls == []


def test_a_dropped_child_is_not_kept_for_the_life_of_its_parent() -> None:
    grandparent = CancelToken()
    parent = grandparent.child()
    calls: list[str] = []
    for _ in range(1000):
        parent.child().on_cancel(lambda: calls.append("dropped"))
    assert not parent._cells
    assert not grandparent._cells
    held = parent.child()
    held.on_cancel(lambda: calls.append("held"))
    take_back = parent.child().on_cancel(lambda: calls.append("held by what on_cancel returned"))
    grandparent.cancel()
    assert calls == ["held", "held by what on_cancel returned"]
    take_back()


def test_a_child_that_waits_holds_itself() -> None:
    parent = CancelToken()
    heard = threading.Event()

    def wait() -> None:
        assert parent.child().wait_sync(5.0)
        heard.set()

    thread = threading.Thread(target=wait)
    thread.start()
    while not parent._cells:
        time.sleep(0.001)
    gc.collect()
    parent.cancel()
    thread.join()
    assert heard.is_set()


def test_a_token_cancelled_in_the_finaliser_of_an_object_that_a_callback_drops() -> None:
    """Finalisers run in the middle of anything, also of another token's cancel."""
    outer, inner = CancelToken(), CancelToken()
    calls: list[str] = []

    class Resource:
        def __del__(self) -> None:
            outer.on_cancel(lambda: calls.append("from the finaliser"))
            inner.cancel("finalised")
            outer.child().cancel()

    resources = [Resource()]
    inner.on_cancel(lambda: calls.append("inner"))
    outer.on_cancel(resources.clear)
    outer.on_cancel(lambda: calls.append("outer"))
    outer.cancel()
    assert sorted(calls) == ["from the finaliser", "inner", "outer"]
    assert inner.reason == Reason("user", "finalised")


# Memory -----------------------------------------------------------------------------------------------------


def size_of(token: CancelToken) -> int:
    """How many objects can be reached from a token."""
    seen: set[int] = set()
    queue: list[object] = [token]
    while queue:
        thing = queue.pop()
        if id(thing) in seen or isinstance(thing, type) or type(thing).__name__ in ("module", "function"):
            continue
        seen.add(id(thing))
        queue += gc.get_referents(thing)
    return len(seen)


def test_a_hundred_thousand_children_that_came_and_went_leave_nothing_in_their_parent() -> None:
    parent = CancelToken()
    parent.on_cancel(lambda: None)
    before = size_of(parent)
    for n in range(100_000):
        child = parent.child()
        if n % 3 == 0:
            child.on_cancel(lambda: None)()
        elif n % 3 == 1:
            assert not child.cancelled
    assert size_of(parent) <= before + 5


async def test_a_thousand_tasks_that_waited_on_their_tokens_leave_nothing_in_their_scope() -> None:
    async def polite() -> None:
        with anyio.move_on_after(0.001):
            await current_token().wait()

    async with Scope() as scope:
        token = scope.token
        before = size_of(token)
        for _ in range(1000):
            scope.spawn(polite)
        await anyio.sleep(0.05)
        while scope.children:
            await anyio.sleep(0.01)
        assert size_of(token) <= before + 5


def test_a_cancelled_token_lets_go_of_its_callbacks() -> None:
    class Callback:
        def __call__(self) -> None: ...

    token = CancelToken()
    child = token.child()
    watches = []
    for holder in (token, child, child.child()):
        callback = Callback()
        watches.append(weakref.ref(callback))
        holder.on_cancel(callback)
        del callback
    token.cancel()
    gc.collect()
    assert [watch() for watch in watches] == [None, None, None]


def test_a_child_does_not_keep_its_parents_callbacks_nor_the_parent_its_children() -> None:
    parent = CancelToken()
    child = parent.child()
    take_back = child.on_cancel(lambda: None)
    watch = weakref.ref(child)
    take_back()
    del child, take_back
    gc.collect()
    assert watch() is None


# Waiting ----------------------------------------------------------------------------------------------------


async def test_waiting_returns_the_reason_to_every_waiter() -> None:
    token = CancelToken()
    woken: list[Reason] = []

    async def waits(which: CancelToken) -> None:
        woken.append(await which.wait())

    async with anyio.create_task_group() as group:
        for which in (token, token, token.child(), token.child().child()):
            group.start_soon(waits, which)
        await turns()
        assert woken == []
        token.cancel("now")
    assert woken == [Reason("user", "now")] * 4


async def test_waiting_on_a_cancelled_token_returns_at_once() -> None:
    token = CancelToken()
    token.cancel("before")
    assert await token.wait() == Reason("user", "before")


async def test_a_cancelled_waiter_leaves_no_trace() -> None:
    token = CancelToken()
    before = size_of(token)
    for _ in range(50):
        with anyio.move_on_after(0.001) as around:
            await token.wait()
        assert around.cancelled_caught
    gc.collect()
    assert size_of(token) <= before
    assert not token.cancelled


async def test_waiting_is_no_cancel_of_the_waiter() -> None:
    token = CancelToken()
    async with Scope(token=token) as scope:
        handle = scope.spawn(sleeper)
        await turns()
        token.cancel("stop")
        await handle.wait()
    assert handle.reason == Reason("user", "stop")


# Sync work that no scope runs ------------------------------------------------------------------------------


def test_sync_work_has_the_token_that_it_was_given_and_threads_with_its_context_too() -> None:
    token, seen = CancelToken(), list[CancelToken]()
    with work_with(token):
        seen.append(current_token())
        thread = threading.Thread(target=copy_context().run, args=(lambda: seen.append(current_token()),))
        thread.start()
        thread.join()
    assert seen == [token, token]
    assert current_token() is not token


async def test_a_scope_inside_sync_work_has_its_own_token_and_so_has_work_around_it() -> None:
    token = CancelToken()
    async with Scope() as scope:
        outside = current_token()
        with work_with(token):
            assert current_token() is token
            inside = scope.spawn(lambda: turns(1))
            assert inside.token is not token
        assert current_token() is outside
