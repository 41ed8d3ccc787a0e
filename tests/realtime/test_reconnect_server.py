"""Sessions that get their connection back from a server, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import openai.types.realtime  # noqa: F401  # which the server imports: a collection after each test is quicker if it is there before
import pytest

from quiesce.agents import function_tool
from quiesce.realtime import (
    OpenAIRealtimeWebSocketModel,
    RealtimeAgent,
    RealtimeLimits,
    RealtimeReconnect,
    RealtimeSession,
    RealtimeToolCallItem,
)
from quiesce.realtime.openai.restored_items import CUT_OFF
from quiesce.realtime.testing import Faults, LocalRealtimeServer, Speech
from quiesce.testing import call
from quiesce.wire import ConnectionEnded
from tests.realtime.scenes import Reading, reading, until

pytestmark = pytest.mark.real_time

SLOWLY = Speech("one two three four five six seven eight nine ten", pace=0.05)
LOST = {
    "by a reset": Faults(reset=True),
    "in the middle of a frame": Faults(drops_after=300),
    "by a server that goes away": Faults(closes_with=1001),
    "by a server that has failed": Faults(closes_with=1011),
    "by silence": Faults(half_open=True),
}


@asynccontextmanager
async def talking(
    server: LocalRealtimeServer, *tools: Any, policy: RealtimeReconnect | None = None, **options: Any
) -> AsyncIterator[tuple[RealtimeSession, Reading]]:
    # uvloop tells nobody of a reset that comes right behind data: there it is the ping that finds out.
    config: Any = {
        "reconnect": policy or RealtimeReconnect(),
        "limits": RealtimeLimits(ping=0.5),
        **options.pop("config", {}),
    }
    agent = RealtimeAgent("agent", "Be brief.", tools=list(tools))
    model_config: Any = {"url": server.url, "api_key": "none", **options}
    session = RealtimeSession(OpenAIRealtimeWebSocketModel(), agent, None, model_config, config)
    async with session, reading(session) as heard:
        yield session, heard


def items_of(server: LocalRealtimeServer, number: int) -> list[dict[str, Any]]:
    """What a connection was told of the conversation."""
    return [
        event["item"]
        for event in server.connections[number].received
        if event["type"] == "conversation.item.create"
    ]


@pytest.mark.parametrize("how", LOST)
async def test_a_conversation_goes_on_after_its_connection_was_lost(how: str) -> None:
    turns: list[Any] = ["good morning", SLOWLY, "where was I"]
    with LocalRealtimeServer(turns, shared=True) as server:
        async with talking(server) as (session, heard):
            await session.send_message("hello")
            await heard.until_kind("agent_end")
            await session.send_message("count")
            await heard.until_kind("audio", 4)
            server.inflict(LOST[how])
            await heard.until_kind("connection_lost")
            await session.send_message("are you there?")
            await heard.until_kind("reconnected")
            await heard.until_kind("agent_end", 3)
        assert server.complaints == []
        assert len(server.connections) == 2
        settings = server.connections[1].received[0]
        assert (settings["type"], settings["session"]["instructions"]) == ("session.update", "Be brief.")
        told = items_of(server, 1)
        assert [item["role"] for item in told] == ["user", "assistant", "user", "assistant", "user"]
        words = [item["content"][0]["text"] for item in told]
        assert words[:3] == ["hello", "good morning", "count"]
        assert words[3].startswith("one two")
        assert words[3].endswith(CUT_OFF)
        assert words[4] == "are you there?"
        assert [end.is_cut for end in heard.of("audio_end")] == [False, True, False]
        assert [
            item.status for item in session.history if item.type == "message" and item.role == "assistant"
        ] == [
            "completed",
            "incomplete",
            "completed",
        ]
        assert session.history[-1].content[0].transcript == "where was I"  # type: ignore[union-attr]
        ids = [item.item_id for item in session.history]
        assert len(ids) == len(set(ids))


async def test_a_tool_that_is_at_work_is_answered_in_the_new_conversation() -> None:
    may_return = anyio.Event()
    calls: list[str] = []

    @function_tool
    async def book() -> str:
        """Takes its time."""
        calls.append("book")
        await may_return.wait()
        return "table 7"

    with LocalRealtimeServer([call("book"), "you have table 7"], shared=True) as server:
        async with talking(server, book) as (session, heard):
            await session.send_message("a table please")
            await heard.until_kind("tool_start")
            await heard.until_kind("agent_end")
            server.inflict(Faults(reset=True))
            back = await heard.until_kind("reconnected")
            assert len(back.unknown_calls) == 1
            may_return.set()
            await heard.until_kind("agent_end", 2)
        assert server.complaints == []
        assert calls == ["book"]
        sent = server.connections[1].received
        assert [event["type"] for event in sent] == [
            "session.update",
            *["conversation.item.create"] * 3,
            "conversation.item.delete",
            "conversation.item.create",
            "response.create",
        ]
        unknown, known = items_of(server, 1)[2:]
        assert "unknown" in unknown["output"]
        assert sent[4]["item_id"] == unknown["id"]
        assert (known["call_id"], known["output"]) == (unknown["call_id"], "table 7")
        [item] = [each for each in session.history if isinstance(each, RealtimeToolCallItem)]
        assert (item.output, item.status) == ("table 7", "completed")


async def test_an_answer_that_has_not_begun_is_asked_for_again_and_the_message_is_sent_once() -> None:
    faults = [Faults(reset=True, after="conversation.item.done")]
    with LocalRealtimeServer(["hello"], faults=faults, shared=True) as server:
        async with talking(server) as (session, heard):
            await session.send_message("hi")
            await heard.until_kind("agent_end")
            assert len(heard.of("reconnected")) == 1
        said = [item for number in (0, 1) for item in items_of(server, number)]
        assert (
            len(said) == 2
        )  # once on each connection: by a message, and by the history or the message that was not confirmed
        assert len([item for item in session.history if item.type == "message" and item.role == "user"]) == 1


@pytest.mark.parametrize("status", [503, 429])
async def test_a_server_that_is_busy_is_tried_again(status: int) -> None:
    faults = [Faults(), Faults(handshake=status), Faults(handshake="garbage")]
    with LocalRealtimeServer(["hello"], faults=faults, shared=True) as server:
        async with talking(server) as (session, heard):
            server.inflict(Faults(closes_with=1012))
            back = await heard.until_kind("reconnected")
            assert back.number == 3
            assert str(status) in str(heard.of("reconnecting")[1].error)
            await session.send_message("hi")
            await heard.until_kind("agent_end")


async def test_a_key_that_is_refused_is_not_tried_again() -> None:
    with LocalRealtimeServer(faults=[Faults(), Faults(handshake=401)]) as server:
        async with talking(server) as (_, heard):
            server.inflict(Faults(reset=True))
            await heard.until_end()
            assert isinstance(heard.error, ConnectionEnded)
            assert "401" in str(heard.error)
            assert len(heard.of("reconnecting")) == 1
        assert len(server.connections) == 2


@pytest.mark.parametrize("code", [3000, 1008, 4001])
async def test_a_server_that_closes_for_good_ends_the_session(code: int) -> None:
    with LocalRealtimeServer() as server:
        async with talking(server) as (_, heard):
            server.inflict(Faults(closes_with=code))
            await heard.until_end()
            assert isinstance(heard.error, ConnectionEnded)
            assert str(code) in str(heard.error)
            assert heard.of("connection_lost") == []
        assert len(server.connections) == 1


async def test_a_server_that_ends_the_session_in_order_ends_it() -> None:
    with LocalRealtimeServer() as server:
        async with talking(server) as (_, heard):
            server.inflict(Faults(closes_with=1000))
            await heard.until_end()
            assert heard.error is None
        assert len(server.connections) == 1


async def test_a_key_is_asked_for_anew_each_time() -> None:
    keys = iter(["first", "second"])
    with LocalRealtimeServer() as server:
        async with talking(server, api_key=lambda: next(keys)) as (_, heard):
            server.inflict(Faults(reset=True))
            await heard.until_kind("reconnected")
        assert [each.headers["authorization"] for each in server.connections] == [
            "Bearer first",
            "Bearer second",
        ]


async def test_a_connection_that_is_closed_for_good_before_it_is_of_use_is_the_last() -> None:
    """As a server does that looks at the key after it has shaken hands."""
    faults = [Faults(), Faults(closes_with=3000, after="session.created")]
    with LocalRealtimeServer(faults=faults) as server:
        async with talking(server) as (_, heard):
            server.inflict(Faults(reset=True))
            await heard.until_end()
            assert isinstance(heard.error, ConnectionEnded)
            assert "3000" in str(heard.error)
        assert len(server.connections) == 2


@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_closed_by_who_gives_the_key(how: str) -> None:
    """It runs in the task that connects, for which the session would wait."""
    sessions: list[RealtimeSession] = []

    async def key() -> str:
        if sessions and sessions[0]._task.reconnecting._losses:  # type: ignore[union-attr]
            if how == "close":
                report = await sessions[0].close()
                assert report.elapsed < 2
            else:
                sessions[0].cancel()
            await anyio.sleep(0.01)
        return "none"

    with LocalRealtimeServer() as server:
        async with talking(server, api_key=key) as (session, heard):
            sessions.append(session)
            server.inflict(Faults(reset=True))
            await heard.until_end()
            assert heard.error is None
            report = await session.close()
            assert report.clean, str(report)
            assert report.elapsed < 2
        assert len(server.connections) == 1


async def test_closed_while_the_server_answers_nothing() -> None:
    with LocalRealtimeServer(faults=[Faults(), Faults(handshake="silence")]) as server:
        async with talking(server) as (session, heard):
            server.inflict(Faults(reset=True))
            await until(lambda: len(server.connections) == 2)
            report = await session.close()
            assert report.clean
            assert heard.of("reconnected") == []
        await until(lambda: not server.open_connections)


async def test_a_long_history_is_told_though_little_may_wait_to_be_sent() -> None:
    with LocalRealtimeServer([Speech("yes", audio=b"")] * 31, shared=True) as server:
        async with talking(server, config={"limits": RealtimeLimits(unsent=1000)}) as (session, heard):
            for number in range(1, 31):
                await session.send_message("more " * 5000)
                await heard.until_kind("agent_end", number)
            server.inflict(Faults(reset=True))
            await heard.until_kind("reconnected")
            await session.send_message("still there?")
            await heard.until_kind("agent_end", 31)
        assert len(items_of(server, 1)) == 61
        assert server.complaints == []
