"""Conversations with a scripted model, and tools that do what a test says."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, ClassVar, Self

from openhands.sdk.llm import MessageToolCall
from openhands.sdk.testing import TestLLM
from openhands.sdk.tool import ToolExecutor

from quiesce.dropin.openhands.sdk import (
    Action,
    Agent,
    Conversation,
    LocalConversation,
    Message,
    Observation,
    TextContent,
    Tool,
    ToolDefinition,
    register_tool,
)


class DoAction(Action):
    what: str = ""


class DoObservation(Observation):
    pass


class DoExecutor(ToolExecutor[DoAction, DoObservation]):
    """Calls the function that a test has set, and says so before."""

    work: ClassVar[Callable[[Any], object]] = lambda conversation: None
    begun: ClassVar[threading.Event] = threading.Event()
    on_begin: ClassVar[Callable[[], object]] = lambda: None

    def __call__(self, action: DoAction, conversation: Any = None) -> DoObservation:
        cls = type(self)
        cls.begun.set()
        cls.on_begin()
        return DoObservation.from_text(text=str(cls.work(conversation)))


class DoTool(ToolDefinition[DoAction, DoObservation]):
    @classmethod
    def create(cls, *_: Any, **__: Any) -> Sequence[Self]:
        return [
            cls(
                action_type=DoAction,
                observation_type=DoObservation,
                description="Does it.",
                executor=DoExecutor(),
            )
        ]


register_tool(DoTool.__name__, DoTool)


def working(work: Callable[[Any], object], on_begin: Callable[[], object] = lambda: None) -> None:
    """Have the tool do this from now on."""
    DoExecutor.work = staticmethod(work)
    DoExecutor.on_begin = staticmethod(on_begin)
    DoExecutor.begun = threading.Event()


_ids = count()


def say(text: str) -> Message:
    return Message(role="assistant", content=[TextContent(text=text)])


def call(name: str = DoTool.name, times: int = 1, **arguments: object) -> Message:
    calls = [
        MessageToolCall(
            id=f"call{next(_ids)}", name=name, arguments=json.dumps(arguments), origin="completion"
        )
        for _ in range(times)
    ]
    return Message(role="assistant", content=[TextContent(text="")], tool_calls=calls)


def converse(
    *turns: Message, tools: Sequence[Tool] = (Tool(name=DoTool.__name__),), at_once: int = 1, **options: Any
) -> LocalConversation:
    """A conversation whose model answers with these turns, and to which a message was sent."""
    return begin(make_agent(*turns, tools=tools, at_once=at_once), **options)


def make_agent(
    *turns: Message, tools: Sequence[Tool] = (Tool(name=DoTool.__name__),), at_once: int = 1
) -> Agent:
    model = TestLLM.from_messages(list(turns or (call(), say("done"))))
    return Agent(llm=model, tools=list(tools), tool_concurrency_limit=at_once)


def begin(agent: Agent, **options: Any) -> LocalConversation:
    chosen = {"workspace": tempfile.gettempdir(), "visualizer": None, "stuck_detection": False, **options}
    conversation = Conversation(agent, **chosen)
    conversation.send_message("Go.")
    return conversation


def kinds(conversation: Any) -> list[str]:
    """The classes of its events, without the system prompt."""
    return [type(event).__name__ for event in conversation.state.events][1:]


def unanswered(conversation: Any) -> list[object]:
    """The tool calls in its log without exactly one result."""
    events = list(conversation.state.events)
    calls = [event.tool_call_id for event in events if type(event).__name__ == "ActionEvent"]
    results = [
        event.tool_call_id
        for event in events
        if type(event).__name__ in ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation")
    ]
    return [one for one in calls if results.count(one) != 1]
