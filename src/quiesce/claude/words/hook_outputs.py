"""What a hook may return: a dict, with a part that differs by event; `hookEventName` names the event.

No `from __future__ import annotations` here: a TypedDict needs real annotations to know which of its keys are
required.
"""

from typing import Any, Literal, NotRequired, TypeAlias, TypedDict


class _WithContext(TypedDict):
    additionalContext: NotRequired[str]


class PreToolUseHookSpecificOutput(_WithContext):
    """Whether a tool may be used, and with which input."""

    hookEventName: Literal["PreToolUse"]
    permissionDecision: NotRequired[Literal["allow", "deny", "ask", "defer"]]
    permissionDecisionReason: NotRequired[str]
    updatedInput: NotRequired[dict[str, Any]]


class PostToolUseHookSpecificOutput(_WithContext):
    """Another output for the model. `updatedMCPToolOutput` is an older name, for MCP tools only."""

    hookEventName: Literal["PostToolUse"]
    updatedToolOutput: NotRequired[Any]
    updatedMCPToolOutput: NotRequired[Any]


class PostToolUseFailureHookSpecificOutput(_WithContext):
    """Additional context about a failure, for the model."""

    hookEventName: Literal["PostToolUseFailure"]


class UserPromptSubmitHookSpecificOutput(_WithContext):
    """Additional context for a prompt; or, if it is blocked, whether the message about that repeats it."""

    hookEventName: Literal["UserPromptSubmit"]
    sessionTitle: NotRequired[str]
    suppressOriginalPrompt: NotRequired[bool]


class UserPromptExpansionHookSpecificOutput(_WithContext):
    """As for `UserPromptSubmit`, for a prompt that a command expands to."""

    hookEventName: Literal["UserPromptExpansion"]
    suppressOriginalPrompt: NotRequired[bool]


class SessionStartHookSpecificOutput(_WithContext):
    """What a session begins with."""

    hookEventName: Literal["SessionStart"]
    initialUserMessage: NotRequired[str]
    sessionTitle: NotRequired[str]
    watchPaths: NotRequired[list[str]]
    reloadSkills: NotRequired[bool]


class NotificationHookSpecificOutput(_WithContext):
    """Additional context for a notification."""

    hookEventName: Literal["Notification"]


class SubagentStartHookSpecificOutput(_WithContext):
    """Additional context for a sub-agent that starts."""

    hookEventName: Literal["SubagentStart"]


class PermissionRequestHookSpecificOutput(TypedDict):
    """The decision, so that the user is not asked."""

    hookEventName: Literal["PermissionRequest"]
    decision: dict[str, Any]


class PostToolBatchHookSpecificOutput(_WithContext):
    """Additional context after a batch of tools."""

    hookEventName: Literal["PostToolBatch"]


class StopHookSpecificOutput(_WithContext):
    """Additional context for the agent, which then goes on."""

    hookEventName: Literal["Stop"]


class SubagentStopHookSpecificOutput(_WithContext):
    """Additional context for the sub-agent, which then goes on."""

    hookEventName: Literal["SubagentStop"]


class PermissionDeniedHookSpecificOutput(TypedDict):
    """Whether the model may try again."""

    hookEventName: Literal["PermissionDenied"]
    retry: NotRequired[bool]


class PreModelSwitchHookSpecificOutput(TypedDict):
    """Whether another model may take over."""

    hookEventName: Literal["PreModelSwitch"]
    permissionDecision: NotRequired[Literal["allow", "deny", "ask"]]
    permissionDecisionReason: NotRequired[str]


class PostModelSwitchHookSpecificOutput(_WithContext):
    """Additional context for the model that took over."""

    hookEventName: Literal["PostModelSwitch"]


class ElicitationHookSpecificOutput(TypedDict):
    """The answer to a question of an MCP server."""

    hookEventName: Literal["Elicitation"]
    action: NotRequired[Literal["accept", "decline", "cancel"]]
    content: NotRequired[dict[str, Any]]


class ElicitationResultHookSpecificOutput(TypedDict):
    """Another answer than the user's."""

    hookEventName: Literal["ElicitationResult"]
    action: NotRequired[Literal["accept", "decline", "cancel"]]
    content: NotRequired[dict[str, Any]]


class CwdChangedHookSpecificOutput(TypedDict):
    """The files to watch from now on."""

    hookEventName: Literal["CwdChanged"]
    watchPaths: NotRequired[list[str]]


class FileChangedHookSpecificOutput(TypedDict):
    """The files to watch from now on."""

    hookEventName: Literal["FileChanged"]
    watchPaths: NotRequired[list[str]]


class WorktreeCreateHookSpecificOutput(TypedDict):
    """Where the worktree was made."""

    hookEventName: Literal["WorktreeCreate"]
    worktreePath: str


class MessageDisplayHookSpecificOutput(TypedDict):
    """What to show instead of a message; the message itself does not change."""

    hookEventName: Literal["MessageDisplay"]
    displayContent: NotRequired[str]


HookSpecificOutput: TypeAlias = (
    PreToolUseHookSpecificOutput
    | PostToolUseHookSpecificOutput
    | PostToolUseFailureHookSpecificOutput
    | UserPromptSubmitHookSpecificOutput
    | SessionStartHookSpecificOutput
    | NotificationHookSpecificOutput
    | SubagentStartHookSpecificOutput
    | PermissionRequestHookSpecificOutput
    | UserPromptExpansionHookSpecificOutput
    | PostToolBatchHookSpecificOutput
    | StopHookSpecificOutput
    | SubagentStopHookSpecificOutput
    | PermissionDeniedHookSpecificOutput
    | PreModelSwitchHookSpecificOutput
    | PostModelSwitchHookSpecificOutput
    | ElicitationHookSpecificOutput
    | ElicitationResultHookSpecificOutput
    | CwdChangedHookSpecificOutput
    | FileChangedHookSpecificOutput
    | WorktreeCreateHookSpecificOutput
    | MessageDisplayHookSpecificOutput
)


class AsyncHookJSONOutput(TypedDict):
    """The hook answers later. `async_` is sent as `async`, which is a keyword of Python."""

    async_: Literal[True]
    asyncTimeout: NotRequired[int]


class SyncHookJSONOutput(TypedDict):
    """What a hook decides. `continue_` is sent as `continue`, which is a keyword of Python."""

    continue_: NotRequired[bool]
    suppressOutput: NotRequired[bool]
    stopReason: NotRequired[str]
    decision: NotRequired[Literal["block"]]
    systemMessage: NotRequired[str]
    reason: NotRequired[str]
    hookSpecificOutput: NotRequired[HookSpecificOutput]


HookJSONOutput: TypeAlias = AsyncHookJSONOutput | SyncHookJSONOutput
