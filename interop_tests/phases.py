"""The phases of a turn in which it can be stopped: each a prompt that has no end, and the sign that it got there."""

from __future__ import annotations

from interop_tests.conversation import Conversation
from interop_tests.process_table import wait_until_there

PHASES = ("stream", "tool", "permission", "terminal")


def enter(conversation: Conversation, session: str, phase: str) -> int:
    """Start a turn and wait until it is in this phase. Returns the number of the prompt's call."""
    if phase == "permission":
        conversation.call("permission", answer="hold")
    call = conversation.start_prompt(session, phase)
    if phase == "stream":
        conversation.wait_for_update(session, "agent_message_chunk")
    elif phase == "permission":
        conversation.wait_for("permission", session=session)
    else:
        conversation.wait_for_update(session, "tool_call")
        wait_until_there(conversation.mark, session)
    return call
