"""An answer that is stopped, anywhere and in every way: its connection is given back, and the next call can be made at once.

The client has one connection, and waits for it a moment only. So a slot that is lost is an error of the next call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anthropic
import anyio
import httpx2
import openai
import pytest
import trio

from quiesce.models import (
    Model,
    ModelEvent,
    ModelRequest,
    ModelSettings,
    ModelTimeoutError,
    ResponseDone,
    UserMessage,
)
from tests.models.server import Reply, Server
from tests.models.wires import ANTHROPIC, APIS, CHAT, RESPONSES, Api
from tests.world import World, asyncio_only

pytestmark = pytest.mark.real_time

HELLO = ModelRequest([UserMessage("Hello")], settings=ModelSettings(max_retries=0))
AT_ONCE = 9.0  # seconds, on a very busy machine; a client that waits for its server does so for 30


@dataclass(frozen=True)
class Trouble:
    """How a server keeps its client waiting; `events` come before."""

    name: str
    reply: Callable[[Api], Reply]
    events: int = 0


def beginning(api: Api) -> list[bytes]:
    """An answer as far as its second word."""
    pieces = api.text("Hel", "lo")
    return pieces[: next(n for n, piece in enumerate(pieces) if b'"lo"' in piece) + 1]


TROUBLES = [
    Trouble("no answer at all", lambda api: Reply(silent_before=True)),
    Trouble("no event", lambda api: Reply(["silence"])),
    Trouble("half an event", lambda api: Reply([api.text("Hel", "lo")[0][:12], "silence"])),
    Trouble("a pause", lambda api: Reply([*beginning(api), "silence"]), events=1),
    Trouble("a flood", lambda api: Reply([*beginning(api), "flood"]), events=3),
    Trouble("no end", lambda api: Reply([*api.text("Hel", "lo"), "silence"]), events=2),
]
WITH_EVENTS = [trouble for trouble in TROUBLES if trouble.events]
WAITING = [trouble for trouble in TROUBLES if trouble.name not in ("a flood", "no end")]


@asynccontextmanager
async def one_connection(api: Api, server: Server) -> AsyncIterator[Model]:
    """A model whose client has one connection."""
    library: Any = anthropic if api is ANTHROPIC else openai
    http_client = library.DefaultAsyncHttpxClient(
        limits=httpx2.Limits(max_connections=1), timeout=httpx2.Timeout(30, pool=0.2), verify=False
    )
    try:
        yield api.model(server.url, http_client=http_client)
    finally:
        with anyio.CancelScope(shield=True):
            await http_client.aclose()


async def answer_in_full(model: Model) -> None:
    began = time.monotonic()
    events = [event async for event in model.stream(HELLO)]
    assert isinstance(events[-1], ResponseDone)
    assert time.monotonic() - began < AT_ONCE


async def assert_all_is_given_back(model: Model, server: Server) -> None:
    await answer_in_full(model)
    server.wait_for(lambda: not server.busy, "its answer given up")


class Consumer:
    """Reads an answer, and says how far it has come."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.events: list[ModelEvent] = []
        self.left = False

    async def read(self) -> None:
        try:
            async with aclosing(self._model.stream(HELLO)) as answer:
                async for event in answer:
                    self.events.append(event)
        finally:
            self.left = True

    async def wait_until_stuck(self, server: Server, trouble: Trouble) -> None:
        with anyio.fail_after(15):
            while not server.requests or len(self.events) < trouble.events:
                await anyio.sleep(0.002)
            await anyio.sleep(0.02)  # to be waiting for what does not come
        assert not self.left


async def cancelled(
    consumer: Consumer, ready: Callable[[], Awaitable[None]], times: int, world: World
) -> None:
    """Read, and be cancelled when it is ready, once or several times in a row."""
    if world.backend == "trio":
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.read)
            await ready()
            nursery.cancel_scope.cancel()
        return
    task = asyncio.create_task(consumer.read())
    await ready()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.name)
async def test_whoever_reads_is_cancelled(api: Api, trouble: Trouble, server: Server, world: World) -> None:
    async with one_connection(api, server) as model:
        server.reply(trouble.reply(api))
        consumer = Consumer(model)
        await cancelled(consumer, lambda: consumer.wait_until_stuck(server, trouble), 1, world)
        await assert_all_is_given_back(model, server)


@asyncio_only
@pytest.mark.parametrize("times", [2, 3, 8])
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.name)
async def test_whoever_reads_is_cancelled_again_and_again(
    trouble: Trouble, times: int, server: Server, world: World
) -> None:
    api = APIS[times % 3]
    async with one_connection(api, server) as model:
        server.reply(trouble.reply(api))
        consumer = Consumer(model)
        await cancelled(consumer, lambda: consumer.wait_until_stuck(server, trouble), times, world)
        await assert_all_is_given_back(model, server)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8, 13, 21])
