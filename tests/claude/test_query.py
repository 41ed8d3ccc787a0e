"""`query()`: the messages of one run, with a CLI that plays by the rules."""

from __future__ import annotations

import gc
import logging
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from quiesce import Scope
from quiesce.claude import (
    AssistantMessage,
    ClaudeAgentOptions,
    CLINotFoundError,
    HookMatcher,
    PermissionResultAllow,
    PermissionResultDeny,
    ResultMessage,
    SystemMessage,
    TextBlock,
    ToolPermissionContext,
    ToolResultBlock,
    UserMessage,
    create_sdk_mcp_server,
    query,
    tool,
)
from tests.claude.clis import Cli
from tests.claude.memory_cli import MemoryCli
from tests.claude.ways_to_stop import PATIENT
from tests.world import World

pytestmark = pytest.mark.real_time


async def asked(cli: Cli, options: ClaudeAgentOptions, prompt: Any = "hi") -> list[Any]:
    messages = [message async for message in query(prompt=prompt, options=options, grace=PATIENT)]
    cli.assert_gone()
    return messages


def tool_results(messages: list[Any]) -> list[Any]:
    return [
        block.content
        for message in messages
        if isinstance(message, UserMessage)
        for block in message.content
        if isinstance(block, ToolResultBlock)
    ]


async def test_a_query_gives_the_messages_of_its_run_and_leaves_nothing(cli: Cli) -> None:
    turn = [["thinking", "hm"], ["text", "hello"], ["tool", {"times": 1}]]
    messages = await asked(cli, cli.options(turn))
    kinds = [SystemMessage, *[AssistantMessage] * 3, UserMessage, ResultMessage]
    assert [type(message) for message in messages] == kinds
    assert messages[2].content == [TextBlock("hello")]
    assert messages[-1].result == "hi"
    assert cli.happened("exit") == [0]
    assert not cli.got("control_request", subtype="interrupt")  # it had nothing to be stopped in


async def test_a_query_is_an_iterator_itself_and_goes_on_where_it_was_left(cli: Cli) -> None:
    async with query(
        prompt="hi", options=cli.options([["text", "one"], ["text", "two"]]), grace=PATIENT
    ) as messages:
        assert isinstance(messages, AsyncIterator)
        assert isinstance(await anext(messages), SystemMessage)
        assert isinstance(await anext(messages), AssistantMessage)
        rest = [message async for message in messages]
        assert [type(message) for message in rest] == [AssistantMessage, ResultMessage]
        assert await anext(messages, None) is None
    cli.assert_gone()


async def test_the_first_message_of_a_query_can_be_had_alone(cli: Cli) -> None:
    async with Scope("the user's"):
        first = await anext(
            query(prompt="hi", options=cli.options([["text", "one"], ["hang"]]), grace=PATIENT)
        )
        assert isinstance(first, SystemMessage)
    cli.assert_gone()


async def test_a_stream_of_prompts_is_one_run_with_a_result_for_each(cli: Cli) -> None:
    async def prompts() -> AsyncIterator[dict[str, Any]]:
        for text in ("one", "two"):
            yield {"type": "user", "message": {"role": "user", "content": text}}

    messages = await asked(cli, cli.options([["text", "yes"]]), prompts())
    assert [message.result for message in messages if isinstance(message, ResultMessage)] == ["one", "two"]


async def test_a_cli_that_tells_no_states_ends_its_run_with_its_result(cli: Cli) -> None:
    messages = await asked(cli, cli.options([["text", "yes"]], script={"no_states": True}))
    assert isinstance(messages[-1], ResultMessage)


async def test_what_follows_the_result_before_the_cli_is_idle_belongs_to_the_run(cli: Cli) -> None:
    task = {"type": "system", "subtype": "note", "text": "a task in the background has ended"}
    result = {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "duration_ms": 1,
        "duration_api_ms": 1,
    }
    turn = [["say", {**result, "num_turns": 1}], ["sleep", 0.05], ["say", task]]
    messages = await asked(cli, cli.options(turn))
    assert isinstance(messages[1], ResultMessage)
    assert "note" in [message.subtype for message in messages if isinstance(message, SystemMessage)]


