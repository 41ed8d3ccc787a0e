"""What the kernel's scopes do that owned context managers trip over."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import MagicMock

import anyio
import pytest

from quiesce import Scope
from quiesce.kernel._own import Held, own
from quiesce.kernel._site import label_of
from tests.kernel.temperaments import tidy_up, turns
from tests.kernel.test_own import Recorder


async def test_two_in_one_scope_are_left_last_opened_first() -> None:
    log: list[Any] = []
    scope = await Scope.open()
    one = await own(Recorder(log, "one", leaving=0.02), scope=scope).open()
    two = await own(Recorder(log, "two", leaving=0.02), scope=scope).open()
    await scope.close()
    assert log[2:] == ["two leaving", "two left", "one leaving", "one left"]
    assert (await one.close()).clean
    assert (await two.close()).clean


async def test_what_the_body_uses_is_left_after_the_interrupted_body_has_left() -> None:
    log: list[Any] = []
    async with Scope() as scope:
        async with own(Recorder(log)):
            scope.cancel()
            try:
                await anyio.sleep_forever()
            finally:
                await tidy_up(0.02)
                log.append("body is tidy")
    assert log == ["it entered", "body is tidy", "it leaving", "it left"]


async def test_closing_from_inside_the_leaving_does_not_cancel_the_leaving() -> None:
    log: list[Any] = []
    helds: list[Held[None]] = []

    @asynccontextmanager
    async def closes_itself() -> AsyncIterator[None]:
        yield
        await helds[0].close()
        await anyio.sleep(0.02)
        log.append("left")

    helds.append(await own(closes_itself()).open())
    await helds[0].close()
    assert log == ["left"]


@pytest.mark.time_limit(3)
def test_a_mock_has_a_name() -> None:
    assert label_of(MagicMock()) == "MagicMock"


async def test_a_dropped_one_that_the_collector_finds_during_a_report_does_no_harm() -> None:
    """`__del__` may run in the middle of any line of the kernel, in the loop's own thread."""
    scope = await Scope.open()
    for _ in range(3):
        held = await own(Recorder(), scope=scope).open()
        cycle: list[Any] = [held]
        cycle.append(cycle)
        del held, cycle
    core = scope._opened()

    class Collecting(dict[Any, Any]):
        def __iter__(self) -> Any:
            for key in super().__iter__():
                gc.collect()
                yield key

    nested = core.nested
    core.nested = Collecting(nested)
    with pytest.warns(ResourceWarning):
        core.report()
    await turns()
    await scope.close()
