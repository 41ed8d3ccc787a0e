"""Interrupts of a `query()`: which results they excuse, and when there is nothing to interrupt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from quiesce.claude import CLIConnectionError, Query, ResultError, ResultMessage, query
from tests.claude.memory_cli import MemoryCli


class Prompts:
    """A stream of prompts: the first, and another when it is asked for."""

    def __init__(self) -> None:
        self.go_on = anyio.Event()

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        yield {"type": "user", "message": {"role": "user", "content": "1"}}
        await self.go_on.wait()
        yield {"type": "user", "message": {"role": "user", "content": "2"}}


async def test_before_it_has_begun_there_is_nothing_to_interrupt() -> None:
    async with MemoryCli([["text", "hello"]]) as cli:
        messages = query(prompt="hi", options=cli.options, transport=cli.transport)
        with pytest.raises(CLIConnectionError, match="'interrupt' was not sent: the CLI is not started yet"):
            await messages.interrupt()
        said: list[Any] = [message async for message in messages]
        assert said[-1].result == "hi"


async def read_on(messages: Query, prompts: Prompts, *, interrupt: str) -> list[tuple[str, bool]]:
    """Interrupt it before or after its first result, and let the second prompt come after that."""
    results: list[tuple[str, bool]] = []
    async with messages:
        async for message in messages:
            if isinstance(message, ResultMessage):
                results.append((message.subtype, message.is_error))
                if len(results) == 1 and interrupt == "between":
                    await messages.interrupt()
                prompts.go_on.set()
            elif interrupt == "first":
                interrupt = "done"
                await messages.interrupt()
    return results


async def test_the_result_of_an_interrupted_turn_is_no_failure_of_the_run() -> None:
    prompts = Prompts()
    async with MemoryCli([["hang"]], [["text", "two"]]) as cli:
        messages = query(prompt=prompts, options=cli.options, transport=cli.transport)
        results = await read_on(messages, prompts, interrupt="first")
        assert results == [("error_during_execution", True), ("success", False)]


async def test_the_last_turn_may_be_the_one_that_was_interrupted() -> None:
    async with MemoryCli([["hang"]]) as cli:
        messages = query(prompt="1", options=cli.options, transport=cli.transport)
        results = await read_on(messages, Prompts(), interrupt="first")
        assert results == [("error_during_execution", True)]


@pytest.mark.parametrize("interrupt", ["first", "between", "never"])
@pytest.mark.parametrize("no_states", [False, True])
async def test_a_turn_that_fails_by_itself_is_the_failure_of_the_run_though_one_before_was_interrupted(
    interrupt: str, no_states: bool
) -> None:
    prompts = Prompts()
    first = [["hang"]] if interrupt == "first" else [["text", "one"]]
    async with MemoryCli(first, [["fail", "API down"]], no_states=no_states) as cli:
        messages = query(prompt=prompts, options=cli.options, transport=cli.transport)
        with pytest.raises(ResultError, match="API down"):
            await read_on(messages, prompts, interrupt=interrupt)


async def test_a_result_that_comes_while_an_interrupt_is_not_answered_is_excused() -> None:
    """As far as anybody can know, it is the interrupt's."""
    async with (
        MemoryCli([["wait", "now"], ["fail", "aborted"]], mute=["interrupt"]) as cli,
        anyio.create_task_group() as users,
    ):
        messages = query(prompt="1", options=cli.options, transport=cli.transport)

        async def interrupt() -> None:
            with pytest.raises(CLIConnectionError, match="not answered"):
                await messages.interrupt()

        async with messages:
            iterator = aiter(messages)
            await anext(iterator)
            users.start_soon(interrupt)
            while "interrupt" not in cli.asked():
                await anyio.sleep(0.001)
            cli.raise_flag("now")
            results = [message async for message in iterator if isinstance(message, ResultMessage)]
        assert [result.errors for result in results] == [["aborted"]]
