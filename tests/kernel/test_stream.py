"""Demand 13: anybody's async generator, iterated in an owner task; and the promises of "Streams", word by word."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.abc
import pytest

from quiesce import (
    CancelToken,
    ChildCancelled,
    Grace,
    Reason,
    Scope,
    ScopeClosed,
    current_scope,
    current_token,
)
from quiesce.kernel.own.owned import own
from quiesce.kernel.own.streams import Stream, stream
from tests.kernel.temperaments import (
    an_innocent_bystander,
    cancellation,
    in_the_background,
    sleeper,
    swallows,
    tidy_up,
    turns,
    virtual_worlds,
)
from tests.world import World, asyncio_only, trio_only

SHORT = Grace(cancel=0.1, terminate=0.1, kill=0.0)


class Source:
    """A generator that writes down what happens to it."""

    def __init__(self, count: int = 1000, pause: float = 0.0, tidy: float = 0.0) -> None:
        self.count = count
        self.pause = pause
        self.tidy = tidy
        self.made = 0
        self.log: list[str] = []
        self.tasks: set[int] = set()
        self.token: CancelToken | None = None

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(self.count):
                self.tasks.add(anyio.get_current_task().id)
                self.token = current_token()
                self.made += 1
                if self.pause:
                    await anyio.sleep(self.pause)
                yield number
        except GeneratorExit:
            self.log.append("closed")
            raise
        except cancellation():
            self.log.append("cancelled")
            raise
        finally:
            self.tasks.add(anyio.get_current_task().id)
            if self.tidy:
                await tidy_up(self.tidy)
            self.log.append("tidy")


async def with_background_reader(log: list[str]) -> AsyncGenerator[int, None]:
    """The seed's shape: a task group with a reader in it, open across the yields."""
    send, receive = anyio.create_memory_object_stream[int](1)

    async def read() -> None:
        number = 0
        try:
            while True:
                await send.send(number)
                number += 1
        finally:
            send.close()
            log.append("reader stopped")

    async with receive, anyio.create_task_group() as group:
        group.start_soon(read)
        try:
            async for number in receive:
                yield number
        finally:
            group.cancel_scope.cancel()
            log.append("generator closed")


# Iterating --------------------------------------------------------------------------------------------------


async def test_all_items_come_in_order_and_then_the_end_for_ever() -> None:
    source = Source(count=5)
    s = stream(source.items())
    items = aiter(s)
    assert [item async for item in items] == [0, 1, 2, 3, 4]
    assert source.log == ["tidy"]
    for _ in range(3):
        with pytest.raises(StopAsyncIteration):
            await anext(items)
        with pytest.raises(StopAsyncIteration):
            await s.asend(None)
    assert [item async for item in s] == []
    assert not s.token.cancelled


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("error", [None, LookupError("no such page")])
async def test_a_generator_that_has_no_items_ends_at_once(error: Exception | None, prefetch: int) -> None:
    async def nothing() -> AsyncGenerator[int, None]:
        if error is not None:
            raise error
        for number in list[int]():
            yield number

    if error is None:
        assert [item async for item in stream(nothing(), prefetch=prefetch)] == []
    else:
        with pytest.raises(LookupError) as caught:
            _ = [item async for item in stream(nothing(), prefetch=prefetch)]
        assert caught.value is error


async def test_the_generator_runs_in_one_task_that_is_not_the_consumers() -> None:
    source = Source(count=4, tidy=0.01)
    items = aiter(stream(source.items()))
    await anext(items)

    async def take() -> None:
        assert await anext(items) == 1

    async with anyio.create_task_group() as group:
        group.start_soon(take)
    assert [item async for item in items] == [2, 3]
    assert len(source.tasks) == 1
    assert anyio.get_current_task().id not in source.tasks


async def test_nothing_starts_before_the_first_item_and_nothing_runs_ahead() -> None:
    source = Source()
    async with stream(source.items()) as s:
        await anyio.sleep(0.05)
        assert source.made == 0
        async for number in s:
            await anyio.sleep(0.05)
            assert source.made == number + 1
            if number == 3:
                break


@pytest.mark.parametrize("prefetch", [1, 3])
async def test_prefetch_lets_it_be_that_many_items_ahead(prefetch: int) -> None:
    source = Source(count=10)
    got = []
    async with stream(source.items(), prefetch=prefetch) as s:
        await turns()
        assert source.made == 0
        async for number in s:
            await turns(10)
            got.append(number)
            assert source.made == min(number + 1 + prefetch, 10)
    assert got == list(range(10))


async def test_with_prefetch_the_error_comes_after_the_items_before_it() -> None:
    error = ValueError("third")

    async def fails() -> AsyncGenerator[int, None]:
        yield 1
        yield 2
        raise error

    got = []
    with pytest.raises(ValueError) as caught:
        async for number in stream(fails(), prefetch=5):
            await turns(5)
            got.append(number)
    assert caught.value is error
    assert got == [1, 2]


async def test_with_prefetch_a_break_stops_a_generator_at_work() -> None:
    source = Source(pause=0.05, tidy=0.02)
    s = stream(source.items(), prefetch=2)
    async for _ in s:
        break
    assert s.token.cancelled
    assert (await s.close()).clean
    assert source.log == ["cancelled", "tidy"]
    assert source.made == 2


