"""What can go wrong with a provider, and what is said of it."""

from __future__ import annotations

import email.utils
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from quiesce.models import (
    AssistantMessage,
    ItemDone,
    ModelAuthenticationError,
    ModelBehaviorError,
    ModelConnectionError,
    ModelError,
    ModelEvent,
    ModelNotFoundError,
    ModelOverloadedError,
    ModelRateLimitError,
    ModelRequest,
    ModelRequestError,
    ModelSettings,
    ModelTimeoutError,
    ResponseDone,
    TextDelta,
    UserMessage,
)
from quiesce.models.http import exchange, retry
from tests.models.server import Reply, Server
from tests.models.wires import ANTHROPIC, CHAT, RESPONSES, Api, chunk, event, message_start, sse

pytestmark = [pytest.mark.real_time, pytest.mark.worlds("asyncio", "trio")]

GOOD = "it is answered well"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.01)


def asking(**settings: Any) -> ModelRequest:
    return ModelRequest([UserMessage("Hello")], settings=ModelSettings(**settings))


async def ask(api: Api, server: Server, **settings: Any) -> list[ModelEvent]:
    return [event async for event in api.model(server.url).stream(asking(**settings))]


async def failure(api: Api, server: Server, **settings: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await ask(api, server, **{"max_retries": 0, **settings})
    return caught.value


def error_body(message: str, **fields: Any) -> bytes:
    return json.dumps({"error": {"message": message, **fields}}).encode()


@pytest.mark.parametrize(
    ("status", "kind", "says", "retryable"),
    [
        (401, ModelAuthenticationError, "_API_KEY, or pass api_key=", False),
        (403, ModelAuthenticationError, "not allowed", False),
        (
            404,
            ModelNotFoundError,
            "does this server have a model named 'small', and is base_url 'http://127.0.0.1:",
            False,
        ),
        (429, ModelRateLimitError, "wait, or make fewer calls", True),
        (400, ModelRequestError, "the request was rejected: change it before retrying", False),
        (413, ModelRequestError, "too long", False),
        (500, ModelOverloadedError, "try again later", True),
        (503, ModelOverloadedError, "try again later", True),
    ],
)
async def test_a_status_is_an_error_that_says_what_to_do(
    api: Api, server: Server, status: int, kind: type[ModelError], says: str, retryable: bool
) -> None:
    server.say(
        error_body("no way"),
        status=status,
        content_type="application/json",
        headers={"x-request-id": "req_7"},
    )
    error = await failure(api, server)
    assert type(error) is kind
    assert "'small'" in str(error)
    assert "no way" in str(error)
    assert says in str(error)
    assert (error.status, error.retryable, error.model) == (status, retryable, "small")
    assert error.request_id == "req_7"
    assert type(error.__cause__).__module__.startswith(("openai", "anthropic"))


async def test_a_context_that_is_too_long_is_told_so(server: Server) -> None:
    body = error_body("This model's maximum context length is 8 tokens", code="context_length_exceeded")
    server.say(body, status=400, content_type="application/json")
    assert "the conversation is too long" in str(await failure(CHAT, server))


async def test_an_account_without_credit_is_not_asked_again(server: Server) -> None:
    body = error_body("You exceeded your current quota", code="insufficient_quota")
    server.say(body, status=429, content_type="application/json")
    error = await failure(CHAT, server, max_retries=5)
    assert "no credit" in str(error)
    assert len(server.requests) == 1


async def test_a_page_of_a_proxy_is_quoted_in_short(server: Server) -> None:
    server.say(b"<html>" + b"bad gateway " * 500, status=502, content_type="text/html")
    error = await failure(CHAT, server)
    assert "bad gateway" in str(error)
    assert len(str(error)) < 1000


async def test_a_server_that_is_not_there(api: Api) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ModelConnectionError, match="is the server running") as caught:
        async for _ in api.model(f"http://127.0.0.1:{port}").stream(asking(max_retries=0)):
            pass
    assert f"http://127.0.0.1:{port}" in str(caught.value)
    assert caught.value.retryable


