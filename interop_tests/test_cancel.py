"""A turn that is stopped, in each of its phases and in each way that the protocol has."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from interop_tests.conversation import Conversation, Refused
from interop_tests.pairs import newest, only
from interop_tests.phases import PHASES, enter
from interop_tests.process_table import PATIENCE, wait_until_gone


def no_process_of_the_turn_is_left(conversation: Conversation, session: str) -> None:
    wait_until_gone(conversation.mark, session)


def state(conversation: Conversation) -> dict[str, Any]:
    """What the agent says of itself."""
    found: dict[str, Any] = conversation.call("ext_method", method="interop/state", params={})
    return found


def wait_for_turn(conversation: Conversation, session: str, wanted: str) -> None:
    """What has become of the turn; the client may have the answer a moment earlier."""
    wait_for_state(conversation, lambda found: found["turns"].get(session) == wanted)


def wait_for_state(conversation: Conversation, wanted: Callable[[dict[str, Any]], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not wanted(found := state(conversation)):
        assert time.monotonic() < deadline, f"the agent is still {found}"
        time.sleep(0.02)


@pytest.mark.parametrize("phase", PHASES)
def test_a_cancelled_turn_is_answered_cancelled_and_the_session_lives_on(
    conversation: Conversation, session: str, phase: str
) -> None:
    call = enter(conversation, session, phase)
    conversation.call("cancel", session_id=session)
    assert conversation.finish(call) == {"stopReason": "cancelled"}
    no_process_of_the_turn_is_left(conversation, session)
    wait_for_turn(conversation, session, "cancelled")
    conversation.call("permission", answer="yes")
    assert conversation.prompt(session, "stream 2") == "end_turn"


def test_no_update_comes_after_the_answer_of_a_cancelled_turn(
    conversation: Conversation, session: str
) -> None:
    call = enter(conversation, session, "stream")
    conversation.call("cancel", session_id=session)
    assert conversation.finish(call) == {"stopReason": "cancelled"}
    wait_for_turn(conversation, session, "cancelled")  # a round trip: an update sent before it has come
    assert conversation.position("update", session=session) < conversation.position("result", id=call)


def test_a_cancel_of_an_idle_session_does_nothing(conversation: Conversation, session: str) -> None:
    conversation.call("cancel", session_id=session)
    conversation.call("cancel", session_id="never made")
    assert conversation.prompt(session, "stream 2") == "end_turn"
    conversation.call("cancel", session_id=session)
    assert conversation.prompt(session, "stream 2") == "end_turn"


def test_a_turn_is_cancelled_twice_and_answered_once(conversation: Conversation, session: str) -> None:
    call = enter(conversation, session, "stream")
    conversation.call("cancel", session_id=session)
    conversation.call("cancel", session_id=session)
    assert conversation.finish(call) == {"stopReason": "cancelled"}
    assert conversation.prompt(session, "stream 2") == "end_turn"


@pytest.mark.parametrize("phase", PHASES)
def test_closing_a_session_stops_its_turn(conversation: Conversation, session: str, phase: str) -> None:
    call = enter(conversation, session, phase)
    conversation.call("close_session", session_id=session)
    if conversation.pair.client.library != "quiesce" and phase == "permission":
        conversation.call("cancel", session_id=session)  # these clients settle what they hold only then
    assert conversation.finish(call) == {"stopReason": "cancelled"}
    no_process_of_the_turn_is_left(conversation, session)
    conversation.call("permission", answer="yes")


@only(newest)
def test_any_request_can_be_withdrawn(conversation: Conversation, session: str) -> None:
    """By `$/cancel_request`."""
    call = conversation.start("ext_method", method="interop/hang", params={"name": session})
    wait_for_state(conversation, lambda found: found["hanging"] == session)
    conversation.call("abort", call=call)
    if conversation.pair.client.ours:
        assert conversation.finish(call) == "aborted"
    else:
        with pytest.raises(Refused) as refused:
            conversation.finish(call)
        assert refused.value.code == -32800
    wait_for_state(conversation, lambda found: found["hanging"] == f"{session}, cancelled")


@only(lambda pair: pair.client.ours)
def test_a_client_of_ours_that_cancels_a_turn_answers_the_permission_request_it_has_open(
    conversation: Conversation, session: str
) -> None:
    """As the protocol wants it of a client: this agent goes on waiting for that answer."""
    conversation.call("permission", answer="hold")
    call = conversation.start_prompt(session, "permission patient")
    conversation.wait_for("permission", session=session)
    conversation.call("cancel", session_id=session)
    assert conversation.finish(call) == {"stopReason": "cancelled"}
    assert state(conversation)["told"][session] == {"outcome": "cancelled"}
    conversation.wait_for("withdrawn", session=session)
    conversation.call("permission", answer="yes")


@only(lambda pair: newest(pair) or pair.client.ours)
@pytest.mark.parametrize("phase", PHASES)
def test_a_withdrawn_prompt_stops_its_turn(conversation: Conversation, session: str, phase: str) -> None:
    """By `$/cancel_request`; a client of ours says `session/cancel` too, for agents that do not know that."""
    call = enter(conversation, session, phase)
    conversation.call("abort", call=call)
    # A client of ours has left its call at once; one on the TypeScript SDK waits for the answer.
    answer = conversation.finish(call)
    assert answer == ("aborted" if conversation.pair.client.ours else {"stopReason": "cancelled"})
    no_process_of_the_turn_is_left(conversation, session)
    wait_for_turn(conversation, session, "cancelled")
    conversation.call("permission", answer="yes")
    assert conversation.prompt(session, "stream 2") == "end_turn"


@only(lambda pair: pair.client.library == "python")
@pytest.mark.parametrize("phase", PHASES)
def test_a_prompt_that_nobody_waits_for_any_more_can_still_be_cancelled(
    conversation: Conversation, session: str, phase: str
) -> None:
    call = enter(conversation, session, phase)
    conversation.call("abort", call=call)
    assert conversation.finish(call) == "aborted"
    conversation.call("cancel", session_id=session)
    wait_for_turn(conversation, session, "cancelled")
    no_process_of_the_turn_is_left(conversation, session)
    conversation.call("permission", answer="yes")
    assert conversation.prompt(session, "stream 2") == "end_turn"


@only(newest)
def test_a_stopped_turn_withdraws_the_permission_request_that_it_had_open(
    conversation: Conversation, session: str
) -> None:
    call = enter(conversation, session, "permission")
    conversation.call("close_session", session_id=session)
    conversation.wait_for("withdrawn", session=session)
    assert conversation.finish(call) == {"stopReason": "cancelled"}
    conversation.call("permission", answer="yes")
