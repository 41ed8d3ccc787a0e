"""What tools and their tokens see of an interrupt, and what is left of them: in threads, in processes, and under sync runs.

Other agent runtimes fail here; `docs/recipes/openhands.md` has the experiments.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from quiesce import CancelToken, Grace, StopReport, current_token
from quiesce.agents import Agent, Conversation, ConversationBusy, ToolContext, function_tool
from quiesce.testing import ScriptedModel, call
from tests.agents.conversations import asked, parked_tool, running, talk
from tests.agents.scenes import Parked, SlowModel, assert_valid, outcomes, time_limit_once
from tests.world import World, asyncio_only

pytestmark = pytest.mark.real_time

IMPATIENT = Grace(cancel=0.1, terminate=0.3, kill=0.1)


class Polling:
    """A sync tool that works in a thread until its token says stop, and tells what it saw."""

    def __init__(self, seconds: float = 15.0) -> None:
        self.started = threading.Event()
        self.release = threading.Event()
        self.tokens: list[CancelToken] = []
        self.saw: list[str] = []
        self._seconds = seconds
        self.tool = function_tool(self._poll, name_override="poll")

    def _poll(self, context: ToolContext[Any]) -> str:
        """Poll the token of this call."""
        token = context.token
        assert token is current_token()
        self.tokens.append(token)
        self.started.set()
        ends = time.monotonic() + self._seconds
        while time.monotonic() < ends and not self.release.is_set():
            if token.cancelled:
                self.saw.append("cancel")
                return "stopped"
            time.sleep(0.005)
        self.saw.append("nothing")
        return "never saw a cancel"


class Deaf:
    """A sync tool that heeds nothing until the test lets it go."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.release = threading.Event()
        self.ended = threading.Event()
        self.token: CancelToken | None = None
        self.tool = function_tool(self._block, name_override="block")

    def _block(self) -> str:
        """Block."""
        self.token = current_token()
        self.thread = threading.current_thread()
        self.name = self.thread.name
        self.started.set()
        self.release.wait(20)
        self.ended.set()
        return "late"

    async def let_go(self) -> None:
        """Let it end, and wait until its thread does something else, or nothing."""
        self.release.set()
        await until(self.ended)
        with anyio.fail_after(10):
            while self.thread.is_alive() and self.thread.name == self.name:
                await anyio.sleep(0.002)


async def until(event: threading.Event) -> None:
    with anyio.fail_after(10):
        while not event.is_set():
            await anyio.sleep(0.002)


# A cancelled token stays observable


async def test_a_cancelled_token_stays_observable_after_the_interrupt() -> None:
    deaf = Deaf()
    conversation = talk(call("block"), "Done.", tools=(deaf.tool,), grace=IMPATIENT)
    async with running(conversation) as run:
        await until(deaf.started)
        during = conversation.cancel_token
        assert during is not None
        assert not during.cancelled
        await conversation.interrupt()
    assert run.status == "paused"
    assert not deaf.ended.is_set(), "the thread outlives the run, and still polls"
    after = conversation.cancel_token
    assert after is not None
    assert after is during
    assert after.cancelled
    assert await conversation.arun() == "finished"
    assert after.cancelled, "a new run does not bring it back"
    assert deaf.token is not None
    assert deaf.token.cancelled
    await deaf.let_go()
    assert (await conversation.close()).clean


async def test_each_tool_call_has_a_token_of_its_own_and_an_interrupt_stops_all_in_flight() -> None:
    first, second = Polling(), Polling()
    second.tool = function_tool(second._poll, name_override="poll2")
    conversation = talk([call("poll"), call("poll2")], tools=(first.tool, second.tool))
    async with running(conversation):
        await until(first.started)
        await until(second.started)
        await conversation.interrupt()
    assert first.saw == second.saw == ["cancel"]
    assert first.tokens[0] is not second.tokens[0]


