"""From a decoded line of the CLI to the message that a user reads.

This runs for every message. So the kind is found by one look in a table, and required fields are simply read,
with one handler for every `KeyError`. Unknown kinds, and those between the CLI and this package, give None: a
newer CLI must not break an older program. Contents are passed on, not copied. Unknown fields stay available
in `data`, `raw` or the dicts of the API.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from .blocks import (
    ContentBlock,
    ServerToolResultBlock,
    ServerToolUseBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from .errors import MessageParseError
from .messages import (
    AssistantMessage,
    ConversationResetMessage,
    DeferredToolUse,
    HookEventMessage,
    Message,
    MessageOrigin,
    MirrorErrorMessage,
    RateLimitEvent,
    RateLimitInfo,
    ResultMessage,
    StreamEvent,
    SystemMessage,
    TaskNotificationMessage,
    TaskProgressMessage,
    TaskStartedMessage,
    TaskUpdatedMessage,
    UserMessage,
)


def parse_message(data: dict[str, Any]) -> Message | None:
    """Return the message, or None if it is of a kind that is not for users.

    Raises `MessageParseError` for a known kind that lacks a required field.
    """
    try:
        parse = _KINDS.get(data["type"])
        if parse is not None:
            return parse(data)
        if not data["type"]:
            raise MessageParseError("Message missing 'type' field", data)
        return None
    except KeyError as missing:
        kind = data.get("type")
        where = (
            f"Missing required field in {kind} message: {missing}" if kind else "Message missing 'type' field"
        )
        raise MessageParseError(where, data) from missing
    except (AttributeError, TypeError) as error:
        if not isinstance(data, dict):
            raise MessageParseError(
                f"Invalid message data type (expected dict, got {type(data).__name__})", data
            ) from None
        raise MessageParseError(f"Invalid {data.get('type')} message: {error}", data) from error


def _text(block: dict[str, Any]) -> ContentBlock:
    return TextBlock(block["text"])


def _thinking(block: dict[str, Any]) -> ContentBlock:
    return ThinkingBlock(block["thinking"], block["signature"])


def _tool_use(block: dict[str, Any]) -> ContentBlock:
    return ToolUseBlock(block["id"], block["name"], block["input"])


def _tool_result(block: dict[str, Any]) -> ContentBlock:
    return ToolResultBlock(block["tool_use_id"], block.get("content"), block.get("is_error"))


def _server_tool_use(block: dict[str, Any]) -> ContentBlock:
    return ServerToolUseBlock(block["id"], block["name"], block["input"])


def _server_tool_result(block: dict[str, Any]) -> ContentBlock:
    return ServerToolResultBlock(block["tool_use_id"], block["content"])


_Blocks = dict[str, Callable[[dict[str, Any]], ContentBlock]]
# Not every kind may occur in both roles: the SDK ignores thinking in a user message, and so do we.
_USER_BLOCKS: _Blocks = {"text": _text, "tool_use": _tool_use, "tool_result": _tool_result}
_ASSISTANT_BLOCKS: _Blocks = {
    **_USER_BLOCKS,
    "thinking": _thinking,
    "server_tool_use": _server_tool_use,
    "advisor_tool_result": _server_tool_result,
}


def _blocks(content: list[Any], kinds: _Blocks, data: dict[str, Any]) -> list[ContentBlock]:
    found: list[ContentBlock] = []
    for block in content:
        if not isinstance(block, dict):
            raise MessageParseError(
                f"Invalid content block (expected dict, got {type(block).__name__})", data
            )
        # Unknown kinds of blocks are skipped, like unknown messages.
        parse = kinds.get(block["type"])
        if parse is not None:
            found.append(parse(block))
    return found


def _origin(data: dict[str, Any]) -> MessageOrigin | None:
    origin = data.get("origin")
    if isinstance(origin, dict) and isinstance(origin.get("kind"), str):
        return cast(MessageOrigin, origin)
    return None


def _user(data: dict[str, Any]) -> Message:
    content = data["message"]["content"]
    return UserMessage(
        _blocks(content, _USER_BLOCKS, data) if isinstance(content, list) else content,
        data.get("uuid"),
        data.get("parent_tool_use_id"),
        data.get("tool_use_result"),
        _origin(data),
    )


def _assistant(data: dict[str, Any]) -> Message:
    message = data["message"]
    content = message["content"]
    if not isinstance(content, list):
        raise MessageParseError(
            f"Invalid assistant content (expected list, got {type(content).__name__})", data
        )
    return AssistantMessage(
        _blocks(content, _ASSISTANT_BLOCKS, data),
        message["model"],
        data.get("parent_tool_use_id"),
        data.get("error"),
        message.get("usage"),
        message.get("id"),
        message.get("stop_reason"),
        data.get("session_id"),
        data.get("uuid"),
    )


def _system(data: dict[str, Any]) -> Message | None:
    subtype = data["subtype"]
    parse = _SUBTYPES.get(subtype)
    return parse(data) if parse is not None else SystemMessage(subtype, data)


def _task_started(data: dict[str, Any]) -> Message:
    return TaskStartedMessage(
        data["subtype"],
        data,
        data["task_id"],
        data["description"],
        data["uuid"],
        data["session_id"],
        data.get("tool_use_id"),
        data.get("task_type"),
    )


def _task_progress(data: dict[str, Any]) -> Message:
    return TaskProgressMessage(
        data["subtype"],
        data,
        data["task_id"],
        data["description"],
        data["usage"],
        data["uuid"],
        data["session_id"],
        data.get("tool_use_id"),
        data.get("last_tool_name"),
    )


def _task_notification(data: dict[str, Any]) -> Message:
    return TaskNotificationMessage(
        data["subtype"],
        data,
        data["task_id"],
        data["status"],
        data["output_file"],
        data["summary"],
        data["uuid"],
        data["session_id"],
        data.get("tool_use_id"),
        data.get("usage"),
    )


def _task_updated(data: dict[str, Any]) -> Message:
    # This may be the only message about the end of a task, so no field is required.
    patch = data.get("patch")
    if not isinstance(patch, dict):
        patch = {}
    return TaskUpdatedMessage(
        data["subtype"],
        data,
        data.get("task_id", ""),
        patch,
        patch.get("status"),
        data.get("session_id"),
        data.get("uuid"),
    )


def _hook_event(data: dict[str, Any]) -> Message:
    event = data.get("hook_event") or data.get("hook_name") or data.get("hook_event_name") or ""
    return HookEventMessage(data["subtype"], data, event, data.get("session_id"), data.get("uuid"))


def _mirror_error(data: dict[str, Any]) -> Message:
    return MirrorErrorMessage(data["subtype"], data, data.get("key"), data.get("error", ""))


def _session_state(data: dict[str, Any]) -> Message | None:
    # The mark means that this package asked for these messages (`_STATE_FRAMES`), not the user.
    return None if data.get("sdk_host_only") else SystemMessage(data["subtype"], data)


def _result(data: dict[str, Any]) -> Message:
    deferred = data.get("deferred_tool_use")
    return ResultMessage(
        data["subtype"],
        data["duration_ms"],
        data["duration_api_ms"],
        data["is_error"],
        data["num_turns"],
        data["session_id"],
        data.get("stop_reason"),
        data.get("total_cost_usd"),
        data.get("usage"),
        data.get("result"),
        data.get("structured_output"),
        data.get("modelUsage"),
        data.get("permission_denials"),
        DeferredToolUse(deferred["id"], deferred["name"], deferred["input"]) if deferred else None,
        data.get("errors"),
        data.get("api_error_status"),
        data.get("uuid"),
        data.get("terminal_reason"),
        _origin(data),
    )


def _stream_event(data: dict[str, Any]) -> Message:
    return StreamEvent(data["uuid"], data["session_id"], data["event"], data.get("parent_tool_use_id"))


def _rate_limit_event(data: dict[str, Any]) -> Message:
    info = data["rate_limit_info"]
    limit = RateLimitInfo(
        info["status"],
        info.get("resetsAt"),
        info.get("rateLimitType"),
        info.get("utilization"),
        info.get("overageStatus"),
        info.get("overageResetsAt"),
        info.get("overageDisabledReason"),
        info,
    )
    return RateLimitEvent(limit, data["uuid"], data["session_id"])


def _conversation_reset(data: dict[str, Any]) -> Message:
    return ConversationResetMessage(data["new_conversation_id"], data["uuid"], data["session_id"])


_Kinds = dict[str, Callable[[dict[str, Any]], Message | None]]
_KINDS: _Kinds = {
    "user": _user,
    "assistant": _assistant,
    "system": _system,
    "result": _result,
    "stream_event": _stream_event,
    "rate_limit_event": _rate_limit_event,
    "conversation_reset": _conversation_reset,
}
_SUBTYPES: _Kinds = {
    "task_started": _task_started,
    "task_progress": _task_progress,
    "task_notification": _task_notification,
    "task_updated": _task_updated,
    "hook_started": _hook_event,
    "hook_response": _hook_event,
    "mirror_error": _mirror_error,
    "session_state_changed": _session_state,
}
