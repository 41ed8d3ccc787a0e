"""What type checkers infer of a `Handle`. Not run: mypy and pyright read it, in `make lint`.

A comment that ignores an error is a test too: mypy complains if there is no such error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, assert_type

import anyio

from quiesce import Handle, Inflight, Scope, to_thread


async def fetch(url: str, tries: int = 3) -> bytes:
    raise NotImplementedError


def later(number: int) -> Awaitable[float]:
    raise NotImplementedError


def work(number: int) -> str:
    raise NotImplementedError


class Page:
    async def load(self, url: str) -> int:
        raise NotImplementedError

    async def __call__(self) -> list[int]:
        raise NotImplementedError


async def the_result_is_that_of_the_function(scope: Scope, page: Page) -> None:
    handle = scope.spawn(fetch, "/", name="front page")
    assert_type(handle, Handle[bytes])
    assert_type(handle.result(), bytes)
    assert_type(scope.spawn(fetch, "/", 1), Handle[bytes])
    assert_type(scope.spawn(page.load, "/"), Handle[int])
    assert_type(scope.spawn(page), Handle[list[int]])
    assert_type(scope.spawn(later, 1), Handle[float])
    assert_type(scope.spawn(anyio.sleep, 1), Handle[None])
    assert_type(scope.spawn(asyncio.sleep, 1, "slept"), Handle[str])


async def so_it_is_through_a_thread(scope: Scope, page: Page) -> None:
    assert_type(scope.spawn(to_thread, work, 1), Handle[str])
    assert_type(scope.spawn(to_thread, work, 1, name="work"), Handle[str])
    assert_type(scope.spawn(to_thread, time.sleep, 1), Handle[None])
    assert_type(scope.spawn(to_thread, lambda: 1), Handle[int])


async def so_it_is_by_id(inflight: Inflight) -> None:
    assert_type(inflight.start("a", fetch, "/"), Handle[bytes])


async def the_arguments_are_checked(scope: Scope) -> None:
    scope.spawn(fetch, 1)  # type: ignore[arg-type]
    scope.spawn(fetch)  # type: ignore[arg-type, call-arg]
    scope.spawn(fetch, "/", 1, 2)  # type: ignore[arg-type, call-arg]
    scope.spawn(work, 1)  # type: ignore[arg-type]


async def what_is_not_known_is_any(scope: Scope, fn: Callable[..., Any]) -> None:
    assert_type(scope.spawn(fn, 1, "two"), Handle[Any])


def one_of_a_narrower_result_is_one_of_a_wider(handle: Handle[int]) -> Handle[object]:
    return handle


def one_of_anything_needs_no_brackets(handle: Handle) -> Any:
    assert_type(handle, Handle[Any])
    return handle.result()


def what_the_kernel_knows_of_it_is_not_for_users(handle: Handle[int]) -> None:
    handle.climb  # type: ignore[attr-defined]  # noqa: B018


async def a_function_that_is_given(scope: Scope, fn: Callable[[int], Coroutine[Any, Any, complex]]) -> None:
    assert_type(scope.spawn(fn, 1).result(), complex)
