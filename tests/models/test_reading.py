"""What is made of the streams of the three APIs, and of the ways that servers have of their own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.models import (
    AssistantMessage,
    ItemDone,
    ModelError,
    ModelEvent,
    ModelRequest,
    Reasoning,
    ReasoningDelta,
    ResponseDone,
    TextDelta,
    Tokens,
    ToolCall,
    ToolCallDelta,
    ToolResult,
    Usage,
    UserMessage,
)
from quiesce.models.anthropic.reader import AnthropicReader
from quiesce.models.http.errors import Endpoint
from quiesce.models.http.sse import EventStream
from quiesce.models.openai.chat_reader import ChatReader
from quiesce.models.openai.responses_reader import ResponsesReader
from tests.models.wires import (
    CHAT_USAGE,
    RESPONSES_USAGE,
    anthropic_text,
    block,
    chat_text,
    chunk,
    event,
    message_end,
    message_start,
    responses_text,
    sse,
)

AT = Endpoint("small", "OpenAI", "small", "http://x", "OPENAI_API_KEY")
READERS: dict[str, Any] = {"chat": ChatReader, "responses": ResponsesReader, "anthropic": AnthropicReader}


def read(api: str, pieces: Sequence[bytes], items: Sequence[Any] = ()) -> list[ModelEvent]:
    reader, stream = READERS[api](ModelRequest(items), AT), EventStream()
    events: list[ModelEvent] = []
    for kind, text in [*stream.feed(b"".join(pieces)), *stream.finish()]:
        if not reader.is_complete:
            events += reader.read(kind, text)
    return [*events, *reader.end()]


def items_of(events: list[ModelEvent]) -> list[Any]:
    return [event.item for event in events if isinstance(event, ItemDone)]


def end_of(events: list[ModelEvent]) -> ResponseDone:
    assert isinstance(events[-1], ResponseDone)
    return events[-1]


def tool_delta(index: int | None = None, **function: Any) -> dict[str, Any]:
    call_id = function.pop("id", None)
    piece: dict[str, Any] = {"type": "function", "function": function}
    if index is not None:
        piece["index"] = index
    if call_id is not None:
        piece["id"] = call_id
    return {"tool_calls": [piece]}


# Server-sent events -----------------------------------------------------------------------------------------------


@given(st.data())
def test_events_are_the_same_however_their_bytes_fall(data: st.DataObject) -> None:
    lines = [
        "\ufeffdata: begins",
        "",
        ": hello",
        "event: a",
        "data: ü one",
        "data:two",
        "",
        "data",
        "",
        "id: 7",
        "nonsense",
        "",
        "data: x",
    ]
    # An empty line that ends in LF, after one that ends in CR, would look like one line that ends in CRLF.
    each = data.draw(st.sampled_from([["\n"], ["\r"], ["\r\n"], ["\r\n", "\n"]]))
    stream = "".join(line + data.draw(st.sampled_from(each)) for line in lines).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    events, made = EventStream(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        made += events.feed(stream[start:end])
    made += events.finish()
    assert made == [("", "begins"), ("a", "ü one\ntwo"), ("", ""), ("", "x")]


def test_a_line_feed_that_comes_after_its_carriage_return_swallows_no_other() -> None:
    stream = EventStream()
    assert stream.feed(b"data: a\r") == []
    assert stream.feed(b"\n") == []
    assert stream.feed(b"\n") == [("", "a")]


@pytest.mark.parametrize("cut", [1, 2])
def test_a_byte_order_mark_is_removed_though_it_comes_in_two_pieces(cut: int) -> None:
    stream, data = EventStream(), "\ufeffdata: a\n\n".encode()
    assert [*stream.feed(data[:cut]), *stream.feed(data[cut:])] == [("", "a")]


def test_what_only_begins_like_a_byte_order_mark_is_kept() -> None:
    stream = EventStream()
    assert [*stream.feed(b"\xef"), *stream.feed(b"\xbb"), *stream.feed(b"x\ndata: a"), *stream.finish()] == [
        ("", "a")
    ]
    assert EventStream().finish() == []


# Chat Completions -------------------------------------------------------------------------------------------------


def test_tool_calls_grow_side_by_side() -> None:
    events = read(
        "chat",
        [
            chunk({"role": "assistant", "content": None}),
            chunk(tool_delta(0, id="a", name="add", arguments="")),
            chunk(tool_delta(1, id="b", name="sub", arguments='{"x"')),
            chunk(tool_delta(0, arguments='{"y":2}')),
            chunk(tool_delta(1, arguments=":1}")),
            chunk({}, "tool_calls"),
            chunk(usage=CHAT_USAGE),
            sse("[DONE]"),
        ],
    )
    assert items_of(events) == [ToolCall("a", "add", '{"y":2}'), ToolCall("b", "sub", '{"x":1}')]
    assert ToolCallDelta("b", "sub", ":1}") in events
    assert end_of(events).finish == "tool_calls"
    assert end_of(events).usage == Usage(1, 12, 5, 4, 2)


@pytest.mark.parametrize(
    "pieces",
    [
        [
            tool_delta(0, id="a", name="add", arguments="{}"),
            tool_delta(0, id="b", name="sub", arguments="{}"),
        ],
        [
            tool_delta(None, id="a", name="add", arguments="{}"),
            tool_delta(None, id="b", name="sub", arguments="{}"),
        ],
        [
            tool_delta(None, id="a", name="add", arguments="{"),
            tool_delta(None, arguments="}"),
            tool_delta(None, id="b", name="sub"),
            tool_delta(None, id="a", arguments=" "),
        ],
        [tool_delta(0, id="a", name="add", arguments={}), tool_delta(1, id="b", name="sub", arguments=None)],
        [
            tool_delta(0, id="a", name="add", arguments=""),
            tool_delta(0, id="a", name="add", arguments="{}"),
            tool_delta(1, id="b", name="sub", arguments="{}"),
        ],
        [
            {
                "tool_calls": tool_delta(0, id="a", name="add")["tool_calls"]
                + tool_delta(1, id="b", name="sub")["tool_calls"]
            }
        ],
    ],
    ids=["one index", "no index", "no index in pieces", "objects", "name again", "in one chunk"],
)
def test_calls_are_told_apart_as_well_as_a_server_lets_us(pieces: list[dict[str, Any]]) -> None:
    events = read("chat", [*[chunk(piece) for piece in pieces], chunk({}, "stop"), sse("[DONE]")])
    calls = items_of(events)
    assert [(call.call_id, call.name, call.arguments.strip()) for call in calls] == [
        ("a", "add", "{}"),
        ("b", "sub", "{}"),
    ]
    assert end_of(events).finish == "tool_calls"  # though it said "stop"


def test_calls_without_ids_get_ids_that_are_theirs_alone() -> None:
    events = read(
        "chat", [chunk(tool_delta(n, name="add", arguments="{}")) for n in range(3)] + [chunk({}, "stop")]
    )
    ids = {call.call_id for call in items_of(events)}
    assert len(ids) == 3
    assert all(ids)


@pytest.mark.parametrize("api", list(READERS))
def test_an_id_that_was_used_before_is_replaced(api: str) -> None:
    before = [UserMessage("hi"), ToolCall("call_0", "add"), ToolResult("call_0", "1")]
    item = {"type": "function_call", "call_id": "call_0", "name": "add", "arguments": "{}"}
    pieces = {
        "chat": [chunk(tool_delta(0, id="call_0", name="add", arguments="{}")), chunk({}, "stop")],
        "responses": [
            event("response.output_item.done", output_index=0, item=item),
            event("response.completed", response={"output": [item]}),
        ],
        "anthropic": [
            *block(0, {"type": "tool_use", "id": "call_0", "name": "add", "input": {}}),
            *message_end("tool_use"),
        ],
    }[api]
    (call,) = items_of(read(api, pieces, before))
    assert call.call_id not in ("", "call_0")
    assert (call.name, call.arguments) == ("add", "{}")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_a_server_that_thinks_aloud(field: str) -> None:
    events = read("chat", [chunk({field: "hm"}), chunk({field: "m"}), *chat_text("yes")])
    assert events[:2] == [ReasoningDelta("hm"), ReasoningDelta("m")]
    assert items_of(events) == [
        Reasoning("hmm", "openai-chat", {"field": field, "model": "small"}),
        AssistantMessage("yes"),
    ]


def test_a_refusal_is_marked() -> None:
    events = read(
        "chat", [chunk({"refusal": "I will"}), chunk({"refusal": " not"}), chunk({}, "stop"), sse("[DONE]")]
    )
    assert items_of(events) == [AssistantMessage("I will not", refusal=True)]
    assert end_of(events).finish == "refusal"


@pytest.mark.parametrize(
    "pieces",
    [
        chat_text("yes")[:-1],  # no [DONE]
        [chunk({"content": "yes"}), sse("[DONE]")],  # no reason, no usage
        [chunk(), chunk({"role": "assistant"}), *chat_text("yes")],  # no choices, no content
        [b": keep-alive\n\n", *chat_text("yes")],
        [
            sse({"choices": [{"delta": {"content": "yes"}}]}),
            sse({"choices": [{"delta": None, "finish_reason": "stop"}]}),
        ],
        [sse({"choices": None}), *chat_text("yes")],
        [b"".join(chat_text("yes")).replace(b"\n", b"\r\n")],
    ],
    ids=["no done", "no reason", "no choices", "comments", "no index", "null choices", "crlf"],
)
def test_servers_leave_out_what_they_like(pieces: list[bytes]) -> None:
    events = read("chat", pieces)
    assert items_of(events) == [AssistantMessage("yes")]
    assert end_of(events).finish == "stop"


def test_only_the_first_of_several_choices_counts() -> None:
    other = sse({"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]})
    assert items_of(read("chat", [other, *chat_text("yes")])) == [AssistantMessage("yes")]


def test_usage_with_every_chunk_is_told_early() -> None:
    usage = [{"prompt_tokens": 3, "completion_tokens": n} for n in (1, 2)]
    events = read("chat", [chunk({"content": "x"}, usage=said) for said in usage] + [chunk({}, "length")])
    assert [event.usage for event in events if isinstance(event, Tokens)] == [Usage(1, 3, 1), Usage(1, 3, 2)]
    assert end_of(events) == ResponseDone(Usage(1, 3, 2), "length", "chatcmpl-1")


def test_a_usage_that_nobody_tells_is_counted_as_that() -> None:
    assert end_of(read("chat", [chunk({"content": "x"}, "stop")])).usage == Usage(1, unreported=1)


# Responses --------------------------------------------------------------------------------------------------------


def test_thoughts_calls_and_text_of_the_responses_api() -> None:
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "encrypted_content": "e",
    }
    call = {"type": "function_call", "id": "fc_1", "call_id": "c_1", "name": "add", "arguments": '{"a":1}'}
    events = read(
        "responses",
        [
            event("response.output_item.added", output_index=0, item={"type": "reasoning", "id": "rs_1"}),
            event("response.reasoning_summary_text.delta", output_index=0, delta="hm"),
            event("response.output_item.done", output_index=0, item=thought),
            event("response.output_item.added", output_index=1, item={**call, "arguments": ""}),
            event("response.function_call_arguments.delta", output_index=1, delta='{"a":'),
            event("response.function_call_arguments.delta", output_index=1, delta="1}"),
            event("response.output_item.done", output_index=1, item=call),
            event(
                "response.completed",
                response={"id": "r", "output": [thought, call], "usage": RESPONSES_USAGE},
            ),
        ],
    )
    assert items_of(events) == [
        Reasoning("hm", "openai-responses", thought),
        ToolCall("c_1", "add", '{"a":1}'),
    ]
    assert ReasoningDelta("hm") in events
    assert ToolCallDelta("c_1", "add", '{"a":') in events
    assert end_of(events) == ResponseDone(Usage(1, 12, 5, 4, 2), "tool_calls", "r")


def test_an_answer_that_was_cut_for_its_length_keeps_its_text() -> None:
    cut = responses_text("half")[:-2]
    end = {
        "id": "r",
        "output": [],
        "incomplete_details": {"reason": "max_output_tokens"},
        "usage": RESPONSES_USAGE,
    }
    events = read("responses", [*cut, event("response.incomplete", response=end)])
    assert items_of(events) == [AssistantMessage("half")]
    assert end_of(events).finish == "length"


def test_items_that_no_event_has_ended_are_taken_from_the_end() -> None:
    output = [
        {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "whole"}]},
        {"type": "function_call", "id": "f", "call_id": "c", "name": "add", "arguments": "{}"},
    ]
    events = read("responses", [event("response.completed", response={"id": "r", "output": output})])
    assert events[0] == TextDelta("whole")
    assert items_of(events) == [AssistantMessage("whole"), ToolCall("c", "add", "{}")]


def test_a_refusal_of_the_responses_api() -> None:
    done = {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}
    pieces = [
        event("response.refusal.delta", output_index=0, delta="no"),
        event("response.output_item.done", output_index=0, item=done),
        event("response.completed", response={"output": [done]}),
    ]
    events = read("responses", pieces)
    assert items_of(events) == [AssistantMessage("no", refusal=True)]
    assert end_of(events).finish == "refusal"


# Anthropic --------------------------------------------------------------------------------------------------------


def test_thoughts_calls_and_text_of_anthropic() -> None:
    events = read(
        "anthropic",
        [
            message_start(),
            *block(
                0,
                {"type": "thinking", "thinking": ""},
                {"type": "thinking_delta", "thinking": "hm"},
                {"type": "signature_delta", "signature": "s"},
            ),
            *block(1, {"type": "redacted_thinking", "data": "xyz"}),
            *block(2, {"type": "text", "text": ""}, {"type": "text_delta", "text": "so"}),
            *block(
                3,
                {"type": "tool_use", "id": "t", "name": "add", "input": {}},
                {"type": "input_json_delta", "partial_json": '{"a"'},
                {"type": "input_json_delta", "partial_json": ":1}"},
            ),
            *message_end("tool_use"),
        ],
    )
    assert events[0] == Tokens(Usage(1, 12, 1, cached_input_tokens=4))
    assert items_of(events) == [
        Reasoning("hm", "anthropic", {"type": "thinking", "thinking": "hm", "signature": "s"}),
        Reasoning("", "anthropic", {"type": "redacted_thinking", "data": "xyz"}),
        AssistantMessage("so"),
        ToolCall("t", "add", '{"a":1}'),
    ]
    assert end_of(events) == ResponseDone(Usage(1, 12, 5, cached_input_tokens=4), "tool_calls", "msg_1")


@pytest.mark.parametrize(
    ("reason", "finish"), [("max_tokens", "length"), ("stop_sequence", "stop"), ("pause_turn", "pause_turn")]
)
def test_why_anthropic_ended(reason: str, finish: str) -> None:
    assert end_of(read("anthropic", [message_start(), *message_end(reason)])).finish == finish


def test_a_refusal_of_anthropic() -> None:
    pieces = [message_start(), *anthropic_text("I")[2:-2], *message_end("refusal")]
    events = read("anthropic", pieces)
    assert items_of(events) == [AssistantMessage("I", refusal=True)]
    assert end_of(events).finish == "refusal"


# All of them ------------------------------------------------------------------------------------------------------

WHOLE = {
    "chat": chat_text("a", "b"),
    "responses": responses_text("a", "b"),
    "anthropic": anthropic_text("a", "b"),
}


@pytest.mark.parametrize("api", list(READERS))
@given(data=st.data())
def test_a_stream_that_is_spoilt_is_a_model_error_or_a_whole_answer(api: str, data: st.DataObject) -> None:
    pieces = [json.loads(piece.split(b"data: ", 1)[1]) for piece in WHOLE[api] if b"[DONE]" not in piece]
    spoilt: Any = data.draw(st.sampled_from(range(len(pieces))))
    odd = data.draw(st.sampled_from([None, 7, "x", [], [7], {}, {"type": 5}, {"choices": 7}, {"delta": [1]}]))
    path: Any = pieces[spoilt]
    while isinstance(path, dict) and path and data.draw(st.booleans()):
        key = data.draw(st.sampled_from(sorted(path)))
        if isinstance(path[key], dict) and path[key] and data.draw(st.booleans()):
            path = path[key]
        else:
            path[key] = odd
            break
    try:
        events = read(api, [sse(piece) for piece in pieces])
    except ModelError:
        return
    assert isinstance(events[-1], ResponseDone)
    said = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert said == "".join(item.text for item in items_of(events) if isinstance(item, AssistantMessage))
