"""What programs written for OpenAI's Agents SDK pass to a run, hear from it, and look at in its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from quiesce.agents import (
    AgentHooks,
    CallModelData,
    Conversation,
    InputGuardrailTripwireTriggered,
    ItemHelpers,
    MemorySession,
    ModelInputData,
    ModelResponse,
    RunConfig,
    RunHooks,
    Runner,
    Session,
    TResponseInputItem,
    UserError,
)
from quiesce.agents.decorators import tool
from quiesce.models import (
    AssistantMessage,
    Item,
    ModelSettings,
    Reasoning,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)
from quiesce.testing import Answer, call
from tests.agents.scenes import (
    Parked,
    SlowModel,
    all_events,
    assert_valid,
    consumed,
    guarded_input,
    guarded_output,
    requests_of,
    scripted,
    trips,
)
from tests.kernel.temperaments import virtual_worlds


@tool
async def add(a: int, b: int) -> int:
    return a + b


# What goes in -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_run_takes_dicts_and_what_an_earlier_run_has_said(streamed: bool) -> None:
    agent = scripted(call("add", a=1, b=2), "3", "4", tools=[add])
    said: list[TResponseInputItem] = [{"role": "user", "content": "1 + 2"}]
    first: Any
    if streamed:
        first = Runner.run_streamed(agent, said)
        await all_events(first)
    else:
        first = await Runner.run(agent, said)
    assert first.input == [UserMessage("1 + 2")]
    again = [*first.to_input_list(), {"role": "user", "content": "And 2 + 2?"}]
    result = await Runner.run(agent, again)
    assert result.final_output == "4"
    assert_valid(result.to_input_list())
    assert requests_of(agent)[2].items[-1] == UserMessage("And 2 + 2?")


async def test_a_conversation_takes_dicts_too() -> None:
    agent = scripted("Hello.")
    async with Conversation(agent) as conversation:
        conversation.send_message({"role": "user", "content": "Hi"})
        await conversation.arun()
    assert requests_of(agent)[0].items == [UserMessage("Hi")]


async def test_guardrails_see_items_where_dicts_were_passed() -> None:
    seen: list[Any] = []

    async def look(context: Any, agent: Any, said: Any) -> Any:
        seen.append(said)
        return trips()

    agent = scripted("never", input_guardrails=[guarded_input(trips())])
    agent.input_guardrails[0].guardrail_function = look
    with pytest.raises(InputGuardrailTripwireTriggered):
        await Runner.run(agent, [{"role": "user", "content": "Hi"}])
    assert seen == [[UserMessage("Hi")]]


class JsonSession(Session):
    """A session as users write one: by deriving from `Session`, with what it keeps as JSON."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.text = "[]"

    async def get_items(self, limit: int | None = None) -> Sequence[TResponseInputItem]:
        items: list[dict[str, object]] = msgspec.json.decode(self.text)
        return items if limit is None else items[-limit:]

    async def add_items(self, items: list[Any]) -> None:
        self.text = msgspec.json.encode([*await self.get_items(), *msgspec.to_builtins(items)]).decode()

    async def pop_item(self) -> TResponseInputItem | None:
        return None

    async def clear_session(self) -> None:
        self.text = "[]"


async def test_a_session_by_subclass_keeps_json_and_gives_it_back() -> None:
    session = JsonSession("ada")
    assert isinstance(session, Session)
    agent = scripted(call("add", a=1, b=2), "3", "Ada.", tools=[add])
    await Runner.run(agent, "1 + 2", session=session)
    await Runner.run(agent, "Who am I?", session=session)
    items = requests_of(agent)[2].items
    assert [type(item) for item in items] == [
        UserMessage,
        ToolCall,
        ToolResult,
        AssistantMessage,
        UserMessage,
    ]
    assert_valid(items)
    assert session.session_id == "ada"
    assert session.text.count('"type":"user"') == 2