async def test_the_old_tool_sees_its_cancel_while_a_new_run_is_on() -> None:
    deaf, parked = Deaf(), Parked()
    conversation = talk(call("block"), call("park"), tools=(deaf.tool, parked_tool(parked)), grace=IMPATIENT)
    async with running(conversation):
        await until(deaf.started)
        report = await conversation.interrupt()
    assert [left.kind for left in report.left] == ["thread"]
    async with running(conversation):
        await parked.reached.wait()
        assert deaf.token is not None
        assert deaf.token.cancelled
        fresh = conversation.cancel_token
        assert fresh is not None
        assert not fresh.cancelled
        await deaf.let_go()
        await conversation.interrupt()
    assert (await conversation.close()).clean


async def test_a_new_run_calls_the_same_tool_at_once() -> None:
    polling = Polling()
    conversation = talk(call("poll"), call("poll"), "Done.", tools=(polling.tool,))
    async with running(conversation):
        await until(polling.started)
        await conversation.interrupt()
    polling.release.set()
    before = time.monotonic()
    assert await conversation.arun() == "finished"
    assert time.monotonic() - before < 10
    assert polling.saw == ["cancel", "nothing"]
    assert [token.cancelled for token in polling.tokens] == [True, False]


async def test_the_event_loop_is_not_frozen_while_threads_are_stopped() -> None:
    first, second = Deaf(), Deaf()
    second.tool = function_tool(second._block, name_override="block2")
    conversation = talk(
        [call("block"), call("block2")],
        tools=(first.tool, second.tool),
        grace=Grace(cancel=1.0, terminate=0.1, kill=0.1),
    )
    longest, longest_elsewhere, over = 0.0, 0.0, False

    async def tick() -> None:
        nonlocal longest
        last = time.monotonic()
        while not over:
            await anyio.sleep(0.005)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()

    def tick_elsewhere() -> None:
        """In a thread, for comparison: there the machine alone makes it wait."""
        nonlocal longest_elsewhere
        last = time.monotonic()
        while not over:
            time.sleep(0.005)
            longest_elsewhere, last = max(longest_elsewhere, time.monotonic() - last), time.monotonic()

    elsewhere = threading.Thread(target=tick_elsewhere)
    elsewhere.start()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            async with running(conversation):
                await until(first.started)
                await until(second.started)
                before = time.monotonic()
                await conversation.interrupt()
                assert time.monotonic() - before < 10
            over = True
    finally:
        over = True
        elsewhere.join()
    assert longest < 0.8 + longest_elsewhere
    assert outcomes(conversation.items) == ["still_running", "still_running"]
    await first.let_go()
    await second.let_go()
    assert (await conversation.close()).clean


@asyncio_only
async def test_a_timeout_is_a_timeout_and_a_cancelled_task_is_cancelled() -> None:
    parked = Parked()
    conversation = talk(*[call("park")] * 3, tools=(parked_tool(parked),))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await conversation.arun()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(conversation.arun(), 0.05)
    parked.reached = anyio.Event()
    task = asyncio.ensure_future(conversation.arun())
    await parked.reached.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert conversation.status == "paused"
    parked.assert_tidy()


@asyncio_only
async def test_an_interrupt_right_after_create_task_is_not_lost(world: World) -> None:
    model = SlowModel()
    conversation = Conversation(Agent(name="a", model=model))
    conversation.send_message("hi")
    task = asyncio.ensure_future(conversation.arun())
    await conversation.interrupt()
    assert await task == "paused"
    assert model.finished == 0
    if world.name != "asyncio-eager":  # there the first step is taken inside ensure_future
        assert model.started == 0


async def test_interrupted_while_it_begins_no_cancel_escapes() -> None:
    reached = anyio.Event()

    async def instructions(context: Any, agent: Any) -> str:
        reached.set()
        await anyio.sleep_forever()
        return ""

    agent: Agent[Any] = Agent(name="slow to begin", instructions=instructions, model=ScriptedModel(["x"]))
    conversation = Conversation(agent)
    conversation.send_message("hi")
    async with running(conversation) as run:
        await reached.wait()
        await conversation.interrupt()
    assert run.status == conversation.status == "paused"


