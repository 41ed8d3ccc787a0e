"""Scenarios of sessions, for the audit to stop at every point. `SCENARIOS` is all of them.

Beside what the ledger knows (every clean-up that began came to its end), each run must leave sessions that are settled, keep an account of no call and no
response any more, and have answered each call at most once; and models that are not connected.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import msgspec
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from quiesce import Scope
from quiesce.agents import GuardrailFunctionOutput, UserError, function_tool, output_guardrail
from quiesce.realtime import (
    OpenAIRealtimeWebSocketModel,
    RealtimeAgent,
    RealtimeLimits,
    RealtimeModelSendToolOutput,
    RealtimeRunner,
    RealtimeSession,
    realtime_handoff,
)
from quiesce.realtime.openai.connection import Connection
from quiesce.realtime.openai.protocol import Protocol
from quiesce.realtime.testing import ScriptedRealtimeModel, Speech
from quiesce.realtime.testing.server.session import ServedSession
from quiesce.realtime.testing.speech import as_script
from quiesce.realtime.words.playback import RealtimePlaybackTracker
from quiesce.testing import call
from quiesce.wire import ConnectionEnded, memory_pair
from quiesce.wire.base.websocket_framing import WebSocketFraming
from quiesce.wire.links.channel_link import ChannelLink
from tests.kernel.audited import WORLDS, Audited, clock, ledger, pause, work

SCENARIOS: list[Audited] = []
LIMITS: dict[str, Any] = {"guardrails_settings": {"debounce_text_length": 4}}
# The answer to a search that ends before it is stopped: time may be real, and the machine busy.
LATER = Speech("found", audio=b"")
GONE = (ConnectionEnded, UserError)  # what is raised to whoever uses a session that was stopped


class Watched:
    """The sessions of a run, and what their models were told."""

    def __init__(self) -> None:
        self.sessions: list[RealtimeSession] = []

    def start(self) -> None:
        """A new run."""
        ledger.start()
        self.sessions = []

    def session(self, model: Any, agent: RealtimeAgent[Any], **config: Any) -> RealtimeSession:
        run_config: Any = {**LIMITS, **config}
        self.sessions.append(RealtimeSession(model, agent, run_config=run_config))
        return self.sessions[-1]

    def check(self) -> None:
        """After a run: nothing is half done."""
        for session in self.sessions:
            if session._holding is None:
                continue
            task = session._task
            model: Any = session.model
            ledger.expect(session._held().core.is_settled(), f"{session} is not settled")
            work = getattr(task, "work", None)
            ledger.expect(work is None or work.state == "settled", f"work of {session} is {work}")
            ledger.expect(not task.calls._calls, f"{session} has calls {task.calls._calls}")
            ledger.expect(not task.guards._responses, f"{session} has responses")
            back = task.reconnecting
            ledger.expect(back is None or back._handle is None or back._handle.done, f"{session} connects")
            if isinstance(model, ScriptedRealtimeModel):
                ledger.expect(not model.connected, "a model is connected")
                ledger.expect(not model._listeners, "a model has listeners")
                answered = Counter(
                    event.tool_call.call_id
                    for event in model.sent
                    if isinstance(event, RealtimeModelSendToolOutput)
                )
                ledger.expect(all(count == 1 for count in answered.values()), f"answered {dict(answered)}")
            else:
                ledger.expect(model._connection is None, "a model is connected")
        self.sessions = []
        ledger.check()


watched = Watched()


def audited(word: str, **options: Any) -> Callable[[Any], Any]:
    def take(function: Any) -> Any:
        SCENARIOS.append(Audited(word, function, WORLDS, {}, {}, False, {"check": watched.check, **options}))
        return function

    return take


@function_tool
async def search(text: str) -> str:
    """Takes its time, and has to tidy up when it is cancelled."""
    await work(1)
    return f"found {text}"


@function_tool(needs_approval=True)
async def delete(path: str) -> str:
    """Somebody must say yes first."""
    await pause(0.2)
    return f"deleted {path}"


@output_guardrail
async def polite(context: Any, agent: Any, output: str) -> GuardrailFunctionOutput:
    await work(0.3)
    return GuardrailFunctionOutput(None, "rude" in output)


def concierge(*tools: Any, **fields: Any) -> RealtimeAgent[Any]:
    return RealtimeAgent("concierge", tools=list(tools), **fields)


async def read_until(session: RealtimeSession, kind: str, count: int = 1) -> None:
    """Read so far, or to the end; or for a while, should what brings it about have been stopped before."""
    with anyio.move_on_after(clock.seconds(15)):
        async for event in session:
            count -= event.type == kind
            if count == 0:
                return


@audited("RealtimeSession")
async def a_conversation_with_a_tool_and_a_guardrail() -> None:
    watched.start()
    model = ScriptedRealtimeModel([["wait", call("search", text="x")], Speech("here", audio=b"")])
    with suppress(*GONE):
        async with watched.session(model, concierge(search, output_guardrails=[polite])) as session:
            await session.send_message("where is it?")
            await read_until(session, "agent_end", 2)


@audited("RealtimeSession")
async def a_session_that_ends_while_everything_is_at_work() -> None:
    watched.start()
    turn: list[Any] = [call("search", text="x"), call("delete", path="y"), Speech("wait", audio=b"")]
    model = ScriptedRealtimeModel([turn, LATER])
    with suppress(*GONE):
        async with watched.session(model, concierge(search, delete, output_guardrails=[polite])) as session:
            await session.send_message("go")
            await read_until(session, "agent_end")
            await pause(0.1)


@audited("approve_tool_call")
async def calls_that_are_approved_and_rejected_by_who_reads() -> None:
    watched.start()
    model = ScriptedRealtimeModel(
        [[call("delete", path="x"), call("delete", path="y")], Speech("ok", audio=b""), call("search")]
    )
    with suppress(*GONE):
        async with watched.session(model, concierge(delete)) as session:
            await session.send_message("delete them")
            ends = 0
            with anyio.move_on_after(clock.seconds(15)):  # should a call have been stopped before
                async for event in session:
                    if event.type == "tool_approval_required":
                        if "x" in event.arguments:
                            await session.approve_tool_call(event.call_id)
                        else:
                            await session.reject_tool_call(event.call_id)
                    ends += event.type == "agent_end"
                    if ends == 2:
                        break


@audited("realtime_handoff")
async def a_handoff_and_an_interruption() -> None:
    watched.start()

    async def on_handoff(context: Any) -> None:
        await work(0.2)

    desk = RealtimeAgent("desk", tools=[search])
    speech = Speech("one two", pace=0.1 * clock.pace)
    model = ScriptedRealtimeModel([call("transfer_to_desk"), speech, Speech("yes?", audio=b"")])
    agent = concierge(handoffs=[realtime_handoff(desk, on_handoff=on_handoff)])
    with suppress(*GONE):
        async with watched.session(model, agent) as session:
            await session.send_message("the desk please")
            await read_until(session, "audio")
            await session.interrupt()
            await session.send_message("hello?")
            await read_until(session, "agent_end", 2)


@audited("output_guardrail")
async def a_guardrail_that_says_no() -> None:
    watched.start()
    speech = Speech("rude words and", pace=0.2 * clock.pace)
    model = ScriptedRealtimeModel([speech, Speech("oh", audio=b"")])
    with suppress(*GONE):
        async with watched.session(model, concierge(output_guardrails=[polite])) as session:
            await session.send_message("say something")
            await read_until(session, "guardrail_tripped")
            await read_until(session, "agent_end", 1)


@audited("close")
async def a_session_that_is_closed_by_somebody_else_while_one_reads() -> None:
    watched.start()
    model = ScriptedRealtimeModel([[call("search", text="x"), Speech("wait", audio=b"")], LATER])
    session = watched.session(model, concierge(search, output_guardrails=[polite]))
    async with Scope("users") as scope:

        async def read() -> None:
            async for _ in session:
                pass

        async def close() -> None:
            await pause(0.4)
            ledger.report(await session.close())

        with suppress(*GONE):
            await session.enter()
            scope.spawn(read)
            closing = scope.spawn(close)
            await session.send_message("go")
            await closing.wait()
            await session.close()  # should the other have been stopped before it did


@audited("close")
async def a_session_that_is_closed_by_its_own_tool() -> None:
    watched.start()
    sessions: list[RealtimeSession] = []

    @function_tool
    async def hang_up() -> str:
        await pause(0.1)
        await sessions[0].close()
        return "bye"

    model = ScriptedRealtimeModel([[call("search", text="x"), call("hang_up")], LATER])
    sessions.append(watched.session(model, concierge(search, hang_up)))
    with suppress(*GONE):
        async with sessions[0] as session:
            await session.send_message("bye")
            with anyio.move_on_after(clock.seconds(10)):  # should its tool have failed before
                async for _ in session:
                    pass


@audited("close")
async def a_session_that_runs_out_of_time_while_it_connects_and_one_that_does_not() -> None:
    watched.start()
    model = ScriptedRealtimeModel(["hello"], connect_delay=clock.seconds(1))
    with suppress(*GONE), anyio.move_on_after(clock.seconds(0.5)):
        await watched.session(model, concierge()).enter()
    with suppress(*GONE):
        async with watched.session(model, concierge()) as session:
            await session.send_message("hello")
            await read_until(session, "agent_end")


@audited("RealtimeLimits")
async def a_session_that_nobody_reads() -> None:
    watched.start()
    model = ScriptedRealtimeModel([[call("search", text="x"), "many words " * 5], LATER])
    with suppress(*GONE):
        async with watched.session(model, concierge(search), limits=RealtimeLimits(events=20)) as session:
            await session.send_message("go")
            await pause(0.5)
            await session.interrupt()


@audited("async_tool_calls")
async def a_session_whose_model_waits_for_its_tools() -> None:
    watched.start()
    model = ScriptedRealtimeModel(
        [[call("search", text="x"), Speech("and", audio=b"")], Speech("ok", audio=b"")]
    )
    with suppress(*GONE):
        async with watched.session(model, concierge(search), async_tool_calls=False) as session:
            await session.send_message("go")
            await read_until(session, "agent_end", 2)


@audited("update_agent")
async def an_agent_that_takes_over_in_the_middle() -> None:
    watched.start()

    async def instructions(context: Any, agent: Any) -> str:
        await work(0.3)
        return "Be brief."

    model = ScriptedRealtimeModel([call("search", text="x"), Speech("ok", audio=b"")])
    with suppress(*GONE):
        async with watched.session(model, concierge(search)) as session:
            await session.send_message("go")
            with anyio.move_on_after(clock.seconds(15)):  # should what is done for it have been stopped
                await session.update_agent(RealtimeAgent("second", instructions, tools=[search]))
            await read_until(session, "agent_end", 2)


@audited("RealtimeRunner")
async def two_sessions_of_a_runner_one_after_the_other_on_one_model() -> None:
    watched.start()
    model = ScriptedRealtimeModel(
        [call("search", text="x"), Speech("ok", audio=b""), Speech("hi", audio=b"")]
    )
    runner = RealtimeRunner(concierge(search), model=model)
    for last in (2, 1):
        session = await runner.run()
        watched.sessions.append(session)
        with suppress(*GONE):
            async with session:
                await session.send_message("go")
                await read_until(session, "agent_end", last)


# Over a WebSocket, in memory ----------------------------------------------------------------------------------------------


class MemoryServer:
    """What the local server speaks, over a pair of pipes in memory, with hands that were shaken before."""

    def __init__(self, number: int, script: deque[Any], end: Any) -> None:
        self._end = end
        self._session = ServedSession(number, script, deque(), pace=0.0, model=None)
        self._protocol = ServerProtocol(state=OPEN)
        self._came = anyio.Event()

    async def run(self) -> None:
        self._session.begin()
        try:
            async with Scope("server", on_error="report", on_child_error=lambda handle, error: None) as scope:
                speaking = scope.spawn(self._speak)
                await self._listen()
                speaking.cancel()
        finally:
            self._end.abort()

    async def _listen(self) -> None:
        while data := await self._end.receive():
            self._protocol.receive_data(data)
            for frame in self._protocol.events_received():
                if isinstance(frame, Frame) and frame.opcode is Opcode.TEXT:
                    self._session.receive(msgspec.json.decode(frame.data))
            self._came.set()
            if self._protocol.state is not OPEN:
                return

    async def _speak(self) -> None:
        while True:
            step = self._session.step()
            if isinstance(step, dict):
                self._protocol.send_text(msgspec.json.encode(step))
                await self._end.send(b"".join(self._protocol.data_to_send()))
            elif step is None:
                self._came = anyio.Event()
                await self._came.wait()
            else:
                await anyio.sleep(step)


class MemoryWebSocket:
    """The client's end of those pipes."""

    name = "memory"

    def __init__(self, end: Any) -> None:
        self._end = end

    async def open(self, limits: Any, scope: Scope) -> Any:
        await pause(0.1)
        protocol = ClientProtocol(parse_uri("ws://memory/"), state=OPEN)
        return ChannelLink(self._end, WebSocketFraming(protocol, limits.frame), scope, name=self.name)


