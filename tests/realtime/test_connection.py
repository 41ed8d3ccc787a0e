"""Sessions over a real WebSocket: connecting, talking, interrupting, and buffers that are bounded on both sides."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import openai.types.realtime  # noqa: F401  # which the server imports: a collection after each test is quicker if it is there before
import pytest
from anyio.lowlevel import checkpoint

from quiesce import Grace, Scope
from quiesce.agents import GuardrailFunctionOutput, UserError, function_tool, output_guardrail
from quiesce.realtime import (
    OpenAIRealtimeWebSocketModel,
    RealtimeAgent,
    RealtimeLimits,
    RealtimeModelListener,
    RealtimeModelSendRawMessage,
    RealtimeModelSendToolOutput,
    RealtimeModelToolCallEvent,
    RealtimePlaybackTracker,
    RealtimeRunner,
    RealtimeSession,
    RealtimeSessionClosed,
)
from quiesce.realtime.testing import Faults, LocalRealtimeServer, Speech
from quiesce.realtime.testing.tones import silence, tone
from quiesce.testing import call
from quiesce.wire import ConnectionEnded
from tests.realtime.scenes import Part, Reading, agent, reading, until

pytestmark = pytest.mark.real_time

PATIENT = Grace(cancel=15, terminate=3, kill=3)  # what is in order takes no time, however slow the machine
LONG = Speech("many words", audio=bytes(4800 * 400))  # twenty seconds


@function_tool
async def weather(city: str) -> str:
    """Forecast the weather."""
    return f"rain in {city}"


@contextmanager
def served(turns: Any = (), *, crossing: str | None = None, **options: Any) -> Iterator[LocalRealtimeServer]:
    """A server that must have nothing to complain of, but for what may cross with what it says."""
    with LocalRealtimeServer(turns, **options) as server:
        yield server
    assert [each for each in server.complaints if crossing is None or crossing not in each] == []


def session_to(
    server: LocalRealtimeServer,
    *tools: Any,
    limits: RealtimeLimits | None = None,
    settings: Any = None,
    config: Any = None,
    model: OpenAIRealtimeWebSocketModel | None = None,
    grace: Grace = PATIENT,
    tracker: RealtimePlaybackTracker | None = None,
    **fields: Any,
) -> RealtimeSession:
    model_config: Any = {"url": server.url, "api_key": "none"}
    if settings is not None:
        model_config["initial_model_settings"] = settings
    if tracker is not None:
        model_config["playback_tracker"] = tracker
    run_config: Any = {**(config or {}), **({"limits": limits} if limits is not None else {})}
    return RealtimeSession(
        model or OpenAIRealtimeWebSocketModel(),
        RealtimeAgent("agent", "Be brief.", tools=list(tools), **fields),
        None,
        model_config,
        run_config,
        grace=grace,
    )


@asynccontextmanager
async def talking(session: RealtimeSession, *messages: str) -> AsyncIterator[Reading]:
    async with session, reading(session) as heard:
        for message in messages:
            await session.send_message(message)
        yield heard


def received(server: LocalRealtimeServer, kind: str) -> list[dict[str, Any]]:
    return [event for event in list(server.received) if event["type"] == kind]


NO_TURN_DETECTION = {"turn_detection": None}


# Talking


async def test_a_conversation_with_a_tool_and_the_socket_is_closed_as_it_should_be() -> None:
    with served([call("weather", city="Paris"), "It rains a lot."]) as server:
        session = session_to(server, weather)
        async with talking(session, "how is it?") as heard:
            await heard.until_kind("agent_end", 2)
            assert [event.output for event in heard.of("tool_end")] == ["rain in Paris"]
            assert len(heard.of("audio")) == 4
            assert heard.of("error") == []
        await until(lambda: not server.open_connections)
        [connection] = server.connections
        assert (connection.close_code, connection.headers["authorization"]) == (1000, "Bearer none")
        sent = [event["type"] for event in server.received]
        assert sent == ["session.update", *["conversation.item.create", "response.create"] * 2]
        assert server.received[0]["session"]["instructions"] == "Be brief."
        assert server.received[0]["session"]["tools"][0]["name"] == "weather"
        assert server.received[3]["item"]["output"] == "rain in Paris"
    assert [type(item).__name__ for item in session.history] == [
        "UserMessageItem",
        "RealtimeToolCallItem",
        "AssistantMessageItem",
    ]
    assert session.report is not None
    assert session.report.clean, str(session.report)


async def test_an_answer_to_a_tool_is_told_once_in_the_history() -> None:
    with served([call("weather", city="Paris"), "Rain."]) as server:
        async with talking(session_to(server, weather), "how is it?") as heard:
            await heard.until_kind("agent_end", 2)
            histories = [event.history for event in heard.of("history_updated")]
            first = next(
                place
                for place, items in enumerate(histories)
                if getattr(items[-1:] and items[-1], "output", None)
            )
            assert [
                getattr(items[1], "output", None) for items in histories[first:] if len(items) == 2
            ].count("rain in Paris") >= 1
            ended = heard.events.index(heard.of("tool_end")[0])
            before = [event.type for event in heard.events[ended - 3 : ended]]
            assert before.count("history_updated") == 1


async def test_a_handoff_changes_the_session_of_the_server() -> None:
    second = RealtimeAgent("second", "You are the second.", tools=[weather])
    with served([call("transfer_to_second"), call("weather", city="Rome"), "ok"]) as server:
        async with talking(session_to(server, handoffs=[second]), "go") as heard:
            await heard.until_kind("agent_end", 3)
            updates = received(server, "session.update")
            assert [update["session"]["instructions"] for update in updates] == [
                "Be brief.",
                "You are the second.",
            ]
            assert [event.output for event in heard.of("tool_end")] == ["rain in Rome"]


async def test_the_runner_makes_a_model_for_each_session() -> None:
    with served(["Hello."]) as server:
        runner = RealtimeRunner(RealtimeAgent("agent"), config={"grace": PATIENT})
        options: Any = {"url": server.url, "api_key": "none"}
        async with (
            await runner.run(model_config=options) as one,
            await runner.run(model_config=options) as two,
            reading(one) as first,
            reading(two) as second,
        ):
            assert one.model is not two.model
            await one.send_message("a")
            await two.send_message("b")
            await first.until_kind("agent_end")
            await second.until_kind("agent_end")
        assert len(server.connections) == 2


async def test_raw_messages_are_sent_as_they_are() -> None:
    with served() as server:
        async with session_to(server) as session:
            message = {"type": "input_audio_buffer.clear"}
            await session.model.send_event(RealtimeModelSendRawMessage(message))
            await until(lambda: received(server, "input_audio_buffer.clear"))


async def test_a_model_may_be_used_again_and_knows_nothing_of_the_session_before() -> None:
    model = OpenAIRealtimeWebSocketModel()
    with served([Speech("one two three", pace=0.05)]) as server:
        for _ in range(2):
            session = session_to(server, model=model)
            async with talking(session, "go") as heard:
                await heard.until_kind("audio")
                assert len(session.history) == 2
        assert len(server.connections) == 2
        with pytest.raises(ConnectionEnded, match="not connected"):
            await model.send_event(RealtimeModelSendRawMessage({"type": "response.create"}))
        await model.close()


async def test_a_model_that_is_being_connected_is_connected_once() -> None:
    """Two who connect one model at the same time would leave a socket to nobody."""
    model = OpenAIRealtimeWebSocketModel()
    raised: list[Exception] = []
    with served() as server:
        options: Any = {"url": server.url, "api_key": "none"}

        async def connect() -> None:
            try:
                await model.connect(options)
            except UserError as error:
                raised.append(error)

        async with Scope("owner") as scope:
            scope.spawn(connect)
            scope.spawn(connect)
            await until(lambda: raised)
            await until(lambda: received(server, "session.update"))
            assert len(server.connections) == 1
            await model.close()
        await until(lambda: not server.open_connections)


# Connecting


async def test_without_a_key_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        await (await RealtimeRunner(RealtimeAgent("agent")).run()).enter()


@pytest.mark.parametrize("kind", ["text", "function", "async function", "headers", "environment"])
async def test_the_key_is_given_in_several_ways(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def later() -> str:
        await anyio.sleep(0)
        return "secret"

    monkeypatch.setenv("OPENAI_API_KEY", "from the environment")
    with served() as server:
        options: Any = {"url": server.url}
        if kind == "headers":
            options["headers"] = {"Authorization": "Bearer secret", "X-Tenant": "7"}
        elif kind != "environment":
            options["api_key"] = {"text": "secret", "function": lambda: "secret", "async function": later}[
                kind
            ]
        async with await RealtimeRunner(RealtimeAgent("agent")).run(model_config=options):
            await until(lambda: received(server, "session.update"))
        sent = server.connections[0].headers
        assert sent["authorization"] == (
            "Bearer from the environment" if kind == "environment" else "Bearer secret"
        )
        assert (sent.get("x-tenant") == "7") == (kind == "headers")


@pytest.mark.parametrize(
    ("handshake", "says"),
    [(401, "401"), (403, "403"), (500, "500"), ("garbage", "connect"), ("silence", "0.2 s")],
)
async def test_a_server_that_does_not_let_us_in_is_a_clear_error(handshake: Any, says: str) -> None:
    with served(faults=Faults(handshake=handshake)) as server:
        session = session_to(server, limits=RealtimeLimits(connect=0.2 if handshake == "silence" else 10))
        with pytest.raises((ConnectionError, ConnectionEnded), match=says) as caught:
            await session.enter()
        assert str(server.port) in str(caught.value)
        assert session.closed
        await until(lambda: not server.open_connections)


async def test_a_key_that_takes_too_long_is_a_clear_error_too() -> None:
    given_up = False

    async def later() -> str:
        nonlocal given_up
        try:
            await anyio.sleep_forever()
        finally:
            given_up = True
        raise AssertionError

    with served() as server:
        options: Any = {"url": server.url, "api_key": later}
        runner = RealtimeRunner(RealtimeAgent("agent"), config={"limits": RealtimeLimits(connect=0.2)})
        with pytest.raises(ConnectionError, match=r"0\.2 s") as caught:
            await (await runner.run(model_config=options)).enter()
        assert str(server.port) in str(caught.value)
        assert given_up
        assert server.connections == []


async def test_nobody_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options: Any = {"url": f"ws://127.0.0.1:{port}/", "api_key": "none"}
    with pytest.raises(ConnectionError, match=str(port)):
        await (await RealtimeRunner(RealtimeAgent("agent")).run(model_config=options)).enter()


async def test_connecting_may_be_given_up() -> None:
    with served(faults=Faults(handshake="silence")) as server:
        with anyio.move_on_after(0.1) as limit:
            async with session_to(server):
                raise AssertionError
        assert limit.cancelled_caught
        await until(lambda: not server.open_connections)


async def test_it_may_be_closed_while_it_connects() -> None:
    with served(faults=Faults(handshake="silence")) as server:
        session = session_to(server)
        raised: list[BaseException] = []

        async def enter() -> None:
            try:
                await session.enter()
            except Exception as error:
                raised.append(error)

        async with Scope() as scope:
            scope.spawn(enter)
            await until(lambda: server.connections)
            report = await session.close()
            assert report.clean, str(report)
        assert len(raised) == 1
        await until(lambda: not server.open_connections)


# Interrupting


async def test_speech_of_the_user_cuts_what_was_not_played() -> None:
    """Twenty seconds were sent at once, and the user speaks: they have heard the first 300 milliseconds."""
    tracker = RealtimePlaybackTracker()
    with served([LONG, "Yes?"], transcripts=["stop"]) as server:
        session = session_to(server, tracker=tracker)
        async with talking(session, "tell me a story") as heard:
            await heard.until_kind("audio_end")
            first = heard.of("audio")[0]
            tracker.on_play_ms(first.item_id, 0, 300)
            await session.send_audio(tone(200) + silence(700))
            interrupted = await heard.until_kind("audio_interrupted")
            assert interrupted.item_id == first.item_id
            await until(lambda: received(server, "conversation.item.truncate"))
            [truncated] = received(server, "conversation.item.truncate")
            assert (truncated["item_id"], truncated["audio_end_ms"]) == (first.item_id, 300)
            await heard.until_kind("agent_end", 2)
            assert tracker.get_state()["current_item_id"] is None


async def test_interrupt_cancels_the_response_and_nothing_of_it_is_played_any_more() -> None:
    story = Speech("one two three four five six seven eight" + " and so on" * 100, pace=0.05)
    with served([story, "Yes?"]) as server:
        session = session_to(server, settings=NO_TURN_DETECTION)
        async with talking(session, "count") as heard:
            await heard.until_kind("audio", 2)
            await session.interrupt()
            at = len(heard.events)
            await heard.until_kind("agent_end")
            assert len(received(server, "response.cancel")) == 1
            assert [event for event in heard.events[at:] if event.type == "audio"] == []
            await session.send_message("go on")
            await heard.until_kind("agent_end", 2)
            assert heard.of("error") == []


async def test_interrupt_cancels_a_response_of_which_nothing_more_is_heard() -> None:
    """It thinks, or writes a tool call; and as nobody speaks, no server would end it by itself."""
    with served([Speech("one two", pace=3600)]) as server:
        session = session_to(server)
        async with talking(session, "count") as heard:
            await heard.until_kind("audio")
            await session.interrupt()
            await until(lambda: received(server, "response.cancel"))
            await heard.until_kind("agent_end")
            assert heard.of("error") == []


async def test_a_guardrail_interrupts_the_response_at_once() -> None:
    async def polite(context: Any, agent: Any, output: str) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(None, "three" in output)

    story = Speech("one two three four five six seven eight" + " and so on" * 100, pace=0.05)
    with served([story, "Sorry."]) as server:
        session = session_to(
            server,
            output_guardrails=[output_guardrail(polite)],
            config={"guardrails_settings": {"debounce_text_length": 3}},
        )
        async with talking(session, "count") as heard:
            await heard.until_kind("guardrail_tripped")
            await heard.until_kind("agent_end", 2)
            response = heard.of("audio")[0].audio.response_id
            # of more than three hundred: how many of them pass before the third word is judged is up to the machine
            assert len([event for event in heard.of("audio") if event.audio.response_id == response]) < 100
            assert len(received(server, "response.cancel")) == 1
            said = [
                event["item"]["content"][0]["text"] for event in received(server, "conversation.item.create")
            ]
            assert said == ["count", "guardrail triggered: polite"]
            assert heard.of("error") == []


async def test_who_interrupts_and_reads_in_one_task_does_not_wait_for_themselves() -> None:
    """The buffer is full, and an interruption is an event too."""
    with served([LONG, "Yes?"], crossing="response_cancel_not_active") as server:
        session = session_to(server, limits=RealtimeLimits(events=40), settings=NO_TURN_DETECTION)
        async with session:
            await session.send_message("go")
            await until(lambda: session._task.buffer.is_full)
            audio = 0
            async for event in session:
                audio += event.type == "audio"
                if audio:
                    break
            await until(lambda: session._task.buffer.is_full)
            with anyio.fail_after(10):
                await session.interrupt()
                await session.interrupt()
            async for event in session:
                assert event.type != "audio"
                if event.type == "agent_end":
                    break


async def test_the_same_when_there_is_no_audio_to_make_room() -> None:
    with served([Speech("a story", audio=bytes(960_000), piece=960_000, pace=0.0), "Yes?"]) as server:
        session = session_to(server, weather, limits=RealtimeLimits(events=40), settings=NO_TURN_DETECTION)
        async with session:
            await session.send_message("go")
            async for event in session:
                if event.type == "audio_end":
                    break
            for number in range(100):
                server.send({"type": "weather.changed", "event_id": f"event_{number}"})
            await until(lambda: session._task.buffer.is_full)
            with anyio.fail_after(10):
                await session.interrupt()
                await session.update_agent(RealtimeAgent("second", tools=[weather]))
                await session.send_audio(b"\0\0")
            await until(lambda: received(server, "conversation.item.truncate"))
            async for event in session:
                if event.type == "audio_interrupted":
                    break


# Buffers


def room_of_two_sockets() -> int:
    """The bytes that the system may hold between them."""
    return sum(int(Path(f"/proc/sys/net/ipv4/tcp_{kind}mem").read_text().split()[2]) for kind in "rw")


@pytest.mark.worlds("asyncio", "trio")
async def test_nobody_reads_and_the_server_has_to_wait_then_it_goes_on() -> None:
    room = room_of_two_sockets()
    with served(["go"], faults=Faults(floods=room / 1_000_000 + 10)) as server:
        session = session_to(server, limits=RealtimeLimits(bytes=1_000_000))
        async with session:
            await session.send_message("go")
            await until(lambda: session._task.buffer.is_full)
            sent, last = 0, -1
            while sent != last:  # until the buffers of the two sockets are full as well
                await anyio.sleep(0.15)
                sent, last = server.connections[0].bytes_sent, sent
            assert sent < room + 5_000_000
            assert session._task.buffer._bytes < 3_000_000
            got = 0
            with anyio.fail_after(15):
                async for event in session:
                    if event.type == "audio":
                        got += len(event.audio.data)
                    if event.type == "agent_end":
                        break
            assert got >= room


@pytest.mark.worlds("asyncio", "trio")
async def test_a_server_that_talks_nonsense_without_end_has_to_wait_too() -> None:
    nonsense: Any = ("not_json",) * 1000
    with served(["Hello."], faults=Faults(malformed=nonsense)) as server:
        session = session_to(server, limits=RealtimeLimits(events=50))
        async with session:
            await session.send_message("go")
            await until(lambda: session._task.buffer.is_full)
            errors = 0
            with anyio.fail_after(15):
                async for event in session:
                    await checkpoint()  # whoever may tell us more, can
                    assert len(session._task.buffer) < 60
                    errors += event.type == "error"
                    if event.type == "agent_end":
                        break
            assert errors == 1000


@pytest.mark.worlds("asyncio", "trio")
async def test_a_server_that_does_not_read_makes_whoever_sends_wait_and_the_end_lets_them_go() -> None:
    with served(faults=Faults(half_open=True, after="session.updated")) as server:
        session = session_to(server, limits=RealtimeLimits(unsent=100_000), grace=Grace(cancel=1.2))
        await session.enter()
        await until(lambda: received(server, "session.update"))
        sent = 0
        ended: list[str] = []

        async def speak() -> None:
            nonlocal sent
            try:
                while True:
                    await session.send_audio(bytes(48_000))
                    sent += 48_000
            except (ConnectionEnded, RealtimeSessionClosed) as error:
                ended.append(str(error))

        async with Scope() as scope:
            scope.spawn(speak)
            last = -1
            while sent != last:  # it waits
                last = sent
                await anyio.sleep(0.3)
            assert sent < 40_000_000
            report = await session.close()
            assert report.clean, str(report)
        assert len(ended) == 1


async def test_a_server_that_vanished_is_noticed() -> None:
    with served(faults=Faults(half_open=True, after="session.updated")) as server:
        tool = Part("tool")
        session = session_to(server, tool.tool, limits=RealtimeLimits(ping=0.1))
        with pytest.raises(ConnectionEnded, match=r"has not answered for 0\.1 s"):
            async with session:
                async for _ in session:
                    pass
        assert session.report is not None
        assert session.report.reason is not None
        assert session.report.reason.kind == "disconnect"


@pytest.mark.slow
@pytest.mark.worlds("asyncio", "trio")
async def test_a_server_that_is_there_is_not_taken_for_one_that_vanished_because_nobody_reads() -> None:
    with served([LONG]) as server:
        session = session_to(server, limits=RealtimeLimits(ping=1, events=30))
        async with session:
            await session.send_message("go")
            await until(lambda: session._task.buffer.is_full)
            await anyio.sleep(2.2)  # a ping, and a second in which nobody reads the answer
            assert not session.closed
            audio = 0
            async for event in session:
                audio += len(event.audio.data) if event.type == "audio" else 0
                if event.type == "agent_end":
                    break
            assert audio == 4800 * 400
            await anyio.sleep(2.2)  # and with nothing to say it is there too
            assert not session.closed


async def test_a_message_that_is_too_long_ends_the_session_with_an_error_that_names_the_limit() -> None:
    """A frame of a size that was not agreed on cannot be skipped: the connection is over."""
    with served(["Hello."], faults=Faults(oversized=3_000_000)) as server:
        session = session_to(server, limits=RealtimeLimits(frame=1_000_000))
        with pytest.raises(ConnectionEnded, match="1000000"):
            async with session:
                await session.send_message("go")
                async for _ in session:
                    pass
        await until(lambda: not server.open_connections)


async def test_nonsense_is_an_error_event_each_and_the_session_goes_on() -> None:
    nonsense: Any = ("not_json", "not_object", "no_type", "wrong_types", "bad_base64", "unknown_type")
    with served(["Hello."], faults=Faults(malformed=nonsense)) as server:
        async with talking(session_to(server), "go") as heard:
            await heard.until_kind("agent_end")
            assert 4 <= len(heard.of("error")) <= 6


# A session over it ------------------------------------------------------------------------------------------


def over_the_wire(server: LocalRealtimeServer, **options: Any) -> RealtimeSession:
    """A session with a real socket."""
    return RealtimeSession(
        OpenAIRealtimeWebSocketModel(),
        agent(**options.pop("agent", {})),
        None,
        {"url": server.url},
        options.pop("config", None),
    )


@pytest.mark.real_time
async def test_a_listener_that_fails_costs_the_session_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(RealtimeModelListener):
        async def on_event(self, event: Any) -> None:
            if event.type == "turn_started":
                raise LookupError("a listener's own")

    with LocalRealtimeServer(["Good morning."]) as server:
        async with over_the_wire(server) as session:
            session.model.add_listener(Failing())
            await session.send_message("Hello")
            types = []
            async for event in session:
                types.append(event.type)
                if event.type == "error":
                    assert isinstance(event.error, LookupError)
                if event.type == "agent_end":
                    break
    assert "error" in types
    assert "audio" in types


@pytest.mark.real_time
async def test_what_is_told_in_the_readers_own_task_does_not_wait_for_the_reader() -> None:
    with LocalRealtimeServer([Speech("a b c d e f g h i j k", audio=b"")] * 5) as server:
        async with over_the_wire(server, config={"limits": RealtimeLimits(events=20)}) as session:
            await session.send_message("Hello")
            while len(session._task.buffer) < 20:
                await anyio.sleep(0.01)
            output = RealtimeModelSendToolOutput(RealtimeModelToolCallEvent("f", "c1", "{}"), "out")
            with anyio.fail_after(10):
                await session.model.send_event(output)


@pytest.mark.real_time
async def test_a_call_id_of_none_joins_no_call() -> None:
    with LocalRealtimeServer([]) as server:
        config: Any = {"url": server.url, "call_id": None}
        async with RealtimeSession(OpenAIRealtimeWebSocketModel(), agent(), None, config):
            while not server.received:
                await anyio.sleep(0.01)
        assert server.received[0]["session"]["model"] == "gpt-realtime"
