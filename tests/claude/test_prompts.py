"""What the user says: what cannot be said counts for nothing, and a stream is closed however the saying of it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from quiesce import Grace, Scope
from quiesce.claude import ClaudeAgentOptions, ClaudeSDKClient, CLIConnectionError, query
from tests.claude.memory_cli import MemoryCli


def prompt(text: object, **more: Any) -> dict[str, Any]:
    return {"type": "user", "message": {"role": "user", "content": text}, **more}


async def said(*prompts: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    for each in prompts:
        yield each


async def result(client: ClaudeSDKClient) -> Any:
    return [message async for message in client.receive_response()][-1]


class Stream:
    """Prompts, which say when they are closed."""

    def __init__(self, *prompts: dict[str, Any], then: str = "end") -> None:
        self._prompts = prompts
        self._then = then
        self.waits = anyio.Event()
        self.closed = 0
        self.made: AsyncIterator[dict[str, Any]] | None = None

    def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        self.made = self._play()  # held: nobody but whoever iterates it closes it
        return self.made

    async def _play(self) -> AsyncIterator[dict[str, Any]]:
        try:
            for each in self._prompts:
                yield each
            self.waits.set()
            if self._then == "wait":
                await anyio.sleep_forever()
        finally:
            self.closed += 1


@pytest.mark.parametrize("no_states", [False, True])
async def test_a_prompt_that_cannot_be_said_is_an_error_and_no_turn(no_states: bool) -> None:
    async with (
        MemoryCli([["text", "one"]], no_states=no_states) as cli,
        ClaudeSDKClient(cli.options, cli.transport) as client,
    ):
        with pytest.raises(TypeError, match="unsupported"):
            await client.query(said(prompt(object())))
        await client.query("1")
        with anyio.fail_after(10):
            assert (await result(client)).result == "1"
        assert len(cli.got("user")) == 1


async def test_a_prompt_may_have_a_name_and_one_without_is_given_one() -> None:
    async with MemoryCli([["text", "yes"]]) as cli, ClaudeSDKClient(cli.options, cli.transport) as client:
        for number, name in enumerate([None, None, "", "mine"]):
            await client.query(said(prompt(str(number), uuid=name)))
            with anyio.fail_after(10):
                assert (await result(client)).result == str(number)
        names = [frame["uuid"] for frame in cli.got("user")]
        assert names[-1] == "mine"
        assert all(isinstance(name, str) and name for name in names)
        assert len(set(names)) == 4


@pytest.mark.parametrize("verbatim", [False, True])
async def test_the_cli_is_told_of_each_prompt_that_is_to_be_taken_as_it_is(verbatim: bool) -> None:
    options = ClaudeAgentOptions(verbatim_prompts=verbatim)
    async with MemoryCli([["text", "yes"]]) as cli, ClaudeSDKClient(options, cli.transport) as client:
        for each in ("/compact @file", said(prompt("1"), prompt("2"))):
            await client.query(each)
            with anyio.fail_after(10):
                await result(client)
        assert [frame.get("client_composed", False) for frame in cli.got("user")] == [verbatim] * 3


async def test_a_stream_may_be_any_async_iterable() -> None:
    class Plain:
        def __init__(self) -> None:
            self._left = [prompt("1")]

        def __aiter__(self) -> Plain:
            return self

        async def __anext__(self) -> dict[str, Any]:
            if not self._left:
                raise StopAsyncIteration
            return self._left.pop()

    async with MemoryCli([["text", "yes"]]) as cli, ClaudeSDKClient(cli.options, cli.transport) as client:
        await client.query(Plain())
        assert (await result(client)).result == "1"


async def say_by_query(cli: MemoryCli, stream: Stream) -> None:
    async for _ in query(prompt=stream, options=cli.options, transport=cli.transport):
        pass


async def say_by_client(cli: MemoryCli, stream: Stream) -> None:
    async with ClaudeSDKClient(cli.options, cli.transport) as client:
        await client.query(stream)
        assert stream.closed  # at once
        await result(client)


async def say_at_connect(cli: MemoryCli, stream: Stream) -> None:
    client = ClaudeSDKClient(cli.options, cli.transport)
    await client.connect(stream)
    try:
        async for _ in client.receive_messages():
            pass
    finally:
        await client.disconnect()


WAYS = pytest.mark.parametrize("say", [say_by_query, say_by_client, say_at_connect])


@WAYS
async def test_a_stream_is_closed_when_something_of_it_cannot_be_said(say: Any) -> None:
    stream = Stream(prompt("1"), prompt(object()), prompt("3"))
    async with MemoryCli([["text", "yes"]]) as cli:
        with pytest.raises(TypeError, match="unsupported"):
            await say(cli, stream)
        assert stream.closed == 1


@WAYS
async def test_a_stream_is_closed_when_the_session_ends_while_it_speaks(say: Any) -> None:
    class Slow(Stream):
        async def _play(self) -> AsyncIterator[dict[str, Any]]:
            try:
                while True:
                    yield prompt("more")
                    await anyio.sleep(0.001)
            finally:
                self.closed += 1

    stream = Slow()
    async with MemoryCli([["exit", 0]]) as cli:
        with pytest.raises(CLIConnectionError, match="closed the connection"):
            await say(cli, stream)
        assert stream.closed == 1


@pytest.mark.parametrize("say", [say_by_query, say_at_connect])
async def test_a_stream_that_waits_is_closed_when_the_session_ends_by_itself(say: Any) -> None:
    stream = Stream(prompt("1"), then="wait")
    async with MemoryCli([["text", "yes"], ["exit", 0]]) as cli:
        with pytest.raises(CLIConnectionError, match="closed the connection"):
            await say(cli, stream)
        assert stream.closed == 1


@WAYS
async def test_a_stream_that_waits_is_closed_when_whoever_says_it_is_cancelled(say: Any) -> None:
    stream = Stream(prompt("1"), then="wait")
    async with MemoryCli([["hang"]]) as cli, Scope() as users:
        saying = users.spawn(say, cli, stream)
        await stream.waits.wait()
        saying.cancel("enough")
        await saying.wait()
        assert stream.closed == 1


async def test_when_a_stop_is_asked_for_a_stream_is_closed_before_the_cli_is_waited_for() -> None:
    times: list[float] = []

    class Timed(Stream):
        async def _play(self) -> AsyncIterator[dict[str, Any]]:
            try:
                async for each in super()._play():
                    yield each
            finally:
                times.append(anyio.current_time())

    stream = Timed(prompt("1"), then="wait")
    async with MemoryCli([["hang"]], mute=["interrupt"]) as cli:
        client = ClaudeSDKClient(cli.options, cli.transport, grace=Grace(cancel=3))
        await client.connect(stream)
        await stream.waits.wait()
        await client.disconnect()  # gives the interrupt a third of that
        times.append(anyio.current_time())
    assert times[0] < times[1] - 0.5


async def test_a_session_that_has_ended_by_itself_has_closed_its_stream_before_another_is_connected() -> None:
    stream = Stream(prompt("1"), then="wait")
    async with MemoryCli([["exit", 0]]) as one, MemoryCli([["text", "yes"]]) as two:
        client = ClaudeSDKClient(one.options, one.transport)
        await client.connect(stream)
        with pytest.raises(CLIConnectionError):
            await result(client)
        while not stream.closed:
            await anyio.sleep(0.001)
        client._transport = two.transport
        await client.connect("2")
        assert (await result(client)).result == "2"
        await client.disconnect()


async def test_a_stream_may_end_the_session_that_it_is_said_to() -> None:
    async def prompts() -> AsyncIterator[dict[str, Any]]:
        yield prompt("1")
        await client.disconnect()

    async with MemoryCli([["hang"]]) as cli:
        client = ClaudeSDKClient(cli.options, cli.transport)
        await client.connect(prompts())
        assert not [message async for message in client.receive_messages() if hasattr(message, "result")]
        await client.disconnect()
        assert client.report is not None
        assert client.report.clean, str(client.report)


@pytest.mark.parametrize("how", ["by a query", "at connect"])
async def test_a_stream_that_somebody_else_cancels_ends_the_session_with_an_error(how: str) -> None:
    """Who would otherwise wait for answers to what was never said?"""
    stream = Stream(prompt("1"), then="wait")
    async with MemoryCli([["text", "yes"]]) as cli, Scope(on_error="report") as users:
        client = ClaudeSDKClient(cli.options, cli.transport)
        messages = query(prompt=stream, options=cli.options, transport=cli.transport)

        async def read() -> None:
            if how == "at connect":
                await client.connect(stream)
            async for _ in messages if how == "by a query" else client.receive_messages():
                pass

        reading = users.spawn(read)
        await stream.waits.wait()
        session: Any = messages._session if how == "by a query" else client._session
        session.prompts.cancel("by a stranger")
        await reading.wait()
        with pytest.raises(CLIConnectionError, match="not all of the stream of prompts was sent"):
            reading.result()
        assert stream.closed == 1
        await client.disconnect()
