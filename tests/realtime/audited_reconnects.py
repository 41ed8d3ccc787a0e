"""Scenarios of sessions that get a lost connection back, for the audit to stop at every point. They are added to `SCENARIOS`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from quiesce import Scope
from quiesce.realtime import RealtimeModelSendHistory, RealtimeReconnect
from quiesce.realtime.testing import ScriptedRealtimeModel, Speech
from quiesce.testing import call
from quiesce.wire import ConnectionEnded
from tests.kernel.audited import clock, ledger, pause
from tests.realtime.audited import (
    GONE,
    LATER,
    audited,
    concierge,
    in_memory,
    polite,
    read_until,
    search,
    watched,
)

AGAIN: dict[str, Any] = {"reconnect": RealtimeReconnect(tries=2)}


class Checked(ScriptedRealtimeModel):
    """Tells the ledger if it is connected, or told something, after its session was stopped."""

    def _check(self, what: str) -> None:
        session = watched.sessions[-1] if watched.sessions else None
        ledger.expect(session is None or not session.closed, f"a session that was stopped has {what}")

    async def connect(self, options: Any) -> None:
        self._check("connected")
        await super().connect(options)

    async def send_event(self, event: Any) -> None:
        if isinstance(event, RealtimeModelSendHistory):
            self._check("told its model the history")
        await super().send_event(event)


@audited("RealtimeReconnect")
async def a_connection_that_is_lost_and_comes_back() -> None:
    watched.start()
    model = Checked(
        [[call("search", text="x"), Speech("one two three", pace=0.2 * clock.pace)], LATER, LATER, LATER],
        connect_delay=clock.seconds(0.1),
    )
    with suppress(*GONE):
        async with watched.session(model, concierge(search, output_guardrails=[polite]), **AGAIN) as session:
            await session.send_message("where is it?")
            await read_until(session, "audio")
            await model.lose()
            await session.send_message("hello?")
            await read_until(session, "reconnected")
            await read_until(session, "agent_end", 2)


@audited("RealtimeReconnect")
async def a_connection_that_does_not_come_back() -> None:
    watched.start()
    model = Checked([call("search", text="x"), LATER])
    with suppress(*GONE):
        async with watched.session(model, concierge(search), **AGAIN) as session:
            await session.send_message("go")
            await read_until(session, "tool_start")
            model.connect_error = ConnectionRefusedError("nobody listens there")
            await model.lose()
            await read_until(session, "agent_end", 99)


@audited("RealtimeReconnect")
async def a_session_that_is_closed_by_somebody_else_while_it_connects_again() -> None:
    watched.start()
    model = Checked([[call("search", text="x"), Speech("wait", audio=b"")], LATER])
    session = watched.session(model, concierge(search), **AGAIN)
    async with Scope("users") as scope:

        async def read() -> None:
            with suppress(ConnectionEnded):
                async for _ in session:
                    pass

        with suppress(*GONE):
            await session.enter()
            scope.spawn(read)
            await session.send_message("go")
            await pause(0.1)
            model.connect_delay = clock.seconds(5)
            await model.lose()
            await pause(1)
            ledger.report(await session.close())
        await session.close()


@audited("RealtimeReconnect")
async def a_websocket_that_is_lost_and_comes_back() -> None:
    watched.start()
    turns = [["wait", call("search", text="x")], LATER, LATER, LATER]
    async with in_memory(turns, concierge(search), **AGAIN) as session:
        await session.send_message("where is it?")
        await read_until(session, "tool_start")
        connection: Any = session.model._connection  # type: ignore[attr-defined]
        if connection is not None:
            connection._link._lose(ConnectionResetError("by somebody between"))
        await session.send_message("hello?")
        await read_until(session, "reconnected")
        await read_until(session, "agent_end", 2)
