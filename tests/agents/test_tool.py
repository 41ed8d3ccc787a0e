"""Tools: called as what they are, with what a model wrote, and what they return as text."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import date
from decimal import Decimal
from typing import Any

import anyio
import msgspec
import pydantic
import pytest

from quiesce import CancelToken, Scope, current_token
from quiesce.agents.agent.context import RunContextWrapper, ToolContext
from quiesce.agents.agent.errors import InvalidToolArguments, UserError
from quiesce.agents.agent.tool import FunctionTool, default_tool_error_function, function_tool, output_text
from tests.agents.scenes import time_limit_once


def context(value: Any = None) -> ToolContext[Any]:
    return ToolContext(value)


# Made


def test_a_tool_says_what_it_is() -> None:
    @function_tool
    async def weather(city: str) -> str:
        """Forecast the weather."""
        return city

    assert (weather.name, weather.description) == ("weather", "Forecast the weather.")
    assert (weather.isolation, weather.strict, weather.side_effects) == ("task", True, True)
    assert weather.failure_error_function is default_tool_error_function
    assert weather.spec is weather.spec
    assert weather.spec.parameters is weather.parameters
    assert repr(weather) == "<FunctionTool 'weather', task>"


def test_a_decorator_with_arguments_sets_them() -> None:
    @function_tool(
        name_override="forecast",
        description_override="Look ahead.",
        timeout=3,
        timeout_behavior="raise_exception",
        failure_error_function=None,
        needs_approval=True,
        is_enabled=False,
        strict_mode=False,
        side_effects=False,
    )
    def weather(city: str) -> str:
        """Not this."""
        return city

    assert (weather.name, weather.description, weather.isolation) == ("forecast", "Look ahead.", "thread")
    assert (weather.timeout, weather.timeout_behavior) == (3, "raise_exception")
    assert weather.failure_error_function is None
    assert (weather.needs_approval, weather.is_enabled, weather.strict) == (True, False, False)
    assert not weather.side_effects


async def an_async_one() -> None: ...
def a_sync_one() -> None: ...
def a_generator() -> Any:
    yield 1


async def an_async_generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("fn", "options", "complaint"),
    [
        (an_async_one, {"isolation": "process"}, "is async and runs as a task, not in a process"),
        (an_async_one, {"isolation": "thread"}, "is async and runs as a task, not in a thread"),
        (a_sync_one, {"isolation": "task"}, "would block the event loop"),
        (a_sync_one, {"isolation": "jail"}, "isolation of tool 'a_sync_one' must be"),
        (a_generator, {}, "is a generator"),
        (an_async_generator, {}, "is a generator"),
        (a_sync_one, {"timeout": 0}, "timeout of tool 'a_sync_one' must be"),
        (a_sync_one, {"timeout": "1"}, "timeout of tool 'a_sync_one' must be"),
        (a_sync_one, {"timeout_behavior": "explode"}, "timeout_behavior of tool"),
        (a_sync_one, {"name_override": "two words"}, "'two words' is not a valid tool name"),
    ],
)
def test_what_makes_no_sense_is_refused(
    fn: Callable[..., Any], options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint):
        function_tool(fn, **options)


# Called


async def test_an_async_tool_runs_in_the_task_at_hand() -> None:
    seen: list[Any] = []

    @function_tool
    async def add(a: int, b: int = 2) -> int:
        seen.append((threading.get_ident(), current_token()))
        await anyio.sleep(0)
        return a + b

    async with Scope() as scope:
        results: list[int] = []

        async def call() -> None:
            results.append(await add.invoke(context(), '{"a": 1}'))
            seen.append(current_token())

        scope.spawn(call)
    assert results == [3]
    assert seen[0] == (threading.get_ident(), seen[1])


async def test_a_tool_is_given_the_runs_context_and_its_own_token() -> None:
    @function_tool
    async def look(ctx: RunContextWrapper[str], n: int, *, token: CancelToken) -> Any:
        return ctx.context, n, token is current_token()

    @function_tool
    async def only_the_context(ctx: ToolContext[str], n: int) -> Any:
        return ctx.context, n

    async def call() -> None:
        assert await look.invoke(context("mine"), '{"n": 1}') == ("mine", 1, True)
        assert await only_the_context.invoke(context("mine"), '{"n": 1}') == ("mine", 1)

    async with Scope() as scope:
        scope.spawn(call)


@pytest.mark.real_time
async def test_a_sync_tool_runs_in_a_thread_with_a_token_of_its_own() -> None:
    @function_tool
    def look(ctx: RunContextWrapper[str], n: int, token: CancelToken) -> Any:
        return ctx.context, n, threading.get_ident(), token is current_token() is ctx.token

    name, n, thread, is_its_own = await look.invoke(context("mine"), '{"n": 1}')
    assert (name, n, is_its_own) == ("mine", 1, True)
    assert thread != threading.get_ident()


@pytest.mark.real_time
async def test_a_sync_tool_that_looks_at_its_token_stops_when_its_caller_does() -> None:
    started = threading.Event()
    ended: list[str] = []

    @function_tool
    def wait(token: CancelToken) -> None:
        started.set()
        token.wait_sync(30)
        ended.append(str(token.reason))

    began = time.monotonic()
    async with time_limit_once(started.is_set):
        await wait.invoke(context(), "")
    assert len(ended) == 1
    assert time.monotonic() - began < 15


async def test_a_sync_function_that_returns_something_to_await_is_awaited() -> None:
    async def later(n: int) -> int:
        return n + 1

    def begin(n: int) -> Awaitable[int]:
        return later(n)

    assert await function_tool(begin).invoke(context(), '{"n": 1}') == 2


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_the_function_raises_is_raised_as_it_is(is_async: bool) -> None:
    mine = LookupError("no such city")

    async def fails_async() -> None:
        raise mine

    def fails() -> None:
        raise mine

    tool = function_tool(fails_async) if is_async else function_tool(fails)
    with pytest.raises(LookupError) as caught:
        await tool.invoke(context(), "")
    assert caught.value is mine


@pytest.mark.parametrize("is_async", [True, False])
async def test_wrong_arguments_call_nothing(is_async: bool) -> None:
    calls: list[int] = []

    async def note_async(n: int) -> None:
        calls.append(n)

    def note(n: int) -> None:
        calls.append(n)

    tool = function_tool(note_async) if is_async else function_tool(note)
    with pytest.raises(InvalidToolArguments, match="Expected `int`"):
        await tool.invoke(context(), '{"n": "many"}')
    assert calls == []


async def test_a_tool_made_by_hand_gets_the_models_json() -> None:
    async def answer(context: ToolContext[Any], arguments: str) -> str:
        return f"{context.context}: {arguments}"

    tool = FunctionTool("answer", "Answers.", {"type": "object", "properties": {}}, answer)
    assert await tool.invoke(context("mine"), "{}") == "mine: {}"


# As text


class Place(pydantic.BaseModel):
    city: str


class Struct(msgspec.Struct):
    a: int


@dataclasses.dataclass
class Data:
    place: Place
    price: Decimal


class Odd:
    def __str__(self) -> str:
        return "odd"


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        (None, ""),
        (3, "3"),
        (True, "true"),
        ([1, "a", None], '[1,"a",null]'),
        ({"a": {"b": 1}}, '{"a":{"b":1}}'),
        (Struct(1), '{"a":1}'),
        (Place(city="Rome"), '{"city":"Rome"}'),
        (Data(Place(city="Rome"), Decimal("1.5")), '{"place":{"city":"Rome"},"price":"1.5"}'),
        (b"bytes", "bytes"),
        (Odd(), "odd"),
        (date(2024, 2, 29), "2024-02-29"),
        ([Odd()], '["odd"]'),
        ({Decimal("1.5"): 1}, '{"1.5":1}'),
        (ENDLESS, "[[...]]"),
    ],
)
def test_what_a_tool_returns_becomes_text(value: Any, text: str) -> None:
    assert output_text(value) == text
