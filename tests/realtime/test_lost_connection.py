"""A lost connection ends the session at once, whoever makes its reader wait: a tool that holds up what is said next, or somebody who does not read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai.types.realtime  # noqa: F401  # which the server imports: a collection after each test is quicker if it is there before
import pytest

from quiesce import Grace
from quiesce.realtime import (
    OpenAIRealtimeWebSocketModel,
    RealtimeAgent,
    RealtimeLimits,
    RealtimeModelListener,
    RealtimeSession,
)
from quiesce.realtime.openai.connection import Connection
from quiesce.realtime.testing import Faults, LocalRealtimeServer, Speech
from quiesce.testing import call
from quiesce.wire import ConnectionEnded
from tests.realtime.scenes import Part, Reading, reading, until

pytestmark = [pytest.mark.real_time, pytest.mark.worlds("asyncio", "trio")]

PATIENT = Grace(cancel=15, terminate=3, kill=3)
STORY = Speech("word " * 4000, pace=0.005)  # of which much waits soon, and which goes on for long
SHORT = Speech("word " * 12)  # so few messages that what comes behind them is read, whoever waits
ONE_AFTER_THE_OTHER = {"async_tool_calls": False}
LOST = {
    "by a reset": (Faults(reset=True), STORY),
    "cut": (Faults(drops_after=300), STORY),
    "closed": (Faults(closes_with=1011), SHORT),
}


@asynccontextmanager
async def at_work(
    server: LocalRealtimeServer, *tools: Part, **config: Any
) -> AsyncIterator[tuple[RealtimeSession, Connection]]:
    """A session whose first tool has begun."""
    model = OpenAIRealtimeWebSocketModel()
    session = RealtimeSession(
        model,
        RealtimeAgent("agent", tools=[tool.tool for tool in tools]),
        None,
        {"url": server.url, "api_key": "none"},
        config,  # type: ignore[arg-type]
        grace=PATIENT,
    )
    async with session:
        await session.send_message("go")
        await until(lambda: tools[0].calls)
        connection = model._connection
        assert connection is not None
        yield session, connection


async def ended(session: RealtimeSession, *tools: Part) -> Reading:
    """It has closed itself, and what had come can be read, and then why."""
    await until(lambda: session.closed and all(tool.clean for tool in tools))
    heard = Reading(session)
    await heard.read()
    assert isinstance(heard.error, ConnectionEnded)
    assert heard.of("error")[-1].error is heard.error
    report = await session.close()
    assert report.reason is not None
    assert report.reason.kind == "disconnect"
    return heard


@pytest.mark.parametrize("how", LOST)
async def test_a_tool_that_holds_up_the_conversation_does_not_hold_up_its_end(how: str) -> None:
    faults, speech = LOST[how]
    tool = Part("tool")
    with LocalRealtimeServer([[call("tool"), speech]]) as server:
        async with (
            at_work(server, tool, **ONE_AFTER_THE_OTHER) as (session, _),
            reading(session) as heard,
        ):
            server.inflict(faults)
            await heard.until_end()
            assert isinstance(heard.error, ConnectionEnded)
            await until(lambda: session.closed and tool.clean)


@pytest.mark.parametrize("how", LOST)
async def test_whoever_does_not_read_does_not_hold_up_the_end(how: str) -> None:
    faults, speech = LOST[how]
    tool = Part("tool")
    with LocalRealtimeServer([[call("tool"), speech]]) as server:
        limits = RealtimeLimits(events=50)
        async with at_work(server, tool, limits=limits) as (session, _):
            await until(lambda: session._task.buffer.is_full)
            server.inflict(faults)
            heard = await ended(session, tool)
            assert len(heard.of("tool_start")) == 1
            assert heard.of("audio")


@pytest.mark.parametrize("faults", [Faults(reset=True), Faults(drops_after=300)], ids=["reset", "cut"])
async def test_the_end_of_a_socket_that_is_not_read_is_seen(faults: Faults) -> None:
    """So much waits already that nothing is read."""
    tool = Part("tool")
    with LocalRealtimeServer([[call("tool"), STORY]]) as server:
        async with at_work(server, tool, **ONE_AFTER_THE_OTHER) as (session, connection):
            await until(lambda: connection._paused)
            had_come = len(connection._frames)
            server.inflict(faults)
            heard = await ended(session, tool)
            raw = [event for event in heard.of("raw_model_event") if event.data.type == "raw_server_event"]
            assert len(raw) >= had_come


async def test_a_call_that_had_to_wait_is_not_made_when_nobody_would_hear_of_it() -> None:
    one, two = Part("one"), Part("two")
    with LocalRealtimeServer([[call("one"), call("two")]]) as server:
        async with at_work(server, one, two, **ONE_AFTER_THE_OTHER) as (session, connection):
            await until(lambda: any(b"response.done" in (frame or b"") for frame in connection._frames))
            server.inflict(Faults(reset=True))
            heard = await ended(session, one)
            assert two.calls == 0
            calls = [event for event in heard.of("raw_model_event") if event.data.type == "function_call"]
            assert [event.data.name for event in calls] == ["one", "two"]


async def test_a_listener_that_fails_at_the_end_costs_the_session_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(RealtimeModelListener):
        async def on_event(self, event: Any) -> None:
            pass

        def on_connection_ended(self) -> None:
            raise LookupError("a listener's own")

    tool = Part("tool")
    with LocalRealtimeServer([[call("tool"), STORY]]) as server:
        async with at_work(server, tool, **ONE_AFTER_THE_OTHER) as (session, _):
            session.model.add_listener(Failing())
            server.inflict(Faults(reset=True))
            await ended(session, tool)
    assert "a listener's own" in caplog.text