async def test_it_takes_any_async_iterable() -> None:
    class Plain:
        """No generator, and nothing to close."""

        def __init__(self) -> None:
            self.left = 3

        def __aiter__(self) -> Plain:
            return self

        async def __anext__(self) -> int:
            await anyio.sleep(0)
            if not self.left:
                raise StopAsyncIteration
            self.left -= 1
            return self.left

    class Iterable:
        async def __aiter__(self) -> AsyncGenerator[str, None]:
            yield "a"
            yield "b"

    assert [item async for item in stream(Plain())] == [2, 1, 0]
    assert [item async for item in stream(Iterable())] == ["a", "b"]
    s = stream(Plain())
    async for _ in s:
        break
    assert (await s.close()).clean


@pytest.mark.parametrize("items", [0, 1, 5])
async def test_what_can_be_closed_is_closed_at_the_end_after_a_break_and_before_the_first_item(
    items: int,
) -> None:
    send, receive = anyio.create_memory_object_stream[int](5)
    for number in range(3):
        send.send_nowait(number)
    send.close()
    async with stream(receive) as s:
        got = 0
        if items:
            async for _ in s:
                got += 1
                if got == items:
                    break
    with pytest.raises(anyio.ClosedResourceError):
        await receive.receive()
    assert got == min(items, 3)


colour: ContextVar[str] = ContextVar("colour", default="none")


async def test_it_runs_in_a_copy_of_the_context_and_sets_nothing_in_it() -> None:
    seen = []

    async def paints() -> AsyncGenerator[None, None]:
        seen.append(colour.get())
        token = colour.set("inside")
        yield
        seen.append(colour.get())
        colour.reset(token)

    colour.set("outside")
    async for _ in stream(paints()):
        assert colour.get() == "outside"
    assert seen == ["outside", "inside"]


async def test_what_the_generator_spawns_ends_with_it() -> None:
    log: list[str] = []

    async def spawns() -> AsyncGenerator[int, None]:
        current_scope().spawn(sleeper, log, "helper", 0.01)
        await turns()
        yield 1

    assert [item async for item in stream(spawns())] == [1]
    assert log == ["helper stops", "helper is tidy"]


async def test_the_error_of_a_task_that_the_generator_spawned_reaches_the_consumer_once() -> None:
    error = ValueError("helper")

    async def helper() -> None:
        await anyio.sleep(0.01)
        raise error

    async def spawns() -> AsyncGenerator[int, None]:
        current_scope().spawn(helper)
        yield 1
        await anyio.sleep_forever()

    items = aiter(stream(spawns()))
    assert await anext(items) == 1
    with pytest.raises(ValueError) as caught:
        await anext(items)
    assert caught.value is error
    with pytest.raises(StopAsyncIteration):
        await anext(items)


# Errors -----------------------------------------------------------------------------------------------------


async def test_an_error_of_the_generator_reaches_the_consumer_as_it_is_and_once() -> None:
    error = ValueError("oops")

    async def fails() -> AsyncGenerator[int, None]:
        yield 1
        raise error

    s = stream(fails())
    items = aiter(s)
    assert await anext(items) == 1
    with pytest.raises(ValueError) as caught:
        await anext(items)
    assert caught.value is error
    assert error.__context__ is None
    for _ in range(2):
        with pytest.raises(StopAsyncIteration):
            await anext(items)
    report = await s.close()
    assert report.errors == [error]


async def test_two_tasks_that_ask_at_once_are_told() -> None:
    source = Source(pause=0.05)
    items = aiter(stream(source.items(), name="numbers"))
    got = []

    async def first() -> None:
        got.append(await anext(items))

    async with in_the_background(first):
        await turns()
        with pytest.raises(RuntimeError, match=r"'numbers', made at .*another task is waiting"):
            await anext(items)
        await anyio.sleep(0.1)
        assert got == [0]
        await items.aclose()


@asyncio_only
async def test_a_cancel_from_inside_is_not_the_consumers() -> None:
    async def cancels_itself() -> AsyncGenerator[int, None]:
        yield 1
        raise asyncio.CancelledError("not you")

    items = aiter(stream(cancels_itself()))
    await anext(items)
    with pytest.raises(RuntimeError, match="cancelled from inside"):
        await anext(items)
    with pytest.raises(StopAsyncIteration):
        await anext(items)


async def test_a_generator_that_yields_while_it_is_being_closed_is_told_of_in_the_report() -> None:
    log = []

    async def clings() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            yield 2
            log.append("came to its end")

    s = stream(clings(), name="clinging")
    async for _ in s:
        break
    report = await s.close()
    assert not report.left
    assert not report.clean
    assert "ignored GeneratorExit" in str(report.errors[0])
    assert "'clinging'" in report.errors[0].__notes__[0]
    assert "test_stream.py" in report.errors[0].__notes__[0]
    assert log == ["came to its end"]


