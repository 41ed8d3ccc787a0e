"""What the client is told of a turn, from the events of the run.

Invariants
- A tool call is told `pending` when the model has asked for it, `in_progress` when it starts, and `completed` or
  `failed` exactly once.
- What a stop has cut is told by `settle`, from the history: there every call has its result.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from quiesce.acp import schema as s
from quiesce.acp.helpers import text_block
from quiesce.agents import RawResponseEvent, RunHooks, RunItemStreamEvent
from quiesce.models import (
    AssistantMessage,
    Reasoning,
    ReasoningDelta,
    ResponseDone,
    TextDelta,
    ToolCall,
    ToolResult,
)
from quiesce.models.inner import text_of

from .session import Session, current_session
from .tool_calls import call_shown, result_shown

if TYPE_CHECKING:
    from quiesce.agents import Agent, FunctionTool, RunContextWrapper, StreamEvent, ToolContext
    from quiesce.models import Content

_TITLE_LIMIT = 80


class TurnUpdates:
    """Tells the client of one turn."""

    def __init__(self, session: Session, context_window: int | None) -> None:
        self._session = session
        self._context_window = context_window
        self._since = len(session.conversation.items)  # what comes after that is of this turn
        session.open_calls.clear()
        session.with_content.clear()
        self._message_id = self._thought_id = ""  # of what is being streamed
        self.finish = ""  # how the model's last answer ended

    async def tell(self, event: StreamEvent) -> None:
        """One event of the run."""
        if isinstance(event, RawResponseEvent):
            match event.data:
                case TextDelta(text=text):
                    await self._say(text)
                case ReasoningDelta(text=text):
                    await self._think(text)
                case ResponseDone():
                    await self._answered(event.data)
        elif isinstance(event, RunItemStreamEvent):
            match event.item:
                case AssistantMessage(text=text):
                    if not self._message_id:  # its model does not stream
                        await self._say(text)
                    self._message_id = ""
                case Reasoning(text=text):
                    if not self._thought_id:
                        await self._think(text)
                    self._thought_id = ""
                case ToolCall() if event.name == "tool_called":
                    await self._called(event.item)
                case ToolResult():
                    await self._ended(event.item)

    async def _say(self, text: str) -> None:
        if text:
            self._message_id = self._message_id or uuid.uuid4().hex
            chunk = s.AgentMessageChunk(content=text_block(text), message_id=self._message_id)
            await self._session.update(chunk)

    async def _think(self, text: str) -> None:
        if text:
            self._thought_id = self._thought_id or uuid.uuid4().hex
            chunk = s.AgentThoughtChunk(content=text_block(text), message_id=self._thought_id)
            await self._session.update(chunk)

    async def say(self, text: str) -> None:
        """A message of the runtime's own."""
        self._message_id = ""
        await self._say(text)
        self._message_id = ""

    async def _answered(self, done: ResponseDone) -> None:
        self.finish = done.finish
        used = done.usage.total_tokens
        if self._context_window is not None and used:
            await self._session.update(s.UsageUpdate(used=used, size=self._context_window))

    async def _called(self, call: ToolCall) -> None:
        self._session.open_calls.add(call.call_id)
        shown = call_shown(call, self._session.conversation.agent)
        await self._session.update(s.ToolCallStart(status="pending", name=call.name, **shown))

    async def _ended(self, result: ToolResult) -> None:
        session = self._session
        if result.call_id in session.open_calls:
            session.open_calls.discard(result.call_id)
            with_content = result.call_id in session.with_content
            await session.update(s.ToolCallProgress(**result_shown(result, with_content=with_content)))

    async def settle(self) -> None:
        """The run is over: end what is still open for the client."""
        if not self._session.open_calls:
            return
        for item in self._session.conversation.items[self._since :]:
            if isinstance(item, ToolResult):
                await self._ended(item)


class ShowsStarts(RunHooks[Any]):
    """Tells the client that a tool starts. Its session is the current one."""

    async def on_tool_start(self, context: ToolContext[Any], agent: Agent[Any], tool: FunctionTool) -> None:
        session = current_session()
        if session is not None:
            await session.update(s.ToolCallProgress(tool_call_id=context.tool_call_id, status="in_progress"))

    async def on_settled(self, context: RunContextWrapper[Any], agent: Agent[Any], report: Any) -> None:
        """Nothing to tell: `TurnUpdates.settle` does, when the history is complete."""


def title_of(content: Content) -> str | None:
    """What a session is called that begins with this message."""
    lines = text_of(content).split("\n")
    line = next((" ".join(line.split()) for line in lines if line.strip()), "")
    return (line if len(line) <= _TITLE_LIMIT else line[: _TITLE_LIMIT - 1] + "…") or None
