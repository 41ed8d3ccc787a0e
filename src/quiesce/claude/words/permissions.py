"""Permissions for tools: rules, the CLI's question (`can_use_tool`), and its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias

PermissionMode: TypeAlias = Literal["default", "acceptEdits", "plan", "bypassPermissions", "dontAsk", "auto"]
PermissionBehavior: TypeAlias = Literal["allow", "deny", "ask"]
PermissionUpdateDestination: TypeAlias = Literal[
    "userSettings", "projectSettings", "localSettings", "session"
]


@dataclass
class PermissionRuleValue:
    """A rule about a tool; `rule_content` narrows it to some of its calls."""

    tool_name: str
    rule_content: str | None = None


@dataclass
class PermissionUpdate:
    """A change of the rules; which fields count depends on `type`."""

    type: Literal["addRules", "replaceRules", "removeRules", "setMode", "addDirectories", "removeDirectories"]
    rules: list[PermissionRuleValue] | None = None
    behavior: PermissionBehavior | None = None
    mode: PermissionMode | None = None
    directories: list[str] | None = None
    destination: PermissionUpdateDestination | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as the CLI reads it, without the fields that its type does not use."""
        wire: dict[str, Any] = {"type": self.type}
        if self.destination is not None:
            wire["destination"] = self.destination
        if self.type in ("addRules", "replaceRules", "removeRules"):
            if self.rules is not None:
                wire["rules"] = [
                    {"toolName": rule.tool_name, "ruleContent": rule.rule_content} for rule in self.rules
                ]
            if self.behavior is not None:
                wire["behavior"] = self.behavior
        elif self.type == "setMode":
            if self.mode is not None:
                wire["mode"] = self.mode
        elif self.type in ("addDirectories", "removeDirectories") and self.directories is not None:
            wire["directories"] = self.directories
        return wire

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Make one from what the CLI writes."""
        rules = data.get("rules")
        if rules is not None:
            rules = [PermissionRuleValue(rule["toolName"], rule.get("ruleContent")) for rule in rules]
        return cls(
            data["type"],
            rules,
            data.get("behavior"),
            data.get("mode"),
            data.get("directories"),
            data.get("destination"),
        )


@dataclass
class ToolPermissionContext:
    """The circumstances of a question. `tool_use_id` is always set when your callback is called."""

    signal: Any | None = None
    suggestions: list[PermissionUpdate] = field(default_factory=list)
    tool_use_id: str | None = None
    agent_id: str | None = None
    blocked_path: str | None = None
    decision_reason: str | None = None
    title: str | None = None
    display_name: str | None = None
    description: str | None = None


@dataclass
class PermissionResultAllow:
    """Allow the call, optionally with another input or with new rules."""

    behavior: Literal["allow"] = "allow"
    updated_input: dict[str, Any] | None = None
    updated_permissions: list[PermissionUpdate] | None = None


@dataclass
class PermissionResultDeny:
    """Deny the call, with a reason; `interrupt` also ends the turn."""

    behavior: Literal["deny"] = "deny"
    message: str = ""
    interrupt: bool = False


PermissionResult: TypeAlias = PermissionResultAllow | PermissionResultDeny
CanUseTool: TypeAlias = Callable[[str, dict[str, Any], ToolPermissionContext], Awaitable[PermissionResult]]


class CanUseToolShadowedWarning(UserWarning):
    """`can_use_tool` will not be asked about some tools, because other options allow them already."""


def permission_context(request: dict[str, Any], signal: Any | None = None) -> ToolPermissionContext:
    """Return the context of a `can_use_tool` request."""
    return ToolPermissionContext(
        signal,
        [PermissionUpdate.from_dict(one) for one in request.get("permission_suggestions") or ()],
        request.get("tool_use_id"),
        request.get("agent_id"),
        request.get("blocked_path"),
        request.get("decision_reason"),
        request.get("title"),
        request.get("display_name"),
        request.get("description"),
    )


def permission_answer(result: PermissionResult, asked_input: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a `can_use_tool` callback as the CLI reads it.

    An allowed call keeps its input unless the result has another one.
    """
    answer: dict[str, Any]
    if isinstance(result, PermissionResultAllow):
        changed = result.updated_input
        answer = {"behavior": "allow", "updatedInput": asked_input if changed is None else changed}
        if result.updated_permissions is not None:
            answer["updatedPermissions"] = [update.to_dict() for update in result.updated_permissions]
    elif isinstance(result, PermissionResultDeny):
        answer = {"behavior": "deny", "message": result.message}
        if result.interrupt:
            answer["interrupt"] = result.interrupt
    else:
        raise TypeError(
            "can_use_tool must return a PermissionResultAllow or a PermissionResultDeny, "
            f"not {type(result).__name__}"
        )
    return answer


def shadowed_by(mode: PermissionMode | None, allowed_tools: list[str]) -> str | None:
    """Return why `can_use_tool` will not be asked about each call of some tool; None if it will be.

    Rules in the user's settings are not known here.
    """
    if mode == "bypassPermissions":
        return (
            "can_use_tool will not be asked: permission_mode 'bypassPermissions' allows every call before it. "
            "To judge every call, use a PreToolUse hook"
        )
    # Each tool once, in the order given: "Read" and "Read(*)" mean the same.
    whole = dict.fromkeys(tool for entry in allowed_tools if (tool := _whole_tool(entry)))
    if not whole:
        return None
    return (
        f"can_use_tool will not be asked about {', '.join(whole)}: an entry of allowed_tools allows each call. "
        "To judge every call, use a PreToolUse hook, or narrow the entry, as in 'Bash(ls:*)'"
    )


def _whole_tool(entry: str) -> str | None:
    """Return the tool that an entry allows without conditions: `Read`, `Read()` or `Read(*)`.

    The CLI takes a malformed entry for the name of a tool that does not exist.
    """
    name, bracket, rest = entry.partition("(")
    if not bracket:
        return entry if entry.strip() else None
    return name if name and rest in (")", "*)") else None
