"""What a streamed run gives its consumer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from quiesce.agents.agent import Agent
    from quiesce.models import Item, ModelEvent

    # The event of a run, which is the usual one, has the agent itself.
    AgentT = TypeVar("AgentT", bound="Agent[Any] | RemoteAgent", default=Agent[Any])
else:
    from typing import TypeVar  # has defaults only from 3.13 on

    AgentT = TypeVar("AgentT")

ItemEventName: TypeAlias = Literal[
    "message_output_created",
    "reasoning_item_created",
    "tool_called",
    "tool_output",
    "tool_approval_requested",
    "handoff_requested",
    "handoff_occured",  # spelled as in OpenAI's Agents SDK, where programs have it from
]


@dataclass(frozen=True, slots=True)
class RawResponseEvent:
    """What the model has just said: a piece of text, of reasoning, or of a tool call."""

    data: ModelEvent
    type: ClassVar[Literal["raw_response_event"]] = "raw_response_event"


@dataclass(frozen=True, slots=True)
class RunItemStreamEvent:
    """A new item of the transcript, and what kind of item it is; the names are those of OpenAI's Agents SDK."""

    name: ItemEventName
    item: Item
    type: ClassVar[Literal["run_item_stream_event"]] = "run_item_stream_event"


@dataclass(frozen=True, slots=True)
class AgentUpdatedStreamEvent(Generic[AgentT]):
    """Another agent has taken over. In an event that was decoded, `new_agent` is a `RemoteAgent`."""

    new_agent: AgentT
    type: ClassVar[Literal["agent_updated_stream_event"]] = "agent_updated_stream_event"


@dataclass(frozen=True, slots=True)
class RemoteAgent:
    """The agent of an event that `decode_stream_event` returned: its name, which is all that is sent of an agent."""

    name: str


@dataclass(frozen=True, slots=True)
class UnknownStreamEvent:
    """An event that a newer version has encoded; `data` is all of it."""

    data: dict[str, Any]
    type: ClassVar[Literal["unknown_stream_event"]] = "unknown_stream_event"


StreamEvent: TypeAlias = RawResponseEvent | RunItemStreamEvent | AgentUpdatedStreamEvent
if TYPE_CHECKING:
    DecodedStreamEvent: TypeAlias = (
        RawResponseEvent | RunItemStreamEvent | AgentUpdatedStreamEvent[RemoteAgent] | UnknownStreamEvent
    )
else:  # so that `isinstance` works
    DecodedStreamEvent = RawResponseEvent | RunItemStreamEvent | AgentUpdatedStreamEvent | UnknownStreamEvent
