"""No error is lost: each is raised, reported or logged, whoever was stopped when it came."""

from __future__ import annotations

import asyncio
import gc
import logging

import anyio
import pytest

from quiesce import ChildCancelled, Scope, current_token, to_thread
from tests.kernel.temperaments import fails_in_clean_up, turns, virtual_worlds
from tests.world import asyncio_only


async def fails_in_its_clean_up() -> None:
    try:
        await anyio.sleep(1000)
    finally:
        raise ValueError("in the clean-up")


async def fails(message: str) -> None:
    raise ValueError(message)


async def fails_later(message: str) -> None:
    await anyio.sleep(0)
    raise ValueError(message)


async def test_an_error_in_the_clean_up_of_a_block_is_the_error_of_the_child_that_held_it() -> None:
    async def session() -> None:
        async with Scope("session") as inner:
            inner.spawn(fails_in_its_clean_up)
            await anyio.sleep(1000)

    app = await Scope.open("app")
    handle = app.spawn(session)
    await turns()
    report = await app.close()
    assert handle.state == "failed"
    assert isinstance(handle.error, ExceptionGroup)
    assert str(handle.error.exceptions[0]) == "in the clean-up"
    assert report.errors == [handle.error]


async def test_an_error_in_an_open_nested_scope_is_raised_by_the_block_that_ends_it() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with Scope("app"):
            session = await Scope.open("session")
            session.spawn(fails_in_its_clean_up)
            await turns()
    assert [str(error) for error in caught.value.exceptions] == ["in the clean-up"]
    assert session.report is not None
    assert [str(error) for error in session.report.errors] == ["in the clean-up"]


async def test_an_error_in_an_open_nested_scope_is_in_the_report_of_its_owner() -> None:
    app = await Scope.open("app")
    session = await Scope.open("session", scope=app)
    session.spawn(fails_in_its_clean_up)
    await turns()
    report = await app.close()
    assert [str(error) for error in report.errors] == ["in the clean-up"]
    assert "session: fails_in_its_clean_up" in str(report)


async def test_the_errors_of_a_scope_that_nobody_ever_closed_go_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def start_and_forget() -> None:
        service = await Scope.open("service")
        handle = service.spawn(anyio.sleep, 1000)
        service.spawn(fails_later, "nobody asked me")
        await handle.wait()
        assert caplog.records == []

    await start_and_forget()
    await turns()
    gc.collect()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "nobody asked me" in caplog.text
    assert "'service'" in caplog.text


async def test_a_scope_that_was_closed_does_not_log_its_errors_as_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = await Scope.open("service")
    service.spawn(fails, "told")
    await turns()
    assert len((await service.close()).errors) == 1
    del service
    gc.collect()
    assert caplog.records == []


async def test_two_nested_blocks_that_fail_at_once_raise_both_errors() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with Scope("outer") as outer:
            outer.spawn(fails, "outer")
            async with Scope("inner") as inner:
                inner.spawn(fails, "inner")
                await anyio.sleep(1000)
    found = caught.value.split(lambda error: isinstance(error, ValueError))[0]
    assert found is not None
    flat = [str(error) for group in (found,) for error in flatten(group)]
    assert sorted(flat) == ["inner", "outer"]


def flatten(group: BaseException) -> list[BaseException]:
    if isinstance(group, BaseExceptionGroup):
        return [error for one in group.exceptions for error in flatten(one)]
    return [group]


@asyncio_only
async def test_a_task_that_cancels_itself_has_a_reason() -> None:
    async def child() -> None:
        task = asyncio.current_task()
        assert task is not None
        token = current_token()
        task.cancel("by myself")
        try:
            await anyio.sleep(1000)
        finally:
            tokens.append(token)

    tokens: list[object] = []
    async with Scope() as scope:
        handle = scope.spawn(child)
    assert handle.reason is not None
    assert handle.reason.kind == "cancelled"
    assert handle.token.cancelled
    with pytest.raises(ChildCancelled, match="by myself"):
        handle.result()


@asyncio_only
@pytest.mark.real_time
async def test_a_task_that_outlives_the_block_it_was_made_in_may_open_scopes_again() -> None:
    over = asyncio.Event()

    async def background() -> list[str]:
        await over.wait()
        async with Scope("later") as later:
            handle = later.spawn(anyio.sleep, 0)
        opened = await Scope.open("opened later")
        await opened.close()
        return [handle.state, opened.state, str(await to_thread(lambda: "thread"))]

    async with Scope("request"):
        task = asyncio.create_task(background())
    over.set()
    assert await task == ["finished", "settled", "thread"]


@virtual_worlds
async def test_what_fails_in_a_nested_scope_while_its_owner_stops_it_is_in_the_report_of_the_owner_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = OSError("disk full")
    outer = await Scope.open("outer")
    inner = await Scope.open("inner", scope=outer)
    inner.spawn(fails_in_clean_up, error)
    await turns()
    report = await outer.close()
    assert "disk full" in str(report)
    assert not report.clean, "a clean-up has failed"
    del inner
    gc.collect()
    assert "nobody asked" not in caplog.text


async def test_an_error_that_was_handed_on_to_the_owners_report_is_not_logged_as_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail_late() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise LookupError("the clean-up failed")

    owner = await Scope.open("owner")
    inner: Scope | None = await Scope.open("inner", scope=owner)
    assert inner is not None
    inner.spawn(fail_late)
    await turns()
    report = await owner.close()
    assert [str(error) for error in report.errors] == ["the clean-up failed"]
    caplog.clear()
    del inner
    gc.collect()
    assert caplog.records == []
