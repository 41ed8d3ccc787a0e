"""Agents of quiesce that `quiesce acp` serves, over stdio and over WebSockets, to clients on other people's
libraries.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_tests.conftest import Converse
from interop_tests.conversation import Conversation
from interop_tests.pairs import ROOT, Pair, only
from interop_tests.process_table import MARK, PATIENCE, wait_until_gone

PHASES = ("think", "wait", "run sleep 3600", "permission")

ours = only(lambda pair: pair.agent.ours)


def command(pair: Pair, *options: str) -> list[str]:
    agent = "interop_tests.programs.served:make_agent"
    return [sys.executable, "-m", "quiesce", "acp", agent, "--backend", pair.agent.backend, *options]


def begin(converse: Converse, *agent: str) -> tuple[Conversation, str]:
    conversation = converse(list(agent))
    conversation.call("initialize")
    conversation.call("permission", answer="allow_once")
    return conversation, conversation.new_session()


def enter(conversation: Conversation, session: str, phase: str) -> int:
    if phase == "permission":
        conversation.call("permission", answer="hold")
        call = conversation.start_prompt(session, "run true")
        conversation.wait_for("permission", session=session)
        return call
    call = conversation.start_prompt(session, phase)
    if phase == "think":
        # Nothing is seen of it; that another request is answered shows that the prompt has been read.
        conversation.call("set_session_mode", session_id=session, mode_id="auto")
    elif phase == "wait":
        conversation.wait_for_update(session, "tool_call")
    else:
        conversation.wait_for("terminal", session=session)
    return call


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "sessions.db")


@ours
def test_a_served_agent_answers_uses_the_clients_files_and_terminals_and_asks_first(
    converse: Converse, pair: Pair, store: str
) -> None:
    conversation, session = begin(converse, *command(pair, "--store", store))
    assert conversation.prompt(session, "say good morning") == "end_turn"
    assert "".join(conversation.said(session)) == "you said: good morning"

    path = conversation.folder / "notes.txt"
    assert conversation.prompt(session, f"write {path} some words") == "end_turn"
    assert path.read_text() == "some words"
    asked = conversation.wait_for("permission", session=session)
    assert {one["kind"] for one in asked["options"]} == {"allow_once", "allow_always", "reject_once"}
    calls = [one for one in conversation.updates(session) if one["sessionUpdate"].startswith("tool_call")]
    shown = [one for call in calls for one in call.get("content") or ()]
    assert {"type": "diff", "path": str(path), "newText": "some words"}.items() <= shown[0].items()

    assert conversation.prompt(session, f"read {path}") == "end_turn"
    assert "some words" in "".join(conversation.said(session))

    assert conversation.prompt(session, "run printf abc; exit 4") == "end_turn"
    conversation.wait_for("released", session=session)
    assert "abc" in conversation.said(session)[-1]

    conversation.call("permission", answer="reject_once")
    assert conversation.prompt(session, f"write {path} other words") == "end_turn"
    assert path.read_text() == "some words"
    conversation.close()
    conversation.nothing_is_left()


@ours
def test_a_served_session_is_found_again_by_another_process(
    converse: Converse, pair: Pair, store: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first, session = begin(converse, *command(pair, "--store", store))
    assert first.prompt(session, "say remember this") == "end_turn"
    first.close()
    again = Conversation(pair, tmp_path_factory.mktemp("again"), command(pair, "--store", store))
    try:
        again.call("initialize")
        assert session in [one["sessionId"] for one in again.call("list_sessions", cwd=None)["sessions"]]
        again.call("load_session", session_id=session, cwd=str(first.folder))
        said = [one for one in again.updates(session) if "content" in one]
        assert [(one["sessionUpdate"], one["content"]["text"]) for one in said] == [
            ("user_message_chunk", "say remember this"),
            ("agent_message_chunk", "you said: remember this"),
        ]
        again.close()
        again.nothing_is_left()
    finally:
        again.kill()


def cancel_in_every_phase(conversation: Conversation) -> None:
    for phase in PHASES:
        conversation.call("permission", answer="allow_once")
        session = conversation.new_session()
        call = enter(conversation, session, phase)
        conversation.call("cancel", session_id=session)
        assert conversation.finish(call) == {"stopReason": "cancelled"}
        assert conversation.prompt(session, f"say {phase} again") == "end_turn"
        assert conversation.said(session)[-1] == f"you said: {phase} again"


@ours
def test_a_served_turn_is_cancelled_in_any_phase_and_the_next_one_works(
    converse: Converse, pair: Pair, store: str
) -> None:
    conversation, _ = begin(converse, *command(pair, "--store", store))
    cancel_in_every_phase(conversation)
    conversation.close()
    conversation.nothing_is_left()


@ours
@pytest.mark.parametrize("phase", ["wait", "permission"])
def test_a_served_agent_ends_with_its_client(converse: Converse, pair: Pair, store: str, phase: str) -> None:
    conversation, session = begin(converse, *command(pair, "--store", store))
    enter(conversation, session, phase)
    conversation.close()
    conversation.nothing_is_left()


ALLOWED = ("--folder", "/", "--allow-auto", "--allow-mcp-commands")


class Server:
    """`quiesce acp --websocket`, in a process of its own."""

    def __init__(self, pair: Pair, store: str) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            command(pair, "--store", store, "--websocket", "localhost:0", *ALLOWED),
            env={**os.environ, "PYTHONPATH": str(ROOT), MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        words = [word.rstrip(",;") for word in line.split() if word.startswith("ws://")]
        assert words, f"it says where it is, and not {line!r}"
        self.address = words[0]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) in (0, 143)
        wait_until_gone(self.mark)


@pytest.fixture
def server(pair: Pair, store: str) -> Iterator[Server]:
    server = Server(pair, store)
    yield server
    server.process.kill()
    server.process.wait(PATIENCE)
    assert server.process.stderr is not None
    server.process.stderr.close()


@ours
def test_an_agent_served_over_a_websocket_talks_and_is_cancelled(converse: Converse, server: Server) -> None:
    conversation, session = begin(converse, server.address)
    assert conversation.prompt(session, "say hello") == "end_turn"
    assert conversation.said(session) == ["you said: hello"]
    cancel_in_every_phase(conversation)
    conversation.close()
    conversation.nothing_is_left()
    server.stop()


@ours
def test_a_client_that_is_gone_of_a_sudden_ends_its_turn_and_not_the_server(
    converse: Converse, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    conversation, session = begin(converse, server.address)
    enter(conversation, session, "wait")
    conversation.client.kill()
    conversation.client.wait(PATIENCE)
    conversation.nothing_is_left()
    other = Conversation(conversation.pair, tmp_path_factory.mktemp("other"), [server.address])
    try:
        other.call("initialize")
        assert other.prompt(other.new_session(), "say hello") == "end_turn"
        other.close()
    finally:
        other.kill()
    server.stop()


@ours
def test_a_server_that_is_stopped_in_a_turn_answers_it(converse: Converse, server: Server) -> None:
    conversation, session = begin(converse, server.address)
    call = enter(conversation, session, "wait")
    server.stop()
    assert conversation.finish(call) == {"stopReason": "cancelled"}
    conversation.close()
    conversation.nothing_is_left()