async def test_hooks_and_permissions_are_asked_and_their_answers_count(cli: Cli) -> None:
    seen: list[Any] = []

    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        seen.append((given["hook_event_name"], given["tool_name"], tool_use_id))
        return {"continue_": True}

    async def may(name: str, given: dict[str, Any], context: ToolPermissionContext) -> Any:
        seen.append((name, given, context.suggestions[0].mode))
        if len(seen) < 4:
            return PermissionResultAllow()
        return PermissionResultDeny(message="not twice")

    options = cli.options(
        [["tool", {"times": 1}], ["tool", {"times": 1}]],
        hooks={"PreToolUse": [HookMatcher(matcher="Bash", hooks=[hook]), HookMatcher("Write", [hook])]},
        can_use_tool=may,
    )
    messages = await asked(cli, options)
    assert tool_results(messages) == ["done", "not twice"]
    assert seen[0][:2] == ("PreToolUse", "Bash")
    assert seen[1] == ("Bash", {"command": "tick"}, "acceptEdits")
    assert len(seen) == 4
    assert [answer["response"] for answer in cli.answers()] == [
        {"continue": True},
        {"behavior": "allow", "updatedInput": {"command": "tick"}},
        {"continue": True},
        {"behavior": "deny", "message": "not twice"},
    ]


async def test_a_hook_that_fails_is_answered_with_its_error(cli: Cli) -> None:
    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        raise LookupError("no such rule")

    await asked(cli, cli.options([["tool", {"times": 1}]], hooks={"PreToolUse": [HookMatcher(hooks=[hook])]}))
    assert [(answer["subtype"], answer["error"]) for answer in cli.answers()] == [("error", "no such rule")]


async def test_a_question_that_nobody_knows_is_answered_with_an_error(cli: Cli) -> None:
    await asked(cli, cli.options([["ask", "q", {"subtype": "sing"}], ["await", "q"]]))
    assert [answer["error"] for answer in cli.answers()] == ["Unsupported control request subtype: sing"]


async def test_a_server_in_this_process_is_greeted_before_the_cli_is_ready_and_its_tools_are_called(
    cli: Cli,
) -> None:
    @tool("add", "Adds two numbers.", {"a": int, "b": int})
    async def add(given: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": str(given["a"] + given["b"])}]}

    server = create_sdk_mcp_server("calc", tools=[add])
    options = cli.options([["mcp", "calc", "add", {"a": 1, "b": 2}]], mcp_servers={"calc": server})
    messages = await asked(cli, options)
    assert tool_results(messages) == [[{"type": "text", "text": "3"}]]
    events = [what for what, frame in cli.happened() if what in ("got", "said")]
    assert events[:5] == ["got", "got", "got", "got", "said"]  # initialize; three greetings; then its answer


async def test_lines_that_are_no_messages_are_passed_over(cli: Cli) -> None:
    noise = [["raw", "Warning: noise\n"], ["raw", "\n"], ["say", {"type": "of the future"}], ["raw", "[1]\n"]]
    messages = await asked(cli, cli.options([*noise, ["text", "hello"]]))
    assert [type(message) for message in messages] == [SystemMessage, AssistantMessage, ResultMessage]


async def test_stderr_is_given_in_lines(cli: Cli) -> None:
    lines: list[str] = []
    await asked(cli, cli.options([["complain", "one\ntw"], ["complain", "o\n\n"]], stderr=lines.append))
    assert lines == ["one", "two"]


async def test_the_last_line_of_stderr_needs_no_end(cli: Cli) -> None:
    """It is told when the query has ended, at the latest."""
    lines: list[str] = []
    await asked(cli, cli.options([["complain", "one\nthe la"], ["complain", "st"]], stderr=lines.append))
    assert lines == ["one", "the last"]


async def test_nothing_starts_before_the_first_message_is_asked_for(cli: Cli) -> None:
    async with query(prompt="hi", options=cli.options([["text", "hello"]])) as messages:
        with pytest.raises(RuntimeError, match="not started"):
            _ = messages.process
        assert not cli.processes()
    assert not cli.happened()


async def test_the_process_is_there_to_look_at(cli: Cli) -> None:
    async with query(prompt="hi", options=cli.options([["text", "hello"], ["hang"]])) as messages:
        await anext(aiter(messages))
        assert messages.process.pid in cli.processes()
        assert messages.process.returncode is None
    cli.assert_gone()


async def test_a_query_can_be_interrupted_and_goes_on_to_its_result(cli: Cli) -> None:
    async with query(prompt="hi", options=cli.options([["talk", 0.01]])) as messages:
        async for message in messages:
            if isinstance(message, AssistantMessage):
                await messages.interrupt()
                break
        results = [message async for message in messages if isinstance(message, ResultMessage)]
    assert [result.subtype for result in results] == ["error_during_execution"]
    cli.assert_gone()


async def test_a_cli_that_is_nowhere_is_an_error_that_says_where_it_was_looked_for(cli: Cli) -> None:
    with pytest.raises(CLINotFoundError, match="no-such-claude"):
        async for _ in query(prompt="hi", options=ClaudeAgentOptions(cli_path=cli.file("no-such-claude"))):
            pass


async def test_a_prompt_that_is_none_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="str or an async iterable"):
        query(prompt=["hi"])  # type: ignore[arg-type]


