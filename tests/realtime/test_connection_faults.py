"""A server that does everything wrong, and every way to stop: nothing is left of it, and what went wrong is told.

Each fault comes over a real socket while a tool and a guardrail are at work. A part of the table runs with the other tests; `make audit` uses all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import openai.types.realtime  # noqa: F401  # which the server imports: a collection after each test is quicker if it is there before
import pytest

from quiesce import Grace
from quiesce.agents import UserError
from quiesce.realtime import (
    OpenAIRealtimeWebSocketModel,
    RealtimeAgent,
    RealtimeLimits,
    RealtimeSession,
    RealtimeSessionClosed,
)
from quiesce.realtime.testing import Faults, LocalRealtimeServer, Speech
from quiesce.testing import call
from quiesce.wire import ConnectionEnded
from tests.audit_level import FULL
from tests.realtime.scenes import EAGER_GUARDS, LONG, Part, reading, until
from tests.realtime.ways_to_stop import WAYS, Stage, Way

PATIENT = Grace(cancel=15, terminate=3, kill=3)

pytestmark = pytest.mark.real_time


@dataclass
class Fault:
    """What the server does, and what becomes of the session by itself: it ends with an error (of which `says` is a part), ends, or goes on, perhaps with
    a complaint."""

    faults: Faults
    ends: bool = False
    says: str | None = None
    complains: bool = False


FAULTS = {
    "none": Fault(Faults()),
    "slow": Fault(Faults(slow=2000)),
    "drops in the middle of a frame": Fault(Faults(drops_after=300), ends=True, says="lost"),
    "drops by a reset": Fault(Faults(drops_after=300, reset=True), ends=True, says="lost"),
    "resets": Fault(Faults(reset=True), ends=True, says="lost"),
    "is half open": Fault(Faults(half_open=True)),
    "floods": Fault(Faults(floods=3)),
    "talks nonsense": Fault(
        Faults(malformed=("not_json", "not_object", "no_type", "wrong_types", "bad_base64", "unknown_type")),
        complains=True,
    ),
    "sends a frame of no kind": Fault(Faults(malformed=("protocol",)), ends=True, says="rules of WebSocket"),
    "sends text that is none": Fault(Faults(malformed=("bad_utf8",)), complains=True),
    "sends binary": Fault(Faults(malformed=("binary",))),
    "sends too much at once": Fault(Faults(oversized=3_000_000), ends=True, says="1000000"),
    "closes": Fault(Faults(closes_with=1000), ends=True),
    "closes with an error": Fault(Faults(closes_with=1011), ends=True, says="1011"),
    "never answers a close": Fault(Faults(never_answers_close=True)),
}
HANDSHAKES: dict[str, Any] = {"401": 401, "500": 500, "garbage": "garbage", "silence": "silence"}


class Scene:
    """A session with a tool and a guardrail at work, on a server that does something wrong then."""

    def __init__(self, server: LocalRealtimeServer, fault: Fault, *, events: int = 300) -> None:
        self.server, self.fault = server, fault
        self.tool, self.guard = Part("tool", tidy=0.02), Part("guard", tidy=0.02)
        self.model = OpenAIRealtimeWebSocketModel()
        self.made: list[RealtimeSession] = []
        self.looks = 0
        self._events = events

    def session(self) -> RealtimeSession:
        agent = RealtimeAgent("agent", tools=[self.tool.tool], output_guardrails=[self.guard.guardrail])
        # uvloop tells nobody of a reset that comes right behind data: there it is the ping that finds out.
        config: Any = {
            **EAGER_GUARDS,
            "limits": RealtimeLimits(frame=1_000_000, events=self._events, ping=1.0),
        }
        options: Any = {"url": self.server.url, "api_key": "none"}
        self.made.append(RealtimeSession(self.model, agent, None, options, config, grace=PATIENT))
        return self.made[-1]

    async def at_work(self, session: RealtimeSession) -> None:
        await until(lambda: hasattr(session._task, "active_agent") and self.model._connection is not None)
        await session.send_message("go")
        with anyio.fail_after(10):
            await self.tool.begun.wait()
            await self.guard.begun.wait()
        self.server.inflict(self.fault.faults)
        if self.fault.ends:
            await until(lambda: session.closed or session._task.buffer.is_full)
        else:
            await anyio.sleep(0.02)

    def look(self) -> None:
        """Everything has ended, and its clean-up was not cut."""
        self.looks += 1
        session = self.made[-1]
        task = session._task
        assert (self.tool.clean, self.guard.clean) == (True, True)
        assert task.work.state == "settled"
        assert session._held().core.state == "settled"
        assert self.model._connection is None
        assert task.calls._calls == {}
        assert task.guards._responses == {}

    @property
    def stage(self) -> Stage:
        return Stage(self.session, self.at_work, self.look)


# It speaks for nine seconds: some faults strike with the next word, and there must be one, however late we are.
TURN: list[Any] = [call("tool"), Speech(" ".join([LONG] * 10), pace=0.05)]


@contextmanager
def faulty(fault: Fault) -> Iterator[LocalRealtimeServer]:
    with LocalRealtimeServer([TURN]) as server:
        yield server


def table() -> list[Any]:
    """Each fault with each way; where not all are used, each fault with two ways, and each way with some."""
    ways = list(WAYS.values())
    found: list[Any] = []
    for number, name in enumerate(FAULTS):
        for other, way in enumerate(ways):
            if FULL or other in {(number * 3) % len(ways), (number * 7 + 1) % len(ways)}:
                audits = [pytest.mark.audit] if FULL else []
                found.append(pytest.param(name, way, id=f"{name}-{way.__name__}", marks=audits))
    return found


@pytest.mark.parametrize(("name", "way"), table())
@pytest.mark.worlds(*(["asyncio", "asyncio-eager", "uvloop", "trio"] if FULL else ["asyncio", "trio"]))
async def test_stopped_while_the_server_does_wrong_nothing_is_left(name: str, way: Way) -> None:
    fault = FAULTS[name]
    with faulty(fault) as server:
        scene = Scene(server, fault)
        await way(scene.stage)
        assert scene.looks
        if not (fault.faults.half_open or fault.faults.never_answers_close):
            await until(lambda: not server.open_connections)


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.worlds("asyncio", "trio")
async def test_what_the_server_does_wrong_is_told_and_ends_the_session_or_not(name: str) -> None:
    fault = FAULTS[name]
    with faulty(fault) as server:
        scene = Scene(server, fault, events=100_000)
        session = scene.session()
        async with session, reading(session) as heard:
            await scene.at_work(session)
            if not fault.ends:
                assert not session.closed
                await session.send_audio(b"\0\0")
                if fault.complains:
                    await heard.until_kind("error")
                return
            with anyio.fail_after(10):
                await heard.until_end()
            with pytest.raises(RealtimeSessionClosed, match="the model has ended"):
                await session.send_audio(b"\0\0")
            await session.close()
            scene.look()
            if fault.says is None:
                assert heard.error is None
            else:
                assert isinstance(heard.error, ConnectionEnded)
                assert fault.says in str(heard.error)
                assert heard.of("error")[-1].error is heard.error
    assert session.report is not None
    assert session.report.reason is not None
    assert session.report.reason.kind == "disconnect"


async def _cancelled(session: RealtimeSession) -> None:
    with anyio.move_on_after(0.1):
        await session.enter()


async def _out_of_time(session: RealtimeSession) -> None:
    with pytest.raises((TimeoutError, ConnectionError, ConnectionEnded)):
        with anyio.fail_after(0.1):
            await session.enter()


async def _closed(session: RealtimeSession) -> None:
    async with anyio.create_task_group() as group:

        async def enter() -> None:
            with pytest.raises((UserError, ConnectionError, ConnectionEnded, RuntimeError)):
                await session.enter()

        group.start_soon(enter)
        await until(lambda: session._holding is not None)
        await session.close()


@pytest.mark.parametrize("handshake", HANDSHAKES)
@pytest.mark.parametrize("stop", [_cancelled, _out_of_time, _closed], ids=lambda stop: stop.__name__[1:])
@pytest.mark.worlds("asyncio", "trio")
async def test_stopped_while_it_connects_nothing_is_left(handshake: str, stop: Any) -> None:
    with LocalRealtimeServer(faults=Faults(handshake=HANDSHAKES[handshake])) as server:
        scene = Scene(server, Fault(server.faults))
        session = scene.session()
        raised: list[Exception] = []
        try:
            await stop(session)
        except (ConnectionError, ConnectionEnded) as error:
            raised.append(error)
        assert handshake != "silence" or not raised
        assert all(str(server.port) in str(error) for error in raised)
        assert session.closed
        assert scene.model._connection is None
        assert scene.model._listeners == []
        await until(lambda: not server.open_connections)


async def test_the_same_model_is_as_good_as_new_after_each_of_them() -> None:
    model = OpenAIRealtimeWebSocketModel()
    with LocalRealtimeServer([TURN]) as server:
        for name in ("resets", "drops in the middle of a frame", "closes with an error", "none"):
            scene = Scene(server, FAULTS[name])
            scene.model = model
            session = scene.session()
            async with session, reading(session):
                await scene.at_work(session)
            scene.look()
            assert [type(item).__name__ for item in session.history][:1] == ["UserMessageItem"]
            assert len([item for item in session.history if type(item).__name__ == "UserMessageItem"]) == 1