@virtual_worlds
async def test_a_write_to_a_session_of_dicts_that_was_cut_short_is_not_repeated() -> None:
    class Forgetful(JsonSession):
        """Writes, and is then cancelled before it can say so."""

        parked = Parked()

        async def add_items(self, items: list[Any]) -> None:
            await super().add_items(items)
            if "Hello" in self.text and not self.parked.begun:
                await self.parked.park()

    session = Forgetful("ada")
    result = Runner.run_streamed(scripted("Hello"), "Hi", session=session)
    async with consumed(result):
        await session.parked.reached.wait()
        result.cancel()
    assert session.text.count("Hello") == 1
    assert session.text.count("Hi") == 1


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_what_a_model_is_sent_may_be_changed_and_the_history_is_not(kind: str) -> None:
    seen: list[CallModelData] = []

    def last_only(data: CallModelData) -> ModelInputData:
        seen.append(data)
        wanted: list[Any] = [{"role": "user", "content": "In short:"}, data.model_data.input.pop()]
        return ModelInputData(wanted, f"{data.model_data.instructions} Now!")

    async def later(data: CallModelData) -> ModelInputData:
        return last_only(data)

    hearing = Hearing()
    agent = scripted("3", instructions="Be brief.")
    config = RunConfig(call_model_input_filter=last_only if kind == "sync" else later)
    said = [UserMessage("Hi"), UserMessage("1 + 2")]
    result = await Runner.run(agent, said, run_config=config, context=7, hooks=hearing)
    (request,) = requests_of(agent)
    assert request.items == [UserMessage("In short:"), UserMessage("1 + 2")]
    assert request.instructions == "Be brief. Now!"
    assert hearing.asked[0][0] == "Be brief. Now!"
    assert result.to_input_list() == [*said, AssistantMessage("3")]
    assert (seen[0].agent, seen[0].context) == (agent, 7)


async def test_a_filter_that_returns_something_else_is_refused_and_no_model_is_asked() -> None:
    agent = scripted("never")
    wrong: Any = lambda data: data  # noqa: E731
    with pytest.raises(TypeError, match="must return a ModelInputData, and returned CallModelData"):
        await Runner.run(agent, "Hi", run_config=RunConfig(call_model_input_filter=wrong))
    assert requests_of(agent) == []
    with pytest.raises(UserError, match="call_model_input_filter of a RunConfig must be a function"):
        RunConfig(call_model_input_filter="last")  # type: ignore[arg-type]


def test_the_session_ids_of_our_own_sessions_can_be_read() -> None:
    assert MemorySession("ada").session_id == "ada"
    assert isinstance(MemorySession(), Session)


# What is heard ------------------------------------------------------------------------------------------------


class Hearing(RunHooks[Any]):
    def __init__(self) -> None:
        self.asked: list[tuple[str | None, list[Item]]] = []
        self.answers: list[ModelResponse] = []
        self.begun: list[tuple[str, list[Item]]] = []

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        self.begun.append((agent.name, list(context.turn_input)))

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
        self.asked.append((system_prompt, input_items))
        input_items.clear()  # the list is the hook's own

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        self.answers.append(response)


async def test_hooks_hear_what_the_model_is_asked_and_what_it_answers() -> None:
    hearing = Hearing()
    other = scripted("Hello.", name="other", instructions=lambda context, agent: "Be kind.")
    usage = Usage(requests=1, input_tokens=3, output_tokens=2)
    answer = Answer(calls=[call("transfer_to_other", "c1")], usage=usage, reasoning="Hm.")
    first = scripted(answer, name="first", instructions="Be brief.", handoffs=[other])
    await Runner.run(first, "Hi", hooks=hearing)
    assert [prompt for prompt, _ in hearing.asked] == ["Be brief.", "Be kind."]
    assert requests_of(first)[0].items == [UserMessage("Hi")], "a hook has changed what is sent"
    one, two = hearing.answers
    assert [type(item) for item in one.output] == [Reasoning, ToolCall]
    assert (one.usage, one.finish) == (usage, "tool_calls")
    assert two.output == two.to_input_items() == [AssistantMessage("Hello.")]
    assert [name for name, _ in hearing.begun] == ["first", "other"]
    assert hearing.begun[0][1] == [UserMessage("Hi")]
    assert len(hearing.begun[1][1]) == 4


async def test_hooks_of_an_agent_have_the_same_signatures() -> None:
    heard: list[Any] = []

    class OfAgent(AgentHooks[Any]):
        async def on_start(self, context: Any, agent: Any) -> None:
            heard.append(list(context.turn_input))

        async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
            heard.append((system_prompt, list(input_items)))

        async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
            heard.append(response.output)

    await Runner.run(scripted("Hello.", hooks=OfAgent()), "Hi")
    said = [UserMessage("Hi")]
    assert heard == [said, (None, said), [AssistantMessage("Hello.")]]


# What comes out -----------------------------------------------------------------------------------------------


async def test_raw_responses_are_what_each_answer_has_said_and_cost() -> None:
    usage = Usage(requests=1, input_tokens=3, output_tokens=2)
    turns = Answer(["Let me see."], [call("add", "c1", a=1, b=2)], usage), "It is 3."
    result = await Runner.run(scripted(*turns, tools=[add]), "1 + 2")
    one, two = result.raw_responses
    assert one.output == [AssistantMessage("Let me see."), ToolCall("c1", "add", '{"a":1,"b":2}')]
    assert (one.usage, one.finish, one.response_id) == (usage, "tool_calls", None)
    assert two.output == [AssistantMessage("It is 3.")]
    assert result.last_response_id == two.response_id


