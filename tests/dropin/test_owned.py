"""Context managers of an SDK that any task may close, whether a function returns them or a class is one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Self

import anyio
import pytest

from quiesce import Scope
from quiesce.dropin.owned import OwnedClass, owned
from tests.world import asyncio_only

pytestmark = asyncio_only


@asynccontextmanager
async def their_connect(log: list[str], *, name: str = "line") -> AsyncIterator[str]:
    """As many SDKs do it: with a task group, which only the task that has entered it may exit."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.sleep_forever)
        try:
            yield name
        finally:
            await asyncio.sleep(0.05)
            log.append("left")
        tasks.cancel_scope.cancel()


class TheirSession:
    def __init__(self, log: list[str], fails: Exception | None = None) -> None:
        self.log = log
        self.fails = fails

    async def __aenter__(self) -> Self:
        self.cm = their_connect(self.log)
        await self.cm.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        await self.cm.__aexit__(kind, error, traceback)
        if self.fails is not None:
            raise self.fails
        return None


class Session(OwnedClass, TheirSession):
    """Theirs, with an owner."""


connect = owned(their_connect)


async def in_a_task(coro: Any) -> Any:
    return await asyncio.create_task(coro)


async def test_a_function_has_the_arguments_and_the_name_of_theirs() -> None:
    assert (connect.__name__, connect.__doc__) == (their_connect.__name__, their_connect.__doc__)
    async with connect([], name="wire") as name:
        assert name == "wire"
    with pytest.raises(TypeError, match="unexpected keyword"):
        connect([], speed=1)  # type: ignore[call-arg]


async def test_it_is_entered_by_one_task_and_closed_by_another() -> None:
    log: list[str] = []
    for opened in (connect(log), Session(log)):
        await in_a_task(opened.__aenter__())
        assert (await in_a_task(opened.close())).clean
        assert opened.report is not None
        assert not await in_a_task(opened.__aexit__(None, None, None))
    assert log == ["left", "left"]


async def test_a_stack_of_them_is_closed_by_another_task_and_through_cancels() -> None:
    log: list[str] = []
    stack = AsyncExitStack()

    async def open_both() -> None:
        await stack.enter_async_context(connect(log))
        await stack.enter_async_context(Session(log))

    await in_a_task(open_both())
    closing = asyncio.create_task(stack.aclose())
    for _ in range(3):
        await asyncio.sleep(0.01)
        closing.cancel()
    await asyncio.wait({closing})
    assert closing.cancelled()
    assert log == ["left", "left"]


async def test_an_error_of_the_body_is_raised_as_theirs_would_be() -> None:
    for theirs, ours in ((their_connect([]), connect([])), (TheirSession([]), Session([]))):
        groups = []
        for cm in (theirs, ours):
            with pytest.raises(ExceptionGroup) as raised:
                async with cm:
                    raise KeyError("row")
            groups.append(repr(raised.value))
        assert groups[0] == groups[1]


async def test_close_raises_what_has_failed() -> None:
    session = await Session([], OSError("cut")).__aenter__()
    with pytest.raises(OSError, match="cut"):
        await session.close()
    assert session.report is not None


async def test_one_that_was_never_entered_can_be_closed() -> None:
    assert (await connect([]).close()).clean
    assert (await Session([]).close()).clean


async def test_one_is_used_once() -> None:
    for opened in (connect([]), Session([])):
        async with opened:
            with pytest.raises(RuntimeError, match="was entered before"):
                await opened.__aenter__()


async def test_the_scope_around_it_closes_it() -> None:
    log: list[str] = []
    async with Scope() as scope:
        session = await Session(log).__aenter__()
        await scope.close()
        assert (log, session.report is None) == (["left"], False)
