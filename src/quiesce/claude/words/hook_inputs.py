"""The inputs of hooks: dicts, which differ by event; `hook_event_name` names the event.

No `from __future__ import annotations` here: a TypedDict needs real annotations to know which of its keys are
required.
"""

from typing import Any, Literal, NotRequired, TypeAlias, TypedDict


class HookEffort(TypedDict):
    """The effort of the turn that the hook belongs to."""

    level: str


class BaseHookInput(TypedDict):
    """The fields that the input of every hook has."""

    session_id: str
    transcript_path: str
    cwd: str
    permission_mode: NotRequired[str]
    prompt_id: NotRequired[str]
    effort: NotRequired[HookEffort]


class _ToolHookInput(BaseHookInput):
    tool_name: str
    tool_input: dict[str, Any]
    # Only if a sub-agent uses the tool. They are not in `BaseHookInput`: some events require them, and a
    # TypedDict cannot make an optional key of its base required.
    agent_id: NotRequired[str]
    agent_type: NotRequired[str]


class PreToolUseHookInput(_ToolHookInput):
    """A tool is about to be used."""

    hook_event_name: Literal["PreToolUse"]
    tool_use_id: str


class PostToolUseHookInput(_ToolHookInput):
    """A tool was used."""

    hook_event_name: Literal["PostToolUse"]
    tool_response: Any
    tool_use_id: str
    duration_ms: NotRequired[int]


class PostToolUseFailureHookInput(_ToolHookInput):
    """A tool failed."""

    hook_event_name: Literal["PostToolUseFailure"]
    tool_use_id: str
    error: str
    is_interrupt: NotRequired[bool]
    duration_ms: NotRequired[int]


class UserPromptSubmitHookInput(BaseHookInput):
    """The user sent a prompt."""

    hook_event_name: Literal["UserPromptSubmit"]
    prompt: str


class BackgroundTaskSummary(TypedDict):
    """A running background task. The CLI shortens long texts, and marks that in them."""

    id: str
    type: str
    status: str
    description: str
    command: NotRequired[str]
    agent_type: NotRequired[str]
    server: NotRequired[str]
    tool: NotRequired[str]
    name: NotRequired[str]


class SessionCronSummary(TypedDict):
    """A prompt that is scheduled for the session."""

    id: str
    schedule: str
    recurring: bool
    prompt: str


class StopHookInput(BaseHookInput):
    """The agent is about to stop."""

    hook_event_name: Literal["Stop"]
    stop_hook_active: bool
    last_assistant_message: NotRequired[str]
    background_tasks: NotRequired[list[BackgroundTaskSummary]]
    session_crons: NotRequired[list[SessionCronSummary]]


class SubagentStopHookInput(BaseHookInput):
    """A sub-agent is about to stop."""

    hook_event_name: Literal["SubagentStop"]
    stop_hook_active: bool
    agent_id: str
    agent_transcript_path: str
    agent_type: str
    last_assistant_message: NotRequired[str]
    background_tasks: NotRequired[list[BackgroundTaskSummary]]
    session_crons: NotRequired[list[SessionCronSummary]]


class PreCompactHookInput(BaseHookInput):
    """The conversation is about to be shortened."""

    hook_event_name: Literal["PreCompact"]
    trigger: Literal["manual", "auto"]
    custom_instructions: str | None


class NotificationHookInput(BaseHookInput):
    """The CLI has a notification for its user."""

    hook_event_name: Literal["Notification"]
    message: str
    title: NotRequired[str]
    notification_type: str


class SubagentStartHookInput(BaseHookInput):
    """A sub-agent starts."""

    hook_event_name: Literal["SubagentStart"]
    agent_id: str
    agent_type: str


class PermissionRequestHookInput(_ToolHookInput):
    """The user is about to be asked whether a tool may be used."""

    hook_event_name: Literal["PermissionRequest"]
    permission_suggestions: NotRequired[list[Any]]


HookInput: TypeAlias = (
    PreToolUseHookInput
    | PostToolUseHookInput
    | PostToolUseFailureHookInput
    | UserPromptSubmitHookInput
    | StopHookInput
    | SubagentStopHookInput
    | PreCompactHookInput
    | NotificationHookInput
    | SubagentStartHookInput
    | PermissionRequestHookInput
)
