"""A session whose connection is lost gets it back, if it was told to: when it tries, for how long, what is seen of it; and never after it was stopped."""

from __future__ import annotations

import ssl
from itertools import pairwise
from typing import Any

import anyio
import pytest

from quiesce import Grace, Scope
from quiesce.agents import UserError
from quiesce.realtime import (
    OpenAIRealtimeWebSocketModel,
    RealtimeLimits,
    RealtimeModelEndOfStreamEvent,
    RealtimeModelSendHistory,
    RealtimeReconnect,
    RealtimeSession,
)
from quiesce.realtime.session.lost_connections import may_come_back
from quiesce.realtime.testing import ScriptedRealtimeModel, Speech
from quiesce.wire import ConnectionEnded
from tests.kernel.temperaments import virtual_worlds
from tests.realtime.scenes import Part, Reading, agent, scripted, session_of, talking, until
from tests.realtime.ways_to_stop import WAYS, Stage

pytestmark = virtual_worlds  # pauses of seconds

REFUSED = ConnectionRefusedError("nobody listens there")
KINDS = {"connection_lost", "reconnecting", "reconnected", "error"}


def lasting(
    turns: Any = (), *tools: Any, policy: RealtimeReconnect | None = None, **options: Any
) -> RealtimeSession:
    """A session that gets its connection back."""
    config = {"reconnect": policy or RealtimeReconnect(), **options.pop("config", {})}
    return session_of(turns, *tools, config=config, **options)


def seen(heard: Reading) -> list[str]:
    """The events that are about the connection."""
    return [kind for kind in heard.kinds if kind in KINDS]


def closed_with(code: int) -> ConnectionEnded:
    error = ConnectionEnded(f"the other side has closed the WebSocket with {code}")
    error.code = code
    return error


# What is seen


async def test_a_lost_connection_comes_back_with_an_event_for_each_step() -> None:
    session = lasting(["hello"])
    async with talking(session) as heard:
        model = scripted(session)
        model.connect_error = REFUSED
        await model.lose(lost := ConnectionEnded("the cable"))
        await heard.until_kind("reconnecting", 3)
        model.connect_error = None
        back = await heard.until_kind("reconnected")
        assert seen(heard) == ["connection_lost", *["reconnecting"] * 4, "reconnected"]
        assert heard.of("connection_lost")[0].error is lost
        assert [each.number for each in heard.of("reconnecting")] == [1, 2, 3, 4]
        assert [each.tries for each in heard.of("reconnecting")] == [5] * 4
        assert [each.error for each in heard.of("reconnecting")] == [lost, *[REFUSED] * 3]
        assert back.number == 4
        assert 3.5 <= back.seconds <= 7.5
        assert (back.unknown_calls, back.audio_dropped) == ([], 0)
        assert model.connects == 5
        assert not session.closed
        await session.send_message("are you there?")
        await heard.until_kind("agent_end")
    assert session.report is not None
    assert session.report.clean
    assert session.report.errors == []


async def test_the_pauses_grow_and_have_a_part_left_to_chance() -> None:
    times: list[float] = []
    pauses: set[float] = set()
    for _ in range(3):
        session = lasting(policy=RealtimeReconnect(tries=6, within=100))
        async with talking(session) as heard:
            scripted(session).connect_error = REFUSED
            times = [anyio.current_time()]
            await scripted(session).lose()
            for number in range(1, 7):
                await heard.until_kind("reconnecting", number)
                times.append(anyio.current_time())
            await heard.until_end()
        waited = [after - before for before, after in pairwise(times)]
        for pause, whole in zip(waited, [0.5, 1, 2, 4, 8, 8], strict=True):
            assert whole / 2 - 0.01 <= pause <= whole + 0.01
        pauses.update(round(pause, 3) for pause in waited)
    assert len(pauses) > 10


async def test_when_the_tries_are_over_the_session_ends_with_an_error_that_says_so() -> None:
    session = lasting(policy=RealtimeReconnect(tries=2))
    async with talking(session) as heard:
        model = scripted(session)
        model.connect_error = REFUSED
        await model.lose(ConnectionEnded("the cable"))
        await session.send_message("one")
        await session.send_message("two")
        await heard.until_end()
        assert seen(heard) == ["connection_lost", "reconnecting", "reconnecting", "error"]
        assert isinstance(heard.error, ConnectionEnded)
        assert heard.of("error")[0].error is heard.error
        assert heard.error.__cause__ is REFUSED
        for part in ("the cable", "2 of 2 tries", "nobody listens there", "Not sent: 2 messages"):
            assert part in str(heard.error)
        assert model.connects == 3
        report = await session.close()
        assert report.clean
        assert report.reason is not None
        assert report.reason.kind == "disconnect"


