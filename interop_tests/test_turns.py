"""A prompt and what an agent asks of its client meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interop_tests.conversation import Conversation, Refused
from interop_tests.pairs import newest, only
from interop_tests.process_table import wait_until_gone


def test_all_chunks_arrive_in_order_and_before_the_answer(conversation: Conversation, session: str) -> None:
    call = conversation.start_prompt(session, "stream 200")
    assert conversation.finish(call) == {"stopReason": "end_turn"}
    assert conversation.said(session) == [f"chunk {number}" for number in range(200)]
    assert conversation.position("update", session=session) < conversation.position("result", id=call)


@only(lambda pair: pair.client.ours)
def test_a_client_of_ours_that_takes_its_time_over_updates_keeps_their_order_all_the_same(
    conversation: Conversation, session: str
) -> None:
    conversation.call("linger", on=True)
    call = conversation.start_prompt(session, "stream 30")
    assert conversation.finish(call) == {"stopReason": "end_turn"}
    assert conversation.said(session) == [f"chunk {number}" for number in range(30)]
    loaded = conversation.start("load_session", session_id=session, cwd=str(conversation.folder))
    conversation.finish(loaded)
    assert conversation.said(session) == [f"chunk {number}" for number in range(30)] * 2
    conversation.call("linger", on=False)


def test_turns_of_two_sessions_run_at_the_same_time(conversation: Conversation, session: str) -> None:
    endless = conversation.start_prompt(session, "stream")
    other = conversation.new_session()
    assert conversation.prompt(other, "stream 3") == "end_turn"
    assert conversation.said(other) == ["chunk 0", "chunk 1", "chunk 2"]
    conversation.call("cancel", session_id=session)
    assert conversation.finish(endless) == {"stopReason": "cancelled"}


def test_every_kind_of_content_reaches_the_agent(conversation: Conversation, session: str) -> None:
    more: list[dict[str, Any]] = [
        {"type": "text", "text": 'Grüße, \u2028 and a "quote"\n'},
        {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"},
        {"type": "resource_link", "uri": "file:///a.txt", "name": "a.txt"},
        {"type": "resource", "resource": {"uri": "file:///b.txt", "text": "b", "mimeType": "text/plain"}},
    ]
    assert conversation.prompt(session, "kinds", *more) == "end_turn"
    assert json.loads(conversation.said(session)[0]) == [{"type": "text", "text": "kinds"}, *more]


UPDATES: list[tuple[str, dict[str, Any]]] = [
    (
        "AgentThoughtChunk",
        {"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "hm"}},
    ),
    (
        "AgentPlanUpdate",
        {
            "sessionUpdate": "plan",
            "entries": [{"content": "look", "priority": "high", "status": "in_progress"}],
        },
    ),
    (
        "AvailableCommandsUpdate",
        {
            "sessionUpdate": "available_commands_update",
            "availableCommands": [
                {"name": "plan", "description": "Make a plan", "input": {"hint": "of what"}}
            ],
        },
    ),
    ("CurrentModeUpdate", {"sessionUpdate": "current_mode_update", "currentModeId": "code"}),
    ("SessionInfoUpdate", {"sessionUpdate": "session_info_update", "title": "A title"}),
    (
        "UsageUpdate",
        {
            "sessionUpdate": "usage_update",
            "used": 10,
            "size": 200,
            "cost": {"amount": 0.5, "currency": "EUR"},
        },
    ),
    (
        "ToolCallStart",
        {
            "sessionUpdate": "tool_call",
            "toolCallId": "edit-1",
            "title": "Edit",
            "kind": "edit",
            "status": "pending",
            "content": [{"type": "diff", "path": "/a.txt", "oldText": "a", "newText": "b"}],
            "locations": [{"path": "/a.txt", "line": 3}],
        },
    ),
    (
        "ToolCallProgress",
        {
            "sessionUpdate": "tool_call_update",
            "toolCallId": "edit-1",
            "status": "failed",
            "_meta": {"example.org/why": ["full", {"disk": True}]},
        },
    ),
]


def test_every_kind_of_update_reaches_the_client(conversation: Conversation, session: str) -> None:
    # An agent on agent-client-protocol leaves out what a message has by default, a pending status for one.
    script = {"type": "text", "text": json.dumps(UPDATES)}
    assert conversation.prompt(session, "every", script) == "end_turn"
    assert conversation.updates(session) == [update for _, update in UPDATES]


NEWER_UPDATES: list[tuple[str, dict[str, Any]]] = [
    ("NoticeUpdate", {"sessionUpdate": "notice", "severity": "warning", "title": "Slow today"}),
    (
        "CompactionUpdate",
        {"sessionUpdate": "compaction_update", "compactionId": "c-1", "status": "in_progress"},
    ),
    (
        "CompactionSummaryChunk",
        {
            "sessionUpdate": "compaction_summary_chunk",
            "compactionId": "c-1",
            "content": {"type": "text", "text": "so far"},
        },
    ),
]


@only(newest)
def test_kinds_of_updates_that_came_late_to_the_protocol_reach_the_client(
    conversation: Conversation, session: str
) -> None:
    script = {"type": "text", "text": json.dumps(NEWER_UPDATES)}
    assert conversation.prompt(session, "every", script) == "end_turn"
    assert conversation.updates(session) == [update for _, update in NEWER_UPDATES]


def test_a_message_of_several_megabytes_passes_both_ways(conversation: Conversation, session: str) -> None:
    large = {"type": "text", "text": "0123456789abcdef" * 200_000}
    assert conversation.prompt(session, "kinds", large) == "end_turn"
    assert json.loads(conversation.said(session)[0])[1] == large


def test_many_turns_at_once_each_keep_their_order(conversation: Conversation) -> None:
    sessions = [conversation.new_session() for _ in range(20)]
    calls = [conversation.start_prompt(session, "stream 50") for session in sessions]
    for session, call in zip(sessions, calls, strict=True):
        assert conversation.finish(call) == {"stopReason": "end_turn"}
        assert conversation.said(session) == [f"chunk {number}" for number in range(50)]


def test_a_form_is_filled_in_by_the_user(conversation: Conversation, session: str) -> None:
    assert conversation.prompt(session, "elicit") == "end_turn"
    asked = conversation.wait_for("elicitation", session=session)
    assert asked["message"] == "Who are you?"
    assert asked["schema"]["required"] == ["name"]
    assert asked["schema"]["properties"]["name"] == {"type": "string", "title": "Name"}
    answer = json.loads(conversation.said(session)[0])
    assert answer == {"action": "accept", "content": {"name": "nobody", "sure": True}}


def test_a_tool_call_is_shown_from_its_start_to_its_end(conversation: Conversation, session: str) -> None:
    assert conversation.prompt(session, "tool hello") == "end_turn"
    started = conversation.wait_for_update(session, "tool_call")
    assert started["kind"] == "execute"
    assert started["status"] == "in_progress"
    assert started["rawInput"] == {"argv": ["echo", "hello"]}
    ended = conversation.wait_for_update(session, "tool_call_update")
    assert ended["toolCallId"] == started["toolCallId"]
    assert ended["status"] == "completed"
    assert ended["content"] == [{"type": "content", "content": {"type": "text", "text": "hello\n"}}]
    assert ended["rawOutput"] == {"exitCode": 0}


@pytest.mark.parametrize(
    ("answer", "outcome", "stop_reason"),
    [
        ("yes", {"outcome": "selected", "optionId": "yes"}, "end_turn"),
        ("no", {"outcome": "selected", "optionId": "no"}, "end_turn"),
        ("cancelled", {"outcome": "cancelled"}, "cancelled"),
    ],
)
def test_the_answer_to_a_permission_request_reaches_the_agent(
    conversation: Conversation, session: str, answer: str, outcome: dict[str, str], stop_reason: str
) -> None:
    conversation.call("permission", answer=answer)
    assert conversation.prompt(session, "permission") == stop_reason
    (said,) = conversation.said(session)
    assert json.loads(said.removeprefix("permission ")) == outcome
    asked = conversation.wait_for("permission", session=session)
    assert asked["call"]["toolCallId"] == "call-2"
    assert [(one["optionId"], one["kind"]) for one in asked["options"]] == [
        ("yes", "allow_once"),
        ("no", "reject_once"),
    ]


def test_a_file_is_read_whole_and_in_part(conversation: Conversation, session: str) -> None:
    path = conversation.folder / "read.txt"
    path.write_text("one\ntwo ü\nthree\nfour\n")
    assert conversation.prompt(session, f"read {path}") == "end_turn"
    assert conversation.prompt(session, f"read {path} 2 2") == "end_turn"
    assert conversation.said(session) == ["one\ntwo ü\nthree\nfour\n", "two ü\nthree\n"]


def test_a_file_that_is_not_there_is_an_error_that_passes_through_the_agent(
    conversation: Conversation, session: str
) -> None:
    with pytest.raises(Refused) as refused:
        conversation.prompt(session, "read /not/there")
    assert refused.value.code == -32002


def test_a_file_is_written(conversation: Conversation, session: str) -> None:
    path = conversation.folder / f"{session}.txt"
    assert conversation.prompt(session, f"write {path} some words") == "end_turn"
    assert path.read_text() == "some words"


def test_a_command_runs_in_a_terminal_to_its_end(conversation: Conversation, session: str) -> None:
    assert conversation.prompt(session, "terminal run") == "end_turn"
    shown = conversation.wait_for_update(session, "tool_call")["content"]
    created = conversation.wait_for("terminal", session=session)["terminal"]
    assert shown == [{"type": "terminal", "terminalId": created}]
    seen = json.loads(conversation.said(session)[0])
    assert seen["exited"]["exitCode"] == 3
    assert seen["output"]["output"] == "three"
    assert seen["output"]["truncated"] is True
    assert seen["output"]["exitStatus"]["exitCode"] == 3
    assert seen["after"] == -32002, "a released terminal is unknown"


def test_a_command_in_a_terminal_is_killed(conversation: Conversation, session: str) -> None:
    assert conversation.prompt(session, "terminal kill") == "end_turn"
    seen = json.loads(conversation.said(session)[0])
    assert seen["exited"].get("signal") == "SIGKILL"
    assert seen["output"]["output"] == "started\n"
    wait_until_gone(conversation.mark, session)


def test_extensions_of_the_client_are_called_by_name(conversation: Conversation, session: str) -> None:
    assert conversation.prompt(session, "extension") == "end_turn"
    params = {"deep": [1, {"two": None}]}
    assert json.loads(conversation.said(session)[0]) == {"answer": {"echo": params}, "refused": -32601}
    assert conversation.wait_for("note")["params"] == {"text": "a note"}


def test_an_error_of_the_agent_keeps_its_code_and_data(conversation: Conversation, session: str) -> None:
    with pytest.raises(Refused, match="no luck") as refused:
        conversation.prompt(session, "fail")
    assert refused.value.code == -32050
    assert refused.value.data == {"why": "it was asked for"}


def test_an_error_that_an_agent_did_not_catch_is_an_internal_error(
    conversation: Conversation, session: str
) -> None:
    with pytest.raises(Refused) as refused:
        conversation.prompt(session, "blow")
    assert refused.value.code == -32603
    assert conversation.prompt(session, "stream 1") == "end_turn"
