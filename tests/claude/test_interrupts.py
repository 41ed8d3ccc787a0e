"""Interrupts of a `query()`: which results they excuse, and when there is nothing to interrupt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from quiesce import Scope
from quiesce.claude import AssistantMessage, CLIConnectionError, Query, ResultError, ResultMessage, query
from tests.claude.memory_cli import MemoryCli
from tests.claude.test_transport import Foreign


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


class Slow(Foreign):
    """One that takes its time to connect, or to write what it is given first."""

    def __init__(self, cli: MemoryCli, slow: str) -> None:
        super().__init__(cli)
        self._slow = slow
        self.reached = anyio.Event()
        self.go_on = anyio.Event()

    async def connect(self) -> None:
        await super().connect()
        if self._slow != "write":
            await self._hold()
        if self._slow == "connect fails":
            raise ConnectionRefusedError("nobody there")

    async def write(self, data: str) -> None:
        await self._hold()
        await super().write(data)

    async def _hold(self) -> None:
        self.reached.set()
        await self.go_on.wait()


async def all_of(messages: Query) -> list[Any]:
    return [message async for message in messages]


@pytest.mark.parametrize("slow", ["connect", "write"])
async def test_an_interrupt_while_it_is_being_started_is_that_of_the_first_turn(slow: str) -> None:
    async with MemoryCli([["hang"]]) as cli, Scope() as users:
        mine = Slow(cli, slow)
        messages = query(prompt="hi", options=cli.options, transport=mine)
        read = users.spawn(all_of, messages)
        await mine.reached.wait()
        interrupted = users.spawn(messages.interrupt)
        await anyio.sleep(0.01)
        mine.go_on.set()
        await interrupted.wait()
        await read.wait()
        assert read.result()[-1].subtype == "error_during_execution"
        assert cli.asked() == ["initialize", "interrupt"]


@pytest.mark.parametrize("end", ["connect fails", "connect", "write"])
async def test_an_interrupt_of_what_is_never_started_is_an_error_when_that_is_known(end: str) -> None:
    async with MemoryCli([["hang"]]) as cli, Scope(on_error="report") as users:
        mine = Slow(cli, end)
        messages = query(prompt="hi", options=cli.options, transport=mine)
        users.spawn(all_of, messages)
        await mine.reached.wait()
        interrupted = users.spawn(messages.interrupt)
        await anyio.sleep(0.01)
        if end == "connect fails":
            mine.go_on.set()
        else:
            await messages.close()
        await interrupted.wait()
        assert "'interrupt' was not answered: the " in str(interrupted.error)
        assert isinstance(interrupted.error, CLIConnectionError)


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


async def interrupt_and_go(messages: Query, cli: MemoryCli) -> None:
    """Give up the wait for its answer once it is sent."""
    async with anyio.create_task_group() as group:
        group.start_soon(messages.interrupt)
        await anyio.lowlevel.checkpoint()
        while not (cli.has_unread("interrupt") or "interrupt" in cli.asked()):
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()


@pytest.mark.parametrize("mute", [[], ["interrupt"]])
async def test_the_result_of_an_interrupt_that_nobody_waits_for_is_no_failure_either(mute: list[str]) -> None:
    last = ["fail", "aborted"] if mute else ["hang"]
    async with MemoryCli([["text", "one"], ["wait", "now"], last], mute=mute) as cli:
        messages = query(prompt="1", options=cli.options, transport=cli.transport)
        results: list[ResultMessage] = []
        async for message in messages:
            if isinstance(message, AssistantMessage):
                await interrupt_and_go(messages, cli)
                cli.raise_flag("now")
            elif isinstance(message, ResultMessage):
                results.append(message)
        assert [result.subtype for result in results] == ["error_during_execution"]


@pytest.mark.parametrize("mute", [[], ["interrupt"]])
async def test_an_interrupt_that_nobody_waits_for_excuses_no_turn_but_its_own(mute: list[str]) -> None:
    prompts = Prompts()
    first = [["text", "one"], ["wait", "now"]]
    async with MemoryCli(first, [["fail", "API down"]], mute=mute) as cli:
        messages = query(prompt=prompts, options=cli.options, transport=cli.transport)
        with pytest.raises(ResultError, match="API down"):
            async for message in messages:
                if isinstance(message, AssistantMessage):
                    await interrupt_and_go(messages, cli)
                    cli.raise_flag("now")
                elif isinstance(message, ResultMessage):
                    prompts.go_on.set()
