"""Methods of one's own, questions to the user, and who watches what goes over a connection."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from quiesce.acp import PROTOCOL_VERSION, RequestError, StreamDirection, StreamEvent, schema
from quiesce.wire import RpcError
from tests.acp.pairs import AClient, AnAgent, agent_by_lines, connected

# Methods of one's own --------------------------------------------------------------------------------------------------


class Extended:
    """What both sides may have besides the protocol."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []

    async def ext_method(self, method: str, params: dict[str, Any]) -> Any:
        if method == "refuse":
            raise RequestError.invalid_params({"because": "no"})
        return {"method": method, **params}

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        self.heard.append((method, params))


class ExtendedAgent(Extended, AnAgent):
    def __init__(self) -> None:
        AnAgent.__init__(self)
        Extended.__init__(self)


class ExtendedClient(Extended, AClient):
    def __init__(self) -> None:
        AClient.__init__(self)
        Extended.__init__(self)


async def test_methods_of_ones_own_go_both_ways() -> None:
    agent, client = ExtendedAgent(), ExtendedClient()
    async with connected(agent, client) as (agent_side, client_side):
        for side in (agent_side, client_side):
            assert await side.ext_method("greet", {"name": "Ada"}) == {"method": "greet", "name": "Ada"}
            with pytest.raises(RequestError) as caught:
                await side.ext_method("refuse", {})
            assert (caught.value.code, caught.value.data) == (-32602, {"because": "no"})
            await side.ext_notification("tick", {"n": 1})
        while not (agent.heard and client.heard):
            await anyio.sleep(0)
    assert agent.heard == client.heard == [("tick", {"n": 1})]


async def test_on_the_wire_they_begin_with_an_underscore() -> None:
    async with agent_by_lines(ExtendedAgent()) as (lines, agent_side):
        await agent_side.ext_notification("tick", {"n": 1})
        assert await lines.receive() == {"jsonrpc": "2.0", "method": "_tick", "params": {"n": 1}}
        await lines.send({"id": 1, "method": "_greet"})
        assert (await lines.answer(1))["result"] == {"method": "greet"}
        await lines.send({"id": 2, "method": "greet"})
        assert (await lines.answer(2))["error"]["code"] == -32601


async def test_a_side_without_any_refuses_requests_and_overhears_the_rest() -> None:
    async with connected(AnAgent(), AClient()) as (agent_side, client_side):
        for side in (agent_side, client_side):
            await side.ext_notification("tick", {})
            with pytest.raises(RequestError, match="Method not found") as caught:
                await side.ext_method("greet", {})
            assert caught.value.data == {"method": "_greet"}


# Questions to the user -------------------------------------------------------------------------------------------------------


FORM = schema.ElicitationSchema(
    properties={"name": schema.ElicitationStringPropertySchema(title="Your name")}, required=["name"]
)
MODES: list[schema.ElicitationMode] = [
    schema.ElicitationFormSessionMode(session_id="s", tool_call_id="c", requested_schema=FORM),
    schema.ElicitationFormRequestMode(request_id=7, requested_schema=FORM),
    schema.ElicitationUrlSessionMode(session_id="s", elicitation_id="e", url="https://example.org/login"),
    schema.ElicitationUrlRequestMode(request_id="7", elicitation_id="e", url="https://example.org/login"),
]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: type(mode).__name__)
async def test_a_question_arrives_as_it_was_asked(mode: schema.ElicitationMode) -> None:
    seen: list[tuple[str, Any, dict[str, Any]]] = []

    async def create_elicitation(message: str, mode: Any, **kwargs: Any) -> schema.CreateElicitationResponse:
        seen.append((message, mode, kwargs))
        return schema.AcceptElicitationResponse(content={"name": "Ada"})

    async with connected(AnAgent(), AClient(create_elicitation=create_elicitation)) as (agent_side, _):
        answer = await agent_side.create_elicitation("Who are you?", mode, trace="abc", message_id="m")
    assert isinstance(answer, schema.AcceptElicitationResponse)
    assert answer.content == {"name": "Ada"}
    assert seen == [("Who are you?", mode, {"trace": "abc", "message_id": "m"})]


