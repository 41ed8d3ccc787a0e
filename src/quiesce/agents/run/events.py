"""What a streamed run gives its consumer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

if TYPE_CHECKING:
    from quiesce.agents.agent import Agent
    from quiesce.models import Item, ModelEvent

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
class AgentUpdatedStreamEvent:
    """Another agent has taken over."""

    new_agent: Agent[Any]
    type: ClassVar[Literal["agent_updated_stream_event"]] = "agent_updated_stream_event"


StreamEvent: TypeAlias = RawResponseEvent | RunItemStreamEvent | AgentUpdatedStreamEvent
