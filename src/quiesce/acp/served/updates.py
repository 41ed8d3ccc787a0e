"""The updates that the client gets during a turn, made from the events of the run.

Invariants
- A tool call is reported `pending` when the model requests it, `in_progress` when it starts, and `completed`
  or `failed` exactly once.
- Calls that a stop interrupted are reported by `settle`, from the history: there every call has its result.
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
from .tool_calls import call_fields, result_fields

if TYPE_CHECKING:
    from quiesce.agents import Agent, FunctionTool, RunContextWrapper, StreamEvent, ToolContext
    from quiesce.models import Content

_TITLE_LIMIT = 80


class TurnUpdates:
    """Sends the client the updates of one turn."""

    def __init__(self, session: Session, context_window: int | None) -> None:
        self._session = session
        self._context_window = context_window
        # Items from here on belong to this turn.
        self._first_item = len(session.conversation.items)
        session.open_calls.clear()
        session.with_content.clear()
        # The ids of the message and of the thought that are being streamed; "" between two of them.
        self._message_id = self._thought_id = ""
        #: How the model's last answer ended.
        self.finish = ""

    async def tell(self, event: StreamEvent) -> None:
        """Send the updates for one event of the run."""
        if isinstance(event, RawResponseEvent):
            match event.data:
                case TextDelta(text=text):
                    await self._send_text(text)
                case ReasoningDelta(text=text):
                    await self._send_thought(text)
                case ResponseDone():
                    await self._on_response(event.data)
        elif isinstance(event, RunItemStreamEvent):
            match event.item:
                case AssistantMessage(text=text):
                    # A model that does not stream sends the text only here.
                    if not self._message_id:
                        await self._send_text(text)
                    self._message_id = ""
                case Reasoning(text=text):
                    if not self._thought_id:
                        await self._send_thought(text)
                    self._thought_id = ""
                case ToolCall() if event.name == "tool_called":
                    await self._on_call(event.item)
                case ToolResult():
                    await self._on_result(event.item)

    async def _send_text(self, text: str) -> None:
        if text:
            self._message_id = self._message_id or uuid.uuid4().hex
            chunk = s.AgentMessageChunk(content=text_block(text), message_id=self._message_id)
            await self._session.update(chunk)

    async def _send_thought(self, text: str) -> None:
        if text:
            self._thought_id = self._thought_id or uuid.uuid4().hex
            chunk = s.AgentThoughtChunk(content=text_block(text), message_id=self._thought_id)
            await self._session.update(chunk)

    async def say(self, text: str) -> None:
        """Send a message of the runtime itself."""
        self._message_id = ""
        await self._send_text(text)
        self._message_id = ""

    async def _on_response(self, done: ResponseDone) -> None:
        self.finish = done.finish
        used = done.usage.total_tokens
        if self._context_window is not None and used:
            await self._session.update(s.UsageUpdate(used=used, size=self._context_window))

    async def _on_call(self, call: ToolCall) -> None:
        self._session.open_calls.add(call.call_id)
        fields = call_fields(call, self._session.conversation.agent)
        await self._session.update(s.ToolCallStart(status="pending", name=call.name, **fields))

    async def _on_result(self, result: ToolResult) -> None:
        session = self._session
        if result.call_id in session.open_calls:
            session.open_calls.discard(result.call_id)
            with_content = result.call_id in session.with_content
            await session.update(s.ToolCallProgress(**result_fields(result, with_content=with_content)))

    async def settle(self) -> None:
        """Report the result of every call that is still open for the client, after the run has ended."""
        if not self._session.open_calls:
            return
        for item in self._session.conversation.items[self._first_item :]:
            if isinstance(item, ToolResult):
                await self._on_result(item)


class ReportStarts(RunHooks[Any]):
    """Tells the client of the current session that a tool starts."""

    async def on_tool_start(self, context: ToolContext[Any], agent: Agent[Any], tool: FunctionTool) -> None:
        session = current_session()
        if session is not None:
            await session.update(s.ToolCallProgress(tool_call_id=context.tool_call_id, status="in_progress"))

    async def on_settled(self, context: RunContextWrapper[Any], agent: Agent[Any], report: Any) -> None:
        """Do nothing: `TurnUpdates.settle` sends what is still to be sent, when the history is complete."""


def title_of(content: Content) -> str | None:
    """Return the title of a session that begins with this message: its first line; None without text."""
    lines = text_of(content).split("\n")
    line = next((" ".join(line.split()) for line in lines if line.strip()), "")
    return (line if len(line) <= _TITLE_LIMIT else line[: _TITLE_LIMIT - 1] + "…") or None
