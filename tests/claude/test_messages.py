"""What the CLI says, as users read it: as claude-agent-sdk parses it, held against what that made of the same messages."""

from __future__ import annotations

from typing import Any

import pytest

from quiesce.claude import (
    MessageParseError,
    RateLimitEvent,
    SystemMessage,
    ToolUseBlock,
    UserMessage,
    parse_message,
)
from quiesce.claude.words.errors import result_text
from tests.claude.message_table import MESSAGES
from tests.claude.sdk_facts import SDK, lister

TABLE = list(zip(MESSAGES, SDK["parsed"], strict=True))


def kind(message: Any) -> str:
    return str(message.get("subtype") or message.get("type")) if isinstance(message, dict) else str(message)


@pytest.mark.parametrize(
    ("message", "expected"), TABLE, ids=[f"{place}-{kind(message)}" for place, message in enumerate(MESSAGES)]
)
def test_a_message_is_parsed_as_the_sdk_parses_it(message: Any, expected: Any) -> None:
    assert lister.parsed(parse_message, message, MessageParseError) == expected


@pytest.mark.parametrize(
    "message",
    [
        {"type": "user", "message": None},
        {"type": "user", "message": "text"},
        {"type": "assistant", "message": []},
        {"type": "system", "subtype": []},
        {"type": ["user"]},
        {"type": "rate_limit_event", "uuid": "u", "session_id": "s", "rate_limit_info": None},
        {"type": "user", "message": {"content": [{"type": ["text"]}]}},
    ],
    ids=str,
)
def test_a_message_of_the_wrong_shape_is_an_error_that_keeps_it(message: Any) -> None:
    with pytest.raises(MessageParseError) as wrong:
        parse_message(message)
    assert wrong.value.data is message


def test_state_that_the_cli_sends_for_us_alone_is_not_shown() -> None:
    state = {"type": "system", "subtype": "session_state_changed", "state": "idle"}
    assert parse_message({**state, "sdk_host_only": True}) is None
    assert parse_message(state) == SystemMessage("session_state_changed", state)


@pytest.mark.parametrize("kind", ["control_request", "control_response", "control_cancel_request"])
def test_frames_of_the_control_protocol_are_no_messages(kind: str) -> None:
    assert parse_message({"type": kind, "request_id": "1"}) is None


def test_contents_are_handed_on_not_copied() -> None:
    given = {"command": "ls"}
    info = {"status": "allowed", "new": 1}
    message = parse_message(
        {
            "type": "user",
            "message": {"content": [{"type": "tool_use", "id": "1", "name": "Bash", "input": given}]},
        }
    )
    assert isinstance(message, UserMessage)
    assert isinstance(message.content, list)
    [block] = message.content
    assert isinstance(block, ToolUseBlock)
    assert block.input is given
    limit = parse_message(
        {"type": "rate_limit_event", "uuid": "u", "session_id": "s", "rate_limit_info": info}
    )
    assert isinstance(limit, RateLimitEvent)
    assert limit.rate_limit_info.raw is info


def test_messages_can_be_matched_by_position() -> None:
    match parse_message(
        {
            "type": "user",
            "message": {"content": [{"type": "tool_use", "id": "1", "name": "Bash", "input": {}}]},
        }
    ):
        case UserMessage([ToolUseBlock("1", "Bash", {})]):
            pass
        case other:
            pytest.fail(f"not matched: {other}")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"errors": ["a", " b "], "result": "r"}, "a; b"),
        ({"errors": [], "result": " API Error: 529 ", "subtype": "success"}, "API Error: 529"),
        ({"subtype": "error_max_turns", "result": " "}, "error_max_turns"),
        ({"subtype": "success", "api_error_status": 529}, "API error (HTTP 529)"),
        ({}, "unknown error"),
    ],
)
def test_a_result_that_is_an_error_says_what_went_wrong(result: dict[str, Any], text: str) -> None:
    assert result_text(result) == text