async def test_when_the_time_is_over_the_session_ends_in_the_middle_of_a_try() -> None:
    session = lasting(policy=RealtimeReconnect(tries=100, within=5))
    async with talking(session) as heard:
        model = scripted(session)
        model.connect_delay = 3600
        began = anyio.current_time()
        await model.lose()
        await heard.until_end()
        assert anyio.current_time() - began == pytest.approx(5, abs=0.1)
        assert seen(heard) == ["connection_lost", "reconnecting", "error"]
        assert "it took longer than 5 s in all" in str(heard.error)


async def test_a_pause_that_would_outlast_the_time_is_not_begun() -> None:
    session = lasting(policy=RealtimeReconnect(tries=100, within=3))
    async with talking(session) as heard:
        scripted(session).connect_error = REFUSED
        began = anyio.current_time()
        await scripted(session).lose()
        await heard.until_end()
        assert anyio.current_time() - began < 3
        assert "nobody listens there" in str(heard.error)


async def test_a_connection_that_does_not_last_goes_on_with_the_tries_that_are_left() -> None:
    session = lasting(policy=RealtimeReconnect(tries=3, within=30))
    async with talking(session) as heard:
        for number in (1, 2, 3):
            await scripted(session).lose()
            back = await heard.until_kind("reconnected", number)
            assert back.number == number
            await anyio.sleep(29)
        await scripted(session).lose()
        await heard.until_end()
        assert seen(heard)[-2:] == ["connection_lost", "error"]
        assert "3 of 3 tries" in str(heard.error)


async def test_only_the_seconds_without_a_connection_count() -> None:
    session = lasting(policy=RealtimeReconnect(tries=5, within=4))
    async with talking(session) as heard:
        for number in (1, 2):
            await scripted(session).lose()
            await heard.until_kind("reconnected", number)
            await anyio.sleep(3.9)
        assert not session.closed


async def test_the_seconds_of_losses_that_follow_each_other_add_up() -> None:
    session = lasting(policy=RealtimeReconnect(tries=100, within=10))
    async with talking(session) as heard:
        scripted(session).connect_delay = 4
        for number in (1, 2):
            await scripted(session).lose()
            await heard.until_kind("reconnected", number)
        await scripted(session).lose()
        await heard.until_end()
        assert isinstance(heard.error, ConnectionEnded)
        assert "s without a connection" in str(heard.error)


async def test_a_connection_that_has_lasted_has_all_its_tries_again() -> None:
    session = lasting(policy=RealtimeReconnect(tries=1, within=30))
    async with talking(session) as heard:
        for count in (1, 2, 3):
            await scripted(session).lose()
            back = await heard.until_kind("reconnected", count)
            assert back.number == 1
            await anyio.sleep(31)
        assert not session.closed


# Which losses


@pytest.mark.parametrize(
    "error",
    [
        ConnectionEnded("cut off"),
        ConnectionResetError("by peer"),
        TimeoutError("too slow"),
        OSError("the network is down"),
        *map(closed_with, (1001, 1011, 1012, 1013, 1014, 3008)),
    ],
    ids=str,
)
def test_a_loss_that_may_be_made_good(error: Exception) -> None:
    assert may_come_back(error)
    outer = ConnectionError("cannot connect")
    outer.__cause__ = error
    assert may_come_back(outer)


@pytest.mark.parametrize(
    "error",
    [
        UserError("there is no API key"),
        LookupError("a fault of the model"),
        ssl.SSLCertVerificationError("the certificate is another's"),
        *map(closed_with, (1000, 1002, 1003, 1005, 1007, 1008, 1009, 1010, 3000, 3003, 4000, 4999)),
    ],
    ids=str,
)
def test_a_loss_that_is_not_tried_again(error: Exception) -> None:
    assert not may_come_back(error)
    outer = ConnectionError("cannot connect")
    outer.__cause__ = error
    assert may_come_back(outer) == isinstance(error, (UserError, LookupError))


class Response:
    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


@pytest.mark.parametrize(
    ("status", "is_tried"),
    [
        (401, False),
        (403, False),
        (404, False),
        (400, False),
        (301, False),
        (408, True),
        (429, True),
        (503, True),
    ],
)
def test_a_handshake_that_is_refused(status: int, is_tried: bool) -> None:
    refused = ConnectionError("cannot connect")
    refused.__cause__ = cause = Exception(f"HTTP {status}")
    cause.response = Response(status)  # type: ignore[attr-defined]
    assert may_come_back(refused) is is_tried


