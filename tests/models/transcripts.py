"""Valid transcripts, any of them, for property tests; and what the three APIs insist on, as checks of a request."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import strategies as st

from quiesce.models import (
    AssistantMessage,
    Image,
    Item,
    Note,
    Reasoning,
    Text,
    ToolCall,
    ToolOutcome,
    ToolResult,
    UnknownItem,
    UserMessage,
)

WORDS = st.sampled_from(["", " ", "\n", "hello", "Grüße ", "two words", "trailing \n"])
IMAGES = st.sampled_from(
    ["https://example.com/a.png", "data:image/png;base64,aGVsbG8=", "data:image/png;x=1;base64,aGk="]
)
IDS = st.one_of(
    st.sampled_from(
        ["call_1", "functions.add:0", "a/b", "a_b", "a:b", "x" * 60, "x" * 60 + "y", "ü", "call 1"]
    ),
    st.text(min_size=1, max_size=70),
)
ARGUMENTS = st.sampled_from(["{}", '{"a": 1}', "", "[1]", "nonsense", '{"a": ', "7", "null"])
OUTCOMES: st.SearchStrategy[ToolOutcome] = st.sampled_from(
    ["finished", "failed", "rejected", "interrupted", "not_started", "still_running", "unknown"]
)


def _reasoning() -> st.SearchStrategy[Reasoning]:
    anthropic = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
    ]
    responses = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e", "status": "completed"}
    ]
    chat = [
        {"field": "reasoning_content", "model": "small"},
        {"field": "reasoning_content", "model": "other"},
    ]
    return st.one_of(
        st.builds(Reasoning, WORDS, st.just("anthropic"), st.sampled_from([None, *anthropic])),
        st.builds(
            Reasoning, WORDS, st.just("openai-responses"), st.sampled_from([None, {"id": "rs_2"}, *responses])
        ),
        st.builds(Reasoning, WORDS, st.just("openai-chat"), st.sampled_from([None, *chat])),
        st.builds(Reasoning, WORDS),
    )


def _users() -> st.SearchStrategy[Item]:
    part = st.one_of(st.builds(Text, WORDS), st.builds(Image, IMAGES))
    return st.one_of(
        st.builds(UserMessage, WORDS),
        st.builds(UserMessage, st.lists(part, max_size=3)),
        st.builds(Note, WORDS),
        st.builds(UnknownItem, st.just({"type": "newer"})),
    )


@st.composite
def _model_turn(draw: st.DrawFn, taken: set[str]) -> list[Item]:
    """What a model says in a turn, with the results of what it asks for."""
    said = st.builds(AssistantMessage, WORDS, interrupted=st.booleans(), refusal=st.booleans())
    items: list[Item] = draw(st.lists(st.one_of(_reasoning(), said), max_size=3))
    ids = draw(st.lists(IDS.filter(lambda found: found not in taken), max_size=3, unique=True))
    taken.update(ids)
    items += [ToolCall(each, "add", draw(ARGUMENTS)) for each in ids]
    items += [ToolResult(each, draw(WORDS), draw(OUTCOMES)) for each in ids]
    return items


@st.composite
def transcripts(draw: st.DrawFn) -> list[Item]:
    """Any that keeps to the one rule: calls are followed at once by one result each, in order."""
    items: list[Item] = []
    taken: set[str] = set()
    for _ in range(draw(st.integers(0, 5))):
        items += draw(_model_turn(taken)) if draw(st.booleans()) else [draw(_users())]
    return items


# What the APIs insist on ------------------------------------------------------------------------------------------


def check_chat(messages: list[dict[str, Any]]) -> None:
    pending: list[str] = []
    seen: set[str] = set()
    before = None
    for message in messages:
        role = message["role"]
        if role == "tool":
            assert message["tool_call_id"] in pending, "a result without its call next to it"
            pending.remove(message["tool_call_id"])
            assert isinstance(message["content"], str)
        else:
            assert not pending, "a call without its result next to it"
            assert role == "system" or role != before or role == "assistant", "two turns of one side"
        if role == "assistant":
            assert before != "assistant", "two turns of one side"
            assert message["content"] or message.get("tool_calls"), "an empty message"
            assert "tool_calls" not in message or message["tool_calls"]
            for call in message.get("tool_calls", ()):
                assert call["id"] not in seen, "an id twice"
                assert len(call["id"]) <= 40
                assert set(call) == {"id", "type", "function"}
                seen.add(call["id"])
                pending.append(call["id"])
            assert set(message) <= {"role", "content", "tool_calls", "reasoning_content", "reasoning"}
        if role == "user":
            content = message["content"]
            assert isinstance(content, str) or all(part["type"] in ("text", "image_url") for part in content)
            assert content == "" or isinstance(content, str) or content
        before = role
    assert not pending


def check_responses(items: list[dict[str, Any]]) -> None:
    pending: list[str] = []
    seen: set[str] = set()
    for number, item in enumerate(items):
        kind = item.get("type", "message")
        if kind == "function_call_output":
            assert item["call_id"] in pending
            pending.remove(item["call_id"])
            continue
        if kind == "function_call":
            assert item["call_id"] not in seen
            assert re.fullmatch(r"[\w-]{1,64}", item["call_id"])
            seen.add(item["call_id"])
            pending.append(item["call_id"])
            continue
        assert not pending, "a call without its result next to it"
        if kind == "reasoning":
            assert item["encrypted_content"]
            following = items[number + 1]
            assert following.get("type") in ("reasoning", "function_call") or following["role"] == "assistant"
        else:
            assert item["content"]
    assert not pending


def check_anthropic(messages: list[dict[str, Any]]) -> None:
    assert messages
    assert messages[0]["role"] == messages[-1]["role"] == "user"
    pending: list[str] = []
    seen: set[str] = set()
    for number, message in enumerate(messages):
        assert message["role"] == ("assistant" if number % 2 else "user"), "the sides do not alternate"
        blocks = message["content"]
        assert blocks, "an empty message"
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert [block["type"] for block in blocks[: len(results)]] == ["tool_result"] * len(results)
        assert sorted(results) == sorted(pending), "calls and results do not match"
        pending = []
        for block in blocks:
            if block["type"] == "text":
                assert block["text"].strip(), "an empty text"
            elif block["type"] == "tool_use":
                assert message["role"] == "assistant"
                assert re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"])
                assert block["id"] not in seen
                assert isinstance(block["input"], dict)
                seen.add(block["id"])
                pending.append(block["id"])
            elif block["type"] == "image":
                assert message["role"] == "user"
                assert set(block["source"]) in ({"type", "url"}, {"type", "media_type", "data"})
                assert not block["source"].get("url", "").startswith("data:")
        if message["role"] == "assistant":
            assert blocks[-1]["type"] not in ("thinking", "redacted_thinking"), "thinking stands last"
            if blocks[-1]["type"] == "text":
                assert blocks[-1]["text"] == blocks[-1]["text"].rstrip()
    assert not pending
    json.dumps(messages)
