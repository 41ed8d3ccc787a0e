"""`sys.exit` in a child: blocks and `run` hand it on as itself, so that the program ends with the child's status; `close()` reports it."""

from __future__ import annotations

import sys

import anyio
import pytest

from quiesce import Scope, current_scope, run


async def leave(status: int = 7) -> None:
    await anyio.sleep(0.01)
    sys.exit(status)


async def fail_when_stopped() -> None:
    try:
        await anyio.sleep_forever()
    finally:
        raise ValueError("in clean-up")


async def test_a_block_raises_the_exit_of_a_child_as_itself() -> None:
    with pytest.raises(SystemExit) as caught:
        async with Scope("server") as scope:
            scope.spawn(leave)
            scope.spawn(fail_when_stopped)
            await anyio.sleep_forever()
    assert caught.value.code == 7
    assert caught.value.__notes__ == ["also failed in scope 'server': ValueError('in clean-up')"]


async def test_through_several_blocks() -> None:
    async def inner() -> None:
        async with Scope("inner") as scope:
            scope.spawn(leave)

    with pytest.raises(SystemExit) as caught:
        async with Scope("outer") as scope:
            scope.spawn(inner)
    assert caught.value.code == 7


async def test_the_exit_wins_over_a_cancel_as_in_a_task_group() -> None:
    with pytest.raises(SystemExit), anyio.move_on_after(0.05):
        async with Scope() as scope:
            scope.spawn(leave_when_stopped)
            await anyio.sleep_forever()


async def leave_when_stopped() -> None:
    try:
        await anyio.sleep_forever()
    finally:
        sys.exit(7)


async def test_close_only_reports_it() -> None:
    scope = await Scope.open(on_error="report")
    scope.spawn(leave)
    await anyio.sleep(0.1)
    report = await scope.close()
    (error,) = report.errors
    assert isinstance(error, SystemExit)
    assert error.code == 7


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_run_ends_with_the_status_of_a_child_of_the_root(backend: str) -> None:
    ended: list[str] = []

    async def main() -> None:
        current_scope().spawn(leave)
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("main")

    with pytest.raises(SystemExit) as caught:
        run(main, backend=backend)  # type: ignore[arg-type]
    assert caught.value.code == 7
    assert ended == ["main"]