@pytest.mark.parametrize("error", [closed_with(3000), LookupError("a fault")], ids=str)
async def test_the_session_ends_at_once_where_trying_again_does_not_help(error: Exception) -> None:
    session = lasting()
    async with talking(session) as heard:
        await scripted(session).lose(error)
        await heard.until_end()
        assert heard.error is error
        assert seen(heard) == ["error"]
        assert scripted(session).connects == 1


async def test_a_try_that_fails_for_good_is_the_last() -> None:
    session = lasting()
    async with talking(session) as heard:
        scripted(session).connect_error = error = UserError("there is no API key any more")
        await scripted(session).lose()
        await heard.until_end()
        assert seen(heard) == ["connection_lost", "reconnecting", "error"]
        assert heard.error is not None
        assert heard.error.__cause__ is error
        assert "which is not tried again" in str(heard.error)


async def test_a_model_that_ends_in_order_ends_the_session() -> None:
    session = lasting()
    async with talking(session) as heard:
        await scripted(session).emit(RealtimeModelEndOfStreamEvent())
        await heard.until_end()
        assert heard.error is None
        assert seen(heard) == []


async def test_a_session_that_has_expired_goes_on_in_a_new_one() -> None:
    """Closed in order, with a code that says: come again."""
    session = lasting()
    async with talking(session) as heard:
        await scripted(session).emit(RealtimeModelEndOfStreamEvent(closed_with(1001)))
        await heard.until_kind("reconnected")
        assert heard.of("connection_lost")[0].error.code == 1001


async def test_without_the_option_the_session_ends_as_ever() -> None:
    session = session_of()
    async with talking(session) as heard:
        await scripted(session).lose(error := ConnectionEnded("the cable"))
        await heard.until_end()
        assert heard.error is error
        assert scripted(session).connects == 1


async def test_the_first_connection_is_not_tried_again() -> None:
    model = ScriptedRealtimeModel(connect_error=REFUSED)
    with pytest.raises(ConnectionRefusedError):
        await lasting(model=model).enter()
    assert model.connects == 1


async def test_a_connection_that_is_lost_before_it_is_of_use_is_a_try_that_has_failed() -> None:
    class Flaky(ScriptedRealtimeModel):
        async def send_event(self, event: Any) -> None:
            await super().send_event(event)
            if isinstance(event, RealtimeModelSendHistory) and self.connects < 4:
                await self.lose(ConnectionEnded(f"lost number {self.connects}"))

    session = lasting(model=Flaky(["hello", "again"]))
    async with talking(session, "hi") as heard:
        await heard.until_kind("agent_end")
        await scripted(session).lose()
        await session.send_message("still there?")
        await heard.until_kind("agent_end", 2)
        assert seen(heard) == ["connection_lost", *["reconnecting"] * 3, "reconnected"]
        assert [str(each.error) for each in heard.of("reconnecting")][1:] == [
            "lost number 2",
            "lost number 3",
        ]


# What it is told


def test_the_option_is_checked() -> None:
    with pytest.raises(
        UserError, match="'reconnect' of the run config must be a RealtimeReconnect, not bool"
    ):
        session_of(config={"reconnect": True})
    with pytest.raises(
        ValueError, match=r"RealtimeReconnect\.tries must be a whole number of at least 1, not 0"
    ):
        RealtimeReconnect(tries=0)
    with pytest.raises(
        ValueError, match=r"RealtimeReconnect\.within must be a number of seconds over 0, not -1"
    ):
        RealtimeReconnect(within=-1)


def test_a_call_that_was_joined_is_not_connected_again() -> None:
    with pytest.raises(UserError, match="call_id"):
        lasting(model_config={"call_id": "rtc_1"})


# Stopped


class Slow(ScriptedRealtimeModel):
    """Loses its connection, and takes its time to get it back: in the pause, while it connects, or while it is told the history."""

    def __init__(self, where: str) -> None:
        super().__init__(["hello", "again"])
        self.where = where
        self.is_there = anyio.Event()

    async def connect(self, options: Any) -> None:
        if self.connects:
            await self._linger("connecting")
        await super().connect(options)

    async def send_event(self, event: Any) -> None:
        if isinstance(event, RealtimeModelSendHistory):
            await self._linger("restoring")
        await super().send_event(event)

    async def _linger(self, where: str) -> None:
        if self.where == where:
            self.is_there.set()
            await anyio.sleep(20)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", ["in the pause", "connecting", "restoring"])
