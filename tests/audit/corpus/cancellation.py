"""Cancellations that do not arrive, arrive as something else, or reach the wrong task."""

from __future__ import annotations

import asyncio

import anyio

from .entry import ASYNCIO, NOT_TRIO_CANCEL, TICK, Entry, Finds


class SessionError(Exception):
    pass


# A cancellation is taken for the end of the input.


async def takes_a_cancel_for_the_end() -> None:
    try:
        await anyio.sleep(TICK)  # stop: swallowed-cancel
    except anyio.get_cancelled_exc_class():
        return


async def ends_by_its_cancel() -> None:
    try:
        await anyio.sleep(TICK)
    except anyio.get_cancelled_exc_class():
        raise


# `return` in a finally drops whatever was on its way.


async def returns_in_its_finally() -> None:
    try:
        await anyio.sleep(TICK)
    finally:
        return  # noqa: B012


async def returns_after_its_try() -> None:
    try:
        await anyio.sleep(TICK)
    finally:
        pass
    return


# A retry that retries after a stop, too.


async def retries_whatever_comes() -> None:
    for _ in range(2):
        try:
            await anyio.sleep(TICK)
        except (OSError, anyio.get_cancelled_exc_class()):
            continue
        return


async def retries_outages() -> None:
    for _ in range(2):
        try:
            await anyio.sleep(TICK)
        except OSError:
            continue
        return


# Every error is wrapped, the cancellation as well.


async def wraps_every_error() -> None:
    try:
        await anyio.sleep(TICK)  # stop: replaced-cancel
    except BaseException as error:
        raise SessionError("the session is over") from error


async def wraps_errors() -> None:
    try:
        await anyio.sleep(TICK)
    except Exception as error:
        raise SessionError("the session is over") from error


# Clean-up that takes the cancellation back, and ends by it all the same.


async def takes_its_cancel_back() -> None:
    try:
        await asyncio.sleep(TICK)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        await asyncio.sleep(0)
        raise


async def leaves_its_cancel_alone() -> None:
    try:
        await asyncio.sleep(TICK)
    except asyncio.CancelledError:
        await asyncio.sleep(0)
        raise


# Clean-up that makes sure by one more cancel: the timeout round it no longer knows the cancellation for its own.


async def cancels_itself_to_make_sure() -> None:
    try:
        await asyncio.sleep(TICK)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        raise


# A client that ends all tasks it can find.


async def cancels_every_task() -> None:
    client = asyncio.create_task(asyncio.sleep(TICK))
    try:
        await client
    finally:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()


async def cancels_its_own_task() -> None:
    client = asyncio.create_task(asyncio.sleep(TICK))
    try:
        await client
    finally:
        client.cancel()


ENTRIES = [
    Entry(
        "swallowed-cancel",
        takes_a_cancel_for_the_end,
        ends_by_its_cancel,
        (
            Finds(
                "swallowed",
                "takes_a_cancel_for_the_end",
                "cancel/early",
                on_trio="cancel/unstarted",
                stop="swallowed-cancel",
            ),
        ),
    ),
    Entry(
        "return-in-finally",
        returns_in_its_finally,
        returns_after_its_try,
        (Finds("swallowed", "returns_in_its_finally", "cancel/early", on_trio="cancel/unstarted"),),
        {"stops": "cancel"},
    ),
    Entry(
        "retried-stop",
        retries_whatever_comes,
        retries_outages,
        (Finds("swallowed", "retries_whatever_comes", "timeout/early"),),
        {"stops": "timeout"},
    ),
    Entry(
        "replaced-cancel",
        wraps_every_error,
        wraps_errors,
        (
            Finds(
                "replaced",
                "wraps_every_error",
                "cancel/early",
                on_trio="cancel/unstarted",
                stop="replaced-cancel",
                says="SessionError",
            ),
        ),
    ),
    Entry(
        "cancel-taken-back",
        takes_its_cancel_back,
        leaves_its_cancel_alone,
        (Finds("count", "takes_its_cancel_back", "cancel/early", says="cancelling() is 0"),),
        {"stops": "cancel,timeout"},
        worlds=ASYNCIO,
        left_out=NOT_TRIO_CANCEL,
    ),
    Entry(
        "cancelled-itself",
        cancels_itself_to_make_sure,
        leaves_its_cancel_alone,
        (Finds("replaced", "cancels_itself_to_make_sure", "timeout/early", says="instead of TimeoutError"),),
        {"stops": "timeout"},
        worlds=ASYNCIO,
        left_out=NOT_TRIO_CANCEL,
    ),
    Entry(
        "cancels-everybody",
        cancels_every_task,
        cancels_its_own_task,
        (Finds("bystander", "a task of somebody else", "baseline", says="it was cancelled"),),
        {"stops": "cancel"},
        worlds=ASYNCIO,
        left_out=NOT_TRIO_CANCEL,
    ),
]
