"""The events of a streamed run as JSON, and back."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.agents import (
    Agent,
    AgentUpdatedStreamEvent,
    RawResponseEvent,
    RemoteAgent,
    RunItemStreamEvent,
    Runner,
    StreamEvent,
    UnknownStreamEvent,
    decode_stream_event,
    encode_stream_event,
    function_tool,
)
from quiesce.models import (
    AssistantMessage,
    Image,
    ItemDone,
    Note,
    Reasoning,
    ReasoningDelta,
    ResponseDone,
    Text,
    TextDelta,
    Tokens,
    ToolCall,
    ToolCallDelta,
    ToolResult,
    UnknownItem,
    Usage,
    UserMessage,
)
from quiesce.testing import Answer, ScriptedModel, call
from tests.agents.scenes import all_events

TEXTS = st.text(st.characters(), max_size=20)  # lone surrogates too
COUNTS = st.integers(0, 2**40)
USAGES = st.builds(Usage, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS)
PLAIN = st.recursive(
    st.none() | st.booleans() | COUNTS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
UNKNOWN = st.builds(
    lambda data, name: {**data, "type": f"new {name}"}, st.dictionaries(TEXTS, PLAIN, max_size=3), TEXTS
)
ITEMS = st.one_of(
    st.builds(UserMessage, TEXTS | st.lists(st.builds(Text, TEXTS) | st.builds(Image, TEXTS), max_size=3)),
    st.builds(Note, TEXTS),
    st.builds(AssistantMessage, TEXTS, st.booleans(), st.booleans(), TEXTS),
    st.builds(Reasoning, TEXTS, TEXTS, st.none() | st.dictionaries(TEXTS, PLAIN, max_size=3)),
    st.builds(ToolCall, TEXTS, TEXTS, TEXTS, TEXTS),
    st.builds(
        ToolResult,
        TEXTS,
        TEXTS,
        st.sampled_from(["finished", "failed", "unknown"]),
        st.none() | st.floats(0, 1e9),
    ),
    st.builds(UnknownItem, UNKNOWN),
)
EVENTS = st.one_of(
    st.builds(
        RawResponseEvent,
        st.one_of(
            st.builds(TextDelta, TEXTS),
            st.builds(ReasoningDelta, TEXTS),
            st.builds(ToolCallDelta, TEXTS, TEXTS, TEXTS),
            st.builds(Tokens, USAGES),
            st.builds(ItemDone, ITEMS),
            st.builds(ResponseDone, USAGES, TEXTS, st.none() | TEXTS),
        ),
    ),
    st.builds(RunItemStreamEvent, st.sampled_from(["tool_called", "tool_output"]), ITEMS),
    st.builds(AgentUpdatedStreamEvent, st.builds(RemoteAgent, TEXTS)),
    st.builds(UnknownStreamEvent, UNKNOWN),
)


@given(event=EVENTS)
def test_every_event_equals_itself_after_it_was_sent(event: StreamEvent) -> None:
    text = encode_stream_event(event)
    assert text.encode().count(b"\n") == 0
    assert decode_stream_event(text) == event
    assert decode_stream_event(text.encode()) == event
    assert encode_stream_event(decode_stream_event(text)) == text


@function_tool
async def add(a: int, b: int) -> int:
    """Add a secret number."""
    return a + b


async def test_the_events_of_a_run_equal_themselves_after_they_were_sent() -> None:
    model = ScriptedModel([call("add", a=1, b=2), Answer(["It ", "is 3."])])
    agent = Agent(name="clerk", instructions="secret: be kind", model=model, tools=[add])
    events = await all_events(Runner.run_streamed(agent, "?"))
    texts = [encode_stream_event(event) for event in events]
    first, *rest = map(decode_stream_event, texts)
    assert rest == events[1:]
    assert first == AgentUpdatedStreamEvent(RemoteAgent("clerk"))
    assert texts[0] == '{"type":"agent_updated_stream_event","new_agent":{"name":"clerk"}}'
    assert "secret" not in "".join(texts)


def test_an_event_is_an_object_with_its_type() -> None:
    text = encode_stream_event(RawResponseEvent(TextDelta("Roses ")))
    assert json.loads(text) == {
        "type": "raw_response_event",
        "data": {"type": "response.output_text.delta", "text": "Roses "},
    }


def test_fields_that_a_newer_version_has_added_are_ignored() -> None:
    data = {"type": "response.completed", "usage": {"requests": 1, "watts": 3}, "finish": "stop", "more": 1}
    text = json.dumps({"type": "raw_response_event", "data": data, "more": 1})
    assert decode_stream_event(text) == RawResponseEvent(ResponseDone(Usage(requests=1)))


@pytest.mark.parametrize(
    "data",
    [
        {"type": "checkpoint_event", "data": [1]},
        {"type": "raw_response_event", "data": {"type": "response.audio.delta", "audio": "AA=="}, "x": 1},
    ],
)
def test_an_event_that_only_a_newer_version_knows_is_kept_whole(data: dict[str, Any]) -> None:
    found = decode_stream_event(json.dumps(data))
    assert found == UnknownStreamEvent(data)
    assert found.type == "unknown_stream_event"
    assert json.loads(encode_stream_event(found)) == data


def test_a_name_and_an_item_that_only_a_newer_version_knows_are_kept() -> None:
    data = {
        "type": "run_item_stream_event",
        "name": "picture_created",
        "item": {"type": "picture", "url": "x"},
    }
    found = decode_stream_event(json.dumps(data))
    assert found == RunItemStreamEvent(
        cast("Any", "picture_created"), UnknownItem({"type": "picture", "url": "x"})
    )
    assert json.loads(encode_stream_event(found)) == data


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "Expecting value"),
        ("[1]", "a JSON object whose member 'type' is a string"),
        ('{"type":1}', "a JSON object whose member 'type' is a string"),
        ("[" * 100_000, "nested too deeply"),
        (b"\xff", "can't decode byte 0xff"),
        ('{"type":"raw_response_event"}', "an event of a model is an object"),
        (
            '{"type":"raw_response_event","data":{"type":"response.output_text.delta","text":1}}',
            "Expected `str`, got `int`",
        ),
        (
            '{"type":"raw_response_event","data":{"type":"response.output_item.done"}}',
            "an event of the type 'response.output_item.done' has an 'item'",
        ),
        ('{"type":"raw_response_event","data":{"type":"response.completed"}}', "field `usage`"),
        ('{"type":"run_item_stream_event","item":{"type":"note","text":"x"}}', "'name' must be a string"),
        ('{"type":"run_item_stream_event","name":"x","item":{"type":"user"}}', "field `content`"),
        ('{"type":"run_item_stream_event","name":"x"}', "Expected `object`"),
        ('{"type":"agent_updated_stream_event"}', "'new_agent' of an event"),
        ('{"type":"agent_updated_stream_event","new_agent":{}}', "'name' must be a string"),
    ],
)
def test_what_is_not_an_event_is_a_value_error_that_says_why(text: str | bytes, told: str) -> None:
    with pytest.raises(ValueError, match=r"^this is not a stream event: .*encode_stream_event") as raised:
        decode_stream_event(text)
    assert told in str(raised.value)


@given(text=st.text() | st.binary() | PLAIN.map(json.dumps))
def test_any_other_text_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="not a stream event"):
        decode_stream_event(text)


@pytest.mark.parametrize("event", [object(), "text", RawResponseEvent(cast("Any", "text"))])
def test_what_a_run_does_not_stream_cannot_be_encoded(event: Any) -> None:
    with pytest.raises(TypeError, match="is not"):
        encode_stream_event(event)


def test_the_event_of_a_model_that_has_more_fields_is_sent_with_those_that_are_known() -> None:
    class Marked(TextDelta):
        mark = "x"

    assert decode_stream_event(encode_stream_event(RawResponseEvent(Marked("a")))) == RawResponseEvent(
        TextDelta("a")
    )


def test_an_event_in_bytes_is_read_like_one_in_text() -> None:
    text = msgspec.json.encode({"type": "raw_response_event", "data": {"type": TextDelta.type, "text": "é"}})
    assert decode_stream_event(text) == RawResponseEvent(TextDelta("é"))
