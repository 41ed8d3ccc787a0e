"""`arun()`, stopped in every way, has ended; and everything else is as with the SDK."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import threading
import time
import weakref
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import openhands.sdk
import pytest
from openhands.sdk.conversation import ConversationExecutionStatus as Status
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
from quiesce import Grace, Reason, Scope, ScopeClosed, current_token
from quiesce.dropin import openhands as dropin
from quiesce.dropin.openhands.sdk import Conversation, LocalConversation

pytestmark = [asyncio_only, pytest.mark.real_time, pytest.mark.time_limit(60)]

INTERRUPTED = ["MessageEvent", "ActionEvent", "AgentErrorEvent", "InterruptEvent"]
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def poll_token(conversation: Any) -> str:
    """As a tool for quiesce does it."""
    token = current_token()
    seen.append(token.wait_sync(20))
    return f"stopped: {token.reason}"


def poll_the_sdks(conversation: Any) -> str:
    """As the SDK's documentation has it."""
    token = conversation.cancel_token
    for _ in range(400):
        if token.is_cancelled:
            seen.append(True)
            return "stopped"
        time.sleep(0.05)
    return "done"


seen: list[object] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


async def begun() -> None:
    async with asyncio.timeout(10):
        while not DoExecutor.begun.is_set():  # noqa: ASYNC110 - it is set in another thread
            await asyncio.sleep(0.01)


async def start(conversation: LocalConversation) -> asyncio.Task[None]:
    task = asyncio.create_task(conversation.arun())
    await begun()
    return task


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("work", [poll_token, poll_the_sdks])
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_cancel_reaches_the_tool_and_is_raised(
    work: Callable[[Any], object], times: int, at_once: int
) -> None:
    working(work)
    conversation = converse(call(times=at_once), say("done"), at_once=at_once)
    task = await start(conversation)
    began = time.monotonic()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 2
    assert seen == [True]  # a second call waits for the first, and then does not begin
    assert conversation.state.execution_status == Status.PAUSED
    assert kinds(conversation)[-1] == "InterruptEvent"
    assert not unanswered(conversation)
    assert conversation.report is not None
    assert conversation.report.clean
    assert (await conversation.aclose()).clean


async def test_a_timeout_around_it_is_raised() -> None:
    working(poll_the_sdks)
    conversation = converse()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await conversation.arun()
    assert (seen, kinds(conversation)) == ([True], INTERRUPTED)
    conversation.close()


async def test_the_sdk_itself_loses_a_timeout() -> None:
    working(lambda conversation: time.sleep(0.3))
    agent = make_agent()
    conversation = openhands.sdk.Conversation(agent, workspace=".", visualizer=None)
    conversation.send_message("Go.")
    async with asyncio.timeout(0.1) as timeout:
        await conversation.arun()
    assert timeout.expired()  # and no TimeoutError was raised
    await asyncio.sleep(0.5)
    conversation.close()


async def test_an_interrupt_ends_the_run_without_an_error_as_with_the_sdk() -> None:
    working(poll_token)
    conversation = converse()
    task = await start(conversation)
    threading.Thread(target=conversation.interrupt).start()
    await task
    assert not task.cancelled()
    assert (conversation.state.execution_status, kinds(conversation)) == (Status.PAUSED, INTERRUPTED)
    assert conversation.report is not None
    assert conversation.report.clean
    conversation.close()


async def test_an_interrupt_before_the_first_step_is_not_lost() -> None:
    working(poll_token)
    conversation = converse()
    task = asyncio.create_task(conversation.arun())
    conversation.interrupt()
    await task
    assert not DoExecutor.begun.is_set()
    assert (conversation.state.execution_status, kinds(conversation)) == (
        Status.PAUSED,
        ["MessageEvent", "PauseEvent"],
    )
    conversation.close()


async def test_an_interrupt_does_not_block_and_a_cancel_that_comes_with_it_is_raised() -> None:
    working(lambda conversation: time.sleep(0.5))
    conversation = converse()
    task = await start(conversation)
    began = time.monotonic()
    conversation.interrupt()
    task.cancel()
    assert time.monotonic() - began < 0.2
    with pytest.raises(asyncio.CancelledError):
        await task
    conversation.close()


