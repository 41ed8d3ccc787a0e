"""A connection that ends in the middle of a turn, whoever ends it and however: afterwards no process is left.

The process table is asked, not the programs. Every process of a conversation inherits its mark: the client,
the agent, the commands that either runs, and what guards them.
"""

from __future__ import annotations

import os
import signal

import pytest

from interop_tests.conftest import Converse
from interop_tests.conversation import Conversation, Refused
from interop_tests.pairs import Pair, only
from interop_tests.phases import PHASES, enter
from interop_tests.process_table import PATIENCE, marked


def begin(converse: Converse, phase: str, agent_command: list[str] | None = None) -> tuple[Conversation, int]:
    """A conversation in the middle of a turn, and the call of its prompt."""
    conversation = converse(agent_command)
    conversation.open()
    return conversation, enter(conversation, conversation.new_session(), phase)


@pytest.mark.parametrize("phase", PHASES)
def test_a_client_that_closes_in_a_turn_leaves_nothing(converse: Converse, phase: str) -> None:
    conversation, _ = begin(converse, phase)
    closed = conversation.close()
    assert closed["left"] == []
    conversation.nothing_is_left()


@pytest.mark.parametrize("phase", PHASES)
def test_a_client_that_is_gone_of_a_sudden_leaves_nothing(converse: Converse, pair: Pair, phase: str) -> None:
    conversation, _ = begin(converse, phase)
    conversation.client.kill()
    conversation.client.wait(PATIENCE)
    if phase == "terminal" and not pair.client.ours:
        # Its command is nobody's any more: that is for their client to see to, and ours has shown that it does.
        for pid, command in marked(conversation.mark).items():
            if command == "sleep 3600":
                os.kill(pid, signal.SIGKILL)
    conversation.nothing_is_left()


@pytest.mark.parametrize("phase", PHASES)
def test_an_agent_that_is_gone_of_a_sudden_fails_the_prompt_and_leaves_nothing(
    converse: Converse, phase: str
) -> None:
    conversation, call = begin(converse, phase)
    os.kill(conversation.agent_pid, signal.SIGKILL)
    with pytest.raises(Refused) as refused:
        conversation.finish(call)
    if conversation.pair.client.ours:
        assert "ConnectionError" in refused.value.kinds
    conversation.close()
    conversation.nothing_is_left()


def test_an_agent_that_exits_in_a_turn_fails_the_prompt(converse: Converse) -> None:
    conversation = converse()
    conversation.open()
    with pytest.raises(Refused):
        conversation.prompt(conversation.new_session(), "exit")
    with pytest.raises(Refused):
        conversation.new_session()
    conversation.close()
    conversation.nothing_is_left()


@only(lambda pair: pair.client.ours)
def test_an_agent_that_hangs_up_and_runs_on_is_ended(converse: Converse) -> None:
    conversation = converse()
    conversation.open()
    with pytest.raises(Refused) as refused:
        conversation.prompt(conversation.new_session(), "hangup")
    assert "ConnectionError" in refused.value.kinds
    conversation.close()
    conversation.nothing_is_left()


@only(lambda pair: pair.client.ours)
def test_an_agent_that_is_started_by_a_script_ends_with_it(converse: Converse, pair: Pair) -> None:
    """As by npx or uvx: the process that the client has spawned is not the agent."""
    wrapper = ["sh", "-c", '"$@"; exit $?', "sh", *pair.agent.agent_command()]
    conversation, _ = begin(converse, "tool", wrapper)
    os.kill(conversation.agent_pid, signal.SIGKILL)  # the script alone; the agent has the pipes, and lives
    conversation.close()
    conversation.nothing_is_left()


@only(lambda pair: pair.client.ours)
def test_an_agent_that_does_not_want_to_end_is_killed(converse: Converse, pair: Pair) -> None:
    """It is deaf to SIGTERM, and what it does when its input ends is up to the library it is written with."""
    deaf = ["sh", "-c", 'trap "" TERM; "$@"; sleep 3600', "sh", *pair.agent.agent_command()]
    conversation, _ = begin(converse, "stream", deaf)
    conversation.close()
    conversation.nothing_is_left()


def test_an_idle_client_closes_and_leaves_nothing(converse: Converse) -> None:
    conversation = converse()
    conversation.open()
    conversation.new_session()
    assert conversation.close()["left"] == []
    conversation.nothing_is_left()


@only(lambda pair: pair.agent.ours)
@pytest.mark.parametrize("phase", PHASES)
def test_an_agent_that_is_terminated_in_a_turn_answers_and_ends(converse: Converse, phase: str) -> None:
    """SIGTERM to an agent of ours is a stop like any other: the turn is answered before the connection ends."""
    conversation, call = begin(converse, phase)
    os.kill(conversation.agent_pid, signal.SIGTERM)
    assert conversation.finish(call) == {"stopReason": "cancelled"}
    conversation.close()
    conversation.nothing_is_left()