def test_a_sync_run_is_stopped_from_another_thread_which_is_not_blocked() -> None:
    deaf = Deaf()
    grace = Grace(cancel=2.0, terminate=0.1, kill=0.1)
    conversation = talk(call("block"), "Done.", tools=(deaf.tool,), grace=grace)
    took: list[float] = []
    reports: list[StopReport | None] = []

    def stop() -> None:
        deaf.started.wait(10)
        before = time.monotonic()
        stopping = conversation.interrupt()
        took.append(time.monotonic() - before)
        reports.append(stopping.wait(15))

    thread = threading.Thread(target=stop)
    thread.start()
    before = time.monotonic()
    assert conversation.run() == "paused"
    assert time.monotonic() - before < 15
    thread.join()
    assert took[0] < 1.5
    assert reports[0] is not None
    assert [left.kind for left in reports[0].left] == ["thread"]
    assert outcomes(conversation.items) == ["still_running"]
    anyio.run(deaf.let_go)
    assert conversation.close_sync().clean


async def test_close_waits_for_the_thread_or_names_it_and_the_history_says_so(tmp_path: Path) -> None:
    deaf = Deaf()
    conversation = talk(call("block"), tools=(deaf.tool,), grace=IMPATIENT)
    async with running(conversation):
        await until(deaf.started)
        await conversation.interrupt()
    assert outcomes(conversation.items) == ["still_running"]
    history = conversation.items
    report = await conversation.close()
    assert [(left.kind, left.name) for left in report.left] == [("thread", "block")]
    await deaf.let_go()
    assert (await conversation.close()).clean, "it stays owned: closing again waits again"
    assert conversation.items == history, "a late result does not get into the history"


async def test_a_sub_agent_makes_no_call_after_the_interrupt() -> None:
    polling = Polling()
    inner = ScriptedModel([call("poll")] * 500)
    sub: Agent[Any] = Agent(name="sub", model=inner, tools=[polling.tool])
    conversation = talk(call("sub", input="go"), tools=(sub.as_tool(max_turns=None),))
    async with running(conversation):
        await until(polling.started)
        await conversation.interrupt()
        calls, requests = len(polling.tokens), len(inner.requests)
        await conversation.close()
    await anyio.sleep(0.1)
    assert (len(polling.tokens), len(inner.requests)) == (calls, requests)
    assert polling.tokens[-1].cancelled


def sleep_long(path: str) -> str:
    """Write who it is, and sleep; in a process of its own."""
    Path(path).write_text(str(os.getpid()))
    time.sleep(60)
    return "never"


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def pid_in(path: Path) -> int:
    ends = time.monotonic() + 20
    while not path.exists() or not path.read_text():
        assert time.monotonic() < ends
        time.sleep(0.01)
    return int(path.read_text())


@pytest.mark.worlds("asyncio", "trio")
async def test_a_tool_in_a_process_is_gone_when_the_interrupt_is_settled(tmp_path: Path) -> None:
    tool = function_tool(sleep_long, isolation="process")
    path = tmp_path / "pid"
    conversation = talk(
        call("sleep_long", path=str(path)), tools=(tool,), grace=Grace(cancel=0.05, terminate=0.5, kill=10)
    )
    async with running(conversation):
        pid = await anyio.to_thread.run_sync(pid_in, path)
        report = await conversation.interrupt()
        assert report.clean
        assert not is_alive(pid)
    assert outcomes(conversation.items) == ["interrupted"]


def test_a_tool_in_a_process_under_a_sync_run_is_gone_too(tmp_path: Path) -> None:
    tool = function_tool(sleep_long, isolation="process")
    path = tmp_path / "pid"
    conversation = talk(
        call("sleep_long", path=str(path)),
        "Done.",
        tools=(tool,),
        grace=Grace(cancel=0.05, terminate=0.5, kill=10),
    )
    pids: list[int] = []

    def stop() -> None:
        pids.append(pid_in(path))
        conversation.interrupt().wait(10)

    thread = threading.Thread(target=stop)
    thread.start()
    assert conversation.run() == "paused"
    thread.join()
    assert not is_alive(pids[0])
    assert conversation.run() == "finished"
    asked(conversation)


