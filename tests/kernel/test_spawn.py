"""What `spawn` takes: the context for the child, and functions that are async in one way or another."""

from __future__ import annotations

import functools
import gc
import time
import warnings
from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any

import anyio
import pytest

from quiesce import Handle, Inflight, Scope, current_scope, current_token
from tests.world import asyncio_only, trio_only

variable: ContextVar[str] = ContextVar("variable", default="unset")


async def change(value: str) -> str:
    before = variable.get()
    await anyio.sleep(0)
    variable.set(value)
    return before


async def ended(handle: Handle) -> Any:
    await handle.wait()
    return handle.result()


async def test_a_child_runs_in_the_context_that_it_is_given() -> None:
    context = copy_context()
    context.run(variable.set, "given")
    async with Scope() as scope:
        assert await ended(scope.spawn(change, "changed", context=context)) == "given"
        assert await ended(scope.spawn(change, "changed")) == "unset"
        assert await ended(scope.spawn(change, "changed", context=Context())) == "unset"


async def test_in_a_context_of_somebodys_it_is_still_a_child_of_its_scope() -> None:
    context = Context()
    async with Scope("owner") as scope:

        async def look() -> tuple[str, bool]:
            await anyio.sleep(0)
            return current_scope().name, current_token() is not None

        assert await ended(scope.spawn(look, context=context)) == ("owner", True)
        assert await ended(scope.spawn(look, context=context)) == ("owner", True)
    assert [each for each in context if each.name == "quiesce_current" and context[each] is not None] == []


@asyncio_only
async def test_on_asyncio_its_changes_are_seen_in_that_context() -> None:
    context = copy_context()
    async with Scope() as scope:
        scope.spawn(change, "changed", context=context)
    assert context[variable] == "changed"


@trio_only
async def test_on_trio_it_has_a_copy() -> None:
    context = copy_context()
    async with Scope() as scope:
        scope.spawn(change, "changed", context=context)
    assert context.get(variable) is None


@asyncio_only
async def test_two_children_do_not_run_in_one_context_at_once() -> None:
    context = copy_context()
    async with Scope() as scope:
        scope.spawn(anyio.sleep, 0.1, context=context, name="first")
        await anyio.sleep(0)
        with pytest.raises(
            RuntimeError, match=r"that of 'first', which is running.*context=context\.copy\(\)"
        ):
            scope.spawn(anyio.sleep, 0.1, context=context)
        assert len(scope.children) == 1


async def test_something_else_than_a_context_is_refused() -> None:
    async with Scope() as scope:
        with pytest.raises(TypeError, match=r"context must be a contextvars\.Context, not dict"):
            scope.spawn(change, "x", context={})  # type: ignore[call-overload]
        assert scope.children == ()


class Caller:
    async def __call__(self, value: str) -> str:
        return await change(value)

    async def method(self, value: str) -> str:
        return await change(value)

    @classmethod
    async def of_class(cls, value: str) -> str:
        return await change(value)

    @staticmethod
    async def static(value: str) -> str:
        return await change(value)


def traced(fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(fn)
    def wrapper(*args: Any) -> Awaitable[Any]:
        return fn(*args)

    return wrapper


ASYNC: list[Callable[[str], Awaitable[str]]] = [
    change,
    Caller(),
    Caller().method,
    Caller.of_class,
    Caller.static,
    functools.partial(change),
    functools.partial(functools.partial(Caller().method)),
    traced(change),
    functools.partial(traced(change)),
    lambda value: change(value),  # noqa: PLW0108 - that is the point
]


@pytest.mark.parametrize("fn", ASYNC, ids=range(len(ASYNC)))
async def test_whatever_gives_a_coroutine_is_spawned(fn: Callable[[str], Awaitable[str]]) -> None:
    async with Scope() as scope:
        assert await ended(scope.spawn(fn, "changed")) == "unset"
    assert variable.get() == "unset"


async def test_a_wrapper_is_called_as_the_child() -> None:
    seen: list[object] = []

    def wrapper() -> Awaitable[str]:
        seen.append(current_token())
        return body()

    async def body() -> str:
        seen.append(current_token())
        return "done"

    async with Scope() as scope:
        assert await ended(scope.spawn(wrapper)) == "done"
    assert seen[0] is seen[1]


@pytest.mark.parametrize(
    ("fn", "gave"), [(print, "NoneType"), (time.sleep, "NoneType"), (lambda _: 3, "int"), (int, "int")]
)
async def test_a_sync_function_is_refused_at_the_call(fn: Any, gave: str) -> None:
    async with Scope() as scope:
        with pytest.raises(
            TypeError, match=f"an async function is wanted here.* gave {gave}; .* quiesce.to_thread"
        ):
            scope.spawn(fn, 0)
        assert scope.children == ()


async def test_a_wrapper_that_never_runs_leaves_no_complaint() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scope = await Scope.open()
        scope.spawn(traced(change), "x")
        await scope.close()
        del scope
        gc.collect()


async def test_a_handler_of_requests_is_async_too() -> None:
    async with Inflight() as inflight:
        with pytest.raises(TypeError, match="an async function is wanted here"):
            inflight.start(1, print)  # type: ignore[arg-type]
        assert 1 not in inflight
        handle = inflight.start(1, traced(change), "x")
        assert await ended(handle) == "unset"
