"""Functions that make the most common messages, under the names that users of agent-client-protocol know.

```python
await client.session_update(session_id, update_agent_message_text("On it."))
await client.session_update(session_id, start_read_tool_call("call-1", "Read the notes", "/notes.md"))
```
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from .schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    AudioContentBlock,
    AvailableCommand,
    AvailableCommandsUpdate,
    BlobResourceContents,
    ContentBlock,
    ContentToolCallContent,
    CurrentModeUpdate,
    EmbeddedResourceContentBlock,
    FileEditToolCallContent,
    ImageContentBlock,
    PlanEntry,
    PlanEntryPriority,
    PlanEntryStatus,
    ResourceContentBlock,
    SessionNotification,
    SessionUpdate,
    TerminalToolCallContent,
    TextContentBlock,
    TextResourceContents,
    ToolCallContent,
    ToolCallLocation,
    ToolCallProgress,
    ToolCallStart,
    ToolCallStatus,
    ToolKind,
    UserMessageChunk,
)

__all__ = [
    "audio_block",
    "embedded_blob_resource",
    "embedded_text_resource",
    "image_block",
    "plan_entry",
    "resource_block",
    "resource_link_block",
    "session_notification",
    "start_edit_tool_call",
    "start_read_tool_call",
    "start_tool_call",
    "text_block",
    "tool_content",
    "tool_diff_content",
    "tool_terminal_ref",
    "update_agent_message",
    "update_agent_message_text",
    "update_agent_thought",
    "update_agent_thought_text",
    "update_available_commands",
    "update_current_mode",
    "update_plan",
    "update_tool_call",
    "update_user_message",
    "update_user_message_text",
]

ToolCallContentVariant: TypeAlias = ToolCallContent


def _listed(items: Sequence[Any] | None) -> list[Any] | None:
    return None if items is None else list(items)


# Content


def text_block(text: str) -> TextContentBlock:
    """Make a block of text."""
    return TextContentBlock(text=text)


def image_block(data: str, mime_type: str, *, uri: str | None = None) -> ImageContentBlock:
    """Make a block with a picture, in base64."""
    return ImageContentBlock(data=data, mime_type=mime_type, uri=uri)


def audio_block(data: str, mime_type: str) -> AudioContentBlock:
    """Make a block with a sound, in base64."""
    return AudioContentBlock(data=data, mime_type=mime_type)


def resource_link_block(
    name: str,
    uri: str,
    *,
    mime_type: str | None = None,
    size: int | None = None,
    description: str | None = None,
    title: str | None = None,
) -> ResourceContentBlock:
    """Make a block that links to a resource."""
    return ResourceContentBlock(
        name=name, uri=uri, mime_type=mime_type, size=size, description=description, title=title
    )


def embedded_text_resource(uri: str, text: str, *, mime_type: str | None = None) -> TextResourceContents:
    """Make the contents of a text resource, for `resource_block`."""
    return TextResourceContents(uri=uri, text=text, mime_type=mime_type)


def embedded_blob_resource(uri: str, blob: str, *, mime_type: str | None = None) -> BlobResourceContents:
    """Make the contents of a binary resource, in base64, for `resource_block`."""
    return BlobResourceContents(uri=uri, blob=blob, mime_type=mime_type)


def resource_block(resource: TextResourceContents | BlobResourceContents) -> EmbeddedResourceContentBlock:
    """Make a block that contains a resource."""
    return EmbeddedResourceContentBlock(resource=resource)


# Messages


def update_user_message(content: ContentBlock) -> UserMessageChunk:
    """Make an update with a part of the user's message, as it is sent when a session is loaded."""
    return UserMessageChunk(content=content)


def update_user_message_text(text: str) -> UserMessageChunk:
    """Make an update with a part of the user's message, as text."""
    return update_user_message(text_block(text))


def update_agent_message(content: ContentBlock) -> AgentMessageChunk:
    """Make an update with a part of the agent's message."""
    return AgentMessageChunk(content=content)


def update_agent_message_text(text: str) -> AgentMessageChunk:
    """Make an update with a part of the agent's message, as text."""
    return update_agent_message(text_block(text))


def update_agent_thought(content: ContentBlock) -> AgentThoughtChunk:
    """Make an update with a part of the agent's reasoning."""
    return AgentThoughtChunk(content=content)