async def test_whoever_reads_is_cancelled_twice_after_a_few_steps(
    steps: int, server: Server, world: World
) -> None:
    async def ready() -> None:
        for _ in range(steps):
            await anyio.sleep(0)

    async with one_connection(CHAT, server) as model:
        server.say("silence")
        consumer = Consumer(model)
        await cancelled(consumer, ready, 2, world)
        server.reset()
        await assert_all_is_given_back(model, server)


@pytest.mark.parametrize("trouble", WITH_EVENTS, ids=lambda trouble: trouble.name)
async def test_a_reader_that_stands_between_two_events_closes(
    api: Api, trouble: Trouble, server: Server
) -> None:
    async with one_connection(api, server) as model:
        server.reply(trouble.reply(api))
        answer = model.stream(HELLO)
        for _ in range(trouble.events):
            await anext(answer)
        await answer.aclose()
        await assert_all_is_given_back(model, server)


@pytest.mark.parametrize("trouble", WITH_EVENTS, ids=lambda trouble: trouble.name)
async def test_a_reader_breaks_out_under_aclosing(api: Api, trouble: Trouble, server: Server) -> None:
    async with one_connection(api, server) as model:
        server.reply(trouble.reply(api))
        async with aclosing(model.stream(HELLO)) as answer:
            async for _event in answer:
                break
        await assert_all_is_given_back(model, server)


@pytest.mark.worlds("asyncio", "trio")
@pytest.mark.parametrize("trouble", WAITING, ids=lambda trouble: trouble.name)
async def test_a_call_that_takes_longer_than_its_timeout(api: Api, trouble: Trouble, server: Server) -> None:
    request = ModelRequest(HELLO.items, settings=ModelSettings(timeout=0.08))
    async with one_connection(api, server) as model:
        server.reply(trouble.reply(api))
        began = time.monotonic()
        with pytest.raises(
            ModelTimeoutError, match=r"'small' took longer than its timeout of 0.08 s"
        ) as caught:
            async for _event in model.stream(request):
                pass
        assert time.monotonic() - began < AT_ONCE
        assert isinstance(caught.value, TimeoutError)
        assert len(server.requests) <= 1  # a timeout bounds the whole call: it is not tried again
        server.reset()  # if it was too busy even to ask
        await assert_all_is_given_back(model, server)


async def run_out_of_time(limit: anyio.CancelScope, server: Server) -> None:
    """Shortly after the server was asked."""
    while not server.requests:
        await anyio.sleep(0.002)
    limit.deadline = anyio.current_time() + 0.05


async def test_a_timeout_around_an_answer_is_its_owners(api: Api, server: Server) -> None:
    request = ModelRequest(HELLO.items, settings=ModelSettings(timeout=30))
    async with one_connection(api, server) as model, anyio.create_task_group() as group:
        server.say("silence")
        with pytest.raises(TimeoutError) as caught:
            with anyio.fail_after(15) as limit:
                group.start_soon(run_out_of_time, limit, server)
                async with aclosing(model.stream(request)) as answer:
                    async for _event in answer:
                        pass
        assert not isinstance(caught.value, ModelTimeoutError)
        await assert_all_is_given_back(model, server)


async def test_a_cancel_while_it_waits_to_try_again_is_obeyed_at_once(server: Server, world: World) -> None:
    model = CHAT.model(server.url)
    server.say(status=429, headers={"retry-after": "30"})
    consumer, began = Consumer(model), time.monotonic()

    async def ready() -> None:
        while not server.requests or server.busy:
            await anyio.sleep(0.002)
        await anyio.sleep(0.05)

    consumer_request = ModelRequest(HELLO.items, settings=ModelSettings(max_retries=2))
    consumer._model = _With(model, consumer_request)
    await cancelled(consumer, ready, 2, world)
    assert time.monotonic() - began < 2 * AT_ONCE
    assert len(server.requests) == 1


class _With:
    """A model that is asked something else."""

    name = "with"

    def __init__(self, model: Model, request: ModelRequest) -> None:
        self._model, self._request = model, request

    def stream(self, request: ModelRequest) -> Any:
        return self._model.stream(self._request)


async def test_a_hundred_answers_at_once_are_stopped_together(server: Server, world: World) -> None:
    for _ in range(100):
        server.say(*RESPONSES.text("Hel", "lo")[:3], "silence")
    consumers: list[Consumer] = []

    async with RESPONSES.model(server.url) as model:

        class All(Consumer):
            async def read(self) -> None:
                async with anyio.create_task_group() as group:
                    for _ in range(100):
                        consumers.append(Consumer(model))
                        group.start_soon(consumers[-1].read)

        async def ready() -> None:
            while len(consumers) < 100 or not all(consumer.events for consumer in consumers):
                await anyio.sleep(0.005)

        await cancelled(All(model), ready, 1, world)
        assert all(consumer.left for consumer in consumers)
        await assert_all_is_given_back(model, server)
    server.wait_for(lambda: not server.connections, "all connections closed")