async def test_meta_does_not_change_the_question() -> None:
    seen: list[str] = []

    async def create_elicitation(message: str, mode: Any) -> schema.CreateElicitationResponse:
        seen.append(message)
        return schema.DeclineElicitationResponse()

    async with connected(AnAgent(), AClient(create_elicitation=create_elicitation)) as (agent_side, _):
        params = {
            "sessionId": "s",
            "message": "real",
            "mode": "form",
            "requestedSchema": {"type": "object", "properties": {}},
            "_meta": {"message": "spoofed", "mode": "spoofed", "more": 1},
        }
        answer = await agent_side._peer.request("elicitation/create", params)
    assert answer == {"action": "decline"}
    assert seen == ["real"]


async def test_a_way_to_ask_that_nobody_knows_is_refused() -> None:
    async def create_elicitation(message: str, mode: Any, **kwargs: Any) -> schema.CreateElicitationResponse:
        raise AssertionError

    client = AClient(create_elicitation=create_elicitation)
    params = {"message": "?", "mode": "telepathy", "sessionId": "s"}
    async with connected(AnAgent(), client) as (agent_side, _):
        with pytest.raises(RpcError) as caught:
            await agent_side._peer.request("elicitation/create", params)
        assert caught.value.code == -32602
        assert "telepathy" in repr(caught.value)
        with pytest.raises(TypeError, match=r"one of the Elicitation\.\.\.Mode classes, not str"):
            await agent_side.create_elicitation("?", "form")  # type: ignore[arg-type]


async def test_a_question_of_a_cancelled_turn_is_answered_cancel() -> None:
    """To tasks of the turn that are not cancelled themselves."""
    outcomes: list[str] = []

    class Asking(AnAgent):
        async def prompt(self, session_id: str, **kwargs: Any) -> Any:
            async with anyio.create_task_group() as group:
                group.start_soon(self.question, session_id)
                await anyio.sleep_forever()

        async def question(self, session_id: str) -> None:
            with anyio.CancelScope(shield=True):
                mode = schema.ElicitationFormSessionMode(session_id=session_id, requested_schema=FORM)
                answer = await self.client.create_elicitation("Who?", mode)
            outcomes.append(answer.action)

    async with agent_by_lines(Asking()) as (lines, _):
        params = {"sessionId": "s", "prompt": []}
        await lines.send({"id": 1, "method": "session/prompt", "params": params})
        assert (await lines.receive())["method"] == "elicitation/create"
        await lines.send({"method": "session/cancel", "params": {"sessionId": "s"}})
        assert (await lines.answer(1))["result"] == {"stopReason": "cancelled"}
    assert outcomes == ["cancel"]


# Who watches ---------------------------------------------------------------------------------------------------------------------


async def test_an_observer_sees_every_message_as_plain_json() -> None:
    seen: list[StreamEvent] = []
    async with connected(AnAgent(), observers=[seen.append]) as (_, client):
        await client.initialize(protocol_version=PROTOCOL_VERSION)
    assert [event.direction for event in seen] == [StreamDirection.INCOMING, StreamDirection.OUTGOING]
    assert seen[0].message["method"] == "initialize"
    assert seen[1].message["result"]["protocolVersion"] == PROTOCOL_VERSION
    assert seen[0].direction == "incoming"


async def test_one_that_fails_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[StreamEvent] = []

    def fails(event: StreamEvent) -> None:
        raise LookupError("the disk is full")

    async with connected(AnAgent(), observers=[fails, seen.append]) as (_, client):
        await client.initialize(protocol_version=PROTOCOL_VERSION)
    assert len(seen) == 2
    assert "the disk is full" in caplog.text


async def test_an_async_one_is_refused_with_what_to_do() -> None:
    async def observe(event: StreamEvent) -> None: ...

    with pytest.raises(TypeError, match=r"an observer must be a plain function.*queue"):
        async with connected(AnAgent(), observers=[observe]):
            pass