async def test_after_an_interrupt_it_goes_on_and_a_new_run_has_a_new_token() -> None:
    cancelled: list[bool] = []

    def work(conversation: Any) -> object:
        cancelled.append(current_token().cancelled)
        return poll_token(conversation) if len(cancelled) == 1 else "worked"

    working(work)
    conversation = converse(call(), call(), say("done"))
    task = await start(conversation)
    conversation.interrupt()
    await task
    await conversation.arun()
    assert (cancelled, seen) == ([False, False], [True])
    assert conversation.state.execution_status == Status.FINISHED
    assert not unanswered(conversation)
    conversation.close()


async def test_one_interrupt_stops_all_runs() -> None:
    working(poll_token)
    conversation = converse(call(), call(), say("done"))
    tasks = [await start(conversation), asyncio.create_task(conversation.arun())]
    await asyncio.sleep(0.2)
    conversation.interrupt()
    await asyncio.wait_for(asyncio.gather(*tasks), 3)
    assert conversation.state.execution_status == Status.PAUSED
    assert (await conversation.aclose()).clean


async def test_a_tool_that_ignores_its_stop_is_named_and_the_loop_is_not_blocked() -> None:
    may_end = threading.Event()
    working(lambda conversation: may_end.wait(20))
    conversation = converse(call(times=2), say("done"), at_once=2)
    beats: list[float] = []

    async def beat() -> None:
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.05)

    async with Scope(grace=Grace(cancel=0.3, terminate=0.1, kill=0.1)) as scope:
        beating = scope.spawn(beat)
        task = scope.spawn(conversation.arun)
        await begun()
        began = time.monotonic()
        task.cancel(Reason("user"))
        await task.wait()
        assert time.monotonic() - began < 2
        assert conversation.report is not None
        assert "tool do" in [left.name for left in conversation.report.left]
        report = await conversation.aclose(grace=Grace(cancel=0.1, terminate=0.1, kill=0.1))
        assert "tool do" in [left.name for left in report.left]
        may_end.set()
        assert (await conversation.aclose()).clean
        beating.cancel("enough")
    assert max(later - earlier for earlier, later in pairwise(beats)) < 1


async def test_the_process_of_a_tool_ends_with_its_run(tmp_path: Path) -> None:
    processes: list[subprocess.Popen[bytes]] = []

    def work(conversation: Any) -> None:
        process = subprocess.Popen(["sleep", "60"])
        processes.append(process)
        process.wait()

    working(work)
    conversation = converse()
    async with Scope(grace=Grace(cancel=0.5)) as scope:
        task = scope.spawn(conversation.arun)
        await begun()
        await asyncio.sleep(0.2)
        task.cancel(Reason("user"))
        await task.wait()
    assert processes[0].wait(5) == -15
    conversation.close()


# Closing


async def test_aclose_stops_the_run_and_waits_for_it() -> None:
    working(poll_token)
    conversation = converse()
    task = await start(conversation)
    report = await conversation.aclose()
    assert (report.clean, report.reason, seen) == (True, Reason("user", "closed"), [True])
    assert conversation.report == report
    await asyncio.wait_for(task, 1)
    assert conversation.state.execution_status == Status.PAUSED


async def test_close_in_the_loop_of_a_run_says_that_it_could_not_wait() -> None:
    working(poll_token)
    conversation = converse()
    task = await start(conversation)
    assert [left.kind for left in conversation.close().left] == ["run"]
    await task
    assert conversation.close().clean


async def test_close_in_another_thread_waits_for_the_run() -> None:
    working(poll_token)
    conversation = converse()
    task = await start(conversation)
    report = await asyncio.to_thread(conversation.close)
    assert (report.clean, seen) == (True, [True])
    await task


async def test_aclose_goes_on_if_it_is_cancelled() -> None:
    working(lambda conversation: time.sleep(0.5))
    conversation = converse()
    task = await start(conversation)
    closing = asyncio.create_task(conversation.aclose())
    await asyncio.sleep(0.1)
    for _ in range(3):
        closing.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert conversation.report is not None
    assert conversation.report.clean
    assert task.done()


async def test_a_closed_conversation_runs_no_more() -> None:
    conversation = converse(say("done"))
    conversation.close()
    with pytest.raises(ScopeClosed, match="was closed"):
        await conversation.arun()
    with pytest.raises(ScopeClosed, match="was closed"):
        conversation.run()


async def test_a_tool_can_close_its_own_conversation() -> None:
    working(lambda conversation: conversation.close(grace=Grace(cancel=5)).left)
    conversation = converse()
    began = time.monotonic()
    await asyncio.wait_for(conversation.arun(), 10)
    assert time.monotonic() - began < 3
    assert conversation.close().clean