# Under `async with` -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["break", "end", "error", "cancel"])
async def test_under_async_with_all_is_drained_when_control_is_back(way: str) -> None:
    source = Source(count=2, tidy=0.05)
    log = []
    with anyio.CancelScope() as outer:
        try:
            async with stream(source.items()) as s:
                async for _ in s:
                    if way == "break":
                        break
                    if way == "error":
                        raise ValueError("body")
                    if way == "cancel":
                        outer.cancel()
                        await anyio.sleep(1)
        except ValueError:
            log.append("error")
        finally:
            log += source.log
    assert (
        log
        == {
            "break": ["closed", "tidy"],
            "end": ["tidy"],
            "error": ["error", "closed", "tidy"],
            "cancel": ["closed", "tidy"],
        }[way]
    )
    assert outer.cancelled_caught == (way == "cancel")


async def test_under_async_with_a_second_loop_goes_on_where_the_first_was_left() -> None:
    source = Source(count=4)
    async with stream(source.items()) as s:
        got = []
        async for header in s:
            got.append(header)
            break
        assert not s.token.cancelled
        got += [item async for item in s]
    assert got == [0, 1, 2, 3]


async def test_under_async_with_an_error_of_the_clean_up_is_raised() -> None:
    error = OSError("broken pipe")

    async def fails() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            raise error

    with pytest.raises(OSError) as caught:
        async with stream(fails()) as s:
            async for _ in s:
                raise ValueError("body")
    assert caught.value is error
    assert isinstance(error.__context__, (GeneratorExit, ValueError))


async def test_under_async_with_a_cancel_goes_before_an_error_of_the_clean_up() -> None:
    error = OSError("broken pipe")

    async def fails() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            raise error

    seen: list[BaseException] = []
    with anyio.move_on_after(0.01) as outer:
        try:
            async with stream(fails()) as s:
                async for _ in s:
                    await anyio.sleep_forever()
        except BaseException as raised:
            seen.append(raised)
            raise
    assert outer.cancelled_caught
    assert isinstance(seen[0], cancellation())
    assert seen[0].__cause__ is error


async def test_aclosing_works_on_the_stream_and_on_its_iterator() -> None:
    for take in (lambda s: s, aiter):
        source = Source(tidy=0.02)
        async with aclosing(take(stream(source.items()))) as items:
            async for _ in items:
                break
        assert source.log == ["closed", "tidy"]


# aclose and close -------------------------------------------------------------------------------------------


async def test_trap_25_aclose_from_another_task_ends_the_iteration_of_who_waits_and_disturbs_nobody() -> None:
    source = Source(pause=10, tidy=0.05)
    s = stream(source.items())
    log: list[str] = []

    async def consume() -> None:
        async for _ in s:
            pytest.fail("an item")
        log.append("next line")
        await anyio.sleep(0.01)
        log.append("undisturbed")

    async with an_innocent_bystander(), anyio.create_task_group() as group:
        group.start_soon(consume)
        await anyio.sleep(0.01)
        report = await s.aclose()
        assert report.clean
        assert source.log == ["cancelled", "tidy"]
    assert log == ["next line", "undisturbed"]
    assert len(source.tasks) == 1


async def test_the_consumers_next_line_runs_after_the_drain() -> None:
    source = Source(pause=10, tidy=0.05)
    s = stream(source.items())
    seen: list[str] = []

    async def consume() -> None:
        async for _ in s:
            pass
        seen.extend(source.log)

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        await anyio.sleep(0.01)
        await s.aclose()
    assert seen == ["cancelled", "tidy"]


async def test_close_twice_and_from_three_tasks_at_once_waits_for_the_same_drain() -> None:
    source = Source(tidy=0.05)
    s = stream(source.items())
    items = aiter(s)
    await anext(items)
    done: list[float] = []

    async def close() -> None:
        await s.close()
        done.append(anyio.current_time())

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(close)
    report = await s.close(reason="again")
    assert source.log == ["closed", "tidy"]
    assert report.clean
    assert len(done) == 3


async def test_close_before_the_first_item_ends_it() -> None:
    source = Source()
    s = stream(source.items())
    assert (await s.close()).clean
    assert [item async for item in s] == []
    assert source.made == 0


async def test_close_from_inside_the_generator_does_not_wait_for_itself() -> None:
    streams: list[Stream[int]] = []
    log: list[Any] = []

    async def closes_itself() -> AsyncGenerator[int, None]:
        yield 1
        report = await streams[0].close()
        log.append([outcome.state for outcome in report.outcomes])
        await anyio.sleep(60)
        log.append("not reached")
        yield 2

    before = anyio.current_time()
    streams.append(stream(closes_itself(), grace=Grace(cancel=60)))
    assert [item async for item in streams[0]] == [1]
    assert log == [["closing"]]
    assert anyio.current_time() - before < 10
    streams.clear()


async def test_the_closers_own_cancel_is_raised_after_the_drain() -> None:
    source = Source(tidy=0.05)
    s = stream(source.items())
    items = aiter(s)
    await anext(items)
    log: list[str] = []
    with anyio.CancelScope() as outer:
        outer.cancel()
        try:
            await s.close()
        finally:
            log += source.log
    assert outer.cancelled_caught
    assert log == ["closed", "tidy"]


