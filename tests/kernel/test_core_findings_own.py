"""What the kernel's scopes do that owned context managers trip over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import MagicMock

import anyio
import pytest
import trio

from quiesce import Scope
from quiesce.kernel._own import Held, own
from quiesce.kernel._site import label_of
from tests.kernel.temperaments import tidy_up
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
    async with Scope() as scope, own(Recorder(log)):
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


@pytest.mark.time_limit(3)
def test_a_trio_run_ends_though_a_child_was_left_to_it() -> None:
    """The owner, once the run is ending, must wake when its last child has ended."""
    ended = []

    async def main() -> None:
        scope = await Scope.open("left open")
        scope.spawn(trio.sleep_forever)
        await trio.sleep(0.01)
        ended.append(scope)

    trio.run(main)
    assert len(ended) == 1
