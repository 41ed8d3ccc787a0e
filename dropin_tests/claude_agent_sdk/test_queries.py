"""Queries that are stopped have ended; and everything else is as with the SDK."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import threading
import time
from contextlib import aclosing
from typing import Any

import claude_agent_sdk
import pytest
from tests.claude.clis import Cli
from tests.kernel.processes import wait_until
from tests.world import asyncio_only

from quiesce import current_token
from quiesce.dropin import claude_agent_sdk as dropin
from quiesce.dropin.claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    CLINotFoundError,
    HookMatcher,
    ResultMessage,
    query,
)

from .made_up import Dawdler, options_for, prompts

pytestmark = [asyncio_only, pytest.mark.real_time, pytest.mark.time_limit(60)]
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


# What a query gives


async def test_its_messages_are_those_of_the_sdk_and_it_has_a_report(cli: Cli) -> None:
    async def said_by(sdk: Any) -> list[str]:
        messages = sdk.query(prompt="hi", options=options_for(cli, [["text", "a"], ["text", "b"]]))
        said = [type(message).__name__ async for message in messages]
        assert sdk is claude_agent_sdk or messages.report.clean
        return said

    assert await said_by(dropin) == await said_by(claude_agent_sdk) != []
    cli.assert_gone()


async def test_the_first_message_can_be_taken_with_anext(cli: Cli) -> None:
    messages = query(prompt="hi", options=options_for(cli, [cli.ticking()]))
    async with aclosing(messages):
        assert isinstance(await anext(messages), claude_agent_sdk.SystemMessage)
    cli.assert_gone()
    with pytest.raises(StopAsyncIteration):
        await anext(messages)


async def test_one_that_is_not_iterated_starts_nothing(cli: Cli) -> None:
    messages = query(prompt="hi", options=options_for(cli))
    assert messages.report is None
    assert (await messages.close()).clean
    assert cli.happened() == []


def test_a_wrong_argument_is_the_same_error_as_with_the_sdk() -> None:
    for sdk in (claude_agent_sdk, dropin):
        with pytest.raises(TypeError, match="promt"):
            sdk.query(promt="hi")  # type: ignore[call-arg, unused-ignore]


async def test_a_cli_that_is_not_there_is_the_error_of_the_sdk() -> None:
    for sdk in (claude_agent_sdk, dropin):
        with pytest.raises(CLINotFoundError):
            async for _ in sdk.query(prompt="hi", options=ClaudeAgentOptions(cli_path="/no/such/program")):
                pass


async def test_a_cli_that_fails_is_the_error_of_the_sdk(cli: Cli) -> None:
    async def error_of(sdk: Any) -> tuple[type[Exception], str]:
        with pytest.raises(Exception, match="exit code 7") as raised:  # old releases raise just that
            async for _ in sdk.query(prompt="hi", options=options_for(cli, [["text", "a"], ["exit", 7]])):
                pass
        return raised.type, str(raised.value)

    assert await error_of(dropin) == await error_of(claude_agent_sdk)


def test_the_module_of_the_same_name_does_not_take_its_place() -> None:
    module = importlib.import_module("quiesce.dropin.claude_agent_sdk.query")
    assert module.query is dropin.query is query


async def test_a_hook_runs_in_the_callers_context(cli: Cli) -> None:
    seen: list[str] = []

    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        seen.append(variable.get())
        return {"decision": "block", "reason": "no"}

    variable.set("outside")
    options = options_for(cli, [cli.ticking()], hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
    async for _ in query(prompt="hi", options=options):
        pass
    assert seen == ["outside"]
    assert options.hooks is not None
    assert options.hooks["PreToolUse"][0].hooks == [hook]  # what is the user's is not changed


# Stops


async def test_after_a_bare_break_the_agent_has_its_signal_before_the_next_line(cli: Cli) -> None:
    async for message in query(prompt="hi", options=options_for(cli, [["text", "a"], cli.ticking()])):
        if isinstance(message, AssistantMessage):
            await cli.until_ticking()
            break
    # Nothing was awaited: what ends now has been signalled.
    assert wait_until(lambda: not cli.processes(), 10)
    assert cli.happened("signal") == ["SIGTERM"]
    await asyncio.sleep(0.2)


async def test_after_a_break_at_the_result_the_cli_exits_by_itself(cli: Cli) -> None:
    messages = query(prompt="hi", options=options_for(cli, [["text", "a"]]))
    async for message in messages:
        if isinstance(message, ResultMessage):
            break
    assert (await messages.close()).clean
    assert cli.happened("signal") == []
    assert cli.happened("exit") == [0]


async def test_a_cli_that_goes_on_after_its_result_is_stopped_in_time(cli: Cli) -> None:
    messages = query(prompt="hi", options=options_for(cli, [["text", "a"]], script={"ignore_eof": True}))
    began = time.monotonic()
    async for message in messages:
        if isinstance(message, ResultMessage):
            began = time.monotonic()
            break
    assert (await messages.close()).clean
    assert 1 < time.monotonic() - began < 3
    assert cli.happened("signal") == ["SIGTERM"]


async def test_what_the_cli_has_left_at_its_end_has_ended_too(cli: Cli) -> None:
    left = ["grandchild", {"ready": cli.file("up"), "ways": ["session", "deaf"]}]
    messages = query(prompt="hi", options=options_for(cli, [left, ["text", "a"], ["sleep", 0.4]]))
    async for _ in messages:
        pass
    cli.assert_gone()


async def test_a_cli_that_dies_does_not_leave_its_reader_with_a_child_that_holds_its_output(cli: Cli) -> None:
    left = ["grandchild", {"ready": cli.file("up"), "ways": ["session", "deaf"]}]
    turn = [["text", "a"], left, ["sleep", 0.5], ["exit", 7]]

    async def read() -> None:
        async for _ in query(prompt="hi", options=options_for(cli, turn)):
            pass

    with pytest.raises(Exception, match="exit code 7"):
        await asyncio.wait_for(read(), 20)
    cli.assert_gone()


async def test_a_thread_of_a_hook_has_a_token_and_is_waited_for(cli: Cli) -> None:
    seen: list[str] = []
    is_up = threading.Event()

    def block() -> None:
        token = current_token()
        is_up.set()
        token.wait_sync(20)
        time.sleep(0.1)
        seen.append(token.reason.kind if token.reason is not None else "none")

    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        await asyncio.to_thread(block)
        return {}

    options = options_for(cli, [cli.ticking()], hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
    messages = query(prompt="hi", options=options)

    async def read() -> None:
        async for _ in messages:
            pass

    reading = asyncio.create_task(read())
    await asyncio.to_thread(is_up.wait)
    report = await messages.close()
    assert seen == ["user"]
    assert report.clean
    cli.assert_gone()
    await reading


@pytest.mark.parametrize("how", ["hook", "permission", "tool"])
async def test_a_callback_is_cancelled_once_and_has_cleaned_up(cli: Cli, how: str) -> None:
    dawdler = Dawdler(cli, 0.3)
    options = options_for(cli, dawdler.turn(how), **dawdler.called_by(how))

    async def read() -> None:
        async for _ in query(prompt=prompts("go"), options=options):
            pass

    reading = asyncio.create_task(read())
    await cli.until("asked")
    for _ in range(3):
        reading.cancel()
        await asyncio.sleep(0.02)
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert (dawdler.begun, dawdler.cleaned) == (1, 1)
    cli.assert_gone()


async def test_a_request_that_the_cli_takes_back_is_not_answered(cli: Cli) -> None:
    dawdler = Dawdler(cli, 0.1)
    given = {"tool_name": "Bash", "tool_input": {}}
    request = {"subtype": "hook_callback", "callback_id": "hook_0", "input": given, "tool_use_id": "t"}
    turn = [["ask", "q", request], ["wait", cli.file("asked")], ["cancel", "q"], ["sleep", 0.4]]
    options = options_for(cli, turn, **dawdler.called_by("hook"))
    async for _ in query(prompt=prompts("go"), options=options):
        pass
    assert (dawdler.begun, dawdler.cleaned) == (1, 1)
    assert cli.answers() == []


async def test_a_task_that_a_hook_has_started_ends_with_the_query_and_is_in_the_report(cli: Cli) -> None:
    jobs: list[asyncio.Task[None]] = []

    async def job() -> None:
        await asyncio.sleep(3600)

    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        jobs.append(asyncio.create_task(job()))
        return {"decision": "block", "reason": "no"}

    options = options_for(cli, [cli.ticking()], hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
    messages = query(prompt="hi", options=options)
    async for message in messages:
        if isinstance(message, ResultMessage):
            assert not jobs[0].done()
    assert jobs[0].cancelled()
    assert messages.report is not None
    assert [outcome.state for outcome in messages.report.outcomes if outcome.name.endswith("job")] == [
        "cancelled"
    ]
