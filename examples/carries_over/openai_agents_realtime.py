"""One program for two libraries: realtime sessions of OpenAI's Agents SDK and of quiesce, by changing the import.

    python examples/carries_over/openai_agents_realtime.py quiesce
    python examples/carries_over/openai_agents_realtime.py agents            # where openai-agents is installed

Each function below is written as users of that SDK write it, and so is the model, which answers from a list.
Both libraries print the same lines.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable
from typing import Any

LIBRARY = sys.argv[1] if len(sys.argv) > 1 else "quiesce"
sdk: Any = importlib.import_module("quiesce.agents" if LIBRARY == "quiesce" else "agents")
realtime: Any = importlib.import_module(f"{LIBRARY}.realtime")

RealtimeAgent, RealtimeRunner, RealtimeModel = (
    realtime.RealtimeAgent,
    realtime.RealtimeRunner,
    realtime.RealtimeModel,
)
RunContextWrapper, GuardrailFunctionOutput = sdk.RunContextWrapper, sdk.GuardrailFunctionOutput
Decorator = Callable[..., Callable[..., Any]]
function_tool: Decorator = sdk.function_tool
output_guardrail: Decorator = sdk.output_guardrail
realtime_handoff: Callable[..., Any] = realtime.realtime_handoff


class Listed(RealtimeModel):  # type: ignore[misc, valid-type]
    """A model of one's own: what it answers is in a list."""

    def __init__(self, *answers: list[Any]) -> None:
        self.answers = list(answers)
        self.sent: list[Any] = []
        self.options: Any = None
        self.listeners: list[Any] = []
        self.closed = False

    def add_listener(self, listener: Any) -> None:
        self.listeners.append(listener)

    def remove_listener(self, listener: Any) -> None:
        if listener in self.listeners:
            self.listeners.remove(listener)

    async def connect(self, options: Any) -> None:
        self.options = options

    async def send_event(self, event: Any) -> None:
        self.sent.append(event)
        asks = isinstance(event, (realtime.RealtimeModelSendUserInput, realtime.RealtimeModelSendToolOutput))
        if asks and self.answers:
            await self.tell(*self.answers.pop(0))

    async def tell(self, *events: Any) -> None:
        for event in events:
            for listener in list(self.listeners):
                await listener.on_event(event)

    async def close(self) -> None:
        self.closed = True

    def was_told(self, kind: str) -> list[Any]:
        return [event for event in self.sent if type(event).__name__ == kind]


def says(text: str, item: str = "item_1", response: str = "resp_1") -> list[Any]:
    """The events of something that is said."""
    return [
        realtime.RealtimeModelTurnStartedEvent(response_id=response),
        *(
            realtime.RealtimeModelTranscriptDeltaEvent(item_id=item, delta=word, response_id=response)
            for word in text.split(" ")
        ),
        realtime.RealtimeModelAudioEvent(
            data=b"\0\0" * 240, response_id=response, item_id=item, content_index=0
        ),
        realtime.RealtimeModelAudioDoneEvent(item_id=item, content_index=0),
        realtime.RealtimeModelItemUpdatedEvent(
            item=realtime.AssistantMessageItem(
                item_id=item, content=[realtime.AssistantText(text=text)], status="completed"
            )
        ),
        realtime.RealtimeModelTurnEndedEvent(response_id=response),
    ]


def calls(name: str, arguments: str = "{}", call_id: str = "call_1") -> list[Any]:
    """The event of a call."""
    return [realtime.RealtimeModelToolCallEvent(name=name, call_id=call_id, arguments=arguments)]


async def until(session: Any, kind: str, times: int = 1) -> list[Any]:
    """The events up to the first of this kind, without those of the history and the raw ones."""
    seen = []
    async for event in session:
        if event.type not in ("raw_model_event", "history_updated", "history_added"):
            seen.append(event)
        times -= event.type == kind
        if not times:
            break
    return seen


@function_tool
async def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


async def a_turn() -> None:
    model = Listed(says("Good morning."))
    agent = RealtimeAgent(name="concierge", instructions="Be brief.")
    async with await RealtimeRunner(agent, model=model).run() as session:
        await session.send_message("Hello!")
        for event in await until(session, "agent_end"):
            print(event.type, len(event.audio.data) if event.type == "audio" else "")
    print("instructions:", model.options["initial_model_settings"]["instructions"])
    print("sent:", model.sent[0].user_input, "closed:", model.closed)