@virtual_worlds
async def test_a_generator_that_refuses_to_stop_is_bounded_and_named() -> None:
    async def refuses() -> AsyncGenerator[int, None]:
        yield 1
        await swallows(5)
        yield 2

    s = stream(refuses(), name="mule")
    ended: list[float] = []

    async def consume() -> None:
        async for _ in s:
            pass
        ended.append(anyio.current_time())

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        await turns(5)
        before = anyio.current_time()
        report = await s.close(deadline=0.1)
        assert anyio.current_time() - before == pytest.approx(0.1)
        assert [left.name for left in report.left] == ["mule"]
        assert "in swallows" in report.left[0].stuck_at or "tidy_up" in report.left[0].stuck_at
        assert "test_stream.py" in report.left[0].made_at
    assert ended == [pytest.approx(before + 0.1)]
    assert (await s.close(deadline=10)).clean


@virtual_worlds
async def test_clean_up_that_hangs_is_cancelled_when_its_time_is_over() -> None:
    log = []

    async def hangs() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            try:
                await anyio.sleep(100)
            except cancellation():
                log.append("cancelled")
                raise

    s = stream(hangs(), grace=SHORT)
    async for _ in s:
        break
    before = anyio.current_time()
    assert (await s.close()).clean
    assert log == ["cancelled"]
    assert anyio.current_time() - before == pytest.approx(0.1)


# The consumer's own cancel ----------------------------------------------------------------------------------


async def test_a_consumer_cancelled_while_it_waits_drains_first() -> None:
    source = Source(pause=10, tidy=0.05)
    s = stream(source.items())
    log: list[str] = []
    with anyio.move_on_after(0.02) as outer:
        try:
            async for _ in s:
                pass
        finally:
            log += source.log
    assert outer.cancelled_caught
    assert log == ["cancelled", "tidy"]
    assert s.token.cancelled
    assert [item async for item in s] == []


@asyncio_only
@pytest.mark.parametrize("cancels", [1, 2, 3])
async def test_a_consumer_cancelled_again_and_again_drains_first(cancels: int) -> None:
    source = Source(pause=10, tidy=0.1)
    log: list[str] = []

    async def consume() -> None:
        try:
            async for _ in stream(source.items()):
                pass
        finally:
            log.extend(source.log)

    consumer = asyncio.ensure_future(consume())
    for _ in range(cancels):
        await asyncio.sleep(0.01)
        consumer.cancel()
    await asyncio.wait([consumer])
    assert consumer.cancelled()
    assert log == ["cancelled", "tidy"]


@asyncio_only
async def test_a_timeout_around_the_loop_is_a_timeout_error() -> None:
    source = Source(pause=10, tidy=0.02)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            async for _ in stream(source.items()):
                pass
    assert source.log == ["cancelled", "tidy"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@trio_only
async def test_the_reason_of_a_deadline_is_told() -> None:
    source = Source(pause=10)
    with anyio.move_on_after(0.01):
        async for _ in stream(source.items()):
            pass
    assert source.token is not None
    assert source.token.reason is not None
    assert source.token.reason.kind == "timeout"


async def test_a_consumer_cancelled_in_the_loops_body_stops_it_before_its_own_clean_up() -> None:
    source = Source(tidy=0.05)
    s = stream(source.items())
    log: list[Any] = []
    with anyio.move_on_after(0.02):
        try:
            async for _ in s:
                await anyio.sleep(1)
        finally:
            log.append(s.token.cancelled)
    assert log == [True]
    assert (await s.close()).clean
    assert source.log == ["closed", "tidy"]


async def test_what_fails_while_a_cancelled_consumer_drains_is_the_cause_of_its_cancel() -> None:
    error = OSError("broken pipe")

    async def fails() -> AsyncGenerator[int, None]:
        try:
            await anyio.sleep(10)
            yield 1
        finally:
            raise error

    seen: list[BaseException] = []
    with anyio.move_on_after(0.01):
        try:
            async for _ in stream(fails()):
                pass
        except BaseException as cancelled:
            seen.append(cancelled)
            raise
    assert isinstance(seen[0], cancellation())
    assert seen[0].__cause__ is error


# A bare `async for` -----------------------------------------------------------------------------------------


async def leave_by_break(s: Stream[int], seen: list[Any], source: Source) -> None:
    async for _ in s:
        break
    seen.append((s.token.cancelled, source.token is not None and source.token.cancelled))


async def leave_by_return(s: Stream[int], seen: list[Any], source: Source) -> None:
    async def inner() -> None:
        async for _ in s:
            return

    await inner()
    seen.append((s.token.cancelled, source.token is not None and source.token.cancelled))


async def leave_by_exception(s: Stream[int], seen: list[Any], source: Source) -> None:
    try:
        async for _ in s:
            raise ValueError("body")
    except ValueError:
        seen.append((s.token.cancelled, source.token is not None and source.token.cancelled))


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_return, leave_by_exception])
async def test_a_bare_loop_left_early_is_stopped_before_the_next_line_and_drained_behind(
    leave: Callable[[Stream[int], list[Any], Source], Awaitable[None]],
) -> None:
    source = Source(tidy=0.05)
    s = stream(source.items())
    seen: list[Any] = []
    await leave(s, seen, source)
    assert seen == [(True, True)]
    assert source.log == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = await s.close()
    assert source.log == ["closed", "tidy"]
    assert report.clean
    assert report.reason == Reason("user", "the iteration was left")
    assert source.made == 1


