"""The first request to a CLI: options for which it has no flags, and the check of its answer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from quiesce.claude.words import ClaudeAgentOptions, CLIConnectionError, HookCallback, hooks_on_the_wire


def initialize_request(options: ClaudeAgentOptions) -> tuple[dict[str, Any], dict[str, HookCallback]]:
    """Return the request, and the hooks by the callback ids in it."""
    hooks, callbacks = hooks_on_the_wire(options.hooks)
    request: dict[str, Any] = {"subtype": "initialize", "hooks": hooks}
    if options.agents:
        request["agents"] = {
            name: {key: value for key, value in asdict(agent).items() if value is not None}
            for name, agent in options.agents.items()
        }
    prompt: Any = options.system_prompt
    if isinstance(prompt, dict):
        kind, exclude, snapshot = (
            prompt.get(key) for key in ("type", "exclude_dynamic_sections", "snapshot")
        )
        if kind == "preset" and isinstance(exclude, bool):
            request["excludeDynamicSections"] = exclude
        if kind in ("preset", "custom") and isinstance(snapshot, bool):
            request["systemPromptSnapshot"] = snapshot
    if isinstance(options.skills, list):  # without the field, the CLI takes all
        request["skills"] = options.skills
    if options.forward_subagent_text:
        request["forwardSubagentText"] = True
    return request, callbacks


def check_initialized(request: dict[str, Any], response: dict[str, Any]) -> None:
    """Refuse a CLI that does not block when a hook with `on_failure="block"` fails."""
    matchers = (matcher for event in (request["hooks"] or {}).values() for matcher in event)
    if all(matcher.get("onFailure", "continue") == "continue" for matcher in matchers):
        return
    if not response.get("hook_on_failure_supported"):
        raise CLIConnectionError(
            'a hook has on_failure="block", which this CLI does not know: if the hook failed, nothing would be '
            "blocked. Update Claude Code, or remove on_failure from the hook"
        )
    if response.get("hooks_applied") is False:
        raise CLIConnectionError(
            'a hook has on_failure="block", but this session was running already and did not take the hooks. '
            "Start a new session, or remove on_failure from the hook"
        )
