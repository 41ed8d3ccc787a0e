"""Exceptions whose truth value is False, or that refuse to have one: they are raised like any other."""

from __future__ import annotations

import ast
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

import quiesce
from quiesce import Scope, guarded, own, shielded, stream, to_thread
from quiesce.agents import Agent, Conversation, Runner
from quiesce.models import ModelEvent, ModelRequest, TextDelta
from quiesce.testing import ScriptedModel


class Empty(Exception):
    def __len__(self) -> int:
        return 0


class Untrue(Exception):
    def __bool__(self) -> bool:
        return False


class Undecided(Exception):
    def __bool__(self) -> bool:
        raise TypeError("neither true nor false")


KINDS = [Empty, Untrue, Undecided]


async def fail(error: Exception) -> None:
    raise error


async def of_a_generator(error: Exception) -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        raise error

    async for _ in stream(numbers()):
        pass


async def of_a_generators_clean_up(error: Exception) -> None:
    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise error

    async with stream(numbers()) as items:
        async for _ in items:
            break


async def of_a_body(error: Exception) -> None:
    async with Scope():
        raise error


async def of_a_child(error: Exception) -> None:
    async with Scope() as scope:
        scope.spawn(fail, error)


async def of_a_guard(error: Exception) -> None:
    async def nothing() -> None:
        pass

    await guarded(nothing, partial(fail, error))


async def of_what_is_shielded(error: Exception) -> None:
    await shielded(fail, error)


async def of_a_resource(error: Exception) -> None:
    @asynccontextmanager
    async def resource() -> AsyncIterator[None]:
        yield
        raise error

    async with own(resource()):
        pass


async def of_the_body_of_a_resource(error: Exception) -> None:
    @asynccontextmanager
    async def resource() -> AsyncIterator[None]:
        yield

    async with own(resource()):
        raise error


async def of_a_thread(error: Exception) -> None:
    def fail_there() -> None:
        raise error

    await to_thread(fail_there)


class Failing(ScriptedModel):
    def __init__(self, error: Exception) -> None:
        super().__init__([])
        self._raises: Exception | None = error

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        if self._raises is not None:
            raise self._raises
        yield TextDelta("")

    def __len__(self) -> int:
        return 0


async def of_a_run(error: Exception) -> None:
    await Runner.run(Agent(name="clerk", model=Failing(error)), "go")


async def of_a_streamed_run(error: Exception) -> None:
    streamed = Runner.run_streamed(Agent(name="clerk", model=Failing(error)), "go")
    async for _ in streamed.stream_events():
        pass


async def of_a_conversation(error: Exception) -> None:
    conversation = Conversation(Agent(name="clerk", model=Failing(error)))
    conversation.send_message("go")
    await conversation.arun()


PLACES = [
    of_a_generator,
    of_a_generators_clean_up,
    of_a_body,
    of_a_child,
    of_a_guard,
    of_what_is_shielded,
    of_a_resource,
    of_the_body_of_a_resource,
    of_a_thread,
    of_a_run,
    of_a_streamed_run,
    of_a_conversation,
]


@pytest.mark.real_time
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
async def test_an_error_is_raised_whatever_its_truth_value(
    place: Callable[[Exception], Awaitable[None]], kind: type[Exception]
) -> None:
    error = kind("raised")
    with pytest.raises((kind, ExceptionGroup)) as caught:
        await place(error)
    found = caught.value
    assert found is error or (isinstance(found, ExceptionGroup) and found.exceptions == (error,))


# In the tree

ERRORS = {"error", "exc", "failure", "cause", "thrown", "closing_error"}
TEXTS = ("message.error", "answer.error")  # of JSON


def bare(node: ast.expr) -> str:
    if isinstance(node, ast.NamedExpr):
        return bare(node.target)
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.strip("_")


def truth_values(tree: ast.AST) -> list[ast.expr]:
    """The expressions of which the truth value is asked."""
    asked: list[ast.expr] = []
    for node in ast.walk(tree):
        match node:
            case ast.BoolOp():
                asked += node.values[:-1]  # the last is only handed on
            case ast.If() | ast.While() | ast.IfExp():
                asked.append(node.test)
            case ast.UnaryOp(op=ast.Not()):
                asked.append(node.operand)
            case ast.comprehension():
                asked += node.ifs
    return asked


def test_nothing_in_the_library_asks_an_exception_for_its_truth_value() -> None:
    root = Path(quiesce.__file__).parent
    found = [
        f"{path.relative_to(root)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted(root.rglob("*.py"))
        for node in truth_values(ast.parse(path.read_text(encoding="utf-8")))
        if bare(node) in ERRORS and ast.unparse(node) not in TEXTS
    ]
    assert found == []