async def the_history() -> None:
    async with await RealtimeRunner(
        RealtimeAgent(name="concierge"), model=Listed(says("Good morning."))
    ).run() as session:
        await session.send_message("Hello!")
        async for event in session:
            if event.type in ("history_added", "history_updated"):
                items = [event.item] if event.type == "history_added" else event.history
                for item in items:
                    print("history:", item.type, item.role, item.item_id, item.status)
                if items:
                    break


async def audio_and_an_interruption() -> None:
    model = Listed()
    async with await RealtimeRunner(RealtimeAgent(name="concierge"), model=model).run() as session:
        await session.send_audio(b"\0\0" * 240)
        await session.send_audio(b"\0\0" * 240, commit=True)
        await session.interrupt()
        await model.tell(realtime.RealtimeModelAudioInterruptedEvent(item_id="item_1", content_index=0))
        for event in await until(session, "audio_interrupted"):
            print(event.type, event.item_id, event.content_index)
    for sent in model.was_told("RealtimeModelSendAudio"):
        print("audio:", len(sent.audio), sent.commit)
    print("interrupts:", len(model.was_told("RealtimeModelSendInterrupt")))


async def a_tool_and_its_context() -> None:
    @function_tool
    async def whoami(context: RunContextWrapper[dict[str, str]]) -> str:  # type: ignore[valid-type]
        """Who am I?"""
        return context.context["user"]  # type: ignore[attr-defined, no-any-return]

    model = Listed(calls("whoami"), calls("weather", '{"city": "Paris"}', "call_2"), says("It rains."))
    agent = RealtimeAgent(name="concierge", tools=[weather, whoami])
    async with await RealtimeRunner(agent, model=model).run(context={"user": "Ada"}) as session:
        await session.send_message("How is it?")
        for event in await until(session, "tool_end", 2):
            if event.type == "tool_end":
                print("tool_end:", event.tool.name, event.arguments, event.output, event.info.context.context)
    for sent in model.was_told("RealtimeModelSendToolOutput"):
        print("output:", sent.tool_call.call_id, sent.output, sent.start_response)


async def a_tool_that_fails() -> None:
    @function_tool(failure_error_function=lambda context, error: f"sorry: {error}")
    async def broken() -> str:
        """Always fails."""
        raise ValueError("no")

    model = Listed(calls("broken"), says("I see."))
    async with await RealtimeRunner(
        RealtimeAgent(name="concierge", tools=[broken]), model=model
    ).run() as session:
        await session.send_message("Go.")
        await until(session, "tool_end")
    print("after a failure:", model.was_told("RealtimeModelSendToolOutput")[0].output)


async def approvals() -> None:
    @function_tool(needs_approval=True)
    async def delete(path: str) -> str:
        """Delete a file."""
        return f"{path} is gone"

    model = Listed(calls("delete", '{"path": "a.txt"}'), calls("delete", '{"path": "b.txt"}', "call_2"))
    agent = RealtimeAgent(name="concierge", tools=[delete])
    async with await RealtimeRunner(agent, model=model).run() as session:
        await session.send_message("Tidy up.")
        async for event in session:
            if event.type == "tool_approval_required" and event.call_id == "call_1":
                print("approve:", event.tool.name, event.arguments)
                await session.approve_tool_call(event.call_id)
            elif event.type == "tool_approval_required":
                await session.reject_tool_call(event.call_id, rejection_message="Not that one.")
                break
        while len(model.was_told("RealtimeModelSendToolOutput")) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for sent in model.was_told("RealtimeModelSendToolOutput"):
        print("output:", sent.output)


