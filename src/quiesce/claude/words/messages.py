"""The messages that a CLI sends and that users read.

These are plain dataclasses. Their fields have the same order as in claude-agent-sdk, so that they can be
matched by position. Subclasses of `SystemMessage` begin with its fields: `subtype`, and `data`, which is the
whole message.
"""

from dataclasses import dataclass, field
from typing import Any, Final, Literal, NotRequired, Required, TypeAlias, TypedDict

from .blocks import ContentBlock
from .session_store import SessionKey

AssistantMessageError: TypeAlias = Literal[
    "authentication_failed", "billing_error", "rate_limit", "invalid_request", "server_error", "unknown"
]
MessageOriginKind: TypeAlias = Literal[
    "human",
    "channel",
    "peer",
    "task-notification",
    "coordinator",
    "unclassified",
    "observer",
    "auto-continuation",
    "observer-activity",
]
TaskNotificationOriginSubkind: TypeAlias = Literal["scheduled-trigger", "peer-send-message"]
TaskNotificationStatus: TypeAlias = Literal["completed", "failed", "stopped"]
TaskUpdatedStatus: TypeAlias = Literal["pending", "running", "paused", "completed", "failed", "killed"]
RateLimitStatus: TypeAlias = Literal["allowed", "allowed_warning", "rejected"]
RateLimitType: TypeAlias = Literal["five_hour", "seven_day", "seven_day_opus", "seven_day_sonnet", "overage"]

TERMINAL_TASK_STATUSES: Final[frozenset[str]] = frozenset({"completed", "failed", "stopped", "killed"})
"""A task with one of these has ended. Notifications say `stopped` where updates say `killed`."""

# Not a class, as `from` is a keyword.
MessageOrigin = TypedDict(
    "MessageOrigin",
    {
        "kind": Required[MessageOriginKind],
        "server": str,  # of a channel: its MCP server
        "from": str,  # of a peer or an observer: the sender, unverified
        "name": str,
        "fromSession": str,
        "senderTaskId": str,
        "body": str,
        "verifiedPeerPid": int,
        "subkind": TaskNotificationOriginSubkind,  # of a task notification
    },
    total=False,
)
"""Where a message comes from: a session may also take turns that its program did not ask for.

None means that the CLI did not say, as for your own prompts.
"""


@dataclass
class UserMessage:
    """Something sent to the model: a prompt, or results of tools."""

    content: str | list[ContentBlock]
    uuid: str | None = None
    parent_tool_use_id: str | None = None
    tool_use_result: dict[str, Any] | None = None
    origin: MessageOrigin | None = None


@dataclass
class AssistantMessage:
    """What the model said."""

    content: list[ContentBlock]
    model: str
    parent_tool_use_id: str | None = None
    error: AssistantMessageError | None = None
    usage: dict[str, Any] | None = None
    message_id: str | None = None
    stop_reason: str | None = None
    session_id: str | None = None
    uuid: str | None = None


@dataclass
class SystemMessage:
    """An event of the session. With the subtype `init`, `data` is a `SystemInitData`."""

    subtype: str
    data: dict[str, Any]


class TaskUsage(TypedDict):
    """What a background task has used."""

    total_tokens: int
    tool_uses: int
    duration_ms: int


@dataclass
class TaskStartedMessage(SystemMessage):
    """A background task has started."""

    task_id: str
    description: str
    uuid: str
    session_id: str
    tool_use_id: str | None = None
    task_type: str | None = None


@dataclass
class TaskProgressMessage(SystemMessage):
    """Progress of a background task."""

    task_id: str
    description: str
    usage: TaskUsage
    uuid: str
    session_id: str
    tool_use_id: str | None = None
    last_tool_name: str | None = None


@dataclass
class TaskNotificationMessage(SystemMessage):
    """A background task has ended. Some tasks have no such message: see `TaskUpdatedMessage`."""

    task_id: str
    status: TaskNotificationStatus
    output_file: str
    summary: str
    uuid: str
    session_id: str
    tool_use_id: str | None = None
    usage: TaskUsage | None = None


@dataclass
class TaskUpdatedMessage(SystemMessage):
    """A background task has changed: `patch` says what.

    This may be the only message about the end of a task (`TERMINAL_TASK_STATUSES`).
    """

    task_id: str
    patch: dict[str, Any]
    status: TaskUpdatedStatus | None = None
    session_id: str | None = None
    uuid: str | None = None


@dataclass
class HookEventMessage(SystemMessage):
    """A hook has started (`hook_started`) or ended (`hook_response`); sent with `include_hook_events`."""

    hook_event_name: str = ""
    session_id: str | None = None
    uuid: str | None = None


@dataclass
class MirrorErrorMessage(SystemMessage):
    """A session store rejected a part of the transcript."""

    key: SessionKey | None = None
    error: str = ""


@dataclass
class DeferredToolUse:
    """A tool call that a hook deferred (`"permissionDecision": "defer"`)."""

    id: str
    name: str
    input: dict[str, Any]


class ModelUsage(TypedDict):
    """What one model has used, as the CLI reports it."""

    inputTokens: int
    outputTokens: int
    cacheReadInputTokens: int
    cacheCreationInputTokens: int
    webSearchRequests: int
    costUSD: float
    contextWindow: int
    maxOutputTokens: int
    canonicalModel: NotRequired[str]
    provider: NotRequired[str]


@dataclass
class ResultMessage:
    """The end of a turn: its outcome and its cost."""

    subtype: str
    duration_ms: int
    duration_api_ms: int
    is_error: bool
    num_turns: int
    session_id: str
    stop_reason: str | None = None
    total_cost_usd: float | None = None
    usage: dict[str, Any] | None = None
    result: str | None = None
    structured_output: Any = None
    model_usage: dict[str, ModelUsage] | None = None
    permission_denials: list[Any] | None = None
    deferred_tool_use: DeferredToolUse | None = None
    errors: list[str] | None = None
    api_error_status: int | None = None
    uuid: str | None = None
    terminal_reason: str | None = None
    origin: MessageOrigin | None = None


@dataclass
class StreamEvent:
    """An event of the API's stream, unchanged; sent if `include_partial_messages` is set."""

    uuid: str
    session_id: str
    event: dict[str, Any]
    parent_tool_use_id: str | None = None


@dataclass
class RateLimitInfo:
    """How close the account is to a limit. `raw` has everything that the CLI reported."""

    status: RateLimitStatus
    resets_at: int | None = None
    rate_limit_type: RateLimitType | None = None
    utilization: float | None = None
    overage_status: RateLimitStatus | None = None
    overage_resets_at: int | None = None
    overage_disabled_reason: str | None = None
    raw: dict[str, Any] = field(default_factory=dict)


@dataclass
class RateLimitEvent:
    """The state of a rate limit has changed."""

    rate_limit_info: RateLimitInfo
    uuid: str
    session_id: str


@dataclass
class ConversationResetMessage:
    """The conversation was replaced by a new one, as by `/clear`, and running totals start again.

    `session_id` is that of the old conversation.
    """

    new_conversation_id: str
    uuid: str
    session_id: str


Message: TypeAlias = (
    UserMessage
    | AssistantMessage
    | SystemMessage
    | ResultMessage
    | StreamEvent
    | RateLimitEvent
    | ConversationResetMessage
)
