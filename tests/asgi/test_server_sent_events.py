"""Server-sent events: one record, and the records of a run."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any, cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import StreamingResponse

from quiesce import Stream, current_scope
from quiesce.agents import (
    Agent,
    RawResponseEvent,
    Runner,
    UnknownStreamEvent,
    decode_stream_event,
    encode_stream_event,
)
from quiesce.asgi import sse_events, sse_record
from quiesce.asgi.types import AsgiScope, Receive, Send
from quiesce.models import TextDelta
from quiesce.models.http.sse import EventStream
from quiesce.testing import Answer, ScriptedModel
from tests.agents.scenes import Parked
from tests.asgi.memory import Client, after, watched
from tests.test_surface import modules_after

pytestmark = pytest.mark.worlds("asyncio", "asyncio-eager", "trio")


def read(records: str) -> list[tuple[str, str]]:
    """What a reader of the format gets."""
    reader = EventStream()
    return reader.feed(records.encode())


def test_a_record_has_its_fields_in_lines_and_ends_with_an_empty_one() -> None:
    assert sse_record("one\ntwo", event="poem", id="7", retry=1.5) == (
        "event: poem\nid: 7\nretry: 1500\ndata: one\ndata: two\n\n"
    )
    assert sse_record("") == "data: \n\n"


def test_what_is_not_a_text_is_sent_as_json() -> None:
    assert sse_record({"left": [1, None]}) == 'data: {"left": [1, null]}\n\n'
    assert sse_record(None) == "data: null\n\n"
    with pytest.raises(ValueError, match="JSON"):
        sse_record({"elapsed": float("inf")})


@given(data=st.text(), event=st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0")))
def test_any_text_arrives_with_its_line_ends_as_line_feeds(data: str, event: str) -> None:
    expected = data.replace("\r\n", "\n").replace("\r", "\n")
    assert read(sse_record(data, event=event) * 2) == [(event, expected)] * 2


@given(data=st.text(st.characters()))
def test_a_record_can_always_be_sent_as_utf_8(data: str) -> None:
    sse_record(data).encode()
    assert json.loads(read(sse_record([data]))[0][1]) == [data]


@pytest.mark.parametrize("name", ["event", "id"])
@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b"])
def test_a_name_or_id_cannot_smuggle_in_another_field(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be one line"):
        sse_record("x", event=value if name == "event" else None, id=value if name == "id" else None)


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        ({"event": 1}, TypeError, "event must be a str, not int"),
        ({"id": 7}, TypeError, "id must be a str, not int"),
        ({"retry": True}, TypeError, "retry must be a number of seconds"),
        ({"retry": -1}, ValueError, "retry must be a number of seconds, 0 or more"),
        ({"retry": float("nan")}, ValueError, "retry must be a number of seconds, 0 or more"),
    ],
)
def test_wrong_fields_are_errors_that_name_them(
    options: dict[str, Any], kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told):
        sse_record("x", **options)


def test_wrong_events_are_errors_at_once() -> None:
    with pytest.raises(TypeError, match="events must be an async iterable"):
        sse_events(cast("Any", [1]))
    with pytest.raises(TypeError, match="encode must be a function"):
        sse_events(cast("Any", some_texts()), cast("Any", "json"))


async def some_texts() -> AsyncGenerator[str, None]:
    yield "one"
    yield "two"


async def test_texts_are_sent_as_they_are_and_the_last_record_says_that_it_is_the_last() -> None:
    records = [record async for record in sse_events(some_texts(), end="end")]
    assert records == ["data: one\n\n", "data: two\n\n", 'event: end\ndata: {"type": "end"}\n\n']
    assert [record async for record in sse_events(some_texts())] == records[:2]


def streaming(agent: Agent[Any], made: list[Stream[str]]) -> Any:
    async def app(scope: AsgiScope, receive: Receive, send: Send) -> None:
        result = Runner.run_streamed(agent, "?")
        made.append(sse_events(result.stream_events(), encode_stream_event, end="end"))
        await StreamingResponse(made[0], media_type="text/event-stream")(scope, receive, send)

    return app


async def test_a_run_is_streamed_as_records_that_decode_to_its_events() -> None:
    agent = Agent(name="poet", model=ScriptedModel([Answer(["Roses\n", "are red."])]))
    app, reports = watched(streaming(agent, []))
    client = Client()
    await client.ask(app)
    received = read(client.body.decode())
    events = [decode_stream_event(data) for _, data in received]
    names = [name for name, _ in received]
    assert names[:-1] == [event.type for event in events[:-1]]
    assert (names[-1], events[-1]) == ("end", UnknownStreamEvent({"type": "end"}))
    deltas = [event.data for event in events if isinstance(event, RawResponseEvent)]
    assert "".join(data.text for data in deltas if isinstance(data, TextDelta)) == "Roses\nare red."
    assert not reports


async def test_a_client_that_disconnects_stops_the_run_before_the_request_ends() -> None:
    parked = Parked()
    made: list[Stream[str]] = []
    app, reports = watched(streaming(Agent(name="poet", model=ScriptedModel([parked.park])), made))
    client = Client()
    current_scope().spawn(after, 1, client.go)
    await client.ask(app)
    assert reports.kinds == ["disconnect"]
    assert reports[0].clean
    assert made[0].closed
    parked.assert_tidy()


async def test_an_error_of_the_events_is_raised_and_the_source_is_closed() -> None:
    closed: list[str] = []

    async def texts() -> AsyncGenerator[object, None]:
        try:
            yield "one"
            yield object()  # which JSON cannot hold
        finally:
            await anyio.sleep(0)
            closed.append("source")

    records = sse_events(texts())
    with pytest.raises(TypeError, match="not JSON serializable"):
        assert [record async for record in records] == []
    assert closed == ["source"]


def test_it_needs_neither_the_agents_nor_msgspec() -> None:
    loaded = modules_after("import quiesce.asgi; quiesce.asgi.sse_record({})")
    assert "quiesce.asgi.server_sent_events" in loaded
    assert not loaded & {"msgspec", "quiesce.agents", "starlette"}