def update_agent_thought_text(text: str) -> AgentThoughtChunk:
    """Make an update with a part of the agent's reasoning, as text."""
    return update_agent_thought(text_block(text))


# Plans, commands and modes


def plan_entry(
    content: str, *, priority: PlanEntryPriority = "medium", status: PlanEntryStatus = "pending"
) -> PlanEntry:
    """Make one entry of a plan, for `update_plan`."""
    return PlanEntry(content=content, priority=priority, status=status)


def update_plan(entries: Iterable[PlanEntry]) -> AgentPlanUpdate:
    """Make an update with the whole plan of the agent, which replaces the previous plan."""
    return AgentPlanUpdate(entries=list(entries))


def update_available_commands(commands: Iterable[AvailableCommand]) -> AvailableCommandsUpdate:
    """Make an update with the commands that the user can give from now on."""
    return AvailableCommandsUpdate(available_commands=list(commands))


def update_current_mode(current_mode_id: str) -> CurrentModeUpdate:
    """Make an update with the mode that the session is in from now on."""
    return CurrentModeUpdate(current_mode_id=current_mode_id)


def session_notification(session_id: str, update: SessionUpdate) -> SessionNotification:
    """Make the notification that carries an update of a session."""
    return SessionNotification(session_id=session_id, update=update)


# Tool calls


def tool_content(block: ContentBlock) -> ContentToolCallContent:
    """Make tool output of any content block."""
    return ContentToolCallContent(content=block)


def tool_diff_content(path: str, new_text: str, old_text: str | None = None) -> FileEditToolCallContent:
    """Make tool output that shows a change of a file; without `old_text` the file is new."""
    return FileEditToolCallContent(path=path, new_text=new_text, old_text=old_text)


def tool_terminal_ref(terminal_id: str) -> TerminalToolCallContent:
    """Make tool output that shows a terminal."""
    return TerminalToolCallContent(terminal_id=terminal_id)


def start_tool_call(
    tool_call_id: str,
    title: str,
    *,
    kind: ToolKind | None = None,
    status: ToolCallStatus | None = None,
    content: Sequence[ToolCallContent] | None = None,
    locations: Sequence[ToolCallLocation] | None = None,
    raw_input: Any | None = None,
    raw_output: Any | None = None,
) -> ToolCallStart:
    """Make an update that reports a new tool call."""
    return ToolCallStart(
        tool_call_id=tool_call_id,
        title=title,
        kind=kind,
        status=status,
        content=_listed(content),
        locations=_listed(locations),
        raw_input=raw_input,
        raw_output=raw_output,
    )


def start_read_tool_call(
    tool_call_id: str, title: str, path: str, *, extra_options: Sequence[ToolCallContent] | None = None
) -> ToolCallStart:
    """Make an update that reports a new tool call that reads a file."""
    return start_tool_call(
        tool_call_id,
        title,
        kind="read",
        status="pending",
        content=extra_options,
        locations=[ToolCallLocation(path=path)],
        raw_input={"path": path},
    )


def start_edit_tool_call(
    tool_call_id: str,
    title: str,
    path: str,
    content: Any,
    *,
    extra_options: Sequence[ToolCallContent] | None = None,
) -> ToolCallStart:
    """Make an update that reports a new tool call that writes `content` to a file."""
    return start_tool_call(
        tool_call_id,
        title,
        kind="edit",
        status="pending",
        content=extra_options,
        locations=[ToolCallLocation(path=path)],
        raw_input={"path": path, "content": content},
    )


def update_tool_call(
    tool_call_id: str,
    *,
    title: str | None = None,
    kind: ToolKind | None = None,
    status: ToolCallStatus | None = None,
    content: Sequence[ToolCallContent] | None = None,
    locations: Sequence[ToolCallLocation] | None = None,
    raw_input: Any | None = None,
    raw_output: Any | None = None,
) -> ToolCallProgress:
    """Make an update about a tool call; None leaves a field unchanged."""
    return ToolCallProgress(
        tool_call_id=tool_call_id,
        title=title,
        kind=kind,
        status=status,
        content=_listed(content),
        locations=_listed(locations),
        raw_input=raw_input,
        raw_output=raw_output,
    )