async def test_a_session_that_is_stopped_does_not_come_back(where: str, way: str) -> None:
    tool = Part("tool")
    model = Slow(where)
    made: list[RealtimeSession] = []

    def make() -> RealtimeSession:
        made.append(lasting((), tool.tool, model=model))
        return made[-1]

    async def at_work(session: RealtimeSession) -> None:
        await until(lambda: model.connected)
        await session.send_message("hi")
        await until(lambda: session.history[1:])
        await model.lose()
        if where != "in the pause":
            await model.is_there.wait()

    def look() -> None:
        handle = made[-1]._task.reconnecting._handle  # type: ignore[union-attr]
        assert handle is not None
        assert handle.done
        assert not model.connected
        assert not any(isinstance(event, RealtimeModelSendHistory) for event in model.sent)
        assert made[-1]._held().core.state == "settled"

    connects = 1 if where != "restoring" else 2
    await WAYS[way](Stage(make, at_work, look))
    await anyio.sleep(100)
    assert model.connects == connects


async def test_a_session_that_is_stopped_with_time_to_cooperate_stops_trying_at_once() -> None:
    session = lasting(grace=Grace(cooperate=60), model=(model := Slow("connecting")))
    async with Scope("users") as scope:
        await session.enter()
        await model.lose()
        await model.is_there.wait()
        closing = scope.spawn(session.close)
        await anyio.sleep(0.01)
        handle = session._task.reconnecting._handle  # type: ignore[union-attr]
        assert handle is not None
        assert handle.done
        assert not closing.done
        assert closing.name
    assert model.connects == 1


async def test_a_model_that_connects_though_it_is_cancelled_is_told_nothing_and_closed() -> None:
    class Deaf(ScriptedRealtimeModel):
        is_there = False
        was_closed_early = False

        async def close(self) -> None:
            self.was_closed_early = self.was_closed_early or self.is_there
            await super().close()

        async def connect(self, options: Any) -> None:
            if self.connects:
                self.is_there = True
                with anyio.CancelScope(shield=True):
                    try:
                        await anyio.sleep(1)
                    except anyio.get_cancelled_exc_class():  # asyncio's own cancel, which no shield keeps off
                        await anyio.sleep(1)
                self.is_there = False
            await super().connect(options)

    model = Deaf(["hello", "again"])
    session = lasting(model=model)
    async with talking(session, "hi") as heard:
        await heard.until_kind("agent_end")
        await model.lose()
        await until(lambda: model.is_there)
        report = await session.close()
        assert report.clean
        assert not model.connected
        assert not model.was_closed_early
    assert len(model.sent) == 1


async def test_one_that_is_dropped_while_it_connects_is_ended_with_a_warning() -> None:
    model = Slow("connecting")
    session = lasting(model=model)
    await session.enter()
    await model.lose()
    await model.is_there.wait()
    task, kept = session._task, [session]
    del session
    with pytest.warns(ResourceWarning, match=r"dropped without close\(\)"):
        kept.clear()
    await until(task.core.is_settled)
    assert not model.connected
    assert model.connects == 1


async def test_whoever_cancels_the_task_that_connects_ends_the_session() -> None:
    session = lasting()
    async with talking(session) as heard:
        scripted(session).connect_delay = 20
        await scripted(session).lose()
        await heard.until_kind("reconnecting")
        handle = session._task.reconnecting._handle  # type: ignore[union-attr]
        assert handle is not None
        handle.cancel("by accident")
        await heard.until_end()
        assert "the task that connects was cancelled from outside" in str(heard.error)


async def test_a_model_that_fails_to_close_what_is_lost_is_connected_all_the_same() -> None:
    session = lasting()
    async with talking(session) as heard:
        model = scripted(session)
        model.close_error = error = LookupError("cannot close")
        await model.lose()
        await heard.until_kind("reconnecting")
        model.close_error = None
        await heard.until_kind("reconnected")
        report = await session.close()
        assert error in report.errors


async def test_what_waits_to_be_read_is_bounded_again() -> None:
    session = lasting([Speech("word " * 500)], config={"limits": RealtimeLimits(events=50)})
    async with session:
        await scripted(session).lose()
        await until(lambda: scripted(session).connects == 2 and session._task.connected)
        await session.send_message("go")
        await until(lambda: session._task.buffer.is_full)
        await anyio.sleep(5)
        assert len(session._task.buffer) < 100


async def test_a_model_of_the_wire_that_was_never_connected_has_nothing_to_lose() -> None:
    model = OpenAIRealtimeWebSocketModel()
    config: Any = {"reconnect": RealtimeReconnect(), "limits": RealtimeLimits(connect=0.1)}
    session = RealtimeSession(model, agent(), None, {"url": "ws://127.0.0.1:1", "api_key": "none"}, config)
    with pytest.raises(ConnectionError, match="cannot connect"):
        await session.enter()