async def a_guardrail() -> None:
    @output_guardrail
    async def polite(context: Any, agent: Any, output: Any) -> Any:
        return GuardrailFunctionOutput(output_info={"by": agent.name}, tripwire_triggered="damn" in output)

    model = Listed(says("damn it all"))
    agent = RealtimeAgent(name="concierge", output_guardrails=[polite])
    config = {"guardrails_settings": {"debounce_text_length": 5}}
    async with await RealtimeRunner(agent, model=model, config=config).run() as session:
        await session.send_message("Well?")
        tripped = (await until(session, "guardrail_tripped"))[-1]
        result = tripped.guardrail_results[0]
        print("tripped:", result.guardrail.get_name(), result.output.output_info, tripped.message[:4])
        while not model.was_told("RealtimeModelSendInterrupt"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    print("interrupted:", type(model.sent[1]).__name__)


async def a_handoff() -> None:
    told = []
    billing = RealtimeAgent(
        name="billing", instructions="You know the prices.", handoff_description="Prices."
    )
    triage = RealtimeAgent(
        name="triage", handoffs=[realtime_handoff(billing, on_handoff=lambda context: told.append("handoff"))]
    )
    model = Listed(calls("transfer_to_billing"), says("Ten euros."))
    async with await RealtimeRunner(triage, model=model).run() as session:
        await session.send_message("How much?")
        for event in await until(session, "agent_end"):
            if event.type == "handoff":
                print("handoff:", event.from_agent.name, "to", event.to_agent.name, told)
            elif event.type == "agent_start":
                print("speaks:", event.agent.name)
    update = model.was_told("RealtimeModelSendSessionUpdate")[0].session_settings
    print("new instructions:", update["instructions"])


async def a_handoff_in_the_middle_of_a_turn() -> None:
    billing = RealtimeAgent(name="billing")
    model = Listed()
    async with await RealtimeRunner(
        RealtimeAgent(name="triage", handoffs=[billing]), model=model
    ).run() as session:
        await model.tell(
            realtime.RealtimeModelTurnStartedEvent(response_id="resp_1"), *calls("transfer_to_billing")
        )
        await until(session, "handoff")
        await model.tell(realtime.RealtimeModelTurnEndedEvent(response_id="resp_1"))
        print("that turn was of:", (await until(session, "agent_end"))[-1].agent.name)


async def another_agent() -> None:
    async def instructions(context: Any, agent: Any) -> str:
        return f"You are {agent.name}, for {context.context}."

    model = Listed()
    async with await RealtimeRunner(RealtimeAgent(name="first"), model=model).run(context="Ada") as session:
        await session.update_agent(RealtimeAgent(name="second", instructions=instructions, tools=[weather]))
    update = model.was_told("RealtimeModelSendSessionUpdate")[0].session_settings
    print("updated:", update["instructions"], [tool.name for tool in update["tools"]])


async def what_was_played() -> None:
    tracker = realtime.RealtimePlaybackTracker()
    print("played:", tracker.get_state())
    tracker.set_audio_format("pcm16")
    tracker.on_play_bytes("item_1", 0, b"\0\0" * 240)
    tracker.on_play_ms("item_1", 0, 5)
    print("played:", tracker.get_state())
    tracker.on_interrupted()
    print("played:", tracker.get_state())


async def an_error_and_an_end() -> None:
    model = Listed()
    session = await RealtimeRunner(RealtimeAgent(name="concierge"), model=model).run()
    await session.enter()
    await model.tell(realtime.RealtimeModelErrorEvent(error={"message": "busy"}))
    print("error:", (await until(session, "error"))[-1].error)
    await model.tell(realtime.RealtimeModelExceptionEvent(exception=ValueError("gone"), context="the wire"))
    try:
        await until(session, "never")
    except ValueError as error:
        print("raised to whoever reads:", error)
    await session.close()
    print("closed:", model.closed)


async def closing_ends_whoever_reads() -> None:
    session = await RealtimeRunner(RealtimeAgent(name="concierge"), model=Listed()).run()
    async with session:
        reader = asyncio.create_task(until(session, "never"))
        await asyncio.sleep(0.01)
        await session.close()
        print("the reader has:", await asyncio.wait_for(reader, 5))


async def main() -> None:
    for show in (
        a_turn,
        the_history,
        audio_and_an_interruption,
        a_tool_and_its_context,
        a_tool_that_fails,
        approvals,
        a_guardrail,
        a_handoff,
        a_handoff_in_the_middle_of_a_turn,
        another_agent,
        what_was_played,
        an_error_and_an_end,
        closing_ends_whoever_reads,
    ):
        print(f"# {show.__name__}")
        await show()


if LIBRARY == "agents":
    sdk.set_tracing_disabled(True)
asyncio.run(main())
