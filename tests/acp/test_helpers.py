"""The helpers make the JSON that those of agent-client-protocol 0.12.1 make; the table was checked against that release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import quiesce.acp.helpers
import quiesce.acp.schema
from quiesce.acp.protocol.codec import to_dict

TEXT = {"type": "text", "text": "hi"}

# What is made with the helpers `h` and the schema `s`, of either package; what is expected of it.
CASES: dict[str, tuple[Callable[[Any, Any], Any], dict[str, Any]]] = {
    "text_block": (lambda h, s: h.text_block("hi"), TEXT),
    "image_block": (
        lambda h, s: h.image_block("aGk=", "image/png"),
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
    ),
    "image_block with an address": (
        lambda h, s: h.image_block("aGk=", "image/png", uri="file:///a.png"),
        {"type": "image", "data": "aGk=", "mimeType": "image/png", "uri": "file:///a.png"},
    ),
    "audio_block": (
        lambda h, s: h.audio_block("aGk=", "audio/wav"),
        {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
    ),
    "resource_link_block": (
        lambda h, s: h.resource_link_block("a", "file:///a"),
        {"type": "resource_link", "name": "a", "uri": "file:///a"},
    ),
    "resource_link_block with all": (
        lambda h, s: h.resource_link_block(
            "a", "file:///a", mime_type="text/plain", size=3, description="d", title="t"
        ),
        {
            "type": "resource_link",
            "name": "a",
            "uri": "file:///a",
            "mimeType": "text/plain",
            "size": 3,
            "description": "d",
            "title": "t",
        },
    ),
    "embedded_text_resource": (
        lambda h, s: h.embedded_text_resource("file:///a", "hi", mime_type="text/plain"),
        {"uri": "file:///a", "text": "hi", "mimeType": "text/plain"},
    ),
    "embedded_blob_resource": (
        lambda h, s: h.embedded_blob_resource("file:///a", "aGk="),
        {"uri": "file:///a", "blob": "aGk="},
    ),
    "resource_block": (
        lambda h, s: h.resource_block(h.embedded_text_resource("file:///a", "hi")),
        {"type": "resource", "resource": {"uri": "file:///a", "text": "hi"}},
    ),
    "tool_content": (lambda h, s: h.tool_content(h.text_block("hi")), {"type": "content", "content": TEXT}),
    "tool_diff_content": (
        lambda h, s: h.tool_diff_content("/a", "new", "old"),
        {"type": "diff", "path": "/a", "newText": "new", "oldText": "old"},
    ),
    "tool_diff_content of a new file": (
        lambda h, s: h.tool_diff_content("/a", "new"),
        {"type": "diff", "path": "/a", "newText": "new"},
    ),
    "tool_terminal_ref": (lambda h, s: h.tool_terminal_ref("t1"), {"type": "terminal", "terminalId": "t1"}),
    "plan_entry": (
        lambda h, s: h.plan_entry("look"),
        {"content": "look", "priority": "medium", "status": "pending"},
    ),
    "update_plan": (
        lambda h, s: h.update_plan(
            one for one in [h.plan_entry("look", priority="high", status="completed")]
        ),
        {
            "sessionUpdate": "plan",
            "entries": [{"content": "look", "priority": "high", "status": "completed"}],
        },
    ),
    "update_plan without a plan": (lambda h, s: h.update_plan([]), {"sessionUpdate": "plan", "entries": []}),
    "update_user_message": (
        lambda h, s: h.update_user_message(h.text_block("hi")),
        {"sessionUpdate": "user_message_chunk", "content": TEXT},
    ),
    "update_user_message_text": (
        lambda h, s: h.update_user_message_text("hi"),
        {"sessionUpdate": "user_message_chunk", "content": TEXT},
    ),
    "update_agent_message": (
        lambda h, s: h.update_agent_message(h.text_block("hi")),
        {"sessionUpdate": "agent_message_chunk", "content": TEXT},
    ),
    "update_agent_message_text": (
        lambda h, s: h.update_agent_message_text("hi"),
        {"sessionUpdate": "agent_message_chunk", "content": TEXT},
    ),
    "update_agent_thought": (
        lambda h, s: h.update_agent_thought(h.text_block("hi")),
        {"sessionUpdate": "agent_thought_chunk", "content": TEXT},
    ),
    "update_agent_thought_text": (
        lambda h, s: h.update_agent_thought_text("hi"),
        {"sessionUpdate": "agent_thought_chunk", "content": TEXT},
    ),
    "update_available_commands": (
        lambda h, s: h.update_available_commands([s.AvailableCommand(name="go", description="starts it")]),
        {
            "sessionUpdate": "available_commands_update",
            "availableCommands": [{"name": "go", "description": "starts it"}],
        },
    ),
    "update_current_mode": (
        lambda h, s: h.update_current_mode("ask"),
        {"sessionUpdate": "current_mode_update", "currentModeId": "ask"},
    ),
    "session_notification": (
        lambda h, s: h.session_notification("s1", h.update_agent_message_text("hi")),
        {"sessionId": "s1", "update": {"sessionUpdate": "agent_message_chunk", "content": TEXT}},
    ),
    "start_tool_call": (
        lambda h, s: h.start_tool_call("c1", "Look"),
        {"sessionUpdate": "tool_call", "toolCallId": "c1", "title": "Look"},
    ),
    "start_tool_call with all": (
        lambda h, s: h.start_tool_call(
            "c1",
            "Look",
            kind="search",
            status="in_progress",
            content=(h.tool_terminal_ref("t1"),),
            locations=(s.ToolCallLocation(path="/a", line=3),),
            raw_input={"q": None},
            raw_output=[1],
        ),
        {
            "sessionUpdate": "tool_call",
            "toolCallId": "c1",
            "title": "Look",
            "kind": "search",
            "status": "in_progress",
            "content": [{"type": "terminal", "terminalId": "t1"}],
            "locations": [{"path": "/a", "line": 3}],
            "rawInput": {"q": None},
            "rawOutput": [1],
        },
    ),
    "start_read_tool_call": (
        lambda h, s: h.start_read_tool_call("c1", "Read", "/a"),
        {
            "sessionUpdate": "tool_call",
            "toolCallId": "c1",
            "title": "Read",
            "kind": "read",
            "status": "pending",
            "locations": [{"path": "/a"}],
            "rawInput": {"path": "/a"},
        },
    ),
    "start_edit_tool_call": (
        lambda h, s: h.start_edit_tool_call(
            "c1", "Edit", "/a", "new", extra_options=[h.tool_diff_content("/a", "new")]
        ),
        {
            "sessionUpdate": "tool_call",
            "toolCallId": "c1",
            "title": "Edit",
            "kind": "edit",
            "status": "pending",
            "content": [{"type": "diff", "path": "/a", "newText": "new"}],
            "locations": [{"path": "/a"}],
            "rawInput": {"path": "/a", "content": "new"},
        },
    ),
    "update_tool_call": (
        lambda h, s: h.update_tool_call("c1"),
        {"sessionUpdate": "tool_call_update", "toolCallId": "c1"},
    ),
    "update_tool_call with all": (
        lambda h, s: h.update_tool_call(
            "c1",
            title="Looked",
            kind="think",
            status="completed",
            content=[h.tool_content(h.text_block("hi"))],
            locations=[],
            raw_input="in",
            raw_output={"out": 1},
        ),
        {
            "sessionUpdate": "tool_call_update",
            "toolCallId": "c1",
            "title": "Looked",
            "kind": "think",
            "status": "completed",
            "content": [{"type": "content", "content": TEXT}],
            "locations": [],
            "rawInput": "in",
            "rawOutput": {"out": 1},
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_helper_makes_what_users_expect_of_it(case: str) -> None:
    make, expected = CASES[case]
    made = make(quiesce.acp.helpers, quiesce.acp.schema)
    assert to_dict(made) == expected


def test_every_helper_has_a_case() -> None:
    assert {case.split(" ")[0] for case in CASES} == set(quiesce.acp.helpers.__all__)
