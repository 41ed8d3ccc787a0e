"""What everything that is opened, owned and closed has in common, seen on the smallest thing of that kind."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Self

import anyio
import pytest

from quiesce import Grace, NotHeld, Reason, Scope
from quiesce.kernel.inner import Cancellable, ScopeCore, SessionFace, core_of, start_holding, users_site
from tests.world import World


class Lamp(Cancellable):
    """A scope with one child that burns until it is put out."""

    def __init__(self, burn: Callable[[], Awaitable[Any]] = anyio.sleep_forever) -> None:
        self._scope: Scope | None = None
        self._burn = burn

    async def __aenter__(self) -> Self:
        self._scope = await Scope.open("lamp", grace=Grace(cancel=0.01, terminate=0.01, kill=0.01))
        self._scope.spawn(self._burn)
        await anyio.sleep(0)
        return self

    def _find_core(self) -> ScopeCore | None:
        return core_of(self._scope) if self._scope is not None else None

    def _how_to_open(self) -> Exception:
        return LookupError("there is no light yet: use `async with Lamp()`")


async def stubborn() -> None:
    """Goes on for a while, however often it is cancelled."""
    with anyio.CancelScope(shield=True):
        end = anyio.current_time() + 0.3
        while anyio.current_time() < end:
            with suppress(BaseException):
                await anyio.sleep(0.3)


async def test_the_end_of_the_block_closes_it_and_says_why() -> None:
    async with Lamp() as lamp:
        before = lamp.closed, lamp.report
    assert before == (False, None)
    assert lamp.closed
    assert lamp.report is not None
    assert lamp.report.clean
    assert lamp.report.reason == Reason("parent", "its block ended")


async def test_an_error_in_the_body_is_the_reason() -> None:
    with pytest.raises(ValueError, match="dark"):
        async with Lamp() as lamp:
            raise ValueError("dark")
    assert lamp.report is not None
    assert lamp.report.reason is not None
    assert (lamp.report.reason.kind, lamp.report.reason.message) == (
        "error",
        "the body raised ValueError('dark')",
    )


async def test_a_body_that_ends_the_program_is_neither_a_failure_nor_cancelled() -> None:
    lamp = Lamp()
    with pytest.raises(SystemExit):
        async with lamp:
            sys.exit(3)
    assert lamp.report is not None
    assert lamp.report.reason == Reason("parent", "its block ended")


async def test_before_it_is_open_each_use_says_how_to_open_it() -> None:
    lamp = Lamp()
    assert (lamp.closed, lamp.report) == (False, None)
    with pytest.raises(LookupError, match="async with Lamp"):
        lamp.cancel()
    with pytest.raises(LookupError, match="async with Lamp"):
        await lamp.close()


async def test_it_is_closed_as_often_as_one_likes() -> None:
    async with Lamp() as lamp:
        first = await lamp.close(reason="enough")
        assert str(first.reason) == "user: enough"
        assert (await lamp.close()).reason == first.reason
    assert lamp.report is not None
    assert lamp.report.reason == first.reason


async def test_another_thread_can_begin_the_stop() -> None:
    async with Lamp() as lamp:
        thread = threading.Thread(target=lamp.cancel, args=("from elsewhere",))
        thread.start()
        thread.join()
        while not lamp.closed:
            await anyio.sleep(0.001)
    assert lamp.report is not None
    assert str(lamp.report.reason) == "user: from elsewhere"


async def test_the_report_is_there_though_its_owner_has_closed_it() -> None:
    async with Scope("owner") as owner:
        lamp = await Lamp().__aenter__()
        await owner.close()
        assert lamp.report is not None
        assert lamp.report.clean


async def test_the_end_of_the_block_waits_again_for_what_an_earlier_close_has_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "quiesce"):
        async with Lamp(stubborn) as lamp:
            assert not (await lamp.close(deadline=0)).clean
    assert lamp.report is not None
    assert [left.name for left in lamp.report.left] == ["stubborn"]
    assert "1 left" in caplog.text  # nobody was handed that report
    assert (await lamp.close(deadline=5)).clean


async def test_a_grace_that_is_none_is_refused_and_changes_nothing() -> None:
    async with Lamp() as lamp:
        with pytest.raises(TypeError, match="grace must be a Grace"):
            await lamp.close(grace=5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="grace must be a Grace"):
            lamp.cancel(grace=5)  # type: ignore[arg-type]
        assert not lamp.closed
    assert lamp.report is not None
    assert lamp.report.clean


async def test_a_second_cancel_does_not_take_the_place_of_the_first(world: World) -> None:
    async def slow() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.005)

    seen: list[BaseException] = []
    with anyio.CancelScope() as outer:
        try:
            async with Lamp(slow):
                outer.cancel()
                try:
                    await anyio.sleep_forever()
                except BaseException as cancelled:
                    seen.append(cancelled)
                    raise
        except BaseException as cancelled:
            seen.append(cancelled)
            raise
    assert seen[0] is seen[1]


# What an owner task holds -----------------------------------------------------------------------------------------


@asynccontextmanager
async def connection(log: list[str], fails: Exception | None) -> AsyncIterator[str]:
    await anyio.sleep(0.01)
    log.append("connected")
    try:
        yield "line"
    finally:
        log.append("ended")
        if fails is not None:
            raise fails


class Line(SessionFace[str]):
    def __init__(self, log: list[str], fails: Exception | None = None) -> None:
        self._connection = connection(log, fails)

    def start(self) -> None:
        self._holding = start_holding(self._connection, "line", users_site())

    async def __aenter__(self) -> Self:
        self.start()
        await self._held().wait_until_entered()
        return self

    def _how_to_open(self) -> Exception:
        return LookupError("the line is not open")


async def test_a_session_is_held_by_its_owner_task_until_the_block_ends() -> None:
    log: list[str] = []
    async with Line(log) as line:
        assert line._held().value == "line"
        assert not line.token.cancelled
    assert log == ["connected", "ended"]
    assert line.token.cancelled


async def test_one_that_is_closed_while_it_opens_was_never_entered() -> None:
    log: list[str] = []
    line = Line(log)
    with pytest.raises(LookupError, match="not open"):
        await line.close()
    line.start()
    ended: list[str] = []
    line._held().when_ended(lambda: ended.append("owner"))
    assert (await line.close()).clean
    with pytest.raises(NotHeld):
        await line._held().wait_until_entered()
    assert (log, ended, line._held().entered) == ([], ["owner"], False)


async def test_what_breaks_it_is_raised_by_the_end_of_the_block() -> None:
    failure = OSError("cut")
    with pytest.raises(OSError, match="cut"):
        async with Line([], failure):
            pass


async def test_one_that_nobody_holds_ends_by_itself() -> None:
    log: list[str] = []
    line = Line(log)
    await line.__aenter__()
    with pytest.warns(ResourceWarning, match="dropped without close"):  # noqa: PT031
        del line
        gc.collect()
    while log != ["connected", "ended"]:
        await anyio.sleep(0.001)


# A block that another task may exit


class Transaction:
    """Says what it was told at its end."""

    def __init__(self, *, suppresses: bool = False, fails: Exception | None = None) -> None:
        self.suppresses = suppresses
        self.fails = fails
        self.told: list[BaseException | None] = []
        self.tasks: list[int] = []

    async def __aenter__(self) -> Self:
        self.tasks.append(anyio.get_current_task().id)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        self.told.append(error)
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.01)
        self.tasks.append(anyio.get_current_task().id)
        if self.fails is not None:
            raise self.fails
        return self.suppresses


class Work:
    """A block around a transaction."""

    def __init__(self, transaction: Transaction) -> None:
        self.holding = start_holding(transaction, "transaction", users_site())

    async def __aenter__(self) -> None:
        await self.holding.wait_until_entered()

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        return await self.holding.leave(error)


async def test_a_block_that_is_exited_tells_its_owner_how_it_went() -> None:
    transaction, error = Transaction(), KeyError("row")
    with pytest.raises(KeyError) as raised:
        async with Work(transaction):
            raise error
    assert raised.value is error
    assert transaction.told == [error]
    assert len(set(transaction.tasks)) == 1


async def test_a_block_that_is_exited_may_be_suppressed_or_fail() -> None:
    async with Work(Transaction(suppresses=True)):
        raise KeyError("row")
    error = KeyError("row")
    with pytest.raises(OSError, match="cut") as raised:
        async with Work(Transaction(fails=OSError("cut"))):
            raise error
    assert raised.value.__context__ is error


async def test_a_block_that_another_task_exits_leaves_the_one_that_entered_it_alone() -> None:
    transaction = Transaction()
    work = Work(transaction)
    entered, done, log = anyio.Event(), anyio.Event(), list[str]()

    async def innocent() -> None:
        await work.__aenter__()
        entered.set()
        await done.wait()
        log.append("done")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(innocent)
        await entered.wait()
        assert not await work.__aexit__(None, None, None)
        done.set()
    assert (log, transaction.told) == (["done"], [None])
    assert work.holding.report is not None
    assert work.holding.report.clean


async def test_a_block_that_is_cancelled_is_exited_first_and_not_suppressed() -> None:
    transaction = Transaction(suppresses=True, fails=OSError("cut"))
    ended: list[BaseException] = []
    with anyio.CancelScope() as scope:
        try:
            async with Work(transaction):
                scope.cancel()
                await anyio.sleep_forever()
        except BaseException as cancelled:
            ended.append(cancelled)
            raise
    assert scope.cancelled_caught
    assert len(transaction.tasks) == 2
    assert isinstance(ended[0].__cause__, OSError)


async def test_a_block_that_is_cancelled_while_it_is_exited_is_exited_first() -> None:
    transaction = Transaction()
    work = Work(transaction)
    await work.__aenter__()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await work.__aexit__(None, None, None)
    assert scope.cancelled_caught
    assert len(transaction.tasks) == 2


async def test_a_block_in_a_generator_that_is_closed_is_exited_without_an_error() -> None:
    transaction = Transaction()

    async def generate() -> AsyncGenerator[int, None]:
        async with Work(transaction):
            yield 1

    async with aclosing(generate()) as numbers:
        async for _ in numbers:
            break
    assert transaction.told == [None]


async def test_a_block_whose_owner_was_closed_by_another_task_raises_its_own_error() -> None:
    transaction = Transaction()
    with pytest.raises(KeyError):
        async with (work := Work(transaction)):
            await work.holding.close()
            raise KeyError("row")
    assert transaction.told == [None]
