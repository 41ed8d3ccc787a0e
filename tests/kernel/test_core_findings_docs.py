"""Found while writing the documentation."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anyio
import pytest

from quiesce.kernel._stream import stream


async def grouped() -> AsyncGenerator[int, None]:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 0.01)
        yield 1
        yield 2


async def test_a_break_out_of_a_generator_with_a_task_group_is_no_error_at_the_end_of_the_block() -> None:
    # The group wraps the GeneratorExit of our own closing: BaseExceptionGroup([GeneratorExit]).
    async with stream(grouped()) as numbers:
        async for _ in numbers:
            break
    assert numbers.report is not None
    assert numbers.report.errors == []


async def test_a_bare_break_out_of_a_generator_with_a_task_group_logs_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    numbers = stream(grouped())
    async for _ in numbers:
        break
    report = await numbers.close()
    assert report.errors == []
    assert caplog.records == []