@pytest.mark.parametrize("api", [CHAT, ANTHROPIC], ids=lambda api: api.name)
async def test_a_key_that_is_nowhere(api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(
        ModelAuthenticationError, match=r"has no key.*set (OPENAI|ANTHROPIC)_API_KEY"
    ) as caught:
        async for _ in api.make("small").stream(asking()):
            pass
    assert caught.value.__cause__ is not None


async def test_a_local_server_needs_no_key(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    model = CHAT.make("small", base_url=server.url + "/v1")
    assert [event async for event in model.stream(asking())]


# Streams that break -----------------------------------------------------------------------------------------------


def first_word(api: Api) -> list[bytes]:
    pieces = api.text("Hel", "lo")
    return pieces[: next(n for n, piece in enumerate(pieces) if b'"Hel"' in piece) + 1]


BROKEN: list[tuple[str, Callable[[Api], Reply], type[ModelError], str]] = [
    ("dropped", lambda api: Reply([*first_word(api), "drop"]), ModelConnectionError, "broke"),
    ("cut", lambda api: Reply([*first_word(api), "cut"]), ModelConnectionError, "broke"),
    ("ended", lambda api: Reply(first_word(api)), ModelConnectionError, "before the answer was complete"),
    ("garbage", lambda api: Reply([*first_word(api), b"data: {oops\n\n"]), ModelBehaviorError, "{oops"),
    (
        "a number",
        lambda api: Reply([*first_word(api), b"event: x\ndata: 7\n\n"]),
        ModelBehaviorError,
        "sent an event",
    ),
    (
        "odd",
        lambda api: Reply(
            [*first_word(api), b'data: {"choices":[7],"type":"response.output_item.done"}\n\n']
        ),
        ModelError,
        "",
    ),
    (
        "an error in the stream",
        lambda api: Reply(
            [*first_word(api), sse({"type": "error", "error": {"message": "out of memory"}}, "error")]
        ),
        ModelOverloadedError,
        "out of memory",
    ),
    (
        "a known error in the stream",
        lambda api: Reply(
            [
                *first_word(api),
                sse({"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}}, "error"),
            ]
        ),
        ModelRateLimitError,
        "answered 429: slow",
    ),
]


@pytest.mark.parametrize(
    ("reply", "kind", "says"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
async def test_a_stream_that_breaks_is_a_clear_error_and_not_tried_again(
    api: Api, server: Server, reply: Callable[[Api], Reply], kind: type[ModelError], says: str
) -> None:
    server.reply(reply(api))
    events: list[ModelEvent] = []
    with pytest.raises(kind) as caught:
        async for made in api.model(server.url).stream(asking()):
            events.append(made)  # noqa: PERF401
    assert says in str(caught.value)
    assert "'small'" in str(caught.value)
    assert TextDelta("Hel") in events
    assert not any(isinstance(made, (ResponseDone, ItemDone)) for made in events)
    assert len(server.requests) == 1
    server.wait_for(lambda: not server.connections, "the connection closed")


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'{"choices": [{"message": {"content": "hi"}}]}', "application/json"),
        (b"<html>welcome</html>", "text/html; charset=utf-8"),
        (b"welcome", "text/plain"),
        (b"", "text/event-stream"),
        (b": only\n\n: comments\n\n", "text/event-stream"),
    ],
)
async def test_what_is_no_stream_is_told_so(api: Api, server: Server, body: bytes, content_type: str) -> None:
    server.say(*([body] if body else []), content_type=content_type)
    error = await failure(api, server)
    assert isinstance(error, ModelBehaviorError)
    assert "did not answer with a stream of events" in str(error)
    assert body.decode().split(" ")[0] in str(error)


async def test_an_event_without_end_is_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiesce.models.http.sse.LONGEST", 100_000)
    server.say(b"data: " + b"x" * 1000, "flood")
    assert "longer than" in str(await failure(CHAT, server))
    server.wait_for(lambda: not server.connections, "the connection closed")


async def test_a_failed_response_is_an_error(server: Server) -> None:
    failed = {"id": "resp_1", "error": {"code": "server_error", "message": "we broke"}}
    server.say(
        event("response.created", response={"id": "resp_1"}), event("response.failed", response=failed)
    )
    error = await failure(RESPONSES, server)
    assert isinstance(error, ModelOverloadedError)
    assert "we broke" in str(error)


async def test_an_answer_is_complete_though_the_server_does_not_end_its_stream(
    api: Api, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "ENDED_WITHIN", 0.02)
    server.say(*api.text("Hel", "lo"), "silence")
    events = await ask(api, server)
    assert ItemDone(AssistantMessage("Hello")) in events
    server.wait_for(lambda: not server.connections, "the connection closed")


# Trying again -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble",
    [
        Reply(status=429),
        Reply(status=500),
        Reply(status=529),
        Reply(["drop"]),
        Reply(["cut"]),
        Reply([], silent_before=False, content_type="text/event-stream", status=503),
    ],
    ids=["429", "500", "529", "dropped", "cut", "503"],
)
async def test_what_fails_before_its_first_event_is_tried_again(
    api: Api, server: Server, trouble: Reply
) -> None:
    server.reply(trouble, trouble)
    events = await ask(api, server)
    assert isinstance(events[-1], ResponseDone)
    assert len(server.requests) == 3


async def test_it_is_tried_as_often_as_said(server: Server) -> None:
    server.reply(*[Reply(status=500)] * 9)
    for max_retries in (0, 1, 4):
        server.requests.clear()
        await failure(CHAT, server, max_retries=max_retries)
        assert len(server.requests) == max_retries + 1


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_what_would_fail_again_is_not_tried_again(server: Server, status: int) -> None:
    server.say(status=status)
    await failure(CHAT, server, max_retries=3)
    assert len(server.requests) == 1


async def test_an_overloaded_provider_may_say_so_inside_a_stream_that_has_no_event_yet(
    server: Server,
) -> None:
    overloaded = sse({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, "error")
    server.say(overloaded)
    assert isinstance((await ask(ANTHROPIC, server))[-1], ResponseDone)
    server.say(message_start(), overloaded)  # somebody has seen an event of it
    assert isinstance(await failure(ANTHROPIC, server, max_retries=3), ModelOverloadedError)


async def test_a_provider_that_asks_to_wait_is_obeyed(server: Server) -> None:
    server.say(status=429, headers={"retry-after-ms": "150"})
    began = time.monotonic()
    await ask(CHAT, server)
    assert time.monotonic() - began >= 0.15


async def test_a_wait_that_is_too_long_is_left_to_the_caller(server: Server) -> None:
    server.say(status=429, headers={"retry-after": "3600"})
    error = await failure(CHAT, server, max_retries=3)
    assert error.retry_after == 3600
    assert "asks to wait 3600 s" in str(error)
    assert len(server.requests) == 1


async def test_a_wait_that_would_outlast_the_timeout_is_not_begun(server: Server) -> None:
    server.say(status=429, headers={"retry-after": "5"})
    began = time.monotonic()
    error = await failure(CHAT, server, max_retries=3, timeout=4.0)
    assert isinstance(error, ModelRateLimitError)
    assert time.monotonic() - began < 4


async def test_tries_share_one_timeout(server: Server) -> None:
    server.say(status=500)
    server.say("silence")
    error = await failure(CHAT, server, max_retries=3, timeout=3.0)
    assert isinstance(error, ModelTimeoutError)
    assert len(server.requests) == 2


def test_a_date_to_wait_for() -> None:
    soon = email.utils.formatdate(time.time() + 30, usegmt=True)
    waits = retry.retry_after({"retry-after": soon})
    assert waits is not None
    assert 25 < waits <= 31
    assert retry.retry_after({"retry-after": "soon"}) is None
    assert retry.retry_after({"retry-after": "-5"}) == 0
    assert retry.retry_after({}) is None


def test_pauses_grow_up_to_a_bound_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.5)
    error = ModelOverloadedError("busy")
    pauses = [retry.Retries(9), retry.Retries(9)]
    first, second = ([each.pause(error, 1e9) or 0.0 for _ in range(9)] for each in pauses)
    assert first != second
    for number, pause in enumerate(first):
        most = min(0.5 * 2**number, retry.LONGEST_PAUSE)
        assert 0.75 * most <= pause <= most


async def test_a_chunk_that_says_error_only_in_its_object(server: Server) -> None:
    server.say(sse({"object": "error", "message": "template failed", "code": 400}))
    error = await failure(CHAT, server)
    assert isinstance(error, ModelRequestError)
    assert "template failed" in str(error)


async def test_the_server_knows_no_stream_options(server: Server) -> None:
    server.say(error_body("unknown field stream_options"), status=400, content_type="application/json")
    assert "include_usage=False" in str(await failure(CHAT, server))
    model = CHAT.model(server.url, include_usage=False)
    server.say(chunk({"content": "hi"}), chunk({}, "stop"), sse("[DONE]"))
    events = [event async for event in model.stream(asking())]
    assert "stream_options" not in server.requests[-1].body
    assert isinstance(events[-1], ResponseDone)
    assert events[-1].usage.unreported == 1
