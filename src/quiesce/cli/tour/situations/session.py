"""A session is closed before its tasks are.

As in openai-agents 0.18, whose realtime session cancels its background tasks, forgets them, and closes the model's
connection, which the tasks still need to clean up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from quiesce.agents import function_tool, output_guardrail
from quiesce.cli.tour.stage import Stage
from quiesce.realtime import RealtimeAgent, RealtimeRunner
from quiesce.realtime.testing import ScriptedRealtimeModel
from quiesce.testing import call

TALKS_FOR, CLEAN_UP, WATCHED_FOR = 0.5, 0.4, 1.0  # seconds


class Connection:
    """The connection to the model. Background work sends a goodbye over it when it has cleaned up."""

    def __init__(self) -> None:
        self.is_open = True
        self.received: list[str] = []

    def send(self, text: str) -> None:
        if not self.is_open:
            raise ConnectionError(f"closed, so {text!r} is lost")
        self.received.append(text)

    def close(self) -> None:
        self.is_open = False


async def work(stage: Stage, name: str, connection: Connection) -> None:
    """What a session runs in the background. Releasing its resources takes a moment."""
    with stage.lane(name) as lane:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            lane.told_to_stop()
            await stage.rest(CLEAN_UP)
            connection.send(f"{name}: released")
            raise


class Session:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.add(asyncio.create_task(work, name=name))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        self._connection.close()


async def ordinary(stage: Stage) -> None:
    connection = Connection()
    session = Session(connection)
    for name in ("tool call", "output guardrail"):
        session.start(work(stage, name, connection), name)
    await stage.rest(TALKS_FOR)
    await session.close()
    stage.control_is_back()
    await count_goodbyes(stage, connection)


class Model(ScriptedRealtimeModel):
    """A model that uses that connection."""

    def __init__(self, connection: Connection) -> None:
        super().__init__([["Let me look that up.", call("look_up")]])
        self._session_connection = connection

    async def close(self) -> None:
        await super().close()
        self._session_connection.close()


async def with_quiesce(stage: Stage) -> None:
    connection = Connection()

    @function_tool
    async def look_up() -> None:
        """Look it up."""
        await work(stage, "tool call", connection)

    @output_guardrail
    async def policy(context: Any, agent: Any, said: str) -> Any:
        await work(stage, "output guardrail", connection)

    agent: RealtimeAgent[Any] = RealtimeAgent("assistant", tools=[look_up], output_guardrails=[policy])
    session = await RealtimeRunner(agent, model=Model(connection)).run()
    await session.enter()
    await session.send_message("When does the next train leave?")
    await stage.rest(TALKS_FOR)
    stage.record_report(await session.close(reason="the user has hung up"))
    stage.control_is_back()
    await count_goodbyes(stage, connection)


async def count_goodbyes(stage: Stage, connection: Connection) -> None:
    await stage.rest(WATCHED_FOR)
    stage.say(f"the model's connection received {len(connection.received)} of 2 goodbyes")