async def test_after_a_bare_break_nothing_new_starts() -> None:
    source = Source()
    s = stream(source.items())
    async for _ in s:
        break
    assert [item async for item in s] == []
    assert source.made == 1
    assert (await s.close()).clean


async def test_after_a_bare_break_the_scope_around_it_drains_it_without_a_warning() -> None:
    source = Source(tidy=0.05)
    async with Scope("outer"):
        async for _ in stream(source.items()):
            break
        assert source.log == []
    assert source.log == ["closed", "tidy"]


async def test_after_a_bare_break_what_the_generator_had_opened_is_signalled_at_once() -> None:
    """Processes are signalled by `ScopeCore.abandon`: it reaches everything the generator owns."""
    tokens: list[CancelToken] = []
    inner_log: list[str] = []

    async def owns() -> AsyncGenerator[int, None]:
        held = await own(anyio.create_task_group(), grace=SHORT).open()
        tokens.append(held.token)
        handle = current_scope().spawn(sleeper, inner_log, "helper")
        tokens.append(handle.token)
        await turns()
        yield 1

    s = stream(owns())
    async for _ in s:
        break
    assert [token.cancelled for token in tokens] == [True, True]
    assert (await s.close()).clean
    assert inner_log == ["helper stops", "helper is tidy"]


async def test_a_stream_inside_an_abandoned_one_is_stopped_without_a_warning() -> None:
    inner, outer_log = Source(tidy=0.02), []

    async def outer() -> AsyncGenerator[int, None]:
        try:
            async for item in stream(inner.items()):
                yield item
        finally:
            outer_log.append("outer closed")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        s = stream(outer())
        async for _ in s:
            break
        assert inner.token is not None
        assert inner.token.cancelled
        assert (await s.close()).clean
    assert outer_log == ["outer closed"]
    assert inner.log == ["closed", "tidy"]


async def test_an_iterator_that_somebody_holds_is_not_stopped_by_a_break() -> None:
    source = Source(count=4)
    items = aiter(stream(source.items()))
    got = []
    async for first in items:
        got.append(first)
        break
    assert source.log == []
    got += [item async for item in items]
    assert got == [0, 1, 2, 3]


async def test_one_item_of_an_iterator_that_nobody_holds() -> None:
    source = Source(tidy=0.02)
    s = stream(source.items())
    assert await anext(aiter(s)) == 0
    assert s.token.cancelled
    assert (await s.close()).clean


async def test_an_error_in_the_clean_up_after_a_bare_break_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            raise OSError("broken pipe")

    s = stream(fails(), name="leaky")
    async for _ in s:
        break
    await turns(5)
    assert "'leaky'" in caplog.text
    assert "broken pipe" in caplog.text
    assert [str(error) for error in (await s.close()).errors] == ["broken pipe"]


async def test_the_seed_breaking_out_of_a_generator_with_a_task_group_disturbs_nobody() -> None:
    """anthropics/claude-agent-sdk-python#454: "Attempted to exit cancel scope in a different task"."""
    log: list[str] = []
    innocent: list[str] = []

    async def waits() -> None:
        try:
            await anyio.sleep(0.1)
            innocent.append("done")
        except BaseException as error:
            innocent.append(repr(error))
            raise

    async with an_innocent_bystander(), anyio.create_task_group() as group:
        group.start_soon(waits)

        async def consume() -> None:
            async for number in stream(with_background_reader(log)):
                if number == 2:
                    break
            innocent.append("next line")
            await anyio.sleep(0.01)
            innocent.append("next await")

        group.start_soon(consume)
    assert innocent == ["next line", "next await", "done"]
    assert log == ["generator closed", "reader stopped"]


async def test_the_seed_closed_from_another_task_and_consumed_from_three() -> None:
    log: list[str] = []
    s = stream(with_background_reader(log))
    items = aiter(s)
    got: list[int] = []

    async def take() -> None:
        got.append(await anext(items))

    for _ in range(3):
        async with anyio.create_task_group() as group:
            group.start_soon(take)
    async with anyio.create_task_group() as group:
        group.start_soon(s.aclose)
    assert got == [0, 1, 2]
    assert log == ["generator closed", "reader stopped"]


def grouped_by_anyio(error: Exception | None = None) -> AsyncGenerator[int, None]:
    return grouped(anyio.create_task_group(), error)


def grouped_by_asyncio(error: Exception | None = None) -> AsyncGenerator[int, None]:
    return grouped(asyncio.TaskGroup(), error)


async def grouped(group: Any, error: Exception | None) -> AsyncGenerator[int, None]:
    async with group:
        try:
            yield 1
            yield 2
        finally:
            if error is not None:
                raise error


@asyncio_only
@pytest.mark.parametrize("make", [grouped_by_anyio, grouped_by_asyncio])
async def test_trap_26_a_yield_inside_a_task_group_can_be_left(
    make: Callable[..., AsyncGenerator[int, None]], caplog: pytest.LogCaptureFixture
) -> None:
    """Task groups wrap the GeneratorExit of a close in a group of their own."""
    async with stream(make()) as in_block:
        async for _ in in_block:
            break
    bare = stream(make())
    async for _ in bare:
        break
    report = await bare.close()
    assert in_block.report is not None
    assert in_block.report.errors == report.errors == []
    assert caplog.records == []


