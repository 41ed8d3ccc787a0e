"""A tool in a thread loses its cancel signal.

As in openhands-sdk 1.24: the tool asks the conversation for its token in each iteration, as the documentation says.
An interrupt cancels the token, but the run that it stops throws the token away before the tool has checked it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from quiesce import CancelToken, agents
from quiesce.cli.tour.stage import Stage
from quiesce.testing import ScriptedModel, call

WORKS_FOR, WATCHED_FOR, STEP = 0.4, 1.0, 0.15  # seconds


class Work:
    """What the tool does, in small steps; `began` is set at the start of each step."""

    def __init__(self, stage: Stage) -> None:
        self.files = 0
        self._stage = stage
        self._loop = asyncio.get_running_loop()
        self.began = asyncio.Event()

    def step(self) -> None:
        self.files += 1
        self._loop.call_soon_threadsafe(self.began.set)
        time.sleep(self._stage.seconds(STEP))

    async def wait_until_in_a_step(self) -> None:
        """Wait until the tool has worked for a while, and is in the middle of a step."""
        await self._stage.rest(WORKS_FOR)
        self.began.clear()
        await self.began.wait()


def rename_files(stage: Stage, work: Work, is_cancelled: Callable[[], bool]) -> str:
    """A tool that works step by step, and checks between the steps whether it should stop."""
    with stage.lane("tool", "thread") as lane:
        for _ in range(600):
            if is_cancelled():
                lane.told_to_stop()
                return "stopped"
            if stage.is_over:
                break
            work.step()
    return "done"


class Conversation:
    def __init__(self) -> None:
        self.cancel_token: threading.Event | None = None
        self._run: asyncio.Task[Any] | None = None

    async def arun(self, tool: Callable[[], str]) -> None:
        self.cancel_token = threading.Event()
        self._run = asyncio.current_task()
        try:
            await asyncio.get_running_loop().run_in_executor(None, tool)
        except asyncio.CancelledError:
            pass  # interrupted: the run ends here, and the conversation may continue
        finally:
            self.cancel_token = None

    def interrupt(self) -> None:
        if self.cancel_token is not None and self._run is not None:
            self.cancel_token.set()
            self._run.cancel()


async def ordinary(stage: Stage) -> None:
    conversation = Conversation()
    work = Work(stage)

    def is_cancelled() -> bool:
        token = conversation.cancel_token
        return token is not None and token.is_set()

    run = asyncio.create_task(conversation.arun(lambda: rename_files(stage, work, is_cancelled)), name="run")
    await work.wait_until_in_a_step()
    conversation.interrupt()
    await run
    stage.control_is_back()
    await count_what_follows(stage, work)


async def with_quiesce(stage: Stage) -> None:
    work = Work(stage)

    def rename(token: CancelToken) -> str:
        """Rename every file."""
        return rename_files(stage, work, lambda: token.cancelled)

    model = ScriptedModel([call("rename")])
    agent: agents.Agent[Any] = agents.Agent(
        name="assistant", model=model, tools=[agents.function_tool(rename)]
    )
    conversation = agents.Conversation(agent)
    conversation.send_message("Rename my files.")
    run = asyncio.create_task(conversation.arun(), name="run")
    await work.wait_until_in_a_step()
    stage.record_report(await conversation.interrupt("Esc pressed"))
    await run
    stage.control_is_back()
    await count_what_follows(stage, work)


async def count_what_follows(stage: Stage, work: Work) -> None:
    so_far = work.files
    await stage.rest(WATCHED_FOR)
    stage.say(f"the tool renamed {work.files - so_far} more files")