class MemoryModel(OpenAIRealtimeWebSocketModel):
    """The model for a WebSocket, which connects to a server in memory."""

    def __init__(self, dial: Callable[[], Any]) -> None:
        super().__init__()
        self._dial = dial

    async def connect(self, options: Any) -> None:
        tracker = options.get("playback_tracker") or RealtimePlaybackTracker()
        connection = Connection(Protocol(tracker), options["limits"], self._tell, self._tell_ended)
        await connection.open(MemoryWebSocket(self._dial()), options["initial_model_settings"])  # type: ignore[arg-type]
        self._connection = connection


@asynccontextmanager
async def in_memory(turns: Any, agent: RealtimeAgent[Any], **config: Any) -> AsyncIterator[RealtimeSession]:
    """A session over a WebSocket in memory, with its servers beside it: one for each connection, and they share the script."""
    script, capacity = deque(as_script(turns)), config.pop("capacity", 65536)
    servers: list[Any] = []
    async with Scope("server", on_error="report", on_child_error=lambda handle, error: None) as scope:

        def dial() -> Any:
            one, other = memory_pair(capacity=capacity)
            servers.append(scope.spawn(MemoryServer(len(servers) + 1, script, other._channel).run))
            return one._channel

        try:
            with suppress(*GONE):
                async with watched.session(MemoryModel(dial), agent, **config) as session:
                    yield session
        finally:
            for serving in servers:
                serving.cancel()