@asyncio_only
@pytest.mark.parametrize("make", [grouped_by_anyio, grouped_by_asyncio])
async def test_what_else_a_task_group_raises_when_it_is_left_is_not_lost(
    make: Callable[..., AsyncGenerator[int, None]],
) -> None:
    error = ValueError("clean-up")
    with pytest.raises(ExceptionGroup) as caught:
        async with stream(make(error)) as s:
            async for _ in s:
                break
    assert caught.value.exceptions == (error,)


@asyncio_only
async def test_trap_07_a_timeout_across_a_yield_hits_the_generator_and_not_the_consumer() -> None:
    async def limited() -> AsyncGenerator[int, None]:
        async with asyncio.timeout(0.02):
            yield 1
            yield 2

    log = []
    with pytest.raises(TimeoutError):
        async for item in stream(limited()):
            await asyncio.sleep(0.05)
            log.append(item)
    assert log == [1]


async def crashing_in_the_background(error: Exception, after: float) -> AsyncGenerator[int, None]:
    async def crash() -> None:
        await anyio.sleep(after)
        raise error

    async with anyio.create_task_group() as group:
        group.start_soon(crash)
        yield 1
        yield 2


async def test_a_crash_in_the_background_of_a_generator_at_its_yield_reaches_the_consumer() -> None:
    error = ValueError("reader")
    async with an_innocent_bystander():
        log = []
        with pytest.raises(ExceptionGroup) as caught:
            async for item in stream(crashing_in_the_background(error, 0.02)):
                await anyio.sleep(0.05)
                log.append(item)
    assert caught.value.exceptions == (error,)
    assert log == [1]


async def test_a_crash_in_the_background_is_raised_at_the_end_of_the_block_if_nobody_asks_again() -> None:
    error = ValueError("reader")
    with pytest.raises(ExceptionGroup) as caught:
        async with stream(crashing_in_the_background(error, 0.02)) as s:
            async for _ in s:
                break
            await anyio.sleep(0.05)
            assert s.token.cancelled
    assert caught.value.exceptions == (error,)


async def test_a_crash_in_the_background_that_nobody_looks_at_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    items = aiter(stream(crashing_in_the_background(ValueError("reader"), 0.02)))
    await anext(items)
    await anyio.sleep(0.05)
    del items
    assert "its error was never retrieved" in caplog.text
    assert "reader" in caplog.text


async def test_a_generator_may_catch_its_own_timeout_and_go_on() -> None:
    async def goes_on() -> AsyncGenerator[str, None]:
        with anyio.move_on_after(0.02):
            yield "in time"
            yield "never"
        yield "late"

    got = []
    async for item in stream(goes_on()):
        await anyio.sleep(0.05)
        got.append(item)
    assert got == ["in time", "late"]


# Late, or still referenced ----------------------------------------------------------------------------------


async def test_released_late_by_the_collector_it_is_stopped_with_a_warning() -> None:
    source = Source(tidy=0.02)
    s = stream(source.items(), name="numbers")
    items = aiter(s)
    await anext(items)
    cycle: list[Any] = [items]
    cycle.append(cycle)
    del items, cycle
    seen = [s.token.cancelled]
    with pytest.warns(
        ResourceWarning, match=r"'numbers', made at .*test_stream\.py.*by the garbage collector"
    ):
        gc.collect()
    seen.append(s.token.cancelled)
    assert seen == [False, True]
    assert (await s.close()).clean
    assert source.log == ["closed", "tidy"]


async def test_released_late_it_is_settled_by_the_enclosing_scope() -> None:
    source = Source(tidy=0.02)
    async with Scope("outer"):
        items = aiter(stream(source.items()))
        await anext(items)
        cycle: list[Any] = [items]
        cycle.append(cycle)
        del items, cycle
        with pytest.warns(ResourceWarning):
            gc.collect()
        assert source.log == []
    assert source.log == ["closed", "tidy"]


async def test_still_referenced_when_the_enclosing_scope_ends_it_is_settled_with_a_warning() -> None:
    source = Source(tidy=0.02)
    scope = await Scope.open("outer")
    items = aiter(stream(source.items(), name="numbers", scope=scope))
    await anext(items)
    with pytest.warns(ResourceWarning, match=r"'numbers', made at .*test_stream\.py.*scope 'outer' ended"):
        await scope.close()
    assert source.log == ["closed", "tidy"]
    with pytest.raises(StopAsyncIteration):
        await anext(items)


async def test_a_warning_that_is_an_error_does_not_break_the_stop() -> None:
    source = Source(tidy=0.02)
    heard: list[Any] = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda told: heard.append(type(told.exc_value))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            async with Scope("outer") as scope:
                items = aiter(stream(source.items()))
                await anext(items)
    finally:
        sys.unraisablehook = before
    assert source.log == ["closed", "tidy"]
    assert scope.state == "settled"
    assert heard == [ResourceWarning]
    del items


