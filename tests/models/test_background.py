"""A response that is made in the background at the provider ends when its answer is stopped, or is named."""

from __future__ import annotations

import json

import anyio
import pytest

from quiesce import Grace, Scope
from quiesce.models import ModelError, ModelRequest, ModelSettings, OpenAIModel, ResponseDone, UserMessage
from tests.models.server import Reply, Server, Step
from tests.models.wires import event, responses_text

pytestmark = pytest.mark.real_time

HELLO = ModelRequest([UserMessage("Hello")], settings=ModelSettings(max_retries=0))
BEGUN = [event("response.created", response={"id": "resp_1", "status": "queued"})]


def in_background(server: Server) -> OpenAIModel:
    return OpenAIModel("gpt-5", api="responses", background=True, base_url=f"{server.url}/v1", api_key="none")


def status(word: str) -> Reply:
    body = json.dumps({"id": "resp_1", "status": word}).encode()
    return Reply([body], content_type="application/json")


def refusal(number: int) -> Reply:
    body = json.dumps({"error": {"message": "no", "type": "invalid_request_error"}}).encode()
    return Reply([body], status=number, content_type="application/json")


def asked(server: Server) -> list[str]:
    return [request.path.removeprefix("/v1") for request in server.requests]


async def stop_in_the_middle(server: Server, grace: Grace | None = None) -> Scope:
    """Have an answer stopped whose response goes on; returns its scope, which was closed."""
    begun = anyio.Event()

    async def answer() -> None:
        async for _ in in_background(server).stream(HELLO):
            begun.set()

    async with Scope(grace=grace or Grace(cancel=5)) as scope:
        scope.spawn(answer)
        await begun.wait()
        await scope.close()
    return scope


def first_word() -> list[Step]:
    pieces = responses_text("Hel", "lo")
    return [*pieces[: next(n for n, piece in enumerate(pieces) if b'"Hel"' in piece) + 1], "silence"]


async def test_a_complete_answer_is_not_cancelled(server: Server) -> None:
    events = [event async for event in in_background(server).stream(HELLO)]
    assert isinstance(events[-1], ResponseDone)
    assert events[-1].response_id == "resp_1"
    assert asked(server) == ["/responses"]
    assert server.requests[0].body["background"] is True
    assert server.requests[0].body["store"] is True


async def test_a_stop_cancels_the_response_and_waits_until_the_provider_says_that_it_has_ended(
    server: Server,
) -> None:
    server.reply(Reply(first_word()), status("cancelled"), status("in_progress"), status("cancelled"))
    scope = await stop_in_the_middle(server)
    assert asked(server) == [
        "/responses",
        "/responses/resp_1/cancel",
        "/responses/resp_1",
        "/responses/resp_1",
    ]
    assert scope.report is not None
    assert scope.report.clean


async def test_a_stop_before_the_first_word_cancels_it_too(server: Server) -> None:
    server.reply(Reply([0.3, *BEGUN, "silence"]), status("cancelled"), status("cancelled"))
    with anyio.move_on_after(0.1):
        async for _ in in_background(server).stream(HELLO):
            pytest.fail("there is no word yet")
    assert asked(server) == ["/responses", "/responses/resp_1/cancel", "/responses/resp_1"]


async def test_a_response_that_has_ended_meanwhile_cannot_be_cancelled_and_need_not_be(
    server: Server,
) -> None:
    server.reply(Reply(first_word()), refusal(400), status("completed"))
    scope = await stop_in_the_middle(server)
    assert scope.report is not None
    assert scope.report.clean


async def test_a_cancel_that_does_not_arrive_is_sent_again(server: Server) -> None:
    server.reply(Reply(first_word()), Reply(["drop"]), refusal(503), status("cancelled"), status("cancelled"))
    scope = await stop_in_the_middle(server)
    assert asked(server)[1:] == ["/responses/resp_1/cancel"] * 3 + ["/responses/resp_1"]
    assert scope.report is not None
    assert scope.report.clean


async def test_a_response_whose_end_is_not_confirmed_is_named_with_its_id(server: Server) -> None:
    server.reply(Reply(first_word()), status("in_progress"), *[status("in_progress")] * 50)
    scope = await stop_in_the_middle(server, Grace(cancel=0.5, terminate=0.1, kill=0.1))
    assert scope.report is not None
    (left,) = [left for left in scope.report.left if left.kind == "remote"]
    assert left.name == "response of gpt-5 resp_1"
    assert left.stuck_at == "cancelled, and not confirmed"
    server.reset()
    server.reply(*[status("cancelled")] * 5)
    assert (await scope.close(deadline=5)).clean


async def test_a_request_that_is_refused_has_started_nothing(server: Server) -> None:
    server.reply(refusal(400))
    with pytest.raises(ModelError):
        async for _ in in_background(server).stream(HELLO):
            pytest.fail("it is refused")
    assert asked(server) == ["/responses"]


def test_only_the_responses_api_has_a_background() -> None:
    with pytest.raises(ValueError, match="background=True needs api='responses'"):
        OpenAIModel("gpt-5", background=True)
