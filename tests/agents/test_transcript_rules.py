"""The rules that histories are judged by: each of them can say no."""

from __future__ import annotations

from typing import Any

import pytest

from quiesce.models import AssistantMessage, ToolCall, ToolResult
from tests.agents.transcript_rules import problems

CALL = {"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}}
ANSWER = {"role": "tool", "tool_call_id": "a", "content": "done"}
USE = {"type": "tool_use", "id": "a", "name": "read", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "done"}
HELLO = {"role": "user", "content": "hello"}
FUNCTION_CALL = {"type": "function_call", "call_id": "a", "name": "read", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "done"}
REASONING = {"type": "reasoning", "id": "rs", "summary": []}


def asks(*calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **fields}


def claude(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


GOOD: list[tuple[str, list[Any]]] = [
    ("chat", [HELLO, asks(CALL), ANSWER]),
    ("responses", [HELLO, REASONING, FUNCTION_CALL, OUTPUT]),
    ("anthropic", [HELLO, claude(USE), user(RESULT, {"type": "text", "text": "and?"})]),
    ("items", [ToolCall("a", "read"), ToolResult("a", "done")]),
]

BAD: list[tuple[str, list[Any], str]] = [
    ("chat", [asks(CALL)], "must be followed by tool messages"),
    ("chat", [asks(CALL), HELLO, ANSWER], "must be followed by tool messages"),
    ("chat", [ANSWER], "must be a response to a preceding call"),
    ("chat", [asks(CALL), ANSWER, ANSWER], "must be a response to a preceding call"),
    ("chat", [asks()], "too short"),
    ("chat", [asks(CALL, CALL), ANSWER, ANSWER], "ids repeat"),
    ("chat", [asks({**CALL, "id": ""}), {**ANSWER, "tool_call_id": ""}], "without an id"),
    ("chat", [asks({**CALL, "function": {"name": "read", "arguments": '{"a'}}), ANSWER], "valid JSON object"),
    ("chat", [asks(CALL), {**ANSWER, "content": None}], "got null"),
    ("chat", [{"role": "user", "content": None}], "got null"),
    ("chat", [{"role": "assistant", "content": ""}], "says nothing"),
    ("chat", [{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}], "must be followed"),
    ("chat", [{"role": "assistant", "function_call": {"name": "", "arguments": "{}"}}], "no name"),
    ("responses", [FUNCTION_CALL], "no tool output found"),
    ("responses", [OUTPUT], "no tool call found"),
    ("responses", [FUNCTION_CALL, HELLO, OUTPUT], "no tool output found"),
    ("responses", [FUNCTION_CALL, OUTPUT, FUNCTION_CALL, OUTPUT], "used twice"),
    ("responses", [{**FUNCTION_CALL, "arguments": "{"}, OUTPUT], "no JSON object"),
    ("responses", [HELLO, REASONING], "without its required following item"),
    ("responses", [REASONING, HELLO], "without its required following item"),
    ("responses", [REASONING, FUNCTION_CALL, OUTPUT, REASONING, FUNCTION_CALL], "duplicate item"),
    ("responses", [{"role": "assistant", "content": None}], "content is null"),
    ("anthropic", [HELLO, claude(USE)], "without tool_result blocks immediately after"),
    ("anthropic", [HELLO, claude(USE), user({"type": "text", "text": "x"})], "without tool_result"),
    ("anthropic", [user(RESULT)], "unexpected tool_use_id"),
    ("anthropic", [HELLO, claude(USE), user(RESULT, RESULT)], "without tool_result"),
    ("anthropic", [HELLO, claude(USE), user({"type": "text", "text": "x"}, RESULT)], "come first"),
    ("anthropic", [HELLO, claude(USE, {"type": "text", "text": "x"}), user(RESULT)], "text after tool_use"),
    ("anthropic", [HELLO, claude(USE), user(RESULT), claude(USE), user(RESULT)], "must be unique"),
    ("anthropic", [HELLO, HELLO], "alternate"),
    ("anthropic", [claude({"type": "text", "text": "x"})], "first message"),
    ("anthropic", [user({"type": "text", "text": " "})], "non-whitespace"),
    (
        "anthropic",
        [HELLO, claude(USE), user({**RESULT, "content": [{"type": "text", "text": ""}]})],
        "non-wh",
    ),
    ("anthropic", [user()], "non-empty content"),
    ("anthropic", [HELLO, claude({"type": "thinking", "thinking": "x", "signature": "s"})], "final block"),
    ("anthropic", [HELLO, claude({"type": "thinking", "thinking": "x"}, USE), user(RESULT)], "signature"),
    ("anthropic", [HELLO, claude({**USE, "input": "{"}), user(RESULT)], "an object as input"),
    ("anthropic", [HELLO, claude(RESULT)], "only be in user messages"),
    ("anthropic", [user(USE)], "only be in assistant messages"),
    ("items", [ToolCall("a", "read")], "no results"),
    ("items", [ToolResult("a", "done")], "not next to its call"),
    ("items", [ToolCall("a", "read"), AssistantMessage("x"), ToolResult("a", "done")], "no results"),
    ("items", [ToolCall("a", "read", "{"), ToolResult("a", "done")], "no JSON object"),
    ("items", [ToolCall("", "read"), ToolResult("", "done")], "no id or name"),
    ("items", [AssistantMessage("")], "says nothing"),
]


@pytest.mark.parametrize(("shape", "history"), GOOD)
def test_a_history_as_the_provider_wrote_it_has_no_problems(shape: str, history: list[Any]) -> None:
    assert problems(history, shape) == []


@pytest.mark.parametrize(("shape", "history", "complaint"), BAD)
def test_a_history_that_the_provider_rejects_has_that_problem(
    shape: str, history: list[Any], complaint: str
) -> None:
    assert any(complaint in problem for problem in problems(history, shape)), problems(history, shape)
