"""The words in the clean-up of what is being stopped: they work there, within the time that is left, and with a token of their own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from quiesce import (
    Grace,
    Inflight,
    Process,
    Scope,
    ScopeClosed,
    StopReport,
    contain,
    current_scope,
    current_token,
    guarded,
    own,
    shielded,
    stream,
    to_thread,
)
from tests.world import asyncio_only

pytestmark = pytest.mark.real_time

Word = Callable[[], Awaitable[object]]


@asynccontextmanager
async def resource() -> AsyncIterator[str]:
    await anyio.sleep(0)
    yield "resource"
    await anyio.sleep(0)


async def numbers() -> AsyncIterator[int]:
    for number in range(3):
        await anyio.sleep(0)
        yield number


async def nothing() -> str:
    await anyio.sleep(0)
    return "nothing"


async def a_scope() -> object:
    async with Scope("tidy") as scope:
        handle = scope.spawn(nothing)
    return handle.result()


async def an_open_scope() -> object:
    scope = await Scope.open("tidy")
    handle = scope.spawn(nothing)
    await handle.wait()
    await scope.close()
    return handle.result()


async def an_owned_block() -> object:
    got: list[object] = []
    async with own(resource()) as value:
        got.append(value)
    return got[0]


async def an_owned_one() -> object:
    held = await own(resource()).open()
    value = held.value
    await held.close()
    return value


async def a_stream() -> object:
    return [number async for number in stream(numbers())]


async def a_process() -> object:
    async with Process([sys.executable, "-c", "print('hello')"]) as process:
        return await process.read()


async def a_thread() -> object:
    return await to_thread(lambda: current_token().cancelled)


async def a_guarded_call() -> object:
    return await guarded(nothing, nothing)


async def a_shielded_call() -> object:
    return await shielded(nothing)


async def requests_in_flight() -> object:
    async with Inflight() as inflight:
        handle = inflight.start(1, nothing)
        await handle.wait()
    return handle.result()


WORDS: list[tuple[Word, object]] = [
    (a_scope, "nothing"),
    (an_open_scope, "nothing"),
    (an_owned_block, "resource"),
    (an_owned_one, "resource"),
    (a_stream, [0, 1, 2]),
    (a_process, b"hello\n"),
    (a_thread, False),
    (a_guarded_call, "nothing"),
    (a_shielded_call, "nothing"),
    (requests_in_flight, "nothing"),
]
words = pytest.mark.parametrize(("word", "value"), WORDS, ids=[word.__name__ for word, _ in WORDS])


async def clean_up(word: Word, said: list[object]) -> None:
    """What a careful program does: on trio nothing can be awaited in clean-up without a shield."""
    with anyio.CancelScope(shield=True):
        said.append(await word())


async def until_stopped(word: Word, said: list[object]) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        await clean_up(word, said)


@words
async def test_a_child_that_is_stopped_cleans_up_with_it(word: Word, value: object) -> None:
    said: list[object] = []
    scope = await Scope.open()
    child = scope.spawn(until_stopped, word, said)
    await anyio.wait_all_tasks_blocked()
    report = await scope.close()
    assert said == [value]
    assert child.state == "cancelled"
    assert report.clean
    assert not report.errors


@words
async def test_a_child_that_is_cancelled_alone_cleans_up_with_it(word: Word, value: object) -> None:
    said: list[object] = []
    async with Scope() as scope:
        child = scope.spawn(until_stopped, word, said)
        await anyio.wait_all_tasks_blocked()
        child.cancel()
        await child.wait()
    assert said == [value]
    assert child.state == "cancelled"


@words
async def test_the_body_of_a_block_that_is_stopped_cleans_up_with_it(word: Word, value: object) -> None:
    said: list[object] = []

    async def fail() -> None:
        await anyio.sleep(0)
        raise ValueError("enough")

    with pytest.raises(ExceptionGroup) as caught:
        async with Scope() as scope:
            scope.spawn(fail)
            await until_stopped(word, said)
    assert said == [value]
    assert [str(error) for error in caught.value.exceptions] == ["enough"]


@words
async def test_a_block_inside_a_child_that_is_stopped_cleans_up_with_it(word: Word, value: object) -> None:
    said: list[object] = []

    async def in_a_block() -> None:
        async with Scope("inner"):
            await until_stopped(word, said)

    scope = await Scope.open()
    scope.spawn(in_a_block)
    await anyio.wait_all_tasks_blocked()
    report = await scope.close()
    assert said == [value]
    assert report.clean
    assert not report.errors


@words
async def test_a_task_of_somebody_elses_group_in_a_child_cleans_up_with_it(word: Word, value: object) -> None:
    said: list[object] = []

    async def in_a_group() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(until_stopped, word, said)
            await anyio.sleep_forever()

    scope = await Scope.open()
    scope.spawn(in_a_group)
    await anyio.wait_all_tasks_blocked()
    report = await scope.close()
    assert said == [value]
    assert report.clean
    assert not report.errors


@words
async def test_an_owned_resource_uses_it_to_leave(word: Word, value: object) -> None:
    said: list[object] = []

    @asynccontextmanager
    async def careful() -> AsyncIterator[None]:
        yield
        await clean_up(word, said)

    for grace in (None, Grace(cooperate=1.0)):
        async with own(careful(), grace=grace):
            pass
        held = await own(careful(), grace=grace).open()
        report = await held.close()
        assert report.clean
    assert said == [value] * 4


@words
async def test_a_generator_uses_it_when_its_stream_is_closed(word: Word, value: object) -> None:
    said: list[object] = []

    async def careful() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await clean_up(word, said)

    async with stream(careful()) as items:
        async for _ in items:
            break
    assert said == [value]


@asyncio_only
@words
async def test_a_task_in_a_containment_cleans_up_with_it(word: Word, value: object) -> None:
    said: list[object] = []
    async with contain() as box:
        task = asyncio.create_task(until_stopped(word, said))
        await anyio.wait_all_tasks_blocked()
    assert task.done()
    assert said == [value]
    assert box.report is not None
    assert box.report.clean


@pytest.mark.parametrize("word", [word for word, _ in WORDS if word is not a_shielded_call])
async def test_nothing_is_opened_during_the_time_to_cooperate(word: Word) -> None:
    said: list[object] = []

    async def look() -> None:
        token = current_token()
        await token.wait()
        try:
            said.append(await word())
        except ScopeClosed as error:
            said.append(error)

    scope = await Scope.open("server", grace=Grace(cooperate=1.0))
    scope.spawn(look)
    await anyio.wait_all_tasks_blocked()
    report = await scope.close()
    assert report.clean
    (refused,) = said
    assert isinstance(refused, ScopeClosed)
    assert "'server'" in str(refused)
    assert "is stopping" in str(refused)
    assert "open a new scope" not in str(refused)


async def test_nothing_is_spawned_into_the_stopping_scope_itself() -> None:
    refused: list[BaseException] = []

    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            try:
                current_scope().spawn(nothing)
            except ScopeClosed as error:
                refused.append(error)

    scope = await Scope.open("server")
    scope.spawn(child)
    await anyio.wait_all_tasks_blocked()
    report = await scope.close()
    assert report.clean
    assert "open a new scope" not in str(refused[0])


async def test_it_has_a_token_of_its_own_and_so_has_all_that_is_opened_inside() -> None:
    seen: list[bool] = []

    async def look() -> object:
        async with Scope("tidy") as scope:
            seen.append(current_token().cancelled)

            async def deeper() -> None:
                seen.append(current_token().cancelled)
                async with Scope():
                    seen.append(await to_thread(lambda: current_token().cancelled))

            scope.spawn(deeper)
        return None

    scope = await Scope.open()
    scope.spawn(until_stopped, look, [])
    await anyio.wait_all_tasks_blocked()
    await scope.close()
    assert seen == [False, False, False]


def stop_again(scope: Scope) -> None:
    scope.cancel(grace=Grace(cooperate=0.0, cancel=0.0, terminate=0.5, kill=0.5))


async def endless() -> object:
    async with Scope("endless") as scope:
        scope.spawn(anyio.sleep_forever)
    return None


async def an_endless_process() -> object:
    async with Process([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        await process.wait()
    return None


@pytest.mark.parametrize("word", [endless, an_endless_process])
async def test_it_is_cut_when_the_time_to_clean_up_is_over(word: Word) -> None:
    scope = await Scope.open(grace=Grace(cooperate=0.0, cancel=0.2, terminate=2.0, kill=1.0))
    child = scope.spawn(until_stopped, word, [])
    await anyio.wait_all_tasks_blocked()
    with anyio.fail_after(2):
        report = await scope.close()
    assert report.clean
    assert child.state == "cancelled"
    assert 0.15 < report.elapsed < 1.5


async def test_it_is_cut_by_a_second_stop() -> None:
    reports: list[StopReport] = []
    scope = await Scope.open(grace=Grace(cooperate=0.0, cancel=60.0, terminate=1.0, kill=1.0))
    scope.spawn(until_stopped, endless, [])
    await anyio.wait_all_tasks_blocked()
    async with anyio.create_task_group() as group:

        async def close() -> None:
            reports.append(await scope.close())

        group.start_soon(close)
        await anyio.sleep(0.1)
        stop_again(scope)
    assert reports[0].clean
    assert reports[0].elapsed < 2


async def test_what_a_child_cancelled_alone_opens_is_cut_when_its_time_is_over() -> None:
    async with Scope(grace=Grace(cooperate=0.0, cancel=0.2, terminate=1.0, kill=1.0)) as scope:
        child = scope.spawn(until_stopped, endless, [])
        await anyio.wait_all_tasks_blocked()
        child.cancel()
        with anyio.fail_after(2):
            await child.wait()
        assert child.state == "cancelled"


async def test_what_it_opened_and_left_open_ends_with_the_scope() -> None:
    left: list[Any] = []

    async def leave_open() -> object:
        scope = await Scope.open("forgotten")
        left.append(scope)
        left.append(scope.spawn(anyio.sleep_forever))
        return None

    scope = await Scope.open()
    scope.spawn(until_stopped, leave_open, [])
    await anyio.wait_all_tasks_blocked()
    report = await scope.close()
    assert report.clean
    assert left[0].state == "settled"
    assert left[1].state == "cancelled"


async def test_what_it_could_not_end_is_in_the_report() -> None:
    deaf = anyio.Event()

    async def ignores_it() -> None:
        while not deaf.is_set():
            try:
                with anyio.CancelScope(shield=True):
                    await deaf.wait()
            except BaseException:
                continue

    async def open_a_deaf_one() -> object:
        async with Scope("tidy") as scope:
            scope.spawn(ignores_it)
        return None

    scope = await Scope.open(grace=Grace(cooperate=0.0, cancel=0.1, terminate=0.1, kill=0.1))
    scope.spawn(until_stopped, open_a_deaf_one, [])
    await anyio.wait_all_tasks_blocked()
    report = await scope.close()
    assert not report.clean
    assert any("ignores_it" in left.name for left in report.left)
    deaf.set()
    assert (await scope.close()).clean


async def test_its_failure_is_an_error_of_the_report() -> None:
    async def fail() -> object:
        async with Scope("tidy") as scope:
            scope.spawn(raise_error)
        return None

    async def raise_error() -> None:
        raise ValueError("the disk is full")

    scope = await Scope.open()
    scope.spawn(until_stopped, fail, [])
    await anyio.wait_all_tasks_blocked()
    report = await scope.close()
    (error,) = report.errors
    assert isinstance(error, ExceptionGroup)
    assert "the disk is full" in repr(error.exceptions)
