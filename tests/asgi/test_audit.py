"""The middleware and the lifespan, judged by the audit: stopped anywhere, in every way, nothing of a request is left.

How thorough it is depends on `tests.audit_level`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import pytest

from quiesce import Grace, Scope, stream
from quiesce.asgi import StopOnDisconnect, lifespan, server_scope
from quiesce.asgi.types import AsgiApp, Receive, Send
from tests.asgi.memory import Client, answer
from tests.kernel.audited import WORLDS, Audited, ledger, pause, tidy_up
from tests.kernel.audited.sampled import assert_nothing_is_left
from tests.world import world_names

SAMPLE = {"asyncio": 4, "asyncio-eager": 3, "trio": 2, "uvloop": 1}

pytestmark = [pytest.mark.audit, pytest.mark.time_limit(300)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of stops made by the audit are not worth a line each."""
    logging.getLogger("quiesce").disabled = True
    yield
    logging.getLogger("quiesce").disabled = False


async def upstream() -> AsyncIterator[bytes]:
    try:
        for _ in range(8):
            await pause(0.2)
            yield b"word"
    except (GeneratorExit, anyio.get_cancelled_exc_class()):
        await tidy_up()
        raise


async def streams(scope: Any, receive: Receive, send: Send) -> None:
    await receive()
    await answer(send, b"", more=True)
    async for word in stream(upstream()):
        await send({"type": "http.response.body", "body": word, "more_body": True})


async def works_and_answers(scope: Any, receive: Receive, send: Send) -> None:
    while (await receive())["more_body"]:
        pass
    try:
        await pause(0.5)
    except anyio.get_cancelled_exc_class():
        await tidy_up()
        raise
    await answer(send)
    await pause(0.2)


def behind_the_middleware(app: AsgiApp) -> AsgiApp:
    return StopOnDisconnect(app, on_stop=lambda report, scope: ledger.report(report))


async def ask_and_go(app: AsgiApp, client: Client, seconds: float) -> None:
    async with Scope("server") as server:
        server.spawn(client.ask, behind_the_middleware(app))
        await pause(seconds)
        client.go()


async def request_whose_client_leaves_a_stream() -> None:
    ledger.start()
    await ask_and_go(streams, Client(b"hello"), 0.7)


async def request_whose_client_leaves_before_the_first_byte() -> None:
    ledger.start()
    await ask_and_go(works_and_answers, Client(b"hello", b"world"), 0.2)


async def request_to_its_end() -> None:
    ledger.start()
    client = Client(b"hello", b"world")
    await client.ask(behind_the_middleware(works_and_answers))
    ledger.expect(client.body == b"done", "the answer is not whole")


async def websocket_whose_client_leaves() -> None:
    async def chat(scope: Any, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "websocket.disconnect":
            await pause(0.1)

    ledger.start()
    client = Client(kind="websocket")
    client.say("hello")
    await ask_and_go(chat, client, 0.5)


async def server_that_ends_with_a_request_in_flight() -> None:
    ledger.start()
    async with lifespan(grace=Grace(cooperate=0.1), signals=False, on_stop=ledger.report)(None) as state:
        client = Client(b"hello")
        client.scope["state"] = dict(state)
        scope = server_scope(client.scope)
        assert scope is not None
        scope.spawn(client.ask, behind_the_middleware(streams))
        await pause(0.5)


SCENARIOS: list[Callable[[], Any]] = [
    request_whose_client_leaves_a_stream,
    request_whose_client_leaves_before_the_first_byte,
    request_to_its_end,
    websocket_whose_client_leaves,
    server_that_ends_with_a_request_in_flight,
]


@pytest.mark.parametrize("where", world_names())
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_stopped_anywhere_nothing_of_a_request_is_left(scenario: Callable[[], Any], where: str) -> None:
    audited = Audited("asgi", scenario, WORLDS, {}, {}, False, {"check": ledger.check})
    for result in audited.audits(where, SAMPLE[where]):
        assert_nothing_is_left(result, where)