@asyncio_only
async def test_a_cancel_of_the_task_sets_the_tools_token_too() -> None:
    polling = Polling()
    conversation = talk(call("poll"), tools=(polling.tool,))
    task = asyncio.ensure_future(conversation.arun())
    await until(polling.started)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert polling.saw == ["cancel"]
    token = conversation.cancel_token
    assert token is not None
    assert token.cancelled


async def test_a_timeout_sets_the_tools_token_too() -> None:
    polling = Polling()
    conversation = talk(call("poll"), tools=(polling.tool,))
    async with time_limit_once(polling.started.is_set):
        await conversation.arun()
    assert polling.saw == ["cancel"]
    token = conversation.cancel_token
    assert token is not None
    assert token.cancelled


async def test_send_message_and_pause_are_not_blocked_by_a_tool() -> None:
    deaf = Deaf()
    conversation = talk(call("block"), "Done.", "More.", tools=(deaf.tool,))
    took: list[float] = []

    def use() -> None:
        before = time.monotonic()
        conversation.send_message("hurry")
        took.append(time.monotonic() - before)
        conversation.pause()
        took.append(time.monotonic() - before)

    async with running(conversation) as run:
        await until(deaf.started)
        await anyio.to_thread.run_sync(use)
        deaf.release.set()
    assert max(took) < 10  # and not the 20 s of the tool
    assert run.status == "paused"
    assert_valid(conversation.items)
    assert await conversation.arun() == "finished"
    asked(conversation)


def test_a_sync_run_with_a_tool_that_polls() -> None:
    polling = Polling()
    conversation = talk(call("poll"), tools=(polling.tool,))
    thread = threading.Thread(target=lambda: (polling.started.wait(10), conversation.interrupt()))
    thread.start()
    assert conversation.run() == "paused"
    thread.join()
    assert polling.saw == ["cancel"]
    assert conversation.close_sync().clean


async def test_two_runs_at_once_are_refused_and_the_one_can_be_stopped() -> None:
    parked = Parked()
    conversation = talk(call("park"), tools=(parked_tool(parked),))
    async with running(conversation) as run:
        await parked.reached.wait()
        for _ in range(2):
            with pytest.raises(ConversationBusy):
                _ = conversation.arun()
        await conversation.interrupt()
    assert run.status == "paused"
    parked.assert_tidy()


# More of sync runs


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_sync_run_in_a_thread_is_stopped_in_the_model_call(backend: Any) -> None:
    begun = threading.Event()

    async def silent(request: Any) -> str:
        begun.set()
        await anyio.sleep(30)
        return "never"

    conversation = talk(silent, "Done.")
    ended: list[str] = []
    thread = threading.Thread(target=lambda: ended.append(conversation.run(backend=backend)))
    thread.start()
    begun.wait(10)
    assert conversation.status == "running"
    with pytest.raises(ConversationBusy):
        conversation.run()
    report = conversation.interrupt().wait(10)
    assert report is not None
    assert report.clean
    thread.join(10)
    assert ended == ["paused"]
    assert conversation.run(backend=backend) == "finished"


def test_a_sync_run_that_fails_raises_the_error_itself() -> None:
    failure = ValueError("broken")
    conversation = talk(failure)
    with pytest.raises(ValueError, match="broken") as raised:
        conversation.run()
    assert raised.value is failure
    assert conversation.status == "error"


def test_a_tool_thread_cannot_wait_for_its_own_conversation() -> None:
    conversation: Conversation
    refused: list[str] = []

    @function_tool
    def leave() -> str:
        """Try to close the conversation that it runs in."""
        try:
            conversation.close_sync()
        except RuntimeError as error:
            refused.append(str(error))
        return "tried"

    conversation = talk(call("leave"), "Done.", tools=(leave,))
    assert conversation.run() == "finished"
    assert "cannot wait for its end" in refused[0]
