"""What the audit stops at every point: queries and clients, each with a CLI in the same process.

A CLI in memory has no process that could be killed, so its tool shows whether it was told: when whoever used it has control back, no tool is at
work any more, unless the stop has ended the CLI itself.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio

from quiesce import Scope
from quiesce.claude import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ClaudeSDKError,
    HookMatcher,
    ResultMessage,
    Transport,
    create_sdk_mcp_server,
    query,
    tool,
)
from tests.claude.memory_cli import MemoryCli
from tests.kernel.audited import clock, ledger, tidy_up

TOOL = ["tool", {"ask": False}]


@asynccontextmanager
async def a_cli(*turns: list[Any], **script: Any) -> AsyncIterator[MemoryCli]:
    """A CLI for one scenario."""
    ledger.start()
    async with MemoryCli(*turns, **script) as cli:
        yield cli


@contextmanager
def stopped(cli: MemoryCli, user: Any, *, and_waited_for: bool = True) -> Iterator[None]:
    """When control is back, its tool is not at work any more; or, where nobody waits, it was told so."""
    try:
        yield
    except* ClaudeSDKError:
        pass  # the audit has ended the CLI itself, or cut the connection: then it cannot be told
    finally:
        session = user._session
        writer = getattr(getattr(session, "_link", None), "_writer", None)
        broken = writer is None or writer.state == "failed" or session._error is not None
        is_told = "interrupt" in cli.asked() or cli.has_unread("interrupt")
        at_work = any(tool.at_work for tool in cli.tools)
        ledger.expect(
            broken or cli.ended or not at_work or (is_told and not and_waited_for),
            "its tool is still at work",
        )


async def query_to_its_end() -> None:
    async with a_cli([["text", "hello"], ["sleep", clock.seconds(1)], ["text", "world"]]) as cli:
        messages = query(prompt="hi", options=cli.options, transport=cli.transport)
        try:
            said = [message async for message in messages]
            ledger.expect(isinstance(said[-1], ResultMessage), "the answer is not whole")
        except ClaudeSDKError:
            pass  # the CLI was stopped


async def query_left_in_a_block() -> None:
    async with a_cli([["text", "hello"], TOOL]) as cli:
        messages = query(prompt="hi", options=cli.options, transport=cli.transport)
        with stopped(cli, messages):
            async with messages:
                async for message in messages:
                    if isinstance(message, AssistantMessage):
                        await anyio.sleep(clock.seconds(1))
                        break


async def query_left_bare() -> None:
    """Drained behind, by the scope around it."""
    async with a_cli([["text", "hello"], TOOL]) as cli:
        users = await Scope.open("the user's")
        messages = query(prompt="hi", options=cli.options, transport=cli.transport, scope=users)
        with stopped(cli, messages, and_waited_for=False):
            try:
                async for message in messages:
                    if isinstance(message, AssistantMessage):
                        break
            finally:
                await users.close()


async def query_closed_by_another_task() -> None:
    async with a_cli([["text", "hello"], TOOL]) as cli:
        messages = query(prompt="hi", options=cli.options, transport=cli.transport)

        async def read() -> None:
            async for _ in messages:
                pass

        with stopped(cli, messages):
            try:
                async with Scope("the user's") as users:
                    users.spawn(read)
                    await anyio.sleep(clock.seconds(1))
                    ledger.report(await messages.close())
            finally:
                await messages.close()


async def query_whose_sub_agent_hangs() -> None:
    result = {"type": "result", "subtype": "success", "is_error": False, "duration_ms": 1}
    turn = [["text", "hello"], ["say", {**result, "duration_api_ms": 1, "num_turns": 1}], ["hang"]]
    env = {"CLAUDE_CODE_PRINT_BG_WAIT_CEILING_MS": str(clock.seconds(1) * 1000)}
    async with a_cli(turn) as cli:
        messages = query(prompt="hi", options=ClaudeAgentOptions(env=env), transport=cli.transport)
        with stopped(cli, messages):
            said = [message async for message in messages]
            ledger.expect(isinstance(said[-1], ResultMessage), "the answer is not whole")


async def client_with_two_turns() -> None:
    async with a_cli([["text", "hello"], TOOL], [["text", "again"]]) as cli:
        client = ClaudeSDKClient(cli.options, cli.transport)
        with stopped(cli, client):
            async with client:
                await client.query("one")
                async for message in client.receive_response():
                    if isinstance(message, AssistantMessage):
                        break
                await client.interrupt()
                await client.query("two")
                said = [message async for message in client.receive_response()]
                ledger.expect(getattr(said[-1], "result", None) == "two", "another turn's result")


async def client_closed_while_a_hook_is_at_work() -> None:
    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        try:
            await anyio.sleep(clock.seconds(60))
        except anyio.get_cancelled_exc_class():
            await tidy_up(0.3, but_by_others=True)
            raise
        return {}

    options = ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
    async with a_cli([["text", "hello"], TOOL]) as cli:
        client = ClaudeSDKClient(options, cli.transport)
        try:
            await client.connect("hi")
            await anyio.sleep(clock.seconds(1))
            await client.disconnect()
        except ClaudeSDKError:
            pass
        finally:
            await client.disconnect()
            ledger.expect(not cli.answers(), "a hook that was cancelled has answered")


async def client_whose_hook_ends_the_program() -> None:
    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        raise SystemExit(7)

    options = ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
    async with a_cli([["text", "hello"], ["tool", {"ask": False, "times": 1}]]) as cli:
        client = ClaudeSDKClient(options, cli.transport)
        with stopped(cli, client):
            try:
                async with client:
                    await client.query("hi")
                    async for _ in client.receive_response():
                        pass
            except SystemExit:
                pass


async def client_whose_request_is_taken_back() -> None:
    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        try:
            await anyio.sleep(clock.seconds(60))
        except anyio.get_cancelled_exc_class():
            await tidy_up(0.3, but_by_others=True)
        return {"continue_": True}  # a cancellation that is turned into a value

    ask = {"subtype": "hook_callback", "callback_id": "hook_0", "input": {}}
    turn = [["ask", "one", ask], ["sleep", clock.seconds(1)], ["cancel", "one"], ["sleep", clock.seconds(1)]]
    options = ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
    async with a_cli(turn) as cli:
        try:
            async with ClaudeSDKClient(options, cli.transport) as client:
                await client.query("hi")
                async for _ in client.receive_response():
                    pass
        except ClaudeSDKError:
            pass
        ledger.expect(not cli.answers(), "a request that was taken back was answered")


async def client_with_a_tool_of_ours_at_work() -> None:
    @tool("add", "Adds.", {})
    async def add(given: dict[str, Any]) -> dict[str, Any]:
        try:
            await anyio.sleep(clock.seconds(2))
        except anyio.get_cancelled_exc_class():
            await tidy_up(0.3, but_by_others=True)
            raise
        return {"content": []}

    options = ClaudeAgentOptions(mcp_servers={"calc": create_sdk_mcp_server("calc", tools=[add])})
    async with a_cli([["mcp", "calc", "add", {}]], mcp_servers=["calc"]) as cli:
        try:
            async with ClaudeSDKClient(options, cli.transport) as client:
                await client.query("hi")
                await anyio.sleep(clock.seconds(1))
                await client.interrupt()
                async for _ in client.receive_response():
                    pass
        except ClaudeSDKError:
            pass


async def client_whose_cli_never_answers() -> None:
    async with a_cli([["text", "hello"], ["hang"]], mute=["interrupt", "mcp_status"]) as cli:
        client = ClaudeSDKClient(cli.options, cli.transport)
        failed: list[str] = []

        async def ask() -> None:
            try:
                await client.get_mcp_status()
            except ClaudeSDKError:
                failed.append("told")

        try:
            await client.connect("hi")
            async with Scope("the user's") as users:
                asking = users.spawn(ask)
                await anyio.sleep(clock.seconds(1))
                await client.disconnect()
                await asking.wait()
                ledger.expect(bool(failed) or asking.state == "cancelled", "a request waits for ever")
        except ClaudeSDKError:
            pass
        finally:
            await client.disconnect()


async def client_given_up_while_it_is_being_connected() -> None:
    async with a_cli(mute=["initialize"]) as cli:
        client = ClaudeSDKClient(cli.options, cli.transport)

        async def connect() -> None:
            try:
                await client.connect("hi")
            except ClaudeSDKError:
                pass

        try:
            async with Scope("the user's") as users:
                connecting = users.spawn(connect)
                await anyio.sleep(clock.seconds(1))
                await client.disconnect()
                await connecting.wait()
        finally:
            await client.disconnect()


async def client_with_a_stream_of_prompts() -> None:
    opened: list[str] = []

    async def prompts() -> AsyncIterator[dict[str, Any]]:
        opened.append("opened")
        try:
            yield {"type": "user", "message": {"role": "user", "content": "one"}}
            await anyio.sleep(clock.seconds(60))
        finally:
            opened.pop()

    async with a_cli([["text", "hello"], TOOL]) as cli:
        client = ClaudeSDKClient(cli.options, cli.transport)
        with stopped(cli, client):
            try:
                await client.connect(prompts())
                async for message in client.receive_messages():
                    if isinstance(message, AssistantMessage):
                        break
            finally:
                await client.disconnect()
                ledger.expect(not opened, "a stream of prompts was left open")


class Foreign(Transport):
    """A transport as one writes it for claude-agent-sdk."""

    def __init__(self, cli: MemoryCli) -> None:
        self._channel: Any = cli.transport._channel
        self.is_open = False

    async def connect(self) -> None:
        self.is_open = True
        await anyio.sleep(0)

    async def write(self, data: str) -> None:
        await self._channel.send(data.encode())

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        rest = b""
        while data := await self._channel.receive():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield json.loads(line)

    async def close(self) -> None:
        self._channel.abort()
        try:
            await anyio.sleep(0)
        finally:
            self.is_open = False

    def is_ready(self) -> bool:
        return self.is_open

    async def end_input(self) -> None:
        pass


async def client_with_a_transport_of_its_own() -> None:
    async with a_cli() as cli:
        mine = Foreign(cli)
        try:
            async with ClaudeSDKClient(cli.options, mine):
                pass
        except* ClaudeSDKError:
            pass
        finally:
            ledger.expect(not mine.is_open, "its transport was not closed")


SCENARIOS: list[Callable[[], Any]] = [
    query_to_its_end,
    query_left_in_a_block,
    query_left_bare,
    query_closed_by_another_task,
    query_whose_sub_agent_hangs,
    client_with_two_turns,
    client_closed_while_a_hook_is_at_work,
    client_whose_hook_ends_the_program,
    client_whose_request_is_taken_back,
    client_with_a_tool_of_ours_at_work,
    client_whose_cli_never_answers,
    client_given_up_while_it_is_being_connected,
    client_with_a_stream_of_prompts,
    client_with_a_transport_of_its_own,
]
