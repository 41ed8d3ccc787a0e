"""Handoffs: another agent goes on with the same conversation."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest

from quiesce.agents import UserError, function_tool
from quiesce.realtime import RealtimeAgent, RealtimeHandoff, realtime_handoff
from quiesce.testing import call
from tests.kernel.temperaments import virtual_worlds
from tests.realtime.scenes import StrictModel, outputs, scripted, session_of, talking, updates

pytestmark = virtual_worlds  # how fast somebody speaks is a matter of time


@function_tool
async def refund(order: int) -> str:
    """Give the money back."""
    return f"refunded {order}"


BILLING = RealtimeAgent(
    "billing desk", "You handle money.", tools=[refund], handoff_description="For invoices."
)


class Ticket(msgspec.Struct):
    order: int
    why: str = ""


def offered(session: Any) -> list[str]:
    options: Any = scripted(session).options
    return [handoff.tool_name for handoff in options["initial_model_settings"]["handoffs"]]


async def test_an_agent_hands_over_and_the_model_is_told_who_speaks_now() -> None:
    turns = [call("transfer_to_billing_desk"), call("refund", order=7), "Done."]
    session = session_of(turns, handoffs=[BILLING], name="front")
    front = session.current_agent
    async with talking(session, "money!") as heard:
        assert offered(session) == ["transfer_to_billing_desk"]
        handed = await heard.until_kind("handoff")
        assert handed.from_agent is front
        assert handed.to_agent is BILLING
        await heard.until_kind("agent_end", 3)
        assert session.current_agent is BILLING
        assert [settings["instructions"] for settings in updates(session)] == ["You handle money."]
        assert updates(session)[0]["tools"] == [refund]
        assert outputs(session)[1] == "refunded 7"
        assert [event.agent.name for event in heard.of("agent_start")] == ["front", *["billing desk"] * 2]
        assert [event.agent.name for event in heard.of("agent_end")] == ["front", *["billing desk"] * 2]
        kinds = [type(event).__name__ for event in scripted(session).sent]
        assert kinds[1:3] == ["RealtimeModelSendSessionUpdate", "RealtimeModelSendToolOutput"]
        assert heard.of("tool_start")[0].agent is BILLING


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_on_handoff_is_called_with_what_the_model_has_to_say(kind: str) -> None:
    seen: list[Any] = []

    async def note(context: Any, ticket: Ticket) -> None:
        await anyio.sleep(0)
        seen.append((context.context, ticket))

    def note_too(context: Any, ticket: Ticket) -> None:
        seen.append((context.context, ticket))

    handoff = realtime_handoff(BILLING, on_handoff=note if kind == "async" else note_too, input_type=Ticket)
    session = session_of(
        [call("transfer_to_billing_desk", order=3, why="late"), "Hi."], handoffs=[handoff], context="mine"
    )
    async with talking(session, "go") as heard:
        await heard.until_kind("handoff")
    assert seen == [("mine", Ticket(3, "late"))]


async def test_on_handoff_without_input() -> None:
    seen: list[Any] = []
    handoff = realtime_handoff(
        BILLING,
        tool_name_override="to_money",
        tool_description_override="Ask about money.",
        on_handoff=lambda context: seen.append(context.context),
    )
    session = session_of([call("to_money"), "Hi."], handoffs=[handoff], context="mine")
    async with talking(session, "go") as heard:
        await heard.until_kind("handoff")
        assert offered(session) == ["to_money"]
    assert seen == ["mine"]
    assert (handoff.spec.name, handoff.spec.description) == ("to_money", "Ask about money.")


async def test_input_that_makes_no_sense_is_an_event_and_nobody_hands_over() -> None:
    handoff = realtime_handoff(BILLING, on_handoff=lambda context, ticket: None, input_type=Ticket)
    session = session_of(
        [call("transfer_to_billing_desk", order="seven"), "Hm."], handoffs=[handoff], name="front"
    )
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 2)
        assert "order" in str(heard.of("error")[0].error)
        assert len(outputs(session)) == 1
        assert session.current_agent.name == "front"
        assert updates(session) == []


async def test_on_handoff_that_fails_is_an_event_and_nobody_hands_over() -> None:
    def refuse(context: Any) -> None:
        raise PermissionError("closed on Sundays")

    session = session_of(
        [call("transfer_to_billing_desk"), "Hm."],
        handoffs=[realtime_handoff(BILLING, on_handoff=refuse)],
        name="front",
    )
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 2)
        assert [str(event.error) for event in heard.of("error")] == ["closed on Sundays"]
        assert "closed on Sundays" in outputs(session)[0]
        assert session.current_agent.name == "front"
        assert heard.of("handoff") == []


async def test_an_agent_that_cannot_begin_does_not_take_over() -> None:
    def instructions(context: Any, who: Any) -> str:
        raise LookupError("no instructions")

    session = session_of(
        [call("transfer_to_broken"), "Hm."], handoffs=[RealtimeAgent("broken", instructions)], name="front"
    )
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 2)
        assert [str(event.error) for event in heard.of("error")] == ["no instructions"]
        assert session.current_agent.name == "front"


def unsendable() -> RealtimeAgent[Any]:
    prompt: Any = {"id": object()}
    return RealtimeAgent("odd", prompt=prompt, tools=[refund])


async def test_an_agent_that_the_model_cannot_be_told_of_does_not_take_over() -> None:
    model = StrictModel([call("transfer_to_odd"), "Hm."])
    session = session_of(model=model, handoffs=[unsendable()], name="front")
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 2)
        assert "cannot be sent" in str(heard.of("error")[0].error)
        assert heard.of("handoff") == []
        [said] = outputs(session)
        assert said.startswith("The handoff failed: ")
        assert session.current_agent.name == "front"
        assert [event.agent.name for event in heard.of("agent_start")] == ["front", "front"]


async def test_an_update_that_cannot_be_sent_changes_no_agent() -> None:
    @function_tool
    async def lookup() -> str:
        return "found"

    model = StrictModel([call("lookup"), "Hm."])
    session = session_of((), lookup, model=model, name="front")
    async with talking(session) as heard:
        with pytest.raises(UserError, match="cannot be sent"):
            await session.update_agent(unsendable())
        assert session.current_agent.name == "front"
        await session.send_message("go")
        await heard.until_kind("agent_end", 2)
        assert outputs(session) == ["found"]


async def test_a_handoff_that_is_not_enabled_is_not_offered() -> None:
    async def for_ann(context: Any, who: RealtimeAgent[Any]) -> bool:
        return bool(context.context == "Ann")

    for who, expected in (("Ann", ["transfer_to_billing_desk"]), ("Bob", [])):
        handoffs = [realtime_handoff(BILLING, is_enabled=for_ann)]
        async with session_of(handoffs=handoffs, context=who) as session:
            assert offered(session) == expected


async def test_a_call_that_was_asked_for_before_is_answered_by_the_agent_of_then() -> None:
    @function_tool
    async def lookup() -> str:
        return "found"

    session = session_of(
        [[call("transfer_to_billing_desk"), call("lookup")], "x", "y"],
        lookup,
        handoffs=[BILLING],
        name="front",
    )
    async with talking(session, "go") as heard:
        await heard.until_kind("agent_end", 3)
        assert "found" in outputs(session)
        assert heard.of("error") == []
        assert heard.of("tool_end")[0].agent.name == "front"
        assert session.current_agent is BILLING


async def test_a_tool_at_work_is_not_stopped_by_a_handoff() -> None:
    go = anyio.Event()

    @function_tool
    async def lookup() -> str:
        await go.wait()
        return "found"

    session = session_of(
        [[call("lookup"), call("transfer_to_billing_desk")], "x", "y"], lookup, handoffs=[BILLING]
    )
    async with talking(session, "go") as heard:
        await heard.until_kind("handoff")
        go.set()
        await heard.until_kind("tool_end")
        assert "found" in outputs(session)


async def test_settings_of_the_session_stay_and_those_of_the_agent_change() -> None:
    session = session_of(
        [call("transfer_to_billing_desk"), "x"],
        handoffs=[BILLING],
        instructions="You greet.",
        config={"model_settings": {"voice": "marin"}},
        model_config={"initial_model_settings": {"speed": 1.5, "instructions": "You greet in French."}},
    )
    async with talking(session, "go") as heard:
        options: Any = scripted(session).options
        assert options["initial_model_settings"]["instructions"] == "You greet in French."
        await heard.until_kind("handoff")
        await heard.until(lambda: updates(session))
        [settings] = updates(session)
        assert (settings["voice"], settings["speed"]) == ("marin", 1.5)
        assert settings["instructions"] == "You handle money."


async def test_a_prompt_of_the_beginning_is_of_the_first_agent_and_one_of_the_run_of_all() -> None:
    for of_the_run, expected in ({}, None), ({"prompt": {"id": "ours"}}, {"id": "ours"}):
        session = session_of(
            config={"model_settings": of_the_run},
            model_config={"initial_model_settings": {"prompt": {"id": "first"}, "voice": "marin"}},
        )
        async with session:
            options: Any = scripted(session).options
            assert options["initial_model_settings"]["prompt"] == {"id": "first"}
            await session.update_agent(BILLING)
            [settings] = updates(session)
            assert (settings.get("prompt"), settings["voice"]) == (expected, "marin")


async def test_the_way_back() -> None:
    front = RealtimeAgent("front", "You greet.")
    back = RealtimeAgent("back", handoffs=[front])
    front.handoffs = [back]
    session = session_of(
        [call("transfer_to_back"), call("transfer_to_front"), call("transfer_to_back"), "x"], handoffs=[back]
    )
    async with talking(session, "go") as heard:
        await heard.until_kind("handoff", 3)
        await heard.until_kind("agent_end", 4)
        assert [event.to_agent.name for event in heard.of("handoff")] == ["back", "front", "back"]


def test_handoffs_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UserError, match="give on_handoff too"):
        realtime_handoff(BILLING, input_type=Ticket)
    with pytest.raises(UserError, match=r"called with \(context, input\)"):
        realtime_handoff(BILLING, input_type=Ticket, on_handoff=lambda context: None)
    assert isinstance(realtime_handoff(BILLING), RealtimeHandoff)
    assert realtime_handoff(BILLING).spec.description == "Hand over to the agent billing desk. For invoices."


async def test_what_is_no_agent_is_refused_where_it_is_opened() -> None:
    session = session_of(handoffs=["billing"])
    with pytest.raises(UserError, match=r"handoffs must be RealtimeAgents, .* not str"):
        await session.enter()


async def test_two_agents_of_one_name_are_refused() -> None:
    session = session_of(handoffs=[BILLING, BILLING.clone()])
    with pytest.raises(UserError, match="transfer_to_billing_desk"):
        await session.enter()
