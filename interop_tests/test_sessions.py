"""From the first message to a session, and what can be done with one outside of a turn."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from interop_tests.conftest import Converse
from interop_tests.conversation import Conversation, Refused
from interop_tests.pairs import newest, only
from interop_tests.process_table import PATIENCE


def test_each_side_learns_what_the_other_can_do(converse: Converse) -> None:
    conversation = converse()
    answer = conversation.call("initialize")
    assert answer["protocolVersion"] == 1
    assert answer["agentInfo"] == {"name": "interop", "title": "Interop agent", "version": "1.0"}
    can = answer["agentCapabilities"]
    assert can["loadSession"] is True
    assert can["promptCapabilities"]["image"] is True
    assert can["promptCapabilities"].get("audio", False) is False
    assert can["sessionCapabilities"] == {"list": {}, "close": {}, "resume": {}, "delete": {}}
    assert can["auth"] == {"logout": {}}
    assert [method["id"] for method in answer["authMethods"]] == ["token"]
    client_can = conversation.call("ext_method", method="interop/state", params={})["capabilities"]
    assert client_can["fs"] == {"readTextFile": True, "writeTextFile": True}
    assert client_can["terminal"] is True


def test_a_session_needs_authentication_if_the_agent_says_so(converse: Converse, tmp_path: Path) -> None:
    conversation = converse()
    conversation.call("initialize")
    with pytest.raises(Refused) as without:
        conversation.call("new_session", cwd=str(tmp_path))
    assert without.value.code == -32000
    assert without.value.data == {"methods": ["token"]}
    with pytest.raises(Refused) as unknown:
        conversation.call("authenticate", method_id="password")
    assert unknown.value.code == -32602
    assert conversation.call("authenticate", method_id="token") == {}
    created = conversation.call("new_session", cwd=str(tmp_path))
    assert created["modes"]["currentModeId"] == "ask"
    assert [mode["id"] for mode in created["modes"]["availableModes"]] == ["ask", "code"]
    assert created["configOptions"][0]["currentValue"] == "small"


@only(newest)
def test_after_a_logout_there_are_no_new_sessions(converse: Converse, tmp_path: Path) -> None:
    conversation = converse()
    conversation.open()
    conversation.new_session()
    assert conversation.call("logout") == {}
    with pytest.raises(Refused) as refused:
        conversation.call("new_session", cwd=str(tmp_path))
    assert refused.value.code == -32000


def test_a_loaded_session_is_replayed_before_the_answer(conversation: Conversation, session: str) -> None:
    conversation.prompt(session, "stream 20")
    before = len(conversation.updates(session))
    call = conversation.start("load_session", session_id=session, cwd=str(conversation.folder))
    loaded = conversation.finish(call)
    assert loaded["modes"]["currentModeId"] == "ask"
    replayed = conversation.updates(session)[before:]
    assert [(one["sessionUpdate"], one["content"]["text"]) for one in replayed] == [
        ("user_message_chunk", "stream 20"),
        *(("agent_message_chunk", f"chunk {number}") for number in range(20)),
    ]
    assert conversation.position("update", session=session) < conversation.position("result", id=call)


def test_a_resumed_session_is_not_replayed(conversation: Conversation, session: str) -> None:
    conversation.prompt(session, "stream 3")
    before = len(conversation.updates(session))
    resumed = conversation.call("resume_session", session_id=session, cwd=str(conversation.folder))
    assert resumed["modes"]["currentModeId"] == "ask"
    assert conversation.prompt(session, "stream 1") == "end_turn"
    assert len(conversation.updates(session)) == before + 1


@only(newest)
def test_a_deleted_session_is_not_listed(conversation: Conversation, session: str) -> None:
    assert conversation.call("delete_session", session_id=session) == {}
    listed = conversation.call("list_sessions", cwd=str(conversation.folder))["sessions"]
    assert session not in [one["sessionId"] for one in listed]


def test_a_session_that_the_agent_does_not_know_cannot_be_loaded(conversation: Conversation) -> None:
    with pytest.raises(Refused) as refused:
        conversation.call("load_session", session_id="never made", cwd=str(conversation.folder))
    assert refused.value.code == -32002


def test_sessions_are_listed_until_they_are_closed(conversation: Conversation, session: str) -> None:
    def listed() -> list[str]:
        answer = conversation.call("list_sessions", cwd=str(conversation.folder))
        return [one["sessionId"] for one in answer["sessions"]]

    assert session in listed()
    assert conversation.call("close_session", session_id=session) == {}
    assert session not in listed()
    assert conversation.call("list_sessions", cwd="/nowhere") == {"sessions": []}


def test_a_mode_is_set_and_announced(conversation: Conversation, session: str) -> None:
    assert conversation.call("set_session_mode", session_id=session, mode_id="code") == {}
    assert conversation.wait_for_update(session, "current_mode_update")["currentModeId"] == "code"
    with pytest.raises(Refused) as refused:
        conversation.call("set_session_mode", session_id=session, mode_id="sleep")
    assert refused.value.code == -32602


def test_an_option_is_set_and_all_options_come_back(conversation: Conversation, session: str) -> None:
    answer = conversation.call("set_config_option", session_id=session, config_id="model", value="large")
    assert [(one["id"], one["currentValue"]) for one in answer["configOptions"]] == [("model", "large")]


def test_extensions_of_the_agent_are_called_by_name(conversation: Conversation) -> None:
    conversation.call("ext_notification", method="interop/note", params={"from": "the client"})
    note, ends = {"method": "interop/note", "params": {"from": "the client"}}, time.monotonic() + PATIENCE
    # Handlers run side by side: that of a request may be done before that of a notification which came first.
    while note not in conversation.call("ext_method", method="interop/state", params={})["notes"]:
        assert time.monotonic() < ends, "the notification did not arrive"
    with pytest.raises(Refused) as refused:
        conversation.call("ext_method", method="interop/unknown", params={})
    assert refused.value.code == -32601