@pytest.mark.parametrize("how", ["cancel", "failure", "error"])
async def test_a_scope_that_is_stopped_while_its_body_iterates_does_not_warn(how: str) -> None:
    source = Source(pause=0.01, tidy=0.02)

    async def fails() -> None:
        await anyio.sleep(0.035)
        raise ValueError("child")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            async with Scope("outer") as scope:
                if how == "failure":
                    scope.spawn(fails)
                async for item in stream(source.items()):
                    if item == 5 and how == "cancel":
                        scope.cancel()
                    if item == 5 and how == "error":
                        raise ValueError("body")
                    await anyio.sleep(0.005)
        except* ValueError:
            pass
    assert source.log[-1] == "tidy"


async def test_a_child_that_iterates_is_stopped_with_its_scope_without_a_warning() -> None:
    source = Source(pause=10, tidy=0.02)

    async def consume() -> None:
        async for _ in stream(source.items()):
            pass

    scope = await Scope.open("session")
    scope.spawn(consume)
    await anyio.sleep(0.02)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = await scope.close()
    assert report.clean
    assert source.log == ["cancelled", "tidy"]


@pytest.mark.real_time
async def test_released_in_another_thread_it_is_stopped_by_the_loops_own_with_a_warning() -> None:
    source = Source(tidy=0.02)
    s = stream(source.items())
    box = [aiter(s)]
    await anext(box[0])
    heard: list[str] = []

    def drop() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            box.clear()
        heard.extend(str(warning.message) for warning in caught)

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    assert "outside its event loop" in heard[0]
    while not source.log:
        await anyio.sleep(0.01)
    assert (await s.close()).clean


def test_a_closed_one_may_be_released_after_the_loop_is_gone(world: World) -> None:
    source = Source()
    kept: list[Any] = []

    async def main() -> None:
        s = stream(source.items())
        kept.append(aiter(s))
        await anext(kept[0])
        await s.close()

    world.run(main)
    kept.clear()
    assert source.log == ["closed", "tidy"]


@pytest.mark.time_limit(5)
@pytest.mark.parametrize("runner", ["asyncio", "trio"])
def test_the_end_of_the_loop_closes_a_forgotten_one_in_its_own_task(runner: str) -> None:
    """The loops' own finalisers would close it from another task, and break the task group inside."""
    log: list[str] = []
    kept: list[Any] = []

    async def main() -> None:
        kept.append(aiter(stream(with_background_reader(log))))
        assert await anext(kept[0]) == 0

    anyio.run(main, backend=runner)
    assert sorted(log) == ["generator closed", "reader stopped"]
    kept.clear()  # and now that the loop is gone there is nothing to be done, nor to be said


async def test_a_generator_that_yields_though_it_was_cancelled_is_closed_and_its_item_is_not_handed_out() -> (
    None
):
    log = []

    async def stubborn() -> AsyncGenerator[int, None]:
        try:
            try:
                await anyio.sleep(10)
            except cancellation():
                yield 1
        finally:
            log.append("closed")

    s = stream(stubborn())
    with anyio.move_on_after(0.01):
        async for _ in s:
            pytest.fail("an item")
    assert [item async for item in s] == []
    assert log == ["closed"]


# asend and athrow -------------------------------------------------------------------------------------------


async def echo() -> AsyncGenerator[str, str]:
    heard = "begin"
    while True:
        try:
            heard = yield f"heard {heard}"
        except KeyError as error:
            heard = f"error {error}"


async def test_asend_and_athrow_reach_the_generator() -> None:
    async with stream(echo()) as s:
        assert await s.asend(None) == "heard begin"
        assert await s.asend("hello") == "heard hello"
        assert await s.athrow(KeyError("x")) == "heard error 'x'"
        error = ValueError("not caught")
        with pytest.raises(ValueError) as caught:
            await s.athrow(error)
        assert caught.value is error
        with pytest.raises(StopAsyncIteration):
            await s.asend("again")


async def test_a_stream_that_was_only_sent_to_is_stopped_when_it_is_dropped() -> None:
    source = Source()
    s: Stream[int] | None = stream(source.items())
    assert s is not None
    token = s.token
    await s.asend(None)
    s = None
    assert token.cancelled
    while not source.log:
        await anyio.sleep(0.01)


async def test_asend_to_what_is_no_generator_is_refused() -> None:
    send, receive = anyio.create_memory_object_stream[int](1)
    async with send, stream(receive, name="channel") as s:
        with pytest.raises(TypeError, match="'channel': a MemoryObjectReceiveStream has no asend"):
            await s.asend(1)
        with pytest.raises(TypeError, match="has no athrow"):
            await s.athrow(ValueError)


async def test_asend_needs_a_consumer_in_step_with_the_generator() -> None:
    async with stream(echo(), prefetch=1) as s:
        with pytest.raises(TypeError, match="asend needs prefetch=0"):
            await s.asend("x")


# Owners, and bad use ----------------------------------------------------------------------------------------


async def test_a_scope_that_has_ended_starts_no_stream_but_lets_it_be_closed() -> None:
    async with Scope("over") as scope:
        pass
    source = Source()
    s = stream(source.items(), scope=scope)
    with pytest.raises(ScopeClosed, match="start stream"):
        async for _ in s:
            pytest.fail("an item")
    assert (await s.close()).clean