async def test_a_stream_of_prompts_that_fails_is_the_querys_failure(cli: Cli) -> None:
    async def prompts() -> AsyncIterator[dict[str, Any]]:
        yield {"type": "user", "message": {"role": "user", "content": "one"}}
        raise LookupError("no more prompts")

    with pytest.raises(LookupError, match="no more prompts"):
        async for _ in query(prompt=prompts(), options=cli.options([["talk", 0.01]])):
            pass
    cli.assert_gone()


@pytest.mark.real_time
def test_breaking_out_of_it_raises_in_no_other_task(
    cli: Cli, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """What the event loop complains of fails this test by itself: see tests/conftest.py."""

    async def run_test() -> list[Any]:
        messages: list[Any] = []
        innocent: list[str] = []

        async def live_on() -> None:
            await anyio.sleep(0.1)
            innocent.append("lived on")

        async with Scope() as users:
            users.spawn(live_on)
            async for message in query(
                prompt="Say hello in exactly 3 words", options=cli.options([["text", "Hello there friend!"]])
            ):
                messages.append(message)
                if isinstance(message, ResultMessage):
                    break
            await anyio.sleep(0.1)
            gc.collect()
            await anyio.sleep(0.1)
        assert innocent == ["lived on"]
        return messages

    with caplog.at_level(logging.WARNING):
        messages = world.run(run_test)
    assert isinstance(messages[-1], ResultMessage)
    blocked = "the event loop's thread was blocked"  # by a machine that stood still
    assert not [record for record in caplog.records if blocked not in record.getMessage()]
    cli.assert_gone()


async def test_closing_it_from_another_task_does_not_raise() -> None:
    async with MemoryCli([["text", "hello"], ["hang"]]) as cli:
        messages = query(prompt="hi", options=cli.options, transport=cli.transport)

        async def start() -> None:
            await anext(iterator)

        iterator = aiter(messages)
        async with anyio.create_task_group() as group:
            group.start_soon(start)
        async with anyio.create_task_group() as group:
            group.start_soon(messages.aclose)
        assert messages.report is not None
        assert messages.report.clean


async def test_closing_it_from_the_same_task_does_not_raise() -> None:
    async with MemoryCli([["text", "hello"], ["hang"]]) as cli:
        messages = query(prompt="hi", options=cli.options, transport=cli.transport)
        iterator = aiter(messages)
        await anext(iterator)
        report = await messages.aclose()
        assert report.clean