async def test_raw_responses_have_no_text_that_no_guardrail_has_passed() -> None:
    agent = scripted(
        ["Your number is 42.", call("add", "c1", a=1, b=2)],
        "42",
        tools=[add],
        output_guardrails=[guarded_output(trips())],
    )
    result = Runner.run_streamed(agent, "?")
    seen: list[str] = []
    with pytest.raises(Exception, match="was triggered"):
        async for event in result.stream_events():
            if event.type == "run_item_stream_event":
                seen += [str(result.raw_responses)]
    seen.append(str(result.raw_responses))
    assert any("c1" in text for text in seen)
    assert not any("42" in text for text in seen)


async def test_text_helpers_read_messages_and_nothing_else() -> None:
    items = [
        AssistantMessage("a"),
        ToolCall("c1", "add"),
        AssistantMessage("b"),
        AssistantMessage("no", refusal=True),
    ]
    assert ItemHelpers.text_message_outputs(items) == "abno"
    assert ItemHelpers.text_message_output(items[0]) == "a"  # type: ignore[arg-type]
    assert [ItemHelpers.extract_last_text(item) for item in items] == ["a", None, "b", None]
    assert [ItemHelpers.extract_text(item) for item in items] == ["a", None, "b", None]
    assert [ItemHelpers.extract_last_content(item) for item in items] == ["a", "", "b", "no"]
    assert ItemHelpers.input_to_new_input_list("Hi") == [UserMessage("Hi")]


async def test_events_can_be_asked_for_one_by_one() -> None:
    result = Runner.run_streamed(scripted("Hello."), "Hi")
    types = [(await anext(result.stream_events())).type for _ in range(3)]
    assert types == ["agent_updated_stream_event", "raw_response_event", "run_item_stream_event"]
    assert not result.is_complete
    assert [event.type async for event in result.stream_events()] == ["raw_response_event"]
    with pytest.raises(StopAsyncIteration):
        await anext(result.stream_events())
    assert result.is_complete


@virtual_worlds
async def test_asking_for_one_event_and_no_more_leaves_the_run_to_be_closed() -> None:
    agent = scripted()
    agent.model = slow = SlowModel("one two three")
    result = Runner.run_streamed(agent, "Hi")
    await anext(result.stream_events())
    assert (await anext(result.stream_events())).type == "raw_response_event"
    report = await result.close()
    assert report.clean
    assert (slow.started, slow.closed) == (1, 1)


async def test_pieces_of_text_are_told_by_type_and_have_a_delta() -> None:
    agent = scripted("to be or not")
    agent.model = SlowModel("to be", pause=0)
    pieces = [
        event.data.delta
        async for event in Runner.run_streamed(agent, "?").stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert pieces == ["to", "be"]


async def test_the_current_agent_is_the_one_whose_turn_it_is() -> None:
    other = scripted("Hello.", name="other")
    result = Runner.run_streamed(scripted(call("transfer_to_other"), name="first", handoffs=[other]), "Hi")
    agents = [
        (event.new_agent.name, result.current_agent.name)
        async for event in result.stream_events()
        if event.type == "agent_updated_stream_event"
    ]
    assert agents == [("first", "first"), ("other", "other")]


async def test_a_run_is_complete_when_it_has_ended_whatever_ended_it() -> None:
    begun = Runner.run_streamed(scripted("Hello."), "Hi")
    before = begun.is_complete
    begun.cancel()
    assert await all_events(begun) == []
    assert (before, begun.is_complete) == (False, True)

    failed = Runner.run_streamed(scripted(LookupError("no")), "Hi")
    with pytest.raises(LookupError):
        await all_events(failed)
    assert failed.is_complete

    closed = Runner.run_streamed(scripted("Hello."), "Hi")
    await closed.close()
    assert closed.is_complete

    @tool(needs_approval=True)
    async def pay(a: int, b: int) -> None: ...

    waiting = Runner.run_streamed(scripted(call("pay", a=1, b=2), tools=[pay]), "Hi")
    await all_events(waiting)
    assert waiting.is_complete
    assert waiting.final_output is None


async def test_an_error_says_what_the_guardrails_have_said() -> None:
    agent = scripted("never", input_guardrails=[guarded_input(trips("rude"))])
    with pytest.raises(InputGuardrailTripwireTriggered) as blocked:
        await Runner.run(agent, "Hi")
    details = blocked.value.run_data
    assert details is not None
    assert [result.output.output_info for result in details.input_guardrail_results] == ["rude"]
    assert details.output_guardrail_results == []


def test_model_settings_are_those_of_the_models() -> None:
    from quiesce.agents import ModelSettings as Ours

    assert Ours is ModelSettings
