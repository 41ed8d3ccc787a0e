"""A request to a model that is under way when a run is stopped is cut off: by litellm, from a local server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from openhands.sdk.conversation import ConversationExecutionStatus as Status
from tests.world import asyncio_only

from dropin_tests.openhands.made_up import begin, kinds
from dropin_tests.openhands.provider import Provider, serving
from quiesce.dropin.openhands.sdk import Agent, LocalConversation

pytestmark = [pytest.mark.real_time, pytest.mark.time_limit(90)]


def ask(provider: Provider) -> LocalConversation:
    return begin(Agent(llm=provider.model(), tools=[], include_default_tools=[]))


def soon(provider: Provider, stop: Callable[[], object]) -> threading.Thread:
    """Call `stop` in another thread, a moment after the model was asked."""

    def wait_and_stop() -> None:
        assert provider.asked.wait(30)
        time.sleep(0.2)
        stop()

    thread = threading.Thread(target=wait_and_stop)
    thread.start()
    return thread


def check_cut_off(conversation: LocalConversation, provider: Provider) -> None:
    assert provider.was_cut_off.wait(2)
    assert conversation.state.execution_status == Status.PAUSED
    assert kinds(conversation) == ["MessageEvent", "InterruptEvent"]
    report = conversation.close()
    assert report.clean, str(report)


def test_a_conversation_runs_several_times_each_in_a_loop_of_its_own() -> None:
    with serving("Hello.") as provider:
        conversation = ask(provider)
        conversation.run()
        conversation.send_message("And again.")
        conversation.run()
        assert conversation.state.execution_status == Status.FINISHED
        assert kinds(conversation) == ["MessageEvent"] * 4
        assert conversation.report is not None
        assert conversation.report.clean, str(conversation.report)
        conversation.close()


@pytest.mark.parametrize("stop", [LocalConversation.interrupt, LocalConversation.close])
def test_another_thread_stops_a_sync_run(stop: Callable[[Any], object]) -> None:
    with serving(None) as provider:
        conversation = ask(provider)
        stopping = soon(provider, lambda: stop(conversation))
        conversation.run()
        stopping.join()
        check_cut_off(conversation, provider)


@asyncio_only
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_cancel(times: int) -> None:
    with serving(None) as provider:
        conversation = ask(provider)
        task = asyncio.create_task(conversation.arun())
        assert await asyncio.to_thread(provider.asked.wait, 30)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        check_cut_off(conversation, provider)