async def test_it_can_be_owned_by_another_scope() -> None:
    source = Source(pause=10, tidy=0.02)
    scope = await Scope.open("session")
    s = stream(source.items(), scope=scope)
    ended = []

    async def consume() -> None:
        async for _ in s:
            pass
        ended.append(True)

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        await anyio.sleep(0.01)
        with pytest.warns(ResourceWarning):
            assert (await scope.close()).clean
    assert ended == [True]
    assert source.log == ["cancelled", "tidy"]


async def test_what_cannot_be_iterated_is_refused_with_a_hint() -> None:
    async def coroutine() -> None:
        pass

    async def generator() -> AsyncIterator[int]:
        yield 1

    cases: list[tuple[Any, str]] = [
        ([1, 2], "sync iterable"),
        (generator, "call it"),
        (coroutine(), r"stream\(await"),
        (anyio.create_task_group(), "enter it"),
        (3, "no __aiter__"),
    ]
    for thing, hint in cases:
        with pytest.raises(TypeError, match=hint):
            stream(thing)
    for prefetch, kind in ((-1, ValueError), (True, TypeError), (1.5, TypeError)):
        with pytest.raises(kind, match="prefetch"):
            stream(generator(), prefetch=prefetch)  # type: ignore[arg-type]


def test_it_needs_a_running_loop() -> None:
    with pytest.raises(RuntimeError, match="running event loop"):
        stream(Source().items())


async def test_it_says_what_it_is() -> None:
    s = stream(Source().items())
    assert repr(s) == "<Stream 'Source.items' new>"
    await s.close()
    assert repr(s) == "<Stream 'Source.items' settled>"


async def test_a_stream_that_is_never_iterated_costs_nothing_and_says_nothing() -> None:
    async with Scope("outer") as scope:
        s = stream(Source().items())
        aiter(s)
        del s
        assert not scope._opened().nested


@asyncio_only
async def test_a_consumer_that_is_thrown_away_while_it_waits_stops_the_stream() -> None:
    source = Source(pause=10, tidy=0.02)
    s = stream(source.items())
    waiting = anext(aiter(s)).__await__()
    waiting.send(None)
    waiting.close()
    assert s.token.cancelled
    assert (await s.close()).clean


@virtual_worlds
async def test_a_break_does_not_wait_for_anybody_to_cooperate() -> None:
    source = Source()
    s = stream(source.items(), grace=Grace(cooperate=5))
    before = anyio.current_time()
    async for _ in s:
        break
    assert (await s.close()).clean
    assert anyio.current_time() == before


async def test_an_iteration_leaves_nothing_for_the_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        async for _ in stream(Source(count=1000).items()):
            pass
        await turns()
        assert gc.collect() < 500  # what the stream itself may leave, but nothing for each item
    finally:
        gc.enable()


async def test_a_stream_that_a_stopping_scope_refuses_does_not_hold_up_the_stop() -> None:
    refused: list[object] = []

    async def child() -> None:
        await current_token().wait()
        source = Source()
        late = stream(source.items())
        refused.append(late)  # somebody still holds it
        with pytest.raises(ScopeClosed):
            async for _ in late:
                pass

    scope = await Scope.open(grace=Grace(cooperate=60))
    scope.spawn(child)
    await anyio.sleep(0.01)
    report = await scope.close()
    assert report.clean
    assert report.elapsed < 10
    assert len(refused) == 1


# An owner that never began ----------------------------------------------------------------------------------


async def numbers() -> AsyncIterator[int]:
    for number in range(3):
        await anyio.sleep(0.1)
        yield number


def cancel_the_next_task() -> None:
    """Cancel, before its first step, what is started before the next await; as code does that cancels all it finds."""
    known = asyncio.all_tasks()

    def cancel_what_is_new() -> None:
        for task in asyncio.all_tasks() - known:
            task.cancel()

    asyncio.get_running_loop().call_soon(cancel_what_is_new)


@pytest.mark.worlds("asyncio", "uvloop")
async def test_a_stream_whose_owner_is_cancelled_by_others_before_its_first_step_tells_its_consumer() -> None:
    items = aiter(stream(numbers(), name="numbers"))
    cancel_the_next_task()
    with pytest.raises(ChildCancelled, match="'numbers' was cancelled"):
        await anext(items)
    with pytest.raises(StopAsyncIteration):
        await anext(items)


class Feed:
    """Async iterable, with something to close even if nobody ever asks for an item."""

    def __init__(self) -> None:
        self.is_closed = False

    def __aiter__(self) -> Feed:
        return self

    async def __anext__(self) -> int:
        await anyio.sleep(0.1)
        return 1

    async def aclose(self) -> None:
        await anyio.sleep(0.1)
        self.is_closed = True


@pytest.mark.worlds("asyncio", "uvloop")
async def test_a_source_is_closed_even_if_the_owner_of_its_stream_never_began() -> None:
    feed = Feed()
    cancel_the_next_task()
    with pytest.raises(ChildCancelled):
        async for _ in stream(feed):
            pass
    assert feed.is_closed
