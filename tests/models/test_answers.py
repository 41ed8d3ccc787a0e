"""An answer that goes well, over a real socket, in every API and world."""

from __future__ import annotations

import pytest

from quiesce.models import (
    AssistantMessage,
    ItemDone,
    ModelEvent,
    ModelRequest,
    ResponseDone,
    TextDelta,
    Tokens,
    Usage,
    UserMessage,
)
from tests.models.server import Server
from tests.models.wires import Api

pytestmark = pytest.mark.real_time

HELLO = ModelRequest([UserMessage("Hello")])


async def test_text_comes_in_pieces_then_whole_then_with_its_cost(api: Api, server: Server) -> None:
    events: list[ModelEvent] = [event async for event in api.model(server.url).stream(HELLO)]
    assert [event for event in events if not isinstance(event, Tokens)] == [
        TextDelta("Hel"),
        TextDelta("lo"),
        ItemDone(AssistantMessage("Hello")),
        ResponseDone(
            Usage(1, 12, 5, cached_input_tokens=4, reasoning_tokens=0 if api.name == "anthropic" else 2),
            "stop",
            {"chat": "chatcmpl-1", "responses": "resp_1", "anthropic": "msg_1"}[api.name],
        ),
    ]
    assert any(isinstance(event, Tokens) for event in events)
    assert server.requests[0].path == api.path
    assert "secret" in str(server.requests[0].headers)
    assert server.requests[0].body["model"] == "small"


async def test_nothing_is_asked_before_the_first_event_is(api: Api, server: Server) -> None:
    answer = api.model(server.url).stream(HELLO)
    await answer.aclose()
    assert server.requests == []


async def test_a_model_nobody_holds_open_leaves_no_connection(api: Api, server: Server) -> None:
    model = api.model(server.url)
    for _ in range(2):
        async for _event in model.stream(HELLO):
            pass
        server.wait_for(lambda: not server.connections, "the connection closed")


async def test_a_model_that_is_held_open_keeps_its_connection_and_closes_it(api: Api, server: Server) -> None:
    before = server.accepted
    async with api.model(server.url) as model, model:
        for _ in range(3):
            async for _event in model.stream(HELLO):
                pass
        assert server.accepted == before + 1
    server.wait_for(lambda: not server.connections, "the connection closed")


async def test_a_closed_model_answers_again(api: Api, server: Server) -> None:
    async with api.model(server.url) as model:
        for _ in range(2):
            async for _event in model.stream(HELLO):
                pass
            await model.close()
            server.wait_for(lambda: not server.connections, "the connection closed")