@audited("OpenAIRealtimeWebSocketModel")
async def a_conversation_over_a_websocket() -> None:
    watched.start()
    turns = [["wait", call("search", text="x")], Speech("here", audio=b"")]
    async with in_memory(turns, concierge(search, output_guardrails=[polite])) as session:
        await session.send_message("where is it?")
        await read_until(session, "agent_end", 2)


@audited("OpenAIRealtimeWebSocketModel")
async def an_interruption_over_a_websocket() -> None:
    watched.start()
    turns = [Speech("one two three", pace=0.1 * clock.pace), Speech("yes?", audio=b"")]
    async with in_memory(turns, concierge()) as session:
        await session.send_message("count")
        await read_until(session, "audio", 2)
        await session.interrupt()
        await session.send_message("hello?")
        await read_until(session, "agent_end", 2)


@audited("OpenAIRealtimeWebSocketModel")
async def a_websocket_whose_two_ends_have_little_room() -> None:
    watched.start()
    limits = RealtimeLimits(events=30, unsent=1000)
    async with in_memory(["many words"], concierge(), limits=limits, capacity=5000) as session:
        await session.send_message("go")
        for _ in range(3):
            with anyio.move_on_after(clock.seconds(0.2)):
                await session.send_audio(bytes(3000))
        await pause(0.2)
