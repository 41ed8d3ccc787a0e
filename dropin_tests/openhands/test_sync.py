"""`run()`, in the thread of its caller, stopped from other threads, and by Ctrl-C in programs of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from openhands.sdk import LocalConversation as TheirConversation
from openhands.sdk.conversation import ConversationExecutionStatus as Status
from openhands.sdk.testing import TestLLM
from tests.world import asyncio_only

from dropin_tests.openhands.made_up import (
    DoExecutor,
    begin,
    call,
    converse,
    kinds,
    make_agent,
    say,
    unanswered,
    working,
)
from dropin_tests.openhands.test_runs import INTERRUPTED, poll_token, seen
from quiesce.dropin.openhands.sdk import Agent, LocalConversation

pytestmark = [pytest.mark.real_time, pytest.mark.time_limit(60)]
ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
    import sys, time
    from dropin_tests.openhands.made_up import converse, kinds, working
    import quiesce

    def work(conversation):
        print("working", flush=True)
        quiesce.current_token().wait_sync(60)
        print("cleaning up", flush=True)
        time.sleep(SECONDS)
        print("cleaned up", flush=True)

    working(work)
    conversation = converse()
    try:
        conversation.run()
    except KeyboardInterrupt:
        print("interrupted", conversation.state.execution_status.value, kinds(conversation)[-1], flush=True)
    report = conversation.close()
    print("closed", [left.name for left in report.left], flush=True)
    if "--hard" in sys.argv:
        import os
        os._exit(0)
"""


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


def test_a_run_gives_what_the_sdks_gives_and_has_a_report() -> None:
    working(lambda conversation: "worked")
    conversation = converse()
    conversation.run()
    assert conversation.state.execution_status == Status.FINISHED
    assert kinds(conversation) == ["MessageEvent", "ActionEvent", "ObservationEvent", "MessageEvent"]
    assert conversation.report is not None
    assert conversation.report.clean
    assert conversation.close().clean


@pytest.mark.parametrize("stop", [LocalConversation.interrupt, LocalConversation.close])
def test_another_thread_stops_it(stop: Any) -> None:
    working(poll_token)
    conversation = converse()
    stopping = threading.Timer(0.5, stop, [conversation])
    stopping.start()
    began = time.monotonic()
    conversation.run()
    stopping.join()
    assert time.monotonic() - began < 5
    assert (seen, kinds(conversation)) == ([True], INTERRUPTED)
    assert conversation.state.execution_status == Status.PAUSED
    assert not unanswered(conversation)
    assert conversation.close().clean


def test_in_another_thread_it_runs_as_in_the_main_one() -> None:
    working(lambda conversation: "worked")
    conversation = converse()
    thread = threading.Thread(target=conversation.run)
    thread.start()
    thread.join()
    assert conversation.state.execution_status == Status.FINISHED
    conversation.close()


@asyncio_only
async def test_in_a_thread_whose_loop_runs_it_blocks_as_with_the_sdk() -> None:
    working(lambda conversation: "worked")
    conversation = converse()
    conversation.run()
    assert conversation.state.execution_status == Status.FINISHED
    conversation.close()


class OnlySync(Agent):
    """With a step of its own, as programs have it that were written before `arun`."""

    def step(self, conversation: Any, on_event: Any, on_token: Any = None) -> None:
        seen.append("step")
        super().step(conversation, on_event, on_token)


class OnlySyncModel(TestLLM):
    __test__ = False

    def completion(self, *args: Any, **kwargs: Any) -> Any:
        seen.append("completion")
        return super().completion(*args, **kwargs)


def test_an_agent_or_a_model_with_a_sync_method_of_its_own_is_run_with_that() -> None:
    working(lambda conversation: "worked")
    theirs = make_agent()
    first = begin(OnlySync(llm=theirs.llm, tools=theirs.tools, system_prompt="Work."))
    first.run()
    assert (seen, first.state.execution_status) == (["step", "step"], Status.FINISHED)
    seen.clear()
    model = OnlySyncModel.from_messages([call(), say("done")])
    second = begin(Agent(llm=model, tools=theirs.tools))
    second.run()
    assert (seen, second.state.execution_status) == (["completion", "completion"], Status.FINISHED)
    first.close()
    second.close()


@pytest.mark.parametrize("seconds", [0, 0.5])
def test_such_a_run_is_stopped_after_its_step(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs_interrupt = TheirConversation.interrupt

    def late(conversation: Any) -> None:
        time.sleep(seconds)  # as on a machine that is busy
        theirs_interrupt(conversation)

    monkeypatch.setattr(TheirConversation, "interrupt", late)
    working(poll_token)
    theirs = make_agent(call(), call(), say("done"))
    conversation = begin(OnlySync(llm=theirs.llm, tools=theirs.tools, system_prompt="Work."))
    threading.Timer(0.5, conversation.interrupt).start()
    conversation.run()
    assert seen == ["step", True]
    assert conversation.state.execution_status == Status.PAUSED
    assert not unanswered(conversation)
    assert conversation.close().clean


def test_a_tool_that_is_executed_by_hand_hears_of_close() -> None:
    working(poll_token)
    conversation = converse(say("done"))
    action = next(tool for tool in conversation.agent.tools_map.values() if tool.name == "do").action_type()
    thread = threading.Thread(target=conversation.execute_tool, args=("do", action))
    thread.start()
    assert DoExecutor.begun.wait(5)
    conversation.close()
    thread.join(5)
    assert seen == [True]


@pytest.mark.parametrize(
    ("times", "seconds", "said"),
    [
        (1, 0.1, ["cleaned up", "interrupted paused InterruptEvent", "closed []"]),
        (2, 0.5, ["cleaned up", "interrupted paused InterruptEvent", "closed []"]),
        (3, 30, ["closed ['tool do']"]),
    ],
)
def test_ctrl_c(times: int, seconds: float, said: list[str]) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM).replace("SECONDS", str(seconds)), "--hard"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert program.stdout is not None
    lines: list[str] = []
    with program, program.stdout:
        for line in program.stdout:
            lines.append(line.strip())
            for _ in range({"working": 1, "cleaning up": times - 1}.get(lines[-1], 0)):
                program.send_signal(signal.SIGINT)
                time.sleep(0.2)
    assert [line for line in lines if line in said] == said, lines
