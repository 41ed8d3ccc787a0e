"""Output guardrails that look at what is being said: when they look, what a trip does, and what a failure does."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anyio
import pytest

from quiesce import Scope
from quiesce.agents import GuardrailFunctionOutput, OutputGuardrail, output_guardrail
from quiesce.realtime import (
    RealtimeModelTranscriptDeltaEvent,
    RealtimeModelTurnEndedEvent,
    RealtimeModelTurnStartedEvent,
)
from quiesce.realtime.testing import Speech
from quiesce.testing import call
from tests.kernel.temperaments import on_trio, virtual_worlds
from tests.realtime.scenes import (
    EAGER_GUARDS,
    LONG,
    Part,
    Reading,
    inputs,
    interrupts,
    scripted,
    session_of,
    talking,
    until,
)

pytestmark = virtual_worlds  # how fast somebody speaks is a matter of time

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu"


class Looking:
    """A guardrail: what it has looked at, and how many looked at once."""

    def __init__(
        self, forbidden: str | None = None, takes: float = 0.0, error: BaseException | None = None
    ) -> None:
        self.texts: list[str] = []
        self.most = self.now = 0
        self.forbidden, self.takes, self.error = forbidden, takes, error

    async def __call__(self, context: Any, agent: Any, output: str) -> GuardrailFunctionOutput:
        self.texts.append(output)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await anyio.sleep(self.takes)
        finally:
            self.now -= 1
        if self.error is not None:
            raise self.error
        return GuardrailFunctionOutput(
            {"text": output}, self.forbidden is not None and self.forbidden in output
        )

    def named(self, name: str = "looking") -> OutputGuardrail:
        return output_guardrail(name=name)(self.__call__)


def debounced(characters: int) -> dict[str, Any]:
    return {"guardrails_settings": {"debounce_text_length": characters}}


# When they look


async def test_a_guardrail_looks_each_time_when_there_is_so_much_more_and_at_the_end() -> None:
    looking = Looking()
    session = session_of(
        [Speech(WORDS, pace=0.01)], output_guardrails=[looking.named()], config=debounced(20)
    )
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end")
        await heard.until(lambda: looking.texts[-1] == WORDS) if looking.texts[-1] != WORDS else None
    lengths = [len(text) for text in looking.texts]
    assert lengths == sorted(lengths)
    assert all(later - earlier >= 20 for earlier, later in zip([0, *lengths], lengths[:-1], strict=False))
    assert looking.texts[-1] == WORDS
    assert 3 <= len(lengths) <= 4


async def test_what_comes_while_it_looks_is_seen_the_next_time_and_it_looks_once_at_a_time() -> None:
    looking = Looking(takes=0.05)
    session = session_of(
        [Speech(WORDS, pace=0.005)], output_guardrails=[looking.named()], config=debounced(1)
    )
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end")
        while not (looking.texts and looking.texts[-1] == WORDS):
            await anyio.sleep(0.005)
    assert looking.most == 1
    assert len(looking.texts) < 12


async def test_a_short_response_is_looked_at_once_at_its_end() -> None:
    looking = Looking()
    session = session_of(["Good day"], output_guardrails=[looking.named()])
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end")
        while not looking.texts:
            await anyio.sleep(0.001)
    assert looking.texts == ["Good day"]


async def test_what_is_written_is_looked_at_as_well() -> None:
    looking = Looking("secret")
    session = session_of([Speech("a secret", audio=b""), "Sorry."], output_guardrails=[looking.named()])
    async with talking(session, "go") as heard:
        tripped = await heard.until_kind("guardrail_tripped")
        assert tripped.message == "a secret"


async def test_guardrails_of_the_agent_and_of_the_run_look_each_once() -> None:
    mine, ours = Looking(), Looking()
    shared = mine.named("mine")
    session = session_of(
        ["Good day"], output_guardrails=[shared], config={"output_guardrails": [ours.named("ours"), shared]}
    )
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end")
        while not (mine.texts and ours.texts):
            await anyio.sleep(0.001)
    assert mine.texts == ours.texts == ["Good day"]


async def test_each_item_is_looked_at_by_itself() -> None:
    looking = Looking()
    session = session_of([["one", "two"]], output_guardrails=[looking.named()])
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end")
        while len(looking.texts) < 2:
            await anyio.sleep(0.001)
    assert sorted(looking.texts) == ["one", "two"]


@pytest.mark.parametrize("steps", range(6))
async def test_what_is_said_just_when_a_look_ends_is_not_forgotten(steps: int) -> None:
    """Wherever the last words come between the end of a look and the end of its task."""
    looking = Looking()
    session = session_of(output_guardrails=[looking.named()], config=debounced(4))
    async with session:
        tell = session._task.on_event
        await tell(RealtimeModelTurnStartedEvent("r"))
        await tell(RealtimeModelTranscriptDeltaEvent("i", "four", "r"))
        for _ in range(steps):
            await anyio.sleep(0)
        await tell(RealtimeModelTranscriptDeltaEvent("i", " more", "r"))
        await tell(RealtimeModelTurnEndedEvent("r"))
        for _ in range(20):
            await anyio.sleep(0)
        assert looking.texts[-1] == "four more"
        assert session._task.guards._responses == {}


async def test_what_a_model_that_names_no_turns_has_said_is_looked_at_when_a_turn_ends() -> None:
    looking = Looking()
    session = session_of(output_guardrails=[looking.named()])
    async with session:
        for turn in range(3):
            await scripted(session).emit(RealtimeModelTurnStartedEvent())
            await scripted(session).emit(RealtimeModelTranscriptDeltaEvent(f"i{turn}", "a word", f"r{turn}"))
            await scripted(session).emit(RealtimeModelTurnEndedEvent())
            await until(lambda: len(looking.texts) > turn and not session._task.work.children)  # noqa: B023
        assert session._task.guards._responses == {}
    assert looking.texts == ["a word"] * 3


# A trip


async def test_a_trip_interrupts_the_response_at_once_and_tells_the_model_why() -> None:
    looking = Looking("gamma")
    speech = Speech(WORDS, pace=0.02)
    session = session_of([speech, "Sorry."], output_guardrails=[looking.named("polite")], config=debounced(5))
    async with talking(session, "go") as heard:
        tripped = await heard.until_kind("guardrail_tripped")
        assert "gamma" in tripped.message
        assert [result.guardrail.get_name() for result in tripped.guardrail_results] == ["polite"]
        assert tripped.guardrail_results[0].output.output_info == {"text": looking.texts[-1]}
        await heard.until_kind("audio_interrupted")
        await heard.until_kind("agent_end", 2)
        assert len(heard.of("guardrail_tripped")) == 1
        first = [event for event in heard.of("audio") if event.audio.response_id == "resp_1"]
        assert len(first) <= 6
        [interrupt] = interrupts(session)
        assert (interrupt.force_response_cancel, interrupt.response_id) == (True, "resp_1")
        assert inputs(session) == ["go", "guardrail triggered: polite"]


async def test_audio_that_nobody_has_read_yet_is_dropped_by_a_trip() -> None:
    looking = Looking("gamma")
    session = session_of([WORDS, "Sorry."], output_guardrails=[looking.named()], config=debounced(5))
    async with session:
        await session.send_message("go")
        while not (inputs(session)[1:] and not session._task.work.children):
            await anyio.sleep(0.005)
        audio: list[str] = []
        async for event in session:
            if event.type == "audio":
                audio.append(event.audio.response_id)
            if event.type == "raw_model_event" and event.data.type == "audio":
                audio.append(event.data.response_id)
            if event.type == "agent_end" and audio:
                break
        assert set(audio) == {"resp_2"}


async def test_nothing_is_heard_of_a_response_while_the_model_is_told_of_the_trip() -> None:
    """The model takes its time to hear of it, and talks on."""
    looking = Looking("alpha")
    speech = Speech(WORDS, pace=0.05)
    session = session_of([speech, "Sorry."], output_guardrails=[looking.named()], config=debounced(5))
    async with talking(session, "go") as heard:
        scripted(session).send_delay = 0.3
        tripped = heard.events.index(await heard.until_kind("guardrail_tripped"))
        await heard.until_kind("agent_end")
        later = heard.events[tripped:]
        words = [event for event in later if event.type == "raw_model_event"]
        assert (
            len([event for event in words if event.data.type == "transcript_delta"]) > 2
        )  # it has talked on
        assert [event for event in later if event.type == "audio"] == []
        await heard.until_kind("agent_end", 2)
        assert heard.of("audio")[-1].audio.response_id == "resp_2"


async def test_the_first_that_says_no_stops_the_others() -> None:
    quick = Looking("gamma")
    slow = Part("slow")
    session = session_of(
        [Speech(WORDS, pace=0.01), "Sorry."],
        output_guardrails=[slow.guardrail, quick.named("quick")],
        config=debounced(5),
    )
    async with talking(session, "go") as heard:
        await heard.until_kind("guardrail_tripped")
        await heard.until_kind("agent_end", 1)
        while not slow.clean:
            await anyio.sleep(0.005)
        assert heard.of("error") == []
        assert len(heard.of("guardrail_tripped")) == 1


async def test_two_that_say_no_at_once_are_one_trip() -> None:
    session = session_of(
        [WORDS, "Sorry."],
        output_guardrails=[Looking("alpha").named("one"), Looking("alpha").named("two")],
        config=debounced(5),
    )
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 2)
        assert len(heard.of("guardrail_tripped")) == 1
        assert len(interrupts(session)) == 1
        assert len(inputs(session)) == 2


async def test_nothing_is_kept_of_a_response_whose_guardrails_never_began_to_look() -> None:
    """One that says no at its first step cancels others before their first."""

    async def at_once(context: Any, agent: Any, output: str) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(None, "alpha" in output)

    others = [Looking() for _ in range(3)]
    session = session_of(
        [WORDS, Speech("Sorry.", audio=b"")],
        output_guardrails=[output_guardrail(at_once), *(each.named(str(n)) for n, each in enumerate(others))],
        config=debounced(5),
    )
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 2)
        await anyio.sleep(0.01)
        assert session._task.guards._responses == {}
    assert on_trio() or not any("alpha" in text for each in others for text in each.texts)


async def test_tools_go_on_when_a_guardrail_says_no() -> None:
    tool = Part("tool")
    session = session_of(
        [[call("tool"), Speech(WORDS, pace=0.01)], "Sorry."],
        tool.tool,
        output_guardrails=[Looking("gamma").named()],
        config=debounced(5),
    )
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 2)
        assert tool.begun.is_set()
        assert not tool.cleaning
    assert tool.clean


async def test_a_trip_after_the_end_of_a_response_still_tells() -> None:
    looking = Looking("day", takes=0.02)
    session = session_of(["Good day", "Sorry."], output_guardrails=[looking.named()])
    async with talking(session, "go") as heard:
        ended = await heard.until_kind("agent_end")
        tripped = await heard.until_kind("guardrail_tripped")
        assert heard.events.index(ended) < heard.events.index(tripped)
        await heard.until_kind("agent_end", 2)
        assert inputs(session)[-1] == "guardrail triggered: looking"


async def test_a_late_trip_does_not_disturb_the_response_that_is_on_by_then() -> None:
    looking = Looking("day", takes=0.03)
    session = session_of(["Good day", Speech(WORDS, pace=0.01)], output_guardrails=[looking.named()])
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end")
        await session.send_message("and?")
        await heard.until_kind("guardrail_tripped")
        await heard.until_kind("agent_end", 2)
        assert len([event for event in heard.of("audio") if event.audio.response_id == "resp_2"]) == 12
        assert inputs(session) == ["go", "and?"]


# Failing


@pytest.mark.parametrize(
    "error",
    [LookupError("no such list"), SystemExit(3), asyncio.CancelledError("odd")],
    ids=lambda error: type(error).__name__,
)
async def test_a_guardrail_that_fails_is_an_event_and_the_others_go_on(error: BaseException) -> None:
    if on_trio() and isinstance(error, asyncio.CancelledError):
        return  # trio's cannot be made by anybody
    fails, looking = Looking(error=error), Looking("day")
    session = session_of(
        ["Good day", "Sorry."], output_guardrails=[fails.named("fails"), looking.named("looks")]
    )
    async with talking(session, "go") as heard:
        await heard.until_kind("guardrail_tripped")
        told = await heard.until_kind("error")
        assert told.error is error or "fails" in str(told.error)
        await heard.until_kind("agent_end", 2)


async def test_a_guardrail_that_fails_looks_again() -> None:
    fails = Looking(error=LookupError("no such list"))
    session = session_of([Speech(WORDS, pace=0.01)], output_guardrails=[fails.named()], config=debounced(10))
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end")
        await heard.until_kind("error", 3)
        assert len(fails.texts) >= 3


async def test_what_returns_no_verdict_is_an_event() -> None:
    async def shrugs(context: Any, agent: Any, output: str) -> Any:
        return None

    session = session_of(["Good day"], output_guardrails=[output_guardrail(shrugs)])
    async with talking(session, "go") as heard:
        told = await heard.until_kind("error")
        assert "shrugs" in str(told.error)


@pytest.mark.real_time
async def test_a_sync_guardrail_looks_in_a_thread() -> None:
    home, seen = threading.get_ident(), []

    def looks(context: Any, agent: Any, output: str) -> GuardrailFunctionOutput:
        seen.append(threading.get_ident())
        return GuardrailFunctionOutput(None, "day" in output)

    session = session_of(["Good day", "Sorry."], output_guardrails=[output_guardrail(looks)])
    async with talking(session, "go") as heard:
        await heard.until_kind("guardrail_tripped")
    assert home not in seen


@virtual_worlds
async def test_a_guardrail_at_work_when_the_session_ends_is_awaited() -> None:
    guard = Part("guard", tidy=2)
    session = session_of(["Good day"], output_guardrails=[guard.guardrail])
    async with talking(session, "go"):
        await guard.begun.wait()
    assert guard.clean


async def test_what_the_user_has_interrupted_is_not_spoken_of_again_because_of_a_guardrail() -> None:
    looks, decides = anyio.Event(), anyio.Event()

    @output_guardrail
    async def slow(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        looks.set()
        await decides.wait()
        return GuardrailFunctionOutput(None, True)

    async with (
        session_of(
            [Speech(LONG, pace=0.5), "Something else."], config=EAGER_GUARDS, output_guardrails=[slow]
        ) as session,
        Scope() as scope,
    ):
        reading = Reading(session)
        scope.spawn(reading.read)
        await session.send_message("Hello")
        await looks.wait()
        await session.interrupt()
        decides.set()
        await anyio.sleep(5)
        types = [event.type for event in reading.events]
        assert "guardrail_tripped" in types
        assert types.count("agent_start") == 1
        await session.close()