async def test_a_conversation_that_is_dropped_is_closed() -> None:
    working(lambda conversation: "done")
    conversation = converse()
    await conversation.arun()
    closed = threading.Event()
    for tool in conversation.agent.tools_map.values():
        if isinstance(tool.executor, DoExecutor):
            tool.executor.close = closed.set
    del tool
    dropped = weakref.ref(conversation)
    del conversation
    with pytest.warns(ResourceWarning, match="dropped unclosed"):
        await until_gone(dropped)
    assert await asyncio.to_thread(closed.wait, 5)


async def until_gone(dropped: weakref.ref[Any]) -> None:
    """A thread of the run may still have it for a moment, and then the thread that closes it."""
    give_up_at = time.monotonic() + 5
    while dropped() is not None:
        assert time.monotonic() < give_up_at
        gc.collect()
        await asyncio.sleep(0.02)


# What is the SDK's


async def test_a_conversation_is_the_sdks_and_has_a_report() -> None:
    assert dropin.Conversation is Conversation
    assert issubclass(LocalConversation, openhands.sdk.LocalConversation)
    assert import_module("quiesce.dropin.openhands.sdk.conversation").LocalConversation is LocalConversation
    working(lambda conversation: variable.get())
    conversation = converse()
    assert type(conversation) is LocalConversation
    before = conversation.report
    variable.set("outside")
    await conversation.arun()
    assert kinds(conversation) == ["MessageEvent", "ActionEvent", "ObservationEvent", "MessageEvent"]
    assert "outside" in str(list(conversation.state.events)[3])
    assert before is None
    assert conversation.report is not None
    assert conversation.report.clean
    assert conversation.close().clean
    assert conversation.close().clean


async def test_an_error_of_the_run_is_the_sdks() -> None:
    conversation = converse(call(), say("done"))
    working(lambda conversation: 1 / 0)
    await conversation.arun()  # the model is told
    assert "AgentErrorEvent" in kinds(conversation)
    conversation.send_message("Again.")
    with pytest.raises(openhands.sdk.conversation.exceptions.ConversationRunError):  # no answer is left
        await conversation.arun()
    conversation.close()


async def test_a_wrong_argument_is_the_same_error_as_with_the_sdk() -> None:
    agent = make_agent(say("done"))
    for conversation in (openhands.sdk.Conversation, Conversation):
        with pytest.raises(TypeError, match="persistance_dir"):
            conversation(agent, persistance_dir=".")  # type: ignore[call-overload, unused-ignore]


async def test_a_stopped_conversation_can_be_opened_again(tmp_path: Path) -> None:
    working(poll_token)
    conversation = converse(persistence_dir=tmp_path)
    task = await start(conversation)
    task.cancel()
    await asyncio.wait([task])
    assert conversation.close().clean
    working(lambda conversation: "worked")
    again = Conversation(
        make_agent(call(), say("done")),
        workspace=str(tmp_path),
        persistence_dir=tmp_path,
        conversation_id=conversation.id,
        visualizer=None,
        stuck_detection=False,
    )
    assert kinds(again) == INTERRUPTED
    again.send_message("Go on.")
    await again.arun()
    assert again.state.execution_status == Status.FINISHED
    assert not unanswered(again)
    assert again.close().clean


async def test_a_fork_is_contained_too() -> None:
    working(poll_token)
    conversation = converse(say("done"))
    fork = conversation.fork()
    assert type(fork) is LocalConversation
    assert fork.close().clean
    conversation.close()


async def test_a_remote_conversation_is_handed_through(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, object]] = []

    class Remote:
        def __init__(self, **options: object) -> None:
            made.append(options)

    monkeypatch.setattr("openhands.sdk.conversation.impl.remote_conversation.RemoteConversation", Remote)
    workspace = openhands.sdk.RemoteWorkspace(host="http://127.0.0.1:1", working_dir="/")
    conversation: Any = Conversation(make_agent(say("done")), workspace=workspace)
    assert type(conversation) is Remote
    assert made[0]["workspace"] is workspace


def test_the_users_agent_stays_as_it_is() -> None:
    agent = make_agent()
    theirs = agent._parallel_executor
    conversation = begin(agent)
    assert agent._parallel_executor is theirs
    assert agent.model_dump() == conversation.agent.model_dump()
    fork = conversation.fork()
    assert (
        type(fork.agent._parallel_executor) is type(conversation.agent._parallel_executor) is not type(theirs)
    )
    fork.close()
    conversation.close()
