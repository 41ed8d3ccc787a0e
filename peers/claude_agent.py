"""claude-agent-sdk: `query()` and the client, in the middle of a turn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, query

import quiesce

# --8<-- [start:imports]
from quiesce import contain, own, stream

# --8<-- [end:imports]
from quiesce.dropin.claude_agent_sdk import ClaudeSDKClient as ContainedClient
from quiesce.dropin.claude_agent_sdk import query as contained_query

from .ways import Close, Ready, Scenario, Way, consume, start_consuming

OPTIONS = ClaudeAgentOptions(cli_path=Path(__file__).with_name("standins") / "claude_cli.py")
PROMPT = "Work for a minute."


@dataclass(frozen=True)
class Sdk:
    """The SDK itself, or the drop-in: the same program with one import changed."""

    query: Callable[..., Any]
    client: type[ClaudeSDKClient]


# query()


async def use_query(sdk: Sdk, ready: Ready) -> None:
    await consume(sdk.query(prompt=PROMPT, options=OPTIONS), ready)


async def open_query(sdk: Sdk) -> Close:
    messages = sdk.query(prompt=PROMPT, options=OPTIONS)
    await start_consuming(messages)
    close: Close = messages.aclose
    return close


async def break_off_query(sdk: Sdk, ready: Ready) -> None:
    async for _ in sdk.query(prompt=PROMPT, options=OPTIONS):
        ready()
        break


# --8<-- [start:query]
async def ask(prompt: str, options: ClaudeAgentOptions, show: Callable[[object], object]) -> None:
    async with contain(), stream(query(prompt=prompt, options=options)) as messages:
        async for message in messages:
            show(message)


# --8<-- [end:query]
# --8<-- [start:query-open]
async def open_query_with() -> Close:
    messages = stream(query(prompt=PROMPT, options=OPTIONS))
    await start_consuming(messages)  # one task reads it
    return messages.close  # another stops it: the reader sees the end of the stream


# --8<-- [end:query-open]
async def break_off_query_with(ready: Ready) -> None:
    async with contain(), stream(query(prompt=PROMPT, options=OPTIONS)) as messages:
        async for _ in messages:
            ready()
            break


# The client


async def use_client(sdk: Sdk, ready: Ready) -> None:
    async with sdk.client(OPTIONS) as client:
        await client.query(PROMPT)
        await consume(client.receive_response(), ready)


async def open_client(sdk: Sdk) -> Close:
    stack = AsyncExitStack()
    client = await stack.enter_async_context(sdk.client(OPTIONS))
    await client.query(PROMPT)
    await start_consuming(client.receive_response())
    return stack.aclose


async def break_off_client(sdk: Sdk, ready: Ready) -> None:
    async with sdk.client(OPTIONS) as client:
        await client.query(PROMPT)
        async for _ in client.receive_response():
            ready()
            break


# --8<-- [start:client]
async def converse(prompt: str, options: ClaudeAgentOptions, show: Callable[[object], object]) -> None:
    async with contain():
        held = await own(ClaudeSDKClient(options)).open()
        await held.value.query(prompt)
        async with stream(held.value.receive_response()) as messages:
            async for message in messages:
                show(message)


# --8<-- [end:client]
# --8<-- [start:client-open]
async def open_client_with() -> Close:
    held = await own(ClaudeSDKClient(OPTIONS)).open()
    await held.value.query(PROMPT)  # from any task
    await start_consuming(held.value.receive_response())
    return held.close  # from any other


# --8<-- [end:client-open]
async def break_off_client_with(ready: Ready) -> None:
    async with contain(), own(ClaudeSDKClient(OPTIONS)) as client:
        await client.query(PROMPT)
        async with stream(client.receive_response()) as messages:
            async for _ in messages:
                ready()
                break


ITSELF = Sdk(query, ClaudeSDKClient)
DROPIN = Sdk(contained_query, ContainedClient)


def way_of(sdk: Sdk, *ways: Callable[..., Any]) -> Way:
    use, open_it, break_off = (partial(way, sdk) for way in ways)
    return Way(use, open_it, break_off, run=quiesce.run) if sdk is DROPIN else Way(use, open_it, break_off)


def one_query() -> Scenario:
    return Scenario(
        "one_query",
        "`query()`, in the middle of a turn that runs a tool",
        without=way_of(ITSELF, use_query, open_query, break_off_query),
        dropin=way_of(DROPIN, use_query, open_query, break_off_query),
        with_quiesce=Way(
            lambda ready: ask(PROMPT, OPTIONS, lambda _: ready()),
            open_query_with,
            break_off_query_with,
            run=quiesce.run,
        ),
    )


def client() -> Scenario:
    return Scenario(
        "client",
        "the client, in the middle of a turn that runs a tool",
        without=way_of(ITSELF, use_client, open_client, break_off_client),
        dropin=way_of(DROPIN, use_client, open_client, break_off_client),
        with_quiesce=Way(
            lambda ready: converse(PROMPT, OPTIONS, lambda _: ready()),
            open_client_with,
            break_off_client_with,
            run=quiesce.run,
        ),
    )
