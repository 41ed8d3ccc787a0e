"""`unless_disconnected`: one call, given up when the client has gone."""

from __future__ import annotations

from functools import partial

import anyio
import pytest
from starlette.requests import Request

from quiesce import Grace, Scope, current_scope, current_token
from quiesce.asgi import ClientGone, unless_disconnected
from tests.asgi.memory import Client, after, be_deaf

pytestmark = pytest.mark.worlds("asyncio", "asyncio-eager", "trio")


async def a_request(client: Client) -> Request:
    request = Request(client.scope, client.receive)
    await request.body()
    return request


async def test_it_returns_what_the_call_returns() -> None:
    async def add(one: int, other: int) -> int:
        await anyio.sleep(1)
        return one + other

    assert await unless_disconnected(await a_request(Client(b"hello")), add, 1, 2) == 3


async def test_it_raises_what_the_call_raises() -> None:
    error = LookupError("no such page")

    async def fail() -> None:
        raise error

    with pytest.raises(LookupError) as raised:
        await unless_disconnected(await a_request(Client()), fail)
    assert raised.value is error


async def test_when_the_client_goes_the_call_is_cancelled_and_clientgone_is_raised() -> None:
    seen: list[str] = []

    async def answer() -> None:
        try:
            await anyio.sleep(3600)
        finally:
            seen.append(str(current_token().reason))

    client = Client()
    request = await a_request(client)
    current_scope().spawn(after, 1, client.go)
    with pytest.raises(ClientGone, match="answer was stopped"):
        await unless_disconnected(request, answer)
    assert seen == ["disconnect: the client disconnected"]


async def test_a_call_that_ignores_its_cancel_is_given_up_and_named(caplog: pytest.LogCaptureFixture) -> None:
    owner = await Scope.open("application")

    async def serve() -> None:
        client = Client()
        request = await a_request(client)
        current_scope().spawn(after, 1, client.go)
        with pytest.raises(ClientGone):
            await unless_disconnected(request, be_deaf, 60, grace=Grace(cancel=0.1, terminate=0, kill=0))

    handle = owner.spawn(serve)
    await handle.wait()
    handle.result()
    assert "left: task 'be_deaf', stuck at" in caplog.text
    assert (await owner.close(grace=Grace(cancel=100))).clean


async def test_the_callers_own_cancel_stops_the_call_and_goes_on() -> None:
    ended: list[str] = []

    async def answer() -> None:
        try:
            await anyio.sleep(3600)
        finally:
            ended.append("answer")

    request = await a_request(Client())
    with anyio.move_on_after(1) as timeout:
        await unless_disconnected(request, answer)
    assert timeout.cancelled_caught
    assert ended == ["answer"]


async def test_the_arguments_of_a_partial_are_in_no_name_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    async def fetch(key: str) -> None:
        try:
            await anyio.sleep(3600)
        finally:
            raise LookupError("the clean-up failed")

    client = Client()
    request = await a_request(client)
    current_scope().spawn(after, 1, client.go)
    with pytest.raises(LookupError):
        await unless_disconnected(request, partial(fetch, key="sk-secret"))
    assert "call of " in caplog.text
    assert "sk-secret" not in caplog.text
