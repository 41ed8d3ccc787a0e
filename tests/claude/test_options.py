"""What cannot be meant is refused, and what users' callbacks say goes to the CLI as it reads it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from quiesce.claude import (
    CanUseToolShadowedWarning,
    ClaudeAgentOptions,
    PermissionResultAllow,
    PermissionResultDeny,
    PermissionRuleValue,
    PermissionUpdate,
)
from quiesce.claude.words.hooks import hook_answer
from quiesce.claude.words.options import check_options
from quiesce.claude.words.permissions import permission_answer, permission_context


async def allow(name: str, given: dict[str, Any], context: Any) -> Any: ...


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"allowed_tools": ["Read"]}, "Read"),
        ({"allowed_tools": ["Read", "Bash(*)", "Read()", "Write(x)"]}, "Read, Bash:"),
        ({"permission_mode": "bypassPermissions"}, "bypassPermissions"),
        ({"skills": "all"}, "Skill"),
    ],
)
def test_a_callback_that_will_not_be_asked_is_warned_of(options: dict[str, Any], named: str) -> None:
    with pytest.warns(CanUseToolShadowedWarning, match=named):
        check_options(ClaudeAgentOptions(can_use_tool=allow, **options))
    check_options(ClaudeAgentOptions(**options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"allowed_tools": ["Bash(ls:*)", " ", "(x)", "Read(", "Read(*"]},
        {"skills": ["pdf"]},
        {"permission_mode": "plan"},
    ],
    ids=str,
)
def test_a_callback_that_may_be_asked_is_not_warned_of(options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_options(ClaudeAgentOptions(can_use_tool=allow, **options))


def test_only_one_can_be_asked() -> None:
    with pytest.raises(ValueError, match="only one"):
        check_options(ClaudeAgentOptions(can_use_tool=allow, permission_prompt_tool_name="mcp__ask__me"))


def test_a_session_store_is_refused() -> None:
    store: Any = object()
    with pytest.raises(NotImplementedError, match="session_store"):
        check_options(ClaudeAgentOptions(session_store=store))


RULES = [PermissionRuleValue("Bash", "ls:*"), PermissionRuleValue("Read")]
WIRE_RULES = [{"toolName": "Bash", "ruleContent": "ls:*"}, {"toolName": "Read", "ruleContent": None}]


@pytest.mark.parametrize(
    ("update", "wire"),
    [
        (
            PermissionUpdate("addRules", RULES, "allow", destination="session"),
            {"type": "addRules", "destination": "session", "rules": WIRE_RULES, "behavior": "allow"},
        ),
        (PermissionUpdate("removeRules"), {"type": "removeRules"}),
        (PermissionUpdate("setMode", mode="plan"), {"type": "setMode", "mode": "plan"}),
        (
            PermissionUpdate("addDirectories", directories=["/a"]),
            {"type": "addDirectories", "directories": ["/a"]},
        ),
        (PermissionUpdate("removeDirectories"), {"type": "removeDirectories"}),
    ],
    ids=lambda value: value.type if isinstance(value, PermissionUpdate) else "",
)
def test_a_change_of_rules_goes_to_the_cli_and_back(update: PermissionUpdate, wire: dict[str, Any]) -> None:
    assert update.to_dict() == wire
    assert PermissionUpdate.from_dict(wire) == update


def test_a_change_of_rules_says_only_what_belongs_to_it() -> None:
    assert PermissionUpdate("setMode", RULES, "deny", "plan", ["/a"]).to_dict() == {
        "type": "setMode",
        "mode": "plan",
    }


def test_a_yes_keeps_the_input_unless_there_is_another() -> None:
    asked = {"command": "ls"}
    update = PermissionUpdate("setMode", mode="plan")
    assert permission_answer(PermissionResultAllow(), asked) == {"behavior": "allow", "updatedInput": asked}
    assert permission_answer(
        PermissionResultAllow(updated_input={}, updated_permissions=[update]), asked
    ) == {
        "behavior": "allow",
        "updatedInput": {},
        "updatedPermissions": [{"type": "setMode", "mode": "plan"}],
    }


def test_a_no_says_why_and_may_end_the_turn() -> None:
    assert permission_answer(PermissionResultDeny(message="no"), {}) == {"behavior": "deny", "message": "no"}
    assert permission_answer(PermissionResultDeny(interrupt=True), {}) == {
        "behavior": "deny",
        "message": "",
        "interrupt": True,
    }


@pytest.mark.parametrize("result", [None, True, {"behavior": "allow"}], ids=str)
def test_an_answer_that_is_neither_yes_nor_no_is_an_error(result: Any) -> None:
    with pytest.raises(TypeError, match=type(result).__name__):
        permission_answer(result, {})


def test_a_callback_is_told_what_the_cli_asks() -> None:
    request = {
        "subtype": "can_use_tool",
        "tool_name": "Bash",
        "input": {},
        "permission_suggestions": [{"type": "addRules", "rules": WIRE_RULES, "behavior": "allow"}],
        "blocked_path": "/x",
        "tool_use_id": "t",
        "agent_id": "a",
        "decision_reason": "r",
        "title": "T",
        "display_name": "N",
        "description": "D",
    }
    told = permission_context(request, "signal")
    assert told.suggestions == [PermissionUpdate("addRules", RULES, "allow")]
    assert (told.signal, told.tool_use_id, told.agent_id, told.blocked_path) == ("signal", "t", "a", "/x")
    assert (told.decision_reason, told.title, told.display_name, told.description) == ("r", "T", "N", "D")
    assert permission_context({"permission_suggestions": None}).suggestions == []


def test_a_hook_says_keywords_with_an_underscore() -> None:
    output = {"continue_": False, "stopReason": "x", "hookSpecificOutput": {"async_": 1}}
    assert hook_answer(output) == {"continue": False, "stopReason": "x", "hookSpecificOutput": {"async_": 1}}
    assert hook_answer({"async_": True, "asyncTimeout": 5}) == {"async": True, "asyncTimeout": 5}
    assert hook_answer({}) == {}


@pytest.mark.parametrize("output", [None, True, []], ids=str)
def test_a_hook_that_returns_no_dict_has_failed(output: Any) -> None:
    with pytest.raises(TypeError, match=f"a hook must return a dict.*{type(output).__name__}"):
        hook_answer(output)
